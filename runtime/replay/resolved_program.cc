// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/resolved_program.h"

#include "ir/base/check.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "runtime/support/message_tags.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

using Key = std::tuple<Opcode, int, int>;

Key key_of(const InstructionId& id) { return {id.opcode, id.object, id.micro_batch}; }

bool is_transfer(Opcode opcode) {
  return opcode == Opcode::kSend || opcode == Opcode::kRecv || opcode == Opcode::kSendGradient ||
         opcode == Opcode::kRecvGradient;
}

std::string spell(const Plan& plan, const InstructionId& id) {
  std::string text(name_of(id.opcode));
  const bool is_pass = stream_of(id.opcode) == StreamKind::kCompute && id.object >= 0;
  if (is_pass) text += " " + plan.stages[static_cast<std::size_t>(id.object)].name;
  if (is_transfer(id.opcode)) text += " " + plan.cuts[static_cast<std::size_t>(id.object)].name;
  if (stream_of(id.opcode) == StreamKind::kCollective && id.object >= 0) {
    text += " " + plan.buckets[static_cast<std::size_t>(id.object)].name;
  }
  if (id.micro_batch >= 0) text += fmt::format(" mb={}", id.micro_batch);
  return text;
}

// Fields of a tag, from the low end.
constexpr int kMicroBatchBits = 28, kTensorBits = 16, kCutBits = 16;
static_assert(std::uint64_t{1} << (1 + kCutBits + kTensorBits + kMicroBatchBits) <= kFirstOwnTag);

std::uint64_t tag_of(const InstructionId& id, bool gradient, int tensor) {
  std::uint64_t tag = gradient ? 1 : 0;
  tag = (tag << kCutBits) | static_cast<std::uint64_t>(id.object);
  tag = (tag << kTensorBits) | static_cast<std::uint64_t>(tensor);
  return (tag << kMicroBatchBits) | static_cast<std::uint64_t>(id.micro_batch);
}

class Resolver {
 public:
  Resolver(const Plan& plan, int rank)
      : plan_(plan),
        rank_(rank),
        stage_(plan.stage_of_rank(rank)),
        stages_(stages_of_rank(plan, rank)) {}

  Result<ResolvedProgram> run() {
    AGPCS_RETURN_IF_ERROR(check_tags());
    const Program& program = plan_.programs[static_cast<std::size_t>(plan_.program_of(stage_))];
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      index_[key_of(program.instructions[i].id)] = i;
    }
    resolved_.sums.assign(plan_.buckets.size(), kNoInstruction);
    for (const Instruction& instruction : program.instructions) add(instruction);
    mark_last_backward();
    find_releases(program);
    return std::move(resolved_);
  }

 private:
  Status check_tags() const {
    std::size_t tensors = 0;
    for (const Cut& cut : plan_.cuts) tensors = std::max(tensors, cut.tensors.size());
    if (plan_.cuts.size() >> kCutBits != 0 || tensors >> kTensorBits != 0 ||
        plan_.micro_batches >> kMicroBatchBits != 0) {
      return invalid_input(
          fmt::format("{} cuts of up to {} tensors in {} micro-batches are more than messages can "
                      "be told apart",
                      plan_.cuts.size(), tensors, plan_.micro_batches));
    }
    return {};
  }

  std::size_t index_of(const InstructionId& id) const {
    const auto it = index_.find(key_of(id));
    AGPCS_CHECK(it != index_.end(), "verified plan waits for {}, which it lacks", name_of(id));
    return it->second;
  }

  void add(const Instruction& instruction) {
    const InstructionId& id = instruction.id;
    const std::size_t index = resolved_.instructions.size();
    ResolvedInstruction& resolved = resolved_.instructions.emplace_back();
    resolved.id = id;
    resolved.name = spell(plan_, id);
    resolved.stage = Plan::stage_of_pass(id, stage_);
    if (stream_of(id.opcode) == StreamKind::kCompute) await(instruction.after, resolved);
    if (is_transfer(id.opcode)) resolved.transfers = transfers_of(id);
    resolved.group = world_group(plan_);
    if (stream_of(id.opcode) == StreamKind::kCollective && id.object >= 0) {
      const PlanBucket& bucket = plan_.buckets[static_cast<std::size_t>(id.object)];
      if (plan_.stages[static_cast<std::size_t>(stage_)].has_unlike_teams()) {
        add_slices(id.object, resolved);
      } else {
        resolved.group = summing_group(plan_, bucket, rank_).number;
      }
      resolved.algorithm = bucket.algorithm;
      resolved.flow = bucket.flow;
      resolved.parts = bucket.parts;
      if (gathers_for_pass(id.opcode)) {
        resolved.gather = resolved_.gathers.size();
        resolved_.gathers.push_back(index);
      }
      if (sums_gradients(id.opcode)) {
        resolved_.sums[static_cast<std::size_t>(id.object)] = index;
      }
    }
    resolved_.streams[static_cast<std::size_t>(stream_of(id.opcode))].push_back(index);
  }

  void add_slices(int bucket, ResolvedInstruction& resolved) {
    if (groups_.empty()) groups_ = slice_groups(plan_, stage_);
    if (!slices_) slices_.emplace(plan_, stage_);
    for (RankSlice& slice : slices_->of_rank(bucket, rank_)) {
      const int number = groups_[slice.group].number;
      resolved.slices.push_back({number, std::move(slice)});
    }
  }

  // Streams are in order, so the last instruction of each stands for all before it. Computations
  // need no wait: they are done before a later one has its turn.
  void await(const std::vector<InstructionId>& after, ResolvedInstruction& resolved) const {
    for (const InstructionId& before : after) {
      const StreamKind kind = stream_of(before.opcode);
      if (kind == StreamKind::kCompute) continue;
      await(before, resolved);
      if (before.opcode != Opcode::kRecvGradient) continue;
      await({Opcode::kSend, before.object, before.micro_batch}, resolved);
    }
  }

  void await(const InstructionId& before, ResolvedInstruction& resolved) const {
    const Stream stream = transport_stream(stream_of(before.opcode));
    std::size_t& last = resolved.awaits[static_cast<std::size_t>(stream)];
    const std::size_t index = index_of(before);
    if (last == kNoInstruction || index > last) last = index;
  }

  std::vector<ResolvedTransfer> transfers_of(const InstructionId& id) const {
    const bool gradient = id.opcode == Opcode::kSendGradient || id.opcode == Opcode::kRecvGradient;
    const Cut& cut = plan_.cuts[static_cast<std::size_t>(id.object)];
    std::vector<ResolvedTransfer> found;
    for (const Transfer& transfer : transfers(plan_, id.object, rank_, id.micro_batch, gradient)) {
      if (gradient && !cut.tensors[static_cast<std::size_t>(transfer.tensor)].gradient) continue;
      found.push_back({transfer, tag_of(id, gradient, transfer.tensor)});
    }
    return found;
  }

  void mark_last_backward() {
    const auto& compute = resolved_.streams[static_cast<std::size_t>(StreamKind::kCompute)];
    std::set<int> marked;  // stages
    for (auto it = compute.rbegin(); it != compute.rend(); ++it) {
      ResolvedInstruction& instruction = resolved_.instructions[*it];
      if (!makes_gradients(instruction.id.opcode)) continue;
      instruction.last = marked.insert(instruction.stage).second;
    }
  }

  // Returns the stage of this rank that has a bucket.
  int stage_of(const PlanBucket& bucket) const {
    const auto has = [&](int stage) { return bucket.is_of(stage); };
    return *std::find_if(stages_.begin(), stages_.end(), has);
  }

  // Returns the pass during which an event happens.
  InstructionId pass_of_event(const InstructionId& event) const {
    if (event.opcode != Opcode::kGradients) return pass_of(event);
    const int stage = stage_of(plan_.buckets[static_cast<std::size_t>(event.object)]);
    return plan_.weight_pass(stage, event.micro_batch);
  }

  // A message or collective waits only for computations, for gradients, and for its predecessor in
  // its stream; the latest of them releases it. Programs list causes before effects.
  void find_releases(const Program& program) {
    std::vector<std::size_t> done(resolved_.instructions.size(),
                                  0);  // computations, when i is released
    std::array<std::size_t, kStreamKindCount> stream_so_far{};
    std::map<Key, std::size_t> before_pass;  // computations that are done
    std::map<int, int> turns;                // by micro-batch: backward passes up to its own
    std::size_t computed = 0;
    for (std::size_t i = 0; i < resolved_.instructions.size(); ++i) {
      ResolvedInstruction& instruction = resolved_.instructions[i];
      const StreamKind stream = stream_of(instruction.id.opcode);
      if (stream == StreamKind::kCompute) {
        before_pass[key_of(instruction.id)] = computed;
        if (makes_gradients(instruction.id.opcode)) {
          turns.emplace(instruction.id.micro_batch, static_cast<int>(turns.size()) + 1);
        }
        done[i] = ++computed;
        continue;
      }
      std::size_t& release = stream_so_far[static_cast<std::size_t>(stream)];
      for (const InstructionId& before : program.instructions[i].after) {
        release = std::max(release, is_event(before.opcode)
                                        ? before_pass.at(key_of(pass_of_event(before)))
                                        : done[index_of(before)]);
      }
      instruction.release = done[i] = release;
      if (sums_one_micro_batch(instruction.id))
        instruction.reports = turns.at(instruction.id.micro_batch);
    }
  }

  const Plan& plan_;
  const int rank_, stage_;  // the first of `stages_`
  const std::vector<int> stages_;
  std::vector<PlanGroup> groups_;      // of slices
  std::optional<StageSlices> slices_;  // made for the first bucket that has some
  std::map<Key, std::size_t> index_;
  ResolvedProgram resolved_;
};

}  // namespace

Stream transport_stream(StreamKind kind) {
  switch (kind) {
    case StreamKind::kSend:
      return Stream::kSend;
    case StreamKind::kRecv:
      return Stream::kRecv;
    case StreamKind::kCollective:
    case StreamKind::kCompute:
      return Stream::kCollective;
  }
  return Stream::kCollective;
}

Result<ResolvedProgram> resolve(const Plan& plan, int rank) { return Resolver(plan, rank).run(); }

}  // namespace agpcs
