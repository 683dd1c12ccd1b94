// SPDX-License-Identifier: Apache-2.0
#include "planner/part_plans.h"

#include "ir/base/at.h"
#include "planner/refine/search.h"
#include "planner/seed/device_groups.h"

#include <algorithm>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr int kMostDevicesOfParts = 64;

/// Returns sets of devices, ascending: all but those of the last host of each class, and those of
/// the first kinds of each order.
std::set<std::vector<DeviceId>> parts_of(const Cluster& cluster, ClusterParts which) {
  std::set<std::vector<DeviceId>> parts;
  const auto add = [&](const auto& belongs) {
    std::vector<DeviceId> devices;
    for (DeviceId id = 0; id < cluster.device_count(); ++id) {
      if (belongs(cluster.devices[at(id)])) devices.push_back(id);
    }
    if (devices.empty() || devices.size() == cluster.devices.size()) return;
    parts.insert(std::move(devices));
  };
  const auto memory = [](const DeviceKind& kind) { return -kind.memory_bytes; };
  const auto speed = [](const DeviceKind& kind) { return -kind.memory_bandwidth; };
  const auto add_kinds = [&](const auto& key) {
    std::vector<int> order(cluster.kinds.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return key(cluster.kinds[at(a)]) < key(cluster.kinds[at(b)]);
    });
    for (std::size_t count = 1; count < order.size(); ++count) {
      const auto end = order.begin() + static_cast<std::ptrdiff_t>(count);
      add([&](const Device& device) { return std::find(order.begin(), end, device.kind) != end; });
    }
  };
  if (which == ClusterParts::kHostsAndKinds) {
    add_kinds(memory);
    add_kinds(speed);
  }
  const std::vector<int> classes = host_classes(cluster);
  for (std::size_t host = 0; host < classes.size(); ++host) {
    const auto next = classes.begin() + static_cast<std::ptrdiff_t>(host) + 1;
    if (std::find(next, classes.end(), classes[host]) != classes.end()) continue;
    add([&](const Device& device) { return at(device.host) != host; });
  }
  return parts;
}

/// Returns the cluster with these devices alone. All links remain, also those of nobody.
Cluster part_of(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  Cluster part = cluster;
  part.hosts.clear();
  part.devices.clear();
  part.host_routes.clear();
  std::vector<int> hosts;
  for (const DeviceId id : devices) {
    Device device = cluster.devices[at(id)];
    if (hosts.empty() || hosts.back() != device.host) {
      hosts.push_back(device.host);
      Host host = cluster.hosts[at(device.host)];
      host.first_device = part.device_count();
      host.device_count = 0;
      part.hosts.push_back(std::move(host));
    }
    device.host = static_cast<int>(hosts.size()) - 1;
    device.index = part.hosts.back().device_count++;
    part.devices.push_back(device);
  }
  for (const int from : hosts) {
    for (const int to : hosts) {
      part.host_routes.push_back(cluster.host_routes[at(from) * cluster.hosts.size() + at(to)]);
    }
  }
  return part;
}

/// Returns the plan of a part, if one fits.
std::optional<Strategy> planned(const Problem& part, const PlanOptions& options) {
  Evaluator evaluator(part);
  const Result<Seeds> seeds = seed(part, evaluator, options, {});
  if (!seeds.ok() || !seeds->pool.best().score.fits()) return std::nullopt;
  std::vector<Strategy> starts = seeds->pool.starts(kStartsOfSearch);
  SearchBudget budget(options.budget > 0 ? options.budget : default_budget(part, starts.front()),
                      options.interrupted, {});
  const auto point = make_strategy_search(part, std::move(starts), options.threads);
  options.refiner->refine(*point, budget, Rng(options.seed).fork("refine"));
  return point->strategy();
}

}  // namespace

bool wants_part_plans(const Problem& problem, const Seeds& seeds) {
  if (problem.cluster.device_count() > kMostDevicesOfParts) return false;
  bool any = false;
  for (const Seed& seed : seeds.pool.all()) {
    any = any || seed.score.fits();
    if (seed.score.fits() && seed.strategy.stages.size() == 1) return false;
  }
  return any;
}

std::vector<Strategy> part_plans(const Problem& problem, ClusterParts parts,
                                 const PlanOptions& options) {
  PlanOptions of_part = options;
  of_part.starts.clear();
  of_part.progress = {};
  of_part.search_progress = {};
  of_part.found = {};
  std::vector<Strategy> plans;
  for (const std::vector<DeviceId>& devices : parts_of(problem.cluster, parts)) {
    if (options.interrupted != nullptr && options.interrupted->load()) break;
    ProblemOptions part_options = problem.options;
    part_options.choose_teams = false;  // `search_teams` looks for them in the whole cluster
    const auto part = Problem::make(problem.graph, part_of(problem.cluster, devices),
                                    problem.training, part_options);
    if (!part.ok()) continue;
    std::optional<Strategy> strategy = planned(**part, of_part);
    if (!strategy) continue;
    for (StageSpec& stage : strategy->stages) {
      for (DeviceId& id : stage.devices) id = devices[at(id)];
      if (stage.odd != kNone) stage.odd = devices[at(stage.odd)];
    }
    plans.push_back(*std::move(strategy));
  }
  return plans;
}

}  // namespace agpcs
