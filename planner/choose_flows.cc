// SPDX-License-Identifier: Apache-2.0
#include "planner/choose_flows.h"

#include "cost_model/flows/exchange.h"
#include "cost_model/network/link_model.h"
#include "cost_model/network/topology_of_cluster.h"
#include "ir/base/at.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/flows/bound.h"
#include "planner/flows/method.h"
#include "planner/refine/worker_pool.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// A step, or the sum of a bucket when alone, must get shorter by this part.
constexpr double kGain = 1e-3;
/// The search is left out if another method comes this near to the bound.
constexpr double kNearBound = 1.02;
/// Chunks may be cut into kMostParts parts, or fewer so that there are at most kMostSubChunks
/// sub-chunks in all; two parts are always allowed.
constexpr int kMostParts = 8, kMostSubChunks = 32;
/// The most buckets tried one by one, in a stage and in all.
constexpr std::size_t kMostTried = 16;
constexpr int kMostTriedInAll = 32;
/// The methods of `flow_methods` that are used: always, and where it may help.
constexpr std::array<std::string_view, 4> kInstant = {"parameter_server", "hamiltonian", "trees",
                                                      "greedy"};
constexpr std::array<std::string_view, 1> kSearch = {"search"};
constexpr std::array<std::pair<std::string_view, AllReduceChoice>, 5> kChoices = {{
    {"auto", AllReduceChoice::kAuto},
    {"ring", AllReduceChoice::kRing},
    {"hierarchical", AllReduceChoice::kHierarchical},
    {"tree", AllReduceChoice::kTree},
    {"flow", AllReduceChoice::kFlow},
}};

/// A flow by which a bucket could be reduced.
struct Offer {
  std::size_t bucket = 0;
  int flow = 0;  // index into the stage's schedules
  std::int64_t bytes = 0;
};

NetworkKey key_of(const Cluster& cluster, const ClusterTopology& network) {
  const Topology& topology = network.topology;
  NetworkKey key;
  key.topology = {topology.servers, topology.switches};
  for (const Topology::Link& link : topology.links) {
    key.topology.insert(key.topology.end(), {link.from, link.to, link.capacity});
  }
  for (const std::vector<int>& route : topology.routes) {
    key.topology.push_back(static_cast<std::int64_t>(route.size()));
    key.topology.insert(key.topology.end(), route.begin(), route.end());
  }
  for (const Link& link : links_of(cluster, network)) {
    key.links.insert(key.links.end(),
                     {link.bandwidth, link.latency, static_cast<double>(link.protocols)});
  }
  return key;
}

class FlowChooser {
 public:
  FlowChooser(const Problem& problem, Evaluator& evaluator, const FlowChoiceOptions& options,
              KnownFlows& known)
      : problem_(problem),
        evaluator_(evaluator),
        options_(options),
        known_(known),
        pool_(options.threads) {}

  Strategy run(Strategy strategy) {
    grouped_ = strategy.buckets.empty() ? evaluator_.grouped(strategy) : strategy;
    const bool any = options_.choice == AllReduceChoice::kFlow;
    if (!any) {
      const Score score = evaluator_.evaluate(grouped_);
      if (!score.fits()) return strategy;
      seconds_ = score.step_seconds;
      if (!any_has_buckets() || !may_gain(Evaluator::kEveryStage)) return strategy;
    }
    bool changed = false;
    for (int stage = 0; stage < static_cast<int>(grouped_.stages.size()); ++stage) {
      if (interrupted()) break;
      if (!has_buckets(stage) || (!any && !may_gain(stage))) continue;
      KnownSchedules& known = schedules(stage, any);
      std::vector<Offer> offers;
      for (std::size_t b = 0; b < grouped_.buckets.size(); ++b) {
        if (is_of(grouped_.buckets[b], stage)) offer(b, known, any, offers);
      }
      if (offers.empty()) continue;
      std::vector<PlanFlow> flows = known.flows;
      for (PlanFlow& flow : flows) flow.stage = stage;
      changed = (any ? take(offers, flows) : take_what_helps(offers, flows)) || changed;
    }
    return changed ? std::move(grouped_) : std::move(strategy);
  }

 private:
  bool interrupted() const {
    return options_.interrupted != nullptr && options_.interrupted->load();
  }

  /// Returns whether the stage alone sums the bucket: a flow is among the ranks of one stage.
  static bool is_of(const Bucket& bucket, int stage) {
    return bucket.stage == stage && !bucket.is_shared();
  }

  bool has_buckets(int stage) const {
    const std::size_t devices = grouped_.stages[at(stage)].devices.size();
    if (grouped_.stages[at(stage)].state != StateLevel::kWhole) return false;
    return devices >= kLeastFlowDevices && devices <= kMostFlowDevices &&
           std::any_of(grouped_.buckets.begin(), grouped_.buckets.end(),
                       [&](const Bucket& bucket) { return is_of(bucket, stage); });
  }

  bool any_has_buckets() const {
    bool any = false;
    for (int stage = 0; stage < static_cast<int>(grouped_.stages.size()); ++stage) {
      any = any || has_buckets(stage);
    }
    return any;
  }

  /// Returns whether the step would be shorter if sums took no time.
  bool may_gain(int stage) const {
    return evaluator_.seconds_without_sums(grouped_, stage) <= (1 - kGain) * seconds_;
  }

  /// Returns the schedules for the network between a stage's devices. It runs the search where that
  /// may help, or with `any`.
  KnownSchedules& schedules(int stage, bool any) {
    const ClusterTopology network =
        topology_of(problem_.cluster, grouped_.stages[at(stage)].devices);
    const auto [entry, added] = known_.try_emplace(key_of(problem_.cluster, network));
    KnownSchedules& known = entry->second;
    if (added) make(network.topology, kInstant, known);
    if (!known.searched && kNearBound * known.at_best < 1 && (any || may_help(stage, known))) {
      make(network.topology, kSearch, known);
      known.searched = true;
    }
    return known;
  }

  void make(const Topology& network, std::span<const std::string_view> methods,
            KnownSchedules& known) {
    if (!verify_topology(network).ok()) return;
    FlowOptions flow_options;
    flow_options.seed = options_.seed;
    flow_options.effort = options_.effort;
    flow_options.barrier = false;  // ranks have no barrier between phases
    // Small pieces fill the links of few devices sooner; with many devices chunks are small
    // already.
    flow_options.max_sub_chunks = std::clamp(kMostSubChunks / network.servers, 2, kMostParts);
    flow_options.interrupted = options_.interrupted;
    const double bound = flow_bound(network).overlapped_rounds(flow_options.max_sub_chunks);
    std::vector<const FlowMethod*> used;
    for (const FlowMethod& method : flow_methods()) {
      if (std::ranges::find(methods, method.name) != methods.end()) used.push_back(&method);
    }
    std::vector<std::optional<Result<FlowSchedule>>> all(used.size());
    pool_.run_each(used.size(), [&](int /*worker*/, std::size_t i) {
      all[i] = used[i]->schedule(network, flow_options);
    });
    for (std::optional<Result<FlowSchedule>>& one : all) {
      Result<FlowSchedule>& made = *one;
      if (!made.ok()) continue;  // it does not apply to this network
      normalize(*made);
      const double at_best = bound / made->rounds();
      known.at_best = known.flows.empty() ? at_best : std::max(known.at_best, at_best);
      for (PlanFlow& flow : plan_flows_of(*made)) {
        if (std::find(known.flows.begin(), known.flows.end(), flow) != known.flows.end()) continue;
        known.flows.push_back(std::move(flow));
      }
    }
    known.fastest.clear();
  }

  /// Returns whether a schedule at the bound would sum some bucket faster than it is summed now.
  bool may_help(int stage, KnownSchedules& known) {
    std::set<std::int64_t> tried;
    for (const Bucket& bucket : grouped_.buckets) {
      const std::int64_t bytes = travelling_bytes(problem_, bucket);
      if (!is_of(bucket, stage) || !tried.insert(bytes).second) continue;
      const double least = fastest(stage, bytes, known).second;
      if (known.at_best * least < (1 - kGain) * alone(bucket, bytes)) return true;
    }
    return false;
  }

  /// Returns the flow that sums `bytes` fastest when alone, and its seconds; -1 if there is none.
  std::pair<int, double> fastest(int stage, std::int64_t bytes, KnownSchedules& known) {
    const auto [entry, added] =
        known.fastest.try_emplace(bytes, -1, std::numeric_limits<double>::infinity());
    if (!added) return entry->second;
    const std::vector<DeviceId>& devices = grouped_.stages[at(stage)].devices;
    std::vector<double> seconds(known.flows.size());
    pool_.run_each(seconds.size(), [&](int /*worker*/, std::size_t f) {
      seconds[f] = lone_seconds(problem_.cluster,
                                flow_all_reduce(problem_.cluster, devices, known.flows[f], bytes));
    });
    for (std::size_t f = 0; f < seconds.size(); ++f) {
      if (is_sooner(seconds[f], entry->second.second)) {
        entry->second = {static_cast<int>(f), seconds[f]};
      }
    }
    return entry->second;
  }

  double alone(const Bucket& bucket, std::int64_t bytes) const {
    const std::vector<DeviceId>& devices = grouped_.stages[at(bucket.stage)].devices;
    const Exchange exchange =
        bucket.flow < 0
            ? all_reduce(problem_.cluster, devices, bucket.algorithm, bytes)
            : flow_all_reduce(problem_.cluster, devices, grouped_.flows[at(bucket.flow)], bytes);
    return lone_seconds(problem_.cluster, exchange);
  }

  /// Offers the bucket the known flow that is fastest when alone, if it is faster than what the
  /// bucket has or, with `any`, however slow it is.
  void offer(std::size_t b, KnownSchedules& known, bool any, std::vector<Offer>& offers) {
    const Bucket& bucket = grouped_.buckets[b];
    const std::int64_t bytes = travelling_bytes(problem_, bucket);
    const auto [best, least] = fastest(bucket.stage, bytes, known);
    if (best < 0) return;
    if (any || least < (1 - kGain) * alone(bucket, bytes)) offers.push_back({b, best, bytes});
  }

  Strategy with(const Strategy& strategy, const std::vector<Offer>& offers,
                const std::vector<PlanFlow>& flows) const {
    Strategy other = strategy;
    for (const Offer& offered : offers) {
      const PlanFlow& flow = flows[at(offered.flow)];
      auto place = std::find(other.flows.begin(), other.flows.end(), flow);
      if (place == other.flows.end()) place = other.flows.insert(place, flow);
      Bucket& bucket = other.buckets[offered.bucket];
      bucket.algorithm = AllReduce::kFlow;
      bucket.flow = static_cast<int>(place - other.flows.begin());
    }
    fit_flows(other);
    return other;
  }

  bool take(const std::vector<Offer>& offers, const std::vector<PlanFlow>& flows) {
    grouped_ = with(grouped_, offers, flows);
    return true;
  }

  /// Takes `other` if its step is shorter by `gain`.
  bool take_if_shorter(Strategy other, double gain) {
    const double seconds = evaluator_.evaluate(other).step_seconds;
    if (!(seconds <= (1 - gain) * seconds_)) return false;
    seconds_ = seconds;
    grouped_ = std::move(other);
    return true;
  }

  bool take_what_helps(std::vector<Offer> offers, const std::vector<PlanFlow>& flows) {
    std::stable_sort(offers.begin(), offers.end(),
                     [](const Offer& a, const Offer& b) { return a.bytes > b.bytes; });
    const Strategy before = grouped_;
    const bool all = take_if_shorter(with(before, offers, flows), kGain);
    bool changed = all;
    const std::size_t most = std::min(kMostTried, offers.size());
    for (std::size_t i = 0; i < most && tried_ < kMostTriedInAll && !interrupted(); ++i) {
      if (!all) {
        ++tried_;
        changed = take_if_shorter(with(grouped_, {offers[i]}, flows), kGain) || changed;
        continue;
      }
      if (offers.size() == 1) break;
      Strategy without = grouped_;  // without the offer: is it needed?
      Bucket& bucket = without.buckets[offers[i].bucket];
      bucket = before.buckets[offers[i].bucket];
      if (bucket.flow >= 0) continue;
      ++tried_;
      fit_flows(without);
      take_if_shorter(std::move(without), 0);
    }
    return changed;
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  const FlowChoiceOptions& options_;
  KnownFlows& known_;
  WorkerPool pool_;
  Strategy grouped_;    // the strategy so far
  double seconds_ = 0;  // step of that strategy
  int tried_ = 0;       // number of buckets tried one by one
};

AllReduce algorithm_of(AllReduceChoice choice) {
  if (choice == AllReduceChoice::kHierarchical) return AllReduce::kHierarchical;
  return choice == AllReduceChoice::kTree ? AllReduce::kTree : AllReduce::kRing;
}

}  // namespace

std::optional<AllReduceChoice> all_reduce_choice_named(std::string_view name) {
  for (const auto& [word, choice] : kChoices) {
    if (word == name) return choice;
  }
  return std::nullopt;
}

Strategy choose_flows(const Problem& problem, Evaluator& evaluator, Strategy strategy,
                      const FlowChoiceOptions& options, KnownFlows& known) {
  if (!strategy.bodies.empty()) {  // no flow sums gradients of a stage with teams
    if (strategy.buckets.empty()) strategy = evaluator.grouped(std::move(strategy));
    const bool given =
        options.choice != AllReduceChoice::kAuto && options.choice != AllReduceChoice::kFlow;
    for (Bucket& bucket : strategy.buckets) {
      if (given) bucket.algorithm = algorithm_of(options.choice);
    }
    return strategy;
  }
  if (options.choice == AllReduceChoice::kAuto || options.choice == AllReduceChoice::kFlow) {
    return FlowChooser(problem, evaluator, options, known).run(std::move(strategy));
  }
  if (strategy.buckets.empty()) strategy = evaluator.grouped(std::move(strategy));
  for (Bucket& bucket : strategy.buckets) bucket.algorithm = algorithm_of(options.choice);
  fit_flows(strategy);
  return strategy;
}

}  // namespace agpcs
