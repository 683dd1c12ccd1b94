// SPDX-License-Identifier: Apache-2.0
// How long the passes of stages take.
#include "ir/base/at.h"
#include "ir/strategy/offload.h"
#include "planner/evaluate/evaluator_stages.h"

#include <utility>

namespace agpcs {

const StageSeconds& StageTable::seconds(StageInfo& stage, const ReplicaKey& replica) {
  const auto found = stage.seconds.find(replica);
  if (found != stage.seconds.end()) return found->second;
  remembered_ += stage.firsts.size() * sizeof(double) + sizeof(StageSeconds);
  return stage.seconds.emplace(replica, make_seconds(stage, replica)).first->second;
}

/// Returns the seconds of the copies of what each segment has in the memory of the host; nothing if
/// they have nothing there.
std::vector<double> StageTable::copies(StageInfo& stage, const ReplicaKey& replica) {
  if (!replica.recompute.in_host) return {};
  ReplicaKey key = replica;
  key.kind = kNone;
  return copies_of(known_memory(stage, key).to_host,
                   problem_.cluster.kinds[at(replica.kind)].host_link);
}

/// Computes the times of `add_times`.
const StageNeeds& StageTable::needs(StageInfo& stage, const ReplicaKey& replica) {
  const auto [known, added] = stage.needs.try_emplace(replica);
  if (!added) return known->second;
  const std::vector<OpId>& ops = stage.parts.ops;
  const std::vector<OpSeconds>& times = times_.of(replica.kind, replica.samples);
  const std::vector<std::size_t>& ends = segment_ends(stage, replica.recompute);
  StageNeeds& needs = known->second;
  needs.backward.resize(ops.size());
  double elapsed = 0;
  for (const OpId op : ops) {
    needs.forward.push_back(elapsed);
    elapsed += times[at(op)].forward;
  }
  elapsed = 0;
  bool begun = false;  // the segment of the next operator is computed again
  const auto repeated = [&](std::size_t first, std::size_t end) {
    needs.backward[end - 1] = elapsed;
    begun = true;
    if (!replica.recompute.again) return;
    double again = 0;
    for (std::size_t i = first; i < end; ++i) again += times[at(ops[i])].forward;
    elapsed += again;
  };
  walk_back(ops.size(), ends, repeated, [&](std::size_t i) {
    if (!std::exchange(begun, false)) needs.backward[i] = elapsed;
    elapsed += times[at(ops[i])].backward;
  });
  remembered_ += 2 * ops.size() * sizeof(double) + sizeof(StageNeeds);
  return needs;
}

/// Computes the sums of `add_times`, in its order.
StageSeconds StageTable::make_seconds(StageInfo& stage, const ReplicaKey& replica) {
  StageSeconds seconds;
  const std::vector<OpId>& ops = stage.parts.ops;
  const std::vector<OpSeconds>& times = times_.of(replica.kind, replica.samples);
  const std::vector<std::size_t>& ends = segment_ends(stage, replica.recompute);
  const std::vector<double> copies = this->copies(stage, replica);
  const bool parted = replica.parted;
  seconds.forward = forward_seconds(ops.size(), ends, copies,
                                    [&](std::size_t i) { return times[at(ops[i])].forward; });
  double elapsed = 0;
  BackwardTurns turns(copies);
  const auto repeated = [&](std::size_t first, std::size_t end) {
    turns.next(elapsed);
    if (!replica.recompute.again) return;
    double again = 0;
    for (std::size_t i = first; i < end; ++i) again += times[at(ops[i])].forward;
    elapsed += again;
  };
  for (std::size_t i = ops.size(); parted && i-- > 0;) {
    seconds.backward += (1 - weight_parts_[at(ops[i])]) * times[at(ops[i])].backward;
  }
  seconds.gradients.reserve(stage.firsts.size());
  walk_back(ops.size(), ends, repeated, [&](std::size_t i) {
    const double whole = times[at(ops[i])].backward;
    elapsed += parted ? weight_parts_[at(ops[i])] * whole : whole;
    const std::size_t next = seconds.gradients.size();
    if (next < stage.firsts.size() && stage.firsts[next] == ops[i]) {
      seconds.gradients.push_back(elapsed);
    }
  });
  (parted ? seconds.weight : seconds.backward) = elapsed;
  return seconds;
}

}  // namespace agpcs
