// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/policy/policy.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "planner/flows/bound.h"
#include "planner/flows/list_schedule.h"
#include "planner/flows/methods.h"
#include "planner/flows/policy/text.h"
#include "planner/flows/trees/forests.h"
#include "planner/policy/policy_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <queue>
#include <span>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

constexpr int kVersion = 1;
constexpr char kMagic[] = "agpcs-flow-policy";
constexpr double kSelectAll = 3;  // the first value of a tree: it is selected in 95 of 100 cases
static_assert(kTreeFeatureCount <= static_cast<int>(kMostFeatures) &&
              kWorkloadFeatureCount <= static_cast<int>(kMostFeatures));

Perceptron random_perceptron(int features, int units, Rng& rng) {
  const double bound = 1 / std::sqrt(features);
  const auto draw = [&](int count) {
    std::vector<float> numbers(at(count));
    for (float& x : numbers) x = static_cast<float>(bound * (2 * rng.uniform() - 1));
    return numbers;
  };
  Perceptron network;
  network.mean.assign(at(features), 0);
  network.scale.assign(at(features), 1);
  network.hidden = draw(features * units);
  network.bias = draw(units);
  network.output = draw(units);
  return network;
}

/// Sets up the network: its first unit gives constant + weights . features (features are at least
/// -1 and small, so the unit is never cut off). The other units add nothing yet.
void begin_as(Perceptron& network, std::span<const std::pair<int, float>> weights, float constant) {
  constexpr float kAbove = 200;
  std::fill_n(network.hidden.begin(), network.features(), 0.0F);
  for (const auto& [feature, weight] : weights) network.hidden[at(feature)] = weight;
  std::fill(network.output.begin(), network.output.end(), 0.0F);
  network.bias[0] = kAbove;
  network.output[0] = 1;
  network.output_bias = constant - kAbove;
}

/// Collects schedules of one topology until one is as short as any can be.
class Tries {
 public:
  Tries(const Topology& topology, const FlowOptions& options, const FlowPolicy& policy,
        const FlowRules& rules)
      : topology_(topology),
        options_(options),
        policy_(policy),
        rules_(rules),
        bound_(flow_bound(topology, false)),
        has_twins_(has_equal_twins(topology)) {}

  void run(const ForestOptions& trees) {
    if (best_ && options_.barrier && bound_.rounds(trees.sub_chunks) >= best_->rounds()) return;
    const FlowForest forest = make_forest(topology_, trees, false);
    if (options_.barrier) {
      consider(with_barrier(forest, trees));
      return;
    }
    consider(without_barrier(topology_, with_barrier(forest, trees)));
    consider(play_policy(topology_, make_forest(topology_, trees, true), FlowPhases::kOverlapped,
                         policy_, rules_));
  }
  bool has_best() const { return best_.has_value(); }
  FlowSchedule take_best() { return std::move(*best_); }

 private:
  void consider(FlowSchedule schedule) {
    if (!best_ || schedule.rounds() < best_->rounds()) best_ = std::move(schedule);
  }

  /// Returns an all-gather with a reduce-scatter that mirrors one on reversed links in time.
  FlowSchedule with_barrier(const FlowForest& forest, const ForestOptions& trees) const {
    const FlowSchedule gather =
        play_policy(topology_, forest, FlowPhases::kGather, policy_, rules_);
    if (!has_twins_) {
      const Topology back = reversed(topology_);
      return joined(mirrored(play_policy(back, make_forest(back, trees, false), FlowPhases::kGather,
                                         policy_, rules_)),
                    gather);
    }
    FlowSchedule back = gather;  // on reversed links: over each link's twin
    back.routes = on_twins(std::move(back.routes));
    return joined(mirrored(back), gather);
  }

  const Topology& topology_;
  const FlowOptions& options_;
  const FlowPolicy& policy_;
  const FlowRules& rules_;
  FlowBound bound_;
  bool has_twins_;
  std::optional<FlowSchedule> best_;
};

}  // namespace

std::string print_flow_policy(const FlowPolicy& policy) {
  return fmt::format("{} {}\nmade-by {}\nnetwork trees\n{}network workloads\n{}", kMagic, kVersion,
                     policy.made_by, print_perceptron(policy.trees),
                     print_perceptron(policy.workloads));
}

Result<FlowPolicy> parse_flow_policy(std::string_view text, std::string_view file) {
  PolicyReader reader(text, file);
  FlowPolicy policy;
  if (reader.read_head(kMagic, kVersion, policy.made_by) && reader.read_word("network", "trees") &&
      reader.read_perceptron(kTreeFeatureCount, "trees", policy.trees) &&
      reader.read_word("network", "workloads") &&
      reader.read_perceptron(kWorkloadFeatureCount, "workloads", policy.workloads)) {
    reader.read_end("output-bias");
  }
  AGPCS_RETURN_IF_ERROR(reader.status());
  return policy;
}

const FlowPolicy& shipped_flow_policy() {
  static const FlowPolicy kPolicy = [] {
    Result<FlowPolicy> policy = parse_flow_policy(flow_policy_text(), "flow.policy");
    AGPCS_CHECK(policy.ok(), "the shipped flow policy is wrong: {}", policy.status().message());
    return std::move(*policy);
  }();
  return kPolicy;
}

FlowPolicy random_flow_policy(int units, std::uint64_t seed) {
  FlowPolicy policy;
  Rng trees = Rng(seed).fork("trees"), workloads = Rng(seed).fork("workloads");
  policy.trees = random_perceptron(kTreeFeatureCount, units, trees);
  policy.workloads = random_perceptron(kWorkloadFeatureCount, units, workloads);
  policy.made_by = fmt::format("random weights, seed {}", seed);
  return policy;
}

FlowPolicy formula_flow_policy(int units, std::uint64_t seed) {
  FlowPolicy policy = random_flow_policy(units, seed);
  constexpr float kSharp = 20;  // so that draws mostly choose the best
  constexpr std::pair<int, float> kWorkloads[] = {{kHeight, kSharp},      {kUnlocksBusy, kSharp},
                                                  {kFirstBusy, kSharp},   {kLastBusy, kSharp},
                                                  {kFirstScarce, kSharp}, {kLastScarce, kSharp}};
  begin_as(policy.trees, {}, kSelectAll);
  begin_as(policy.workloads, kWorkloads, 0);
  policy.made_by = "the formula that training begins from";
  return policy;
}

FlowPlayer::FlowPlayer(const FlowPolicy& policy, const FlowRules& rules)
    : trees_(policy.trees), workloads_(policy.workloads), rules_(rules) {}

double FlowPlayer::value_of(std::span<const float> features) const {
  switch (rules_.workloads) {
    case WorkloadRule::kPolicy:
      return workloads_.value(features);
    case WorkloadRule::kFirstCome:
      return features[kWaited];
    case WorkloadRule::kLongestChain:
      return features[kHeight];
    case WorkloadRule::kRarestFirst:
      return features[kTreeLeft];
  }
  return 0;
}

void FlowPlayer::select_trees(const FlowEnvironment& environment,
                              std::vector<std::uint8_t>& selected) const {
  selected.assign(at(environment.trees()), 1);
  if (rules_.trees == TreeRule::kAll) return;
  std::vector<float> rows;
  environment.describe_trees(rows);
  for (int t = 0; t < environment.trees(); ++t) {
    const auto row = std::span(rows).subspan(at(t) * kTreeFeatureCount, kTreeFeatureCount);
    selected[at(t)] = trees_.value(row) > 0 ? 1 : 0;
  }
  const auto jobs = environment.ready();
  const bool any = std::any_of(jobs.begin(), jobs.end(),
                               [&](const auto& job) { return selected[at(job.chunk)] != 0; });
  if (!any) std::fill(selected.begin(), selected.end(), std::uint8_t{1});
}

void FlowPlayer::take_workloads(FlowEnvironment& environment) const {
  const auto jobs = environment.ready();
  // An entry orders by the highest value, then the lower chunk and server, then the index.
  using Entry = std::tuple<double, std::int32_t, std::int32_t, std::size_t>;
  std::vector<double> values(jobs.size());
  const auto entry = [&](std::size_t i) {
    values[i] = value_of(environment.features(i));
    return Entry(values[i], -jobs[i].chunk, -jobs[i].server, i);
  };
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    if (environment.is_open(i)) entries.push_back(entry(i));
  }
  std::priority_queue<Entry> queue(std::less<Entry>(), std::move(entries));
  while (environment.open() > 0) {
    const auto [value, chunk, server, i] = queue.top();
    queue.pop();
    if (!environment.is_open(i) || value != values[i]) continue;  // taken, or its value is old
    for (const int changed : environment.take(i)) {
      if (rules_.workloads == WorkloadRule::kPolicy) queue.push(entry(at(changed)));
    }
  }
}

FlowSchedule play_policy(const Topology& topology, const FlowForest& forest, FlowPhases phases,
                         const FlowPolicy& policy, const FlowRules& rules) {
  const FlowPlayer player(policy, rules);
  FlowEnvironment environment(topology, forest, phases);
  std::vector<std::uint8_t> selected;
  while (!environment.done()) {
    environment.begin_round();
    player.select_trees(environment, selected);
    environment.select(selected);
    player.take_workloads(environment);
    if (rules.detours) environment.fill_idle();
    const int sent = environment.end_round();
    AGPCS_CHECK(sent > 0, "nothing was sent in round {}", environment.round());
  }
  return environment.schedule();
}

FlowSchedule schedule_by_policy(const Topology& topology, const FlowOptions& options,
                                const FlowPolicy& policy, const FlowRules& rules, ForestKind kind) {
  Tries tries(topology, options, policy, rules);
  const auto stops = [&] {
    return tries.has_best() && options.interrupted != nullptr && options.interrupted->load();
  };
  for (std::int64_t forest = 0; forest < std::max<std::int64_t>(options.effort, 1); ++forest) {
    const std::uint64_t seed =
        stable_hash("forest", options.seed * 7919 + static_cast<std::uint64_t>(forest));
    for (int k = 1; k <= std::max(options.max_sub_chunks, 1) && !stops(); ++k) {
      tries.run({kind, k, seed});
    }
  }
  return tries.take_best();
}

Result<FlowSchedule> schedule_policy(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  return schedule_by_policy(topology, options, shipped_flow_policy());
}

}  // namespace agpcs
