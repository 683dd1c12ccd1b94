// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/overhead.h"

#include "codegen/stage_program.h"
#include "codegen/timetable.h"
#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "runtime/job/renumbered_groups.h"
#include "tools/profile/network/pace.h"

#include <agpcs/digest.h>
#include <agpcs/loopback.h>
#include <agpcs/replayer.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kAloneLength = 512;  // micro-batches, so many that one-time costs of a step vanish
constexpr std::array<int, 3> kPipelineLengths = {4, 16, 64};

/// An executor that computes nothing. Each message has its own place in the given memory.
class IdleExecutor final : public Executor {
 public:
  explicit IdleExecutor(Buffer memory) : memory_(memory) {}

  Status prepare(const Plan& plan, int) override {
    peers_ = static_cast<std::size_t>(plan.rank_count());
    return {};
  }
  Status begin_step(std::int64_t) override { return {}; }
  Status forward(const StagePass&) override { return {}; }
  Status backward(const StagePass&, bool, GradientListener&) override { return {}; }
  Status update() override { return {}; }
  Result<Buffer> activation(int, const Transfer& transfer, int micro_batch) override {
    return cell(micro_batch, static_cast<std::size_t>(transfer.peer), transfer);
  }
  Result<Buffer> gradient(int, const Transfer& transfer, int micro_batch) override {
    return cell(micro_batch, peers_ + static_cast<std::size_t>(transfer.peer), transfer);
  }
  Result<Buffer> bucket(int) override { return internal_error("an idle plan has no buckets"); }
  double loss() const override { return 0; }

 private:
  Result<Buffer> cell(int micro_batch, std::size_t index, const Transfer& transfer) {
    AGPCS_CHECK(transfer.rows == 1, "{} rows for one cell", transfer.rows);
    const std::size_t at =
        (static_cast<std::size_t>(micro_batch) * 2 * peers_ + index) * sizeof(float);
    if (at + sizeof(float) > memory_.bytes) {
      return invalid_input(
          fmt::format("messages of idle plans need more than {} bytes of memory", memory_.bytes));
    }
    return Buffer{static_cast<char*>(memory_.data) + at, sizeof(float), DType::kFp32,
                  memory_.on_gpu};
  }

  const Buffer memory_;
  std::size_t peers_ = 0;
};

/// Steps of a plan. Rank 0 leads. Without a team this rank is alone.
class RepeatedSteps final : public Repeated {
 public:
  RepeatedSteps(Replayer& replayer, RankTeam* team, bool leads)
      : replayer_(replayer), team_(team), leads_(leads) {}
  bool leads() const override { return leads_; }
  Result<std::int64_t> agree(std::int64_t number) override {
    if (team_ == nullptr) return number;
    AGPCS_TRY(const auto said, team_->sum({leads_ ? static_cast<double>(number) : 0}));
    return static_cast<std::int64_t>(said.front());
  }
  Status repeat(std::int64_t, std::int64_t times) override {
    for (std::int64_t i = 0; i < times; ++i) AGPCS_RETURN_IF_ERROR(replayer_.run_step().status());
    return {};
  }

 private:
  Replayer& replayer_;
  RankTeam* const team_;
  const bool leads_;
};

Pace pace_of(const OverheadWork& work) {
  return {work.seconds, std::numeric_limits<double>::infinity()};
}

/// Returns the seconds of a step of an idle plan; 0 on ranks that do not lead.
Result<double> step_seconds(const Plan& plan, Transport& transport, RankTeam* team,
                            const MessageMemory& memory, const OverheadWork& work) {
  IdleExecutor executor(memory.data);
  ReplayOptions options;
  options.limit = work.limit;
  const int rank = transport.rank();
  AGPCS_TRY(const auto replayer, Replayer::create(plan, rank, transport, executor, options));
  RepeatedSteps steps(*replayer, team, rank == 0);
  AGPCS_TRY(const auto points, measure_sizes(steps, {1}, pace_of(work)));
  return points.empty() ? 0 : points.front().time.seconds;
}

/// Returns the seconds that this rank takes for an instruction of a plan without other ranks.
Result<double> overhead_alone(const Cluster& cluster, const MessageMemory& memory,
                              const OverheadWork& work) {
  LoopbackHub hub(1);
  const auto transport = hub.join(0);
  const Plan plan = idle_plan(cluster, 1, kAloneLength);
  AGPCS_TRY(const double step, step_seconds(plan, *transport, nullptr, memory, work));
  return step / (2 * kAloneLength);
}

/// Returns what a micro-batch adds to a step: the median of the slopes between any two lengths.
double slope_of(const std::vector<double>& seconds) {
  std::vector<double> slopes;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    for (std::size_t j = i + 1; j < seconds.size(); ++j) {
      slopes.push_back((seconds[j] - seconds[i]) / (kPipelineLengths[j] - kPipelineLengths[i]));
    }
  }
  return std::max(0.0, summarize(std::move(slopes)).seconds);
}

Result<double> pipeline_slope(const Cluster& cluster, RankTeam& team, Transport& transport,
                              const MessageMemory& memory, const OverheadWork& work) {
  std::vector<double> seconds;
  int first_group = work.first_group;
  for (const int length : kPipelineLengths) {
    const Plan plan = idle_plan(cluster, transport.size(), length);
    RenumberedGroups groups(transport, first_group);
    first_group += static_cast<int>(plan.stages.size()) + 1;
    AGPCS_TRY(const double step, step_seconds(plan, groups, &team, memory, work));
    seconds.push_back(step);
  }
  AGPCS_TRY(const auto shared, team.sum({slope_of(seconds)}));
  return shared.front();  // the values of other ranks are 0
}

/// Returns the pairs of ranks that exchange messages in the idle plan.
std::vector<std::pair<int, int>> pairs_of(int ranks) {
  std::vector<std::pair<int, int>> pairs;
  for (int even = 0; even < ranks; even += 2) {
    pairs.emplace_back(even, even + 1 < ranks ? even + 1 : even - 1);
  }
  return pairs;
}

/// Returns the seconds of a round trip of small messages, by pair. All pairs measure at the same
/// time.
Result<std::vector<double>> round_trips(RankTeam& team, Transport& transport, MessageMemory& memory,
                                        const OverheadWork& work) {
  const std::vector<std::pair<int, int>> pairs = pairs_of(transport.size());
  std::vector<double> seconds(pairs.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const auto [from, to] = pairs[i];
    if (transport.rank() != from && transport.rank() != to) continue;
    RoundTrip trip(transport, from, to, memory, work.limit);
    AGPCS_TRY(const auto points, measure_sizes(trip, {kAnswerBytes}, pace_of(work)));
    if (!points.empty()) seconds[i] = points.front().time.seconds;
  }
  return team.sum(std::move(seconds));
}

}  // namespace

Plan idle_plan(const Cluster& cluster, int ranks, int micro_batches) {
  Plan plan;
  plan.made_by = {"idle", 0, "none", "none"};
  plan.model = "idle";
  plan.cluster = cluster.name;
  plan.model_digest = plan.cluster_digest = digest_of("idle");
  plan.micro_batches = micro_batches;
  plan.stages.resize(ranks > 1 ? 2 : 1);
  for (int rank = 0; rank < ranks; ++rank) {
    PlanStage& stage = plan.stages[static_cast<std::size_t>(rank % 2)];
    stage.ranks.push_back(rank);
    stage.devices.push_back(cluster.device_name(rank));
    stage.samples.push_back(1);
  }
  const std::size_t samples = plan.stages.front().ranks.size();
  plan.training.batch = static_cast<std::int64_t>(samples) * micro_batches;
  if (ranks % 2 == 1 && ranks > 1) plan.stages.back().samples.back() = 2;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    plan.stages[s].name = fmt::format("s{}", s);
    plan.stages[s].operators = {{plan.stages[s].name, plan.stages[s].name, 1}};
  }
  if (ranks > 1) plan.cuts = {{"c0", 0, 1, {{"x", DType::kFp32, true, {1}, true}}}};
  std::vector<std::int64_t> in_flight;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    in_flight.push_back(textbook_in_flight(static_cast<std::int64_t>(plan.stages.size()),
                                           static_cast<std::int64_t>(s), micro_batches));
  }
  const Timetable timetable(plan, in_flight);
  for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
    plan.programs.push_back(stage_program(plan, timetable, stage));
  }
  return plan;
}

Result<double> measure_overhead(const Cluster& cluster, RankTeam& team, Transport& transport,
                                MessageMemory& memory, const OverheadWork& work) {
  if (transport.size() == 1) return 0.0;
  AGPCS_RETURN_IF_ERROR(team.sum({0}).status());  // all ranks at once, because they may share cores
  AGPCS_TRY(const double mine, overhead_alone(cluster, memory, work));
  std::vector<double> alone(static_cast<std::size_t>(transport.size()));
  alone[static_cast<std::size_t>(transport.rank())] = mine;
  AGPCS_TRY(alone, team.sum(std::move(alone)));
  AGPCS_TRY(const std::vector<double> trips, round_trips(team, transport, memory, work));
  AGPCS_TRY(const double slope, pipeline_slope(cluster, team, transport, memory, work));
  // The factor by which a message that other threads wait for takes longer than an instruction
  // alone. The slowest pair sets the pace, and so its factor is the smallest.
  double factor = std::numeric_limits<double>::infinity();
  const std::vector<std::pair<int, int>> pairs = pairs_of(transport.size());
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    const double a = alone[static_cast<std::size_t>(pairs[i].first)];
    const double b = alone[static_cast<std::size_t>(pairs[i].second)];
    factor = std::min(factor, (slope - trips[i] / 2) / std::max(a, b));
  }
  return mine * std::max(0.0, factor);
}

}  // namespace agpcs
