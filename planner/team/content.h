// SPDX-License-Identifier: Apache-2.0
// StageContent: operators of a stage by what they compute, so that equal layers are recognized.
#pragma once

#include "ir/graph/graph.h"
#include "ir/team/body.h"

#include <string>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// Operators in their order, and the tensors that they read and make, numbered as they come. Stages
/// with equal keys are the same but for names: a body of one is a body of the other.
struct StageContent {
  std::vector<int> key;
  std::vector<int> signatures;    ///< by operator: equal where the signatures are
  std::vector<TensorId> tensors;  ///< by number
};

/// Remembers the signatures of operators. Refers to `graph`.
class StageContents {
 public:
  explicit StageContents(const Graph& graph) : graph_(graph), number_(graph.ops.size(), kNone) {}
  /// Needs: `ops` are ascending. Cost: O(operators), and the signatures of those that are new.
  StageContent of(const std::vector<OpId>& ops);

 private:
  int number_of(OpId op);
  const Graph& graph_;
  std::vector<int> number_;  // by OpId: of its signature
  std::unordered_map<std::string, int> signatures_;
};

/// Returns `body`, of the operators of `from`, as one of `ops`, which have the content `to`. Needs:
/// equal keys. Cost: O(body log).
TeamBody body_of_like(const Graph& graph, const TeamBody& body, const StageContent& from,
                      const std::vector<OpId>& ops, const StageContent& to);

}  // namespace agpcs
