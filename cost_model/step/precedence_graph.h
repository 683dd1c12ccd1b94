// SPDX-License-Identifier: Apache-2.0
// PrecedenceGraph: what the instructions of a program wait for.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <vector>

namespace agpcs {

/// The instructions of a stage and their order constraints (edges and counts), in flat arrays.
struct PrecedenceGraph {
  struct Instruction {
    InstructionId id;
    StreamKind stream = StreamKind::kCompute;
    int next = 0, next_end = 0;        ///< in `PrecedenceGraph::next`: who waits for its end
    int release = 0, release_end = 0;  ///< range in `PrecedenceGraph::releases`
    int use = 0, use_end = 0;          ///< range in `PrecedenceGraph::uses`
    /// This backward pass posts sums of its own micro-batch's gradients, and waits within for each
    /// when it has made the gradients of the next; or it is a pass that gathers parameters.
    bool waits_within = false;
    int scatter_before = -1;  ///< of such a sum: the one before it; -1: it is none, or the first
    bool gathers = false;     ///< it brings parameters to a pass
    int lets_begin = -1;      ///< of such a gather: what may begin where the pass needs them
  };
  /// `instruction` waits for the gradients of `bucket`, which this backward completes.
  struct Release {
    int bucket = 0;
    int instruction = 0;
  };
  std::vector<Instruction> instructions;
  std::vector<int> next;
  std::vector<Release> releases;
  /// A place in a pass where it needs bucket `bucket`, and waits within for instruction `gather`.
  struct Use {
    int bucket = 0;
    int gather = 0;
  };
  std::vector<Use> uses;
  std::vector<int> waits;   ///< by instruction: number of ends and gradients that it waits for
  std::vector<int> starts;  ///< instructions that wait for nothing
};

/// Resolves the instructions of `program`, which is one of `plan`. Errors: an `after` that names no
/// instruction. Cost: O(instructions + their waits), and a place for each micro-batch of each cut.
Result<PrecedenceGraph> precedence_graph(const Plan& plan, const Program& program);

}  // namespace agpcs
