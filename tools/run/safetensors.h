// SPDX-License-Identifier: Apache-2.0
// Writes what training has learned to one file in the safetensors format: the length of the header
// in 8 bytes, the header in JSON, then the tensors without gaps.
#pragma once

#include "ir/graph/graph.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {

/// Tells whether `path` ends in ".safetensors".
bool is_safetensors(std::string_view path);

/// Checks that `save_safetensors` can write to `path`, as far as possible without writing.
Status check_safetensors(const std::string& path);

/// Writes the parameters and states of the whole model to `path` on rank 0, in the types that the
/// model gives them, and the frozen weights and buffers whose values the model's file has. All
/// ranks call it, between two steps. The file is replaced as a whole: readers see either the old
/// or the new one. `step` is the next step. On failure the transport is aborted.
Status save_safetensors(const std::string& path, const Graph& graph, const Plan& plan,
                        std::int64_t step, const Executor& executor, Transport& transport,
                        std::chrono::milliseconds limit);

}  // namespace agpcs
