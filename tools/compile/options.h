// SPDX-License-Identifier: Apache-2.0
// Checks the options of a compilation, whether they come from agpcs-compile or the Python package.
#pragma once

#include "tools/compile/pipeline.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns the words of --all-reduce: auto, and the names of the algorithms.
std::vector<std::string> all_reduce_words();

/// Returns the words of --cut-at: between which parts of the model stages may be cut.
std::vector<std::string> cut_words();

/// Returns the words of --space: which plans there are.
std::vector<std::string> space_words();

/// Returns the words of --without: dimensions of the space of plans that may be left out.
std::vector<std::string> dimension_words();

/// Checks that `word` is one of `choices`. Error: kUsage, with the nearest word as a hint.
Status check_word(const std::string& word, std::string_view noun, std::string_view plural,
                  const std::vector<std::string>& choices);

/// Returns kUsage: a layout is given together with `option`, which has no effect then.
Status layout_and(std::string_view option);

/// Checks that the options can be read and go together. Errors: kUsage. Does not open files.
Status check_compile_options(const CompileOptions& options);

}  // namespace agpcs
