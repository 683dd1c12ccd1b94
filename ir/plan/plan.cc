// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/plan/text.h"

#include <agpcs/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <numeric>

namespace agpcs {
namespace {

constexpr std::array<std::string_view, 19> kOpcodeNames = {
    "forward",    "backward",       "backward_input", "backward_weight",
    "send",       "recv",           "send_gradient",  "recv_gradient",
    "all_reduce", "reduce_scatter", "all_gather",     "norm",
    "update",     "report",         "gather_forward", "gather_backward",
    "gradients",  "in_forward",     "in_backward"};

struct Rows {
  std::int64_t begin = 0, end = 0;
};

/// Returns the rows of a micro-batch that each replica takes.
std::vector<Rows> rows_of(const PlanStage& stage, bool smaller) {
  std::vector<Rows> rows;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < stage.samples.size(); ++i) {
    const std::int64_t samples = stage.samples_of(i, smaller);
    rows.push_back({begin, begin + samples});
    begin += samples;
  }
  return rows;
}

/// One end of a message: a stage, and the replica and member of it that a rank is.
struct End {
  const PlanStage& stage;
  std::size_t replica = 0, member = 0;
  std::size_t members() const { return stage.members(replica).size(); }
};

/// Adds the transfers between the end `here` and replica `replica` of `there`: each member of the
/// one that gets something gets it from the member of its own number, modulo the members of the
/// one that has it.
void add_members(Transfer transfer, const End& here, const End& there, std::size_t replica,
                 bool gives, std::vector<Transfer>& out) {
  const std::vector<int> theirs = there.stage.members(replica);
  if (!gives) {
    transfer.peer = theirs[here.member % theirs.size()];
    return out.push_back(transfer);
  }
  for (std::size_t j = here.member; j < theirs.size(); j += here.members()) {
    transfer.peer = theirs[j];
    out.push_back(transfer);
  }
}

/// Adds the peers that hold some of the rows of `here`.
void add_batched(int tensor, const End& here, const End& there, bool smaller, bool gives,
                 std::vector<Transfer>& out) {
  const Rows mine = rows_of(here.stage, smaller)[here.replica];
  const std::vector<Rows> theirs = rows_of(there.stage, smaller);
  for (std::size_t i = 0; i < theirs.size(); ++i) {
    const std::int64_t begin = std::max(mine.begin, theirs[i].begin);
    const std::int64_t end = std::min(mine.end, theirs[i].end);
    if (begin >= end) continue;
    add_members({tensor, 0, begin - mine.begin, end - begin}, here, there, i, gives, out);
  }
}

/// Adds the peers for a tensor that is not batched: consumer j takes it from producer j mod
/// producers.
void add_whole(int tensor, bool producer, const End& here, const End& there, bool gives,
               std::vector<Transfer>& out) {
  if (!producer) {
    const std::size_t from = here.replica % there.stage.ranks.size();
    return add_members({tensor, 0, 0, 1}, here, there, from, gives, out);
  }
  for (std::size_t j = here.replica; j < there.stage.ranks.size(); j += here.stage.ranks.size()) {
    add_members({tensor, 0, 0, 1}, here, there, j, gives, out);
  }
}

}  // namespace

std::int64_t CutTensor::elements_per_row() const {
  std::int64_t elements = 1;
  for (const std::int64_t dim : dims) elements *= dim;
  return elements;
}

bool PlanBucket::is_of(int of_stage) const {
  return stage == of_stage || std::binary_search(shared_with.begin(), shared_with.end(), of_stage);
}

std::int64_t PlanBucket::elements() const {
  std::int64_t sum = 0;
  for (const BucketMember& member : members) sum += member.elements;
  return sum;
}

std::int64_t PlanBucket::bytes() const {
  return elements() * static_cast<std::int64_t>(size_of(type));
}

std::int64_t travelling_bytes(const Training& training, const PlanBucket& bucket) {
  const DType type = travelling_type(bucket.type, training.wire_type);
  return bucket.elements() * static_cast<std::int64_t>(size_of(type));
}

std::int64_t PlanFlow::message_count() const {
  std::size_t sum = 0;
  for (const FlowStep& step : steps) sum += step.messages.size();
  return static_cast<std::int64_t>(sum);
}

std::string algorithm_text(const Plan& plan, const PlanBucket& bucket) {
  std::string text(name_of(bucket.algorithm));
  if (bucket.algorithm == AllReduce::kFlow) {
    text += ":" + plan.flows[static_cast<std::size_t>(bucket.flow)].name;
  }
  return text;
}

std::string_view name_of(Opcode opcode) { return kOpcodeNames[static_cast<std::size_t>(opcode)]; }

StreamKind stream_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kSend:
    case Opcode::kSendGradient:
      return StreamKind::kSend;
    case Opcode::kRecv:
    case Opcode::kRecvGradient:
      return StreamKind::kRecv;
    case Opcode::kAllReduce:
    case Opcode::kReduceScatter:
    case Opcode::kAllGather:
    case Opcode::kNorm:
    case Opcode::kReport:
    case Opcode::kGatherForward:
    case Opcode::kGatherBackward:
      return StreamKind::kCollective;
    case Opcode::kForward:
    case Opcode::kBackward:
    case Opcode::kBackwardInput:
    case Opcode::kBackwardWeight:
    case Opcode::kUpdate:
    case Opcode::kGradients:
    case Opcode::kInForward:
    case Opcode::kInBackward:
      break;
  }
  return StreamKind::kCompute;
}

bool is_of_all_ranks(Opcode opcode) { return opcode == Opcode::kNorm || opcode == Opcode::kReport; }

std::string name_of(const InstructionId& id) { return print_instruction_id(id, {}); }

int Plan::rank_count() const {
  const auto round = static_cast<std::size_t>(round_size());
  std::size_t count = 0;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const PlanStage& stage = stages[s];
    if (s >= round && !stage.idle()) continue;
    count += stage.ranks.size();
    for (const std::vector<int>& further : stage.further_ranks) count += further.size();
  }
  return static_cast<int>(count);
}

int Plan::round_size() const {
  int size = 0;
  for (const PlanStage& stage : stages) {
    if (stage.idle()) break;
    if (interleaves() && size > 0 && stage.ranks == stages.front().ranks) break;
    ++size;
  }
  return size;
}

int Plan::program_of(int stage) const {
  if (!interleaves()) return stage;
  const int round = round_size();
  if (round == 0) return stage;
  return stages[static_cast<std::size_t>(stage)].idle() ? round : stage % round;
}

std::vector<int> Plan::stages_of_program(int program) const {
  std::vector<int> found;
  for (int stage = 0; stage < static_cast<int>(stages.size()); ++stage) {
    if (program_of(stage) == program) found.push_back(stage);
  }
  return found;
}

int Plan::stage_of_rank(int rank) const {
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (replica_of(stages[i], rank) >= 0) return static_cast<int>(i);
  }
  return -1;
}

std::int64_t Plan::smaller_from() const {
  const std::int64_t larger = training.batch % micro_batches;
  return larger == 0 ? micro_batches : larger;
}

std::int64_t Plan::micro_batch_size(std::int64_t micro_batch) const {
  return training.batch / micro_batches + (micro_batch < training.batch % micro_batches ? 1 : 0);
}

std::int64_t Plan::first_sample(std::int64_t micro_batch) const {
  return micro_batch * (training.batch / micro_batches) +
         std::min(micro_batch, training.batch % micro_batches);
}

std::vector<Transfer> transfers(const Plan& plan, int cut, int rank, std::int64_t micro_batch,
                                bool gradients) {
  const Cut& c = plan.cuts[static_cast<std::size_t>(cut)];
  const PlanStage& from = plan.stages[static_cast<std::size_t>(c.from)];
  const PlanStage& to = plan.stages[static_cast<std::size_t>(c.to)];
  const bool producer = replica_of(from, rank) >= 0;
  const int own = replica_of(producer ? from : to, rank);
  std::vector<Transfer> result;
  if (own < 0 || is_local(plan, c)) return result;
  End here{producer ? from : to, static_cast<std::size_t>(own)};
  here.member = member_of(here.stage, rank);
  const End there{producer ? to : from};
  const bool gives = producer != gradients;
  for (std::size_t i = 0; i < c.tensors.size(); ++i) {
    const int tensor = static_cast<int>(i);
    if (c.tensors[i].batched) {
      add_batched(tensor, here, there, plan.is_smaller(micro_batch), gives, result);
    } else {
      add_whole(tensor, producer, here, there, gives, result);
    }
  }
  return result;
}

bool sends(const Plan& plan, int rank) {
  const auto has = [&](int stage) {
    return replica_of(plan.stages[static_cast<std::size_t>(stage)], rank) >= 0;
  };
  // Of unlike teams, some members send nothing.
  const auto has_peer = [&](const Cut& cut, bool gradients) {
    const int index = static_cast<int>(&cut - plan.cuts.data());
    return plan.bodies.empty() || !transfers(plan, index, rank, 0, gradients).empty();
  };
  return std::any_of(plan.cuts.begin(), plan.cuts.end(), [&](const Cut& cut) {
    if (is_local(plan, cut)) return false;
    if (has(cut.from)) return has_peer(cut, false);
    return has(cut.to) && has_gradient(cut) && has_peer(cut, true);
  });
}

ElementRange owned_elements(const Plan& plan, const PlanBucket& bucket, int rank) {
  if (!bucket.is_sharded()) return {0, bucket.elements()};
  const std::vector<int> ranks = ranks_of(plan, bucket);
  const auto own = std::lower_bound(ranks.begin(), ranks.end(), rank) - ranks.begin();
  const auto first = bucket.parts.begin() + own;
  const std::int64_t begin = std::accumulate(bucket.parts.begin(), first, std::int64_t{0});
  return {begin, begin + *first};
}

std::int64_t report_words(std::int64_t ranks) { return 2 + kQuantityCount * ranks; }

std::int64_t mean_report_bytes(std::int64_t ranks, std::int64_t statistics_every) {
  constexpr std::int64_t kWord = sizeof(double);
  constexpr std::int64_t kAlways = 2 * kWord;  // the loss and the first word
  if (statistics_every == 0) return kAlways;
  const std::int64_t others = (report_words(ranks) - 1) * kWord;
  return kAlways + (others + statistics_every - 1) / statistics_every;
}

std::vector<std::string> expectation_names(const Plan& plan) {
  std::vector<std::string> names = {"step", "throughput"};
  for (const PlanStage& stage : plan.stages) {
    if (stage.idle()) continue;
    names.push_back("forward " + stage.name);
    names.push_back("backward " + stage.name);
    if (stage.ranks.size() > 1) names.push_back("all-reduce " + stage.name);
  }
  const std::vector<std::string> devices = devices_of_ranks(plan);
  for (int rank = 0; rank < plan.rank_count(); ++rank) {
    const std::string& device = devices[static_cast<std::size_t>(rank)];
    names.push_back("utilization " + device);
    if (sends(plan, rank)) names.push_back("send " + device);
    names.push_back("peak-memory " + device);
    names.push_back("bytes-sent " + device);
  }
  return names;
}

std::string_view expectation_unit(std::string_view name) {
  const std::string_view word = name.substr(0, name.find(' '));
  if (word == "throughput") return "samples/s";
  if (word == "utilization") return "";
  if (word == "peak-memory" || word == "bytes-sent") return "B";
  return "s";
}

}  // namespace agpcs
