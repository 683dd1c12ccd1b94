// SPDX-License-Identifier: Apache-2.0
// Which operators agpcs-run executes: the compiler, which has no executor, says so beforehand.
#pragma once

#include "ir/graph/graph.h"

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Tells whether the LibTorch executor has a kernel for the operator. Its own table of kernels
/// agrees; a test compares the two.
bool is_executed(std::string_view domain, std::string_view type);

/// An operator type that the executor does not run, and how many nodes of a graph have it.
struct NotExecuted {
  std::string type;  ///< "domain.Type" outside of ai.onnx
  int nodes = 0;
};

/// Returns what the executor would not run of `graph`, sorted by type.
std::vector<NotExecuted> not_executed(const Graph& graph);

}  // namespace agpcs
