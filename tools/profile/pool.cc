// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/pool.h"

#include "ir/graph/op_signature.h"
#include "tools/profile/statistics.h"

namespace agpcs {
void OperatorPool::add(const std::string& signature, OpClass op_class, std::int64_t samples,
                       const OpCost& work, const Measured& forward, const Measured& backward) {
  Entry& entry = entries_[signature];
  entry.op_class = op_class;
  Sum& sum = entry.points[samples];
  sum.work = work;
  add_to(sum.forward, forward);
  add_to(sum.backward, backward);
  ++sum.count;
}

void OperatorPool::add(const Graph& graph, std::int64_t samples, Precision precision,
                       const std::vector<Measured>& forward,
                       const std::vector<Measured>& backward) {
  for (std::size_t op = 0; op < graph.ops.size(); ++op) {
    const auto id = static_cast<OpId>(op);
    add(op_signature(graph, id), class_of(graph.op(id)), samples,
        op_cost(graph, id, samples, precision), forward[op], backward[op]);
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
