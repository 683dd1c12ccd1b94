// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/pool.h"

#include "ir/graph/op_signature.h"
#include "ir/graph/op_table.h"

namespace agpcs {
void OperatorPool::add(const Graph& graph, std::int64_t samples, const TimedSteps& times) {
  for (std::size_t op = 0; op < graph.ops.size(); ++op) {
    const auto id = static_cast<OpId>(op);
    Entry& entry = entries_[op_signature(graph, id)];
    entry.op_class = class_of(graph.op(id));
    Sum& sum = entry.points[samples];
    sum.work = op_cost(graph, id, samples, Precision::kFp32);
    add_to(sum.forward, times.forward[op]);
    add_to(sum.backward, times.backward[op]);
    ++sum.count;
  }
}

std::vector<MeasuredOperator> OperatorPool::operators() const {
  std::vector<MeasuredOperator> all;
  for (const auto& [signature, entry] : entries_) {
    MeasuredOperator measured{signature, entry.op_class, {}};
    for (const auto& [samples, sum] : entry.points) {
      measured.points.push_back({samples, sum.work, rounded(mean_of(sum.forward, sum.count)),
                                 rounded(mean_of(sum.backward, sum.count))});
    }
    all.push_back(std::move(measured));
  }
  return all;
}

}  // namespace agpcs
