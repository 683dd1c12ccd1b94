// SPDX-License-Identifier: Apache-2.0
// What the options of a compilation may say, whoever asks for it: agpcs-compile or the Python
// package.
#pragma once

#include "tools/compile_pipeline.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

const std::vector<std::string>& loss_words();
const std::vector<std::string>& precision_words();
const std::vector<std::string>& wire_type_words();
const std::vector<std::string>& all_reduce_words();

/// kUsage, with the nearest word as a hint, where `word` is none of `choices`.
Status check_word(const std::string& word, std::string_view noun, std::string_view plural,
                  const std::vector<std::string>& choices);

/// kUsage: a layout is given, and `option`, which then changes nothing.
Status layout_and(std::string_view option);

/// Whether the options can be read and go together; kUsage says which not. Files are not opened.
Status check_compile_options(const CompileOptions& options);

}  // namespace agpcs
