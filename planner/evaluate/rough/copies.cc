// SPDX-License-Identifier: Apache-2.0
// The part of a rough step that copies activations to the memory of hosts and back.
#include "ir/base/at.h"
#include "ir/graph/op_table.h"
#include "planner/evaluate/rough/step.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns the bytes of a sample that operators of blocks keep for backward, each tensor where it
/// is made.
std::vector<double> RoughModel::kept_of_blocks(const Problem& problem) {
  const BlockGraph& blocks = problem.blocks;
  const auto samples = static_cast<double>(blocks.samples);
  const Precision precision = problem.training.precision;
  std::vector<double> bytes(blocks.blocks.size());
  std::vector<bool> counted(problem.graph.tensors.size());
  for (OpId op = 0; op < static_cast<OpId>(problem.graph.ops.size()); ++op) {
    const Kept kept = kept_for_backward(problem.graph, op, blocks.samples, precision);
    bytes[at(blocks.block_of[at(op)])] += static_cast<double>(kept.extra_bytes) / samples;
    for (const TensorId id : kept.tensors) {
      const TensorId root = storage_of(problem.graph, id);
      const Tensor& tensor = problem.graph.tensor(root);
      if (tensor.producer == kNone || counted[at(root)]) continue;
      counted[at(root)] = true;
      const auto elements = static_cast<double>(elements_at(tensor.shape, blocks.samples));
      bytes[at(blocks.block_of[at(tensor.producer)])] +=
          elements * static_cast<double>(element_bytes(tensor.type, precision)) / samples;
    }
  }
  return bytes;
}

/// Returns the seconds of the copies of a stage that keeps `kept` bytes of a sample, in one
/// direction. What segments that compute again read is little beside what they keep.
double RoughModel::copy_seconds(const StageSpec& spec, double kept, int kind,
                                std::int64_t share) const {
  if (!spec.recompute.in_host || spec.recompute.again) return 0;
  return kept * static_cast<double>(share) * spec.recompute.segment_part() /
         problem_.cluster.kinds[at(kind)].host_link.bandwidth;
}

}  // namespace agpcs
