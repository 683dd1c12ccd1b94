// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/lookup.h"

#include "ir/plan/rounds/rank_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace agpcs {

bool has_gradient(const Cut& cut) {
  return std::any_of(cut.tensors.begin(), cut.tensors.end(),
                     [](const CutTensor& tensor) { return tensor.gradient; });
}

std::vector<std::string> devices_of_ranks(const Plan& plan) {
  std::vector<std::string> devices(static_cast<std::size_t>(plan.rank_count()));
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(stage.ranks[i]);
      if (rank < devices.size() && i < stage.devices.size()) devices[rank] = stage.devices[i];
      for (std::size_t m = 0; stage.has_teams() && m < stage.further_ranks[i].size(); ++m) {
        const auto further = static_cast<std::size_t>(stage.further_ranks[i][m]);
        if (further < devices.size()) devices[further] = stage.further_devices[i][m];
      }
    }
  }
  return devices;
}

Status refuse_interleaved(const Plan& plan, std::string_view who) {
  if (!plan.interleaves()) return {};
  return invalid_input(fmt::format(
      "the schedule is {}, which {} does not know yet\n  hint: plan with --without interleaved",
      name_of(plan.schedule), who));
}

std::vector<int> rounds_of_micro_batches(int micro_batches, int least) {
  const int rounds = std::max(1, micro_batches / std::max(1, least));
  std::vector<int> sizes(static_cast<std::size_t>(rounds), micro_batches / rounds);
  for (int i = 0; i < micro_batches % rounds; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

std::int64_t textbook_in_flight(std::int64_t stages, std::int64_t stage,
                                std::int64_t micro_batches) {
  return std::min(stages - stage, micro_batches);
}

std::int64_t usual_in_flight(const Plan& plan, int stage) {
  if (plan.schedule == Schedule::kGPipe) return plan.micro_batches;
  return textbook_in_flight(working_stages(plan), stage, plan.micro_batches);
}

std::int64_t most_in_flight(const Program& program) {
  std::int64_t now = 0, most = 0;
  for (const Instruction& instruction : program.instructions) {
    if (instruction.id.opcode == Opcode::kForward) most = std::max(most, ++now);
    if (goes_back(instruction.id.opcode)) --now;
  }
  return most;
}

const Expectation* find_expectation(const Plan& plan, std::string_view name) {
  const auto found =
      std::find_if(plan.expect.begin(), plan.expect.end(),
                   [&](const Expectation& expectation) { return expectation.name == name; });
  return found == plan.expect.end() ? nullptr : &*found;
}

double expected(const Plan& plan, std::string_view name) {
  const Expectation* found = find_expectation(plan, name);
  return found == nullptr ? 0 : found->value;
}

int world_group(const Plan& plan) { return static_cast<int>(plan.stages.size()); }

namespace {

/// Returns the sets of stages that share buckets, in the order of the first bucket of each.
std::vector<std::vector<int>> sharing_stages(const Plan& plan) {
  std::vector<std::vector<int>> sets;
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.is_shared()) continue;
    std::vector<int> stages = stages_of(bucket);
    if (std::find(sets.begin(), sets.end(), stages) == sets.end()) sets.push_back(stages);
  }
  return sets;
}

}  // namespace

std::vector<int> stages_of(const PlanBucket& bucket) {
  std::vector<int> stages = {bucket.stage};
  stages.insert(stages.end(), bucket.shared_with.begin(), bucket.shared_with.end());
  return stages;
}

int group_of(const Plan& plan, const PlanBucket& bucket) {
  if (!bucket.is_shared()) return bucket.stage;
  const std::vector<std::vector<int>> sets = sharing_stages(plan);
  const auto set = std::find(sets.begin(), sets.end(), stages_of(bucket));
  return world_group(plan) + 1 + static_cast<int>(set - sets.begin());
}

std::vector<int> ranks_of(const Plan& plan, const PlanBucket& bucket) {
  std::vector<int> ranks;
  for (const int stage : stages_of(bucket)) {
    const std::vector<int> own = plan.stages[static_cast<std::size_t>(stage)].all_ranks();
    ranks.insert(ranks.end(), own.begin(), own.end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

std::vector<InstructionId> collectives_of(const Plan& plan, int bucket) {
  const PlanBucket& of = plan.buckets[static_cast<std::size_t>(bucket)];
  if (!of.is_sharded()) return {{Opcode::kAllReduce, bucket, -1}};
  std::vector<InstructionId> ids;
  const int sums = of.divides_gradients() ? static_cast<int>(plan.micro_batches) : 0;
  for (int k = 0; k < sums; ++k) ids.push_back({Opcode::kReduceScatter, bucket, k});
  if (sums == 0) ids.push_back({Opcode::kReduceScatter, bucket, -1});
  if (!of.divides_parameters()) {
    ids.push_back({Opcode::kAllGather, bucket, -1});
    return ids;
  }
  for (int k = 0; k < sums; ++k) {
    ids.push_back({Opcode::kGatherForward, bucket, k});
    ids.push_back({Opcode::kGatherBackward, bucket, k});
  }
  return ids;
}

std::int64_t operator_count(const PlanStage& stage) {
  std::int64_t count = 0;
  for (const PlanStage::Run& run : stage.operators) count += run.count;
  return count;
}

std::int64_t parameter_count(const Plan& plan, int stage) {
  std::int64_t count = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_of(stage)) count += bucket.elements();
  }
  return count;
}

std::int64_t recomputed_operators(const PlanStage& stage) {
  if (!stage.recompute) return 0;
  if (stage.segments.empty()) return operator_count(stage);
  return std::accumulate(stage.segments.begin(), stage.segments.end(), std::int64_t{0});
}

StateLevel divided_state(const Plan& plan, int stage) {
  StateLevel most = StateLevel::kWhole;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_of(stage)) most = std::max(most, bucket.state);
  }
  return most;
}

bool divides_parameters(const Plan& plan, int stage) {
  return std::any_of(plan.buckets.begin(), plan.buckets.end(), [stage](const PlanBucket& bucket) {
    return bucket.stage == stage && bucket.divides_parameters();
  });
}

bool is_event(Opcode opcode) {
  return opcode == Opcode::kGradients || opcode == Opcode::kInForward ||
         opcode == Opcode::kInBackward;
}

bool gathers_for_pass(Opcode opcode) {
  return opcode == Opcode::kGatherForward || opcode == Opcode::kGatherBackward;
}

InstructionId pass_of(const InstructionId& id) {
  const bool forward = id.opcode == Opcode::kGatherForward || id.opcode == Opcode::kInForward;
  return {forward ? Opcode::kForward : Opcode::kBackward, -1, id.micro_batch};
}

InstructionId need_of(const InstructionId& gather) {
  const bool forward = gather.opcode == Opcode::kGatherForward;
  return {forward ? Opcode::kInForward : Opcode::kInBackward, gather.object, gather.micro_batch};
}

bool is_of(const Plan& plan, const InstructionId& id, int stage) {
  if (id.object < 0) return true;
  const auto index = static_cast<std::size_t>(id.object);
  switch (id.opcode) {
    case Opcode::kSend:
    case Opcode::kRecvGradient:
      return plan.cuts[index].from == stage;
    case Opcode::kRecv:
    case Opcode::kSendGradient:
      return plan.cuts[index].to == stage;
    case Opcode::kForward:
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
      return id.object == stage;
    default:
      return plan.buckets[index].is_of(stage);
  }
}

bool sums_gradients(Opcode opcode) {
  return opcode == Opcode::kAllReduce || opcode == Opcode::kReduceScatter;
}

bool sums_one_micro_batch(const InstructionId& id) {
  return id.opcode == Opcode::kReduceScatter && id.micro_batch >= 0;
}

std::vector<std::int64_t> owned_by_others(
    const Plan& plan, int stage, const std::function<std::int64_t(const PlanBucket&)>& of_element) {
  const std::vector<int>& replicas = plan.stages[static_cast<std::size_t>(stage)].ranks;
  std::vector<std::int64_t> sums(replicas.size());
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.is_sharded() || !bucket.is_of(stage)) continue;
    const std::vector<int> ranks = ranks_of(plan, bucket);
    std::size_t owner = 0;  // both are ascending
    for (std::size_t i = 0; i < replicas.size(); ++i) {
      while (ranks[owner] != replicas[i]) ++owner;
      sums[i] += (bucket.elements() - bucket.parts[owner]) * of_element(bucket);
    }
  }
  return sums;
}

bool is_reduced(const Plan& plan, const PlanBucket& bucket) {
  return bucket.is_shared() || plan.stages[static_cast<std::size_t>(bucket.stage)].ranks.size() > 1;
}

std::string device_of_rank(const Plan& plan, int rank) {
  if (rank < 0 || rank >= plan.rank_count()) return {};
  return devices_of_ranks(plan)[static_cast<std::size_t>(rank)];
}

std::vector<int> hosts_of_ranks(const Plan& plan) {
  std::vector<std::string> names;
  std::vector<int> hosts;
  for (const std::string& device : devices_of_ranks(plan)) {
    const std::string host = device.substr(0, device.rfind('/'));
    const auto it = std::find(names.begin(), names.end(), host);
    hosts.push_back(static_cast<int>(it - names.begin()));
    if (it == names.end()) names.push_back(host);
  }
  return hosts;
}

}  // namespace agpcs
