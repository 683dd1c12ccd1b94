// SPDX-License-Identifier: Apache-2.0
// The models of `agpcs-profile --quick`: a few dozen shapes that tell groups of operators apart
// (cost_model/kernel/terms.h). Their first operator is a view, whose time is what loading takes.
#pragma once

#include <string_view>

namespace agpcs {

/// A model in ONNX's text form.
struct QuickModel {
  std::string_view file;
  std::string_view (*text)();
};

std::string_view quick_images();  ///< convolutions by algorithm, normalization, pooling
std::string_view quick_tokens();  ///< attention, normalization over rows, elementwise chains
std::string_view quick_rows();    ///< products of few rows with large matrices

inline constexpr QuickModel kQuickModels[] = {{"quick_images.onnxtxt", quick_images},
                                              {"quick_tokens.onnxtxt", quick_tokens},
                                              {"quick_rows.onnxtxt", quick_rows}};

}  // namespace agpcs
