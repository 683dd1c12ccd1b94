// SPDX-License-Identifier: Apache-2.0
// The modules that call operators (`Op::modules`), as units of which a part is whole or absent.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/status.h>

#include <optional>
#include <string_view>
#include <vector>

namespace agpcs {

/// An element of a list of modules: "layers.3" is number 3 of "layers".
struct ListElement {
  std::string_view list;
  int number = 0;
};
std::optional<ListElement> list_element(std::string_view module);

/// Returns the outermost element of a list that an operator is of, as an index into `Op::modules`.
std::optional<std::size_t> outermost_element(const Op& op);

/// Returns, by OpId, the module that a cut leaves whole: the outermost one that has no list of
/// modules around the operators of any other: "layers.3", or "norm", but not the "decoder" that
/// "decoder.layers.3" is in. "" = the operator is of the model itself, or of such a "decoder".
/// The texts are those of `graph`. Cost: O(modules of operators x log).
std::vector<std::string_view> whole_modules(const Graph& graph);

/// Errors: no operator has modules, for the file does not say them.
Status check_modules(const Graph& graph);

}  // namespace agpcs
