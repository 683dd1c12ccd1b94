// SPDX-License-Identifier: Apache-2.0
#include "tools/run/compiler_replanner.h"

#include "cost_model/explain/blame_links.h"
#include "ir/base/median.h"
#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "planner/problem/problem.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <sys/resource.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

std::string digest_of_cluster(const Cluster& cluster) { return digest_of(print_cluster(cluster)); }

Result<DeviceId> device_of(int rank, const std::vector<std::string>& names,
                           const Cluster& cluster) {
  if (rank < 0 || rank >= static_cast<int>(names.size())) {
    return internal_error(fmt::format("drift of rank {}, of {} ranks", rank, names.size()));
  }
  const std::string& name = names[static_cast<std::size_t>(rank)];
  const DeviceId device = cluster.find_device(name);
  if (device >= 0) return device;
  return invalid_input(
      fmt::format("rank {}: cluster '{}' has no device '{}'", rank, cluster.name, name));
}

double ratio(double now, double before) { return before > 0 && now > 0 ? now / before : 1; }

// A step of other shares or stages tells how fast a device is to within about a quarter: this is
// the logarithm of 1.25.
constexpr double kAsExact = 0.223;

// A smaller change of latency is due to the scheduler, not to a link.
constexpr double kLeastLatencyChange = 200e-6;

/// Returns the routes that were probed both times.
Result<std::vector<RouteDrift>> routes_of(const HardwareReport& report,
                                          const std::vector<std::string>& names,
                                          const Cluster& cluster) {
  std::map<std::pair<int, int>, const LinkMeasurement*> before;
  for (const LinkMeasurement& link : report.before) before[{link.from, link.to}] = &link;
  std::vector<RouteDrift> routes;
  for (const LinkMeasurement& now : report.now) {
    const auto known = before.find({now.from, now.to});
    if (known == before.end()) continue;
    RouteDrift route;
    AGPCS_TRY(route.from, device_of(now.from, names, cluster));
    AGPCS_TRY(route.to, device_of(now.to, names, cluster));
    route.seconds_per_byte = ratio(now.seconds_per_byte, known->second->seconds_per_byte);
    const double was = known->second->latency_seconds;
    if (std::abs(now.latency_seconds - was) >= kLeastLatencyChange) {
      route.latency = ratio(now.latency_seconds, was);
    }
    routes.push_back(route);
  }
  return routes;
}

/// Returns the devices of the cluster that the next plan does not use: those without a rank, and
/// lost ones.
std::vector<DeviceId> devices_to_leave(const std::vector<std::string>& names,
                                       const std::vector<int>& lost, const Cluster& cluster) {
  std::set<std::string> kept(names.begin(), names.end());
  for (const int rank : lost) kept.erase(names.at(static_cast<std::size_t>(rank)));
  std::vector<DeviceId> left;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (kept.count(cluster.device_name(id)) == 0) left.push_back(id);
  }
  return left;
}

std::string links_text(const HardwareReport& report, const std::vector<std::string>& names) {
  std::map<std::pair<int, int>, const LinkMeasurement*> before;
  for (const LinkMeasurement& link : report.before) before[{link.from, link.to}] = &link;
  std::string text;
  for (const LinkMeasurement& now : report.now) {
    const auto known = before.find({now.from, now.to});
    if (known == before.end()) continue;
    const LinkMeasurement& was = *known->second;
    fmt::format_to(std::back_inserter(text), "messages {} -> {}: {} and {}, before {} and {}\n",
                   names.at(static_cast<std::size_t>(now.from)),
                   names.at(static_cast<std::size_t>(now.to)),
                   byte_figure(std::llround(1 / now.seconds_per_byte)) + "/s",
                   figure(now.latency_seconds, "s"),
                   byte_figure(std::llround(1 / was.seconds_per_byte)) + "/s",
                   figure(was.latency_seconds, "s"));
  }
  return text;
}

// Lowers the priority of the calling thread alone, as Linux permits, because training goes first.
void take_lowest_priority() {
  constexpr int kLowest = 19;
  setpriority(PRIO_PROCESS, 0, kLowest);
}

class PlansWithTheCompiler final : public CompilerReplanner {
 public:
  PlansWithTheCompiler(const Plan& plan, Graph graph, Cluster cluster, const ReplanOptions& options)
      : graph_(std::move(graph)),
        cluster_(std::move(cluster)),
        options_(options),
        has_teams_(!plan.bodies.empty()),
        has_unlike_teams_(std::ranges::any_of(plan.stages, &PlanStage::has_unlike_teams)) {
    drifts_[plan.cluster_digest] = {};
  }

  Result<std::optional<Replan>> replan(const Plan& running, const HardwareReport& report,
                                       const std::atomic<bool>& cancel) override;

  std::string hardware_text() const override {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  void forget_small(const Plan& running, const HardwareReport& report, const HardwareDrift& before,
                    HardwareDrift& drift) const;
  void remember(const Plan& running, const Plan& made, const HardwareReport& report,
                const HardwareDrift& drift);

  const Graph graph_;
  const Cluster cluster_;  ///< as in the cluster file
  const ReplanOptions options_;
  /// The job's first plan has: others may have, too.
  const bool has_teams_, has_unlike_teams_;
  /// How the clusters of plans differ from the file's, by the digests of those clusters.
  std::map<std::string, HardwareDrift> drifts_;
  mutable std::mutex mutex_;
  std::string text_;
};

Result<std::optional<Replan>> PlansWithTheCompiler::replan(const Plan& running,
                                                           const HardwareReport& report,
                                                           const std::atomic<bool>& cancel) {
  take_lowest_priority();
  const auto known = drifts_.find(running.cluster_digest);
  if (known == drifts_.end()) {
    return invalid_input(
        fmt::format("the running plan was made for a cluster with digest {}, of which nothing is "
                    "known here",
                    running.cluster_digest));
  }
  AGPCS_TRY(const HardwareDrift more,
            drift_of(running, report, drifted_cluster(cluster_, known->second)));
  HardwareDrift drift = compose(known->second, more);
  forget_small(running, report, known->second, drift);
  if (drift == known->second && report.lost_ranks.empty()) return {std::nullopt};
  const std::vector<DeviceId> left =
      devices_to_leave(devices_of_ranks(running), report.lost_ranks, cluster_);
  if (static_cast<int>(left.size()) == cluster_.device_count()) {
    return Status(StatusCode::kInfeasible, "no device is left to plan for");
  }
  ProblemOptions wanted;
  wanted.ranks = Ranks::kAll;
  wanted.choose_teams = has_teams_;
  wanted.choose_unlike = has_unlike_teams_;
  const Cluster now = drifted_cluster(cluster_, drift);
  AGPCS_TRY(const auto problem,
            Problem::make(Graph(graph_), without_devices(now, left), running.training, wanted));
  ReplanOptions options = options_;
  options.least_gain = -std::numeric_limits<double>::infinity();  // the trainer judges
  options.interrupted = &cancel;
  AGPCS_TRY(std::optional<Replanned> better, agpcs::replan(*problem, running, options));
  if (!better) return {std::nullopt};
  better->best.plan.cluster_digest = digest_of_cluster(now);  // the digest includes idle devices
  remember(running, better->best.plan, report, drift);
  return {Replan{std::move(better->best.plan), better->running_step_seconds,
                 better->best.estimate.step_seconds}};
}

/// Takes devices to be just as the cluster file has them, but for what all have in common, where
/// their factors are near that: those that are reported to be so again, and those that did not
/// change and have a profile, which tells their speed better than a step does.
void PlansWithTheCompiler::forget_small(const Plan& running, const HardwareReport& report,
                                        const HardwareDrift& before, HardwareDrift& drift) const {
  const auto factor_in = [](const HardwareDrift& of, DeviceId device) {
    const auto found = of.devices.find(device);
    return found == of.devices.end() ? 1.0 : found->second;
  };
  const std::vector<std::string> names = devices_of_ranks(running);
  std::set<DeviceId> changed, steady;
  for (const DriftChange& change : report.changes) {
    if (change.quantity != Quantity::kCompute) continue;
    changed.insert(cluster_.find_device(names.at(static_cast<std::size_t>(change.rank))));
  }
  std::vector<double> factors;
  for (const std::string& name : names) {
    const DeviceId device = cluster_.find_device(name);
    if (changed.count(device) > 0 || !cluster_.kind_of(device).profile.given()) continue;
    steady.insert(device);
    factors.push_back(factor_in(drift, device));
  }
  const double common = factors.empty() ? 1 : median(factors);
  for (const std::string& name : names) {
    const DeviceId device = cluster_.find_device(name);
    const double off = std::abs(std::log(factor_in(drift, device) / common));
    const bool returned =
        changed.count(device) > 0 && off < std::abs(std::log(factor_in(before, device) / common));
    if (off < kAsExact && (returned || steady.count(device) > 0)) drift.devices[device] = common;
  }
  drift = compose(std::move(drift), {});
}

void PlansWithTheCompiler::remember(const Plan& running, const Plan& made,
                                    const HardwareReport& report, const HardwareDrift& drift) {
  drifts_[made.cluster_digest] = drift;
  std::string text = fmt::format("hardware of plan {}\n", digest_of(print_plan(made)));
  fmt::format_to(std::back_inserter(text), "made from plan {} after step {}\n",
                 digest_of(print_plan(running)), report.step);
  fmt::format_to(std::back_inserter(text), "\nwhat differs from cluster '{}', {}:\n", cluster_.name,
                 digest_of_cluster(cluster_));
  text += print_drift(cluster_, drift);
  text += "\nwhat was measured, against what the plan before expected:\n";
  for (const DriftChange& change : report.changes) text += describe(running, change) + "\n";
  const std::vector<std::string> names = devices_of_ranks(running);
  text += links_text(report, names);
  for (const int rank : report.lost_ranks) {
    text += fmt::format("{} is lost\n", names.at(static_cast<std::size_t>(rank)));
  }
  for (const DeviceId device : devices_to_leave(names, {}, cluster_)) {
    text += fmt::format("{} has no rank, so no plan may use it\n", cluster_.device_name(device));
  }
  const std::lock_guard lock(mutex_);
  text_ = std::move(text);
}

}  // namespace

Result<HardwareDrift> drift_of(const Plan& running, const HardwareReport& report,
                               const Cluster& cluster) {
  const std::vector<std::string> names = devices_of_ranks(running);
  HardwareDrift drift;
  for (const DriftChange& change : report.changes) {
    if (change.quantity != Quantity::kCompute) continue;
    AGPCS_TRY(const DeviceId device, device_of(change.rank, names, cluster));
    drift.devices[device] = change.factor;
  }
  // Changes are relative to what the plan expects, not to normal times: the cluster is what the
  // plan expects.
  for (std::size_t rank = 0; rank < report.computing.size(); ++rank) {
    AGPCS_TRY(const DeviceId device, device_of(static_cast<int>(rank), names, cluster));
    drift.devices[device] = report.computing[rank];
  }
  AGPCS_TRY(const std::vector<RouteDrift> routes, routes_of(report, names, cluster));
  drift.links = blame_links(cluster, routes);
  return drift;
}

Result<std::unique_ptr<CompilerReplanner>> make_compiler_replanner(const Plan& plan, Graph graph,
                                                                   Cluster cluster,
                                                                   const ReplanOptions& options) {
  const auto differ = [](const char* what, const std::string& planned, const std::string& given) {
    return invalid_input(
        fmt::format("the plan was made for a {} with digest {}, this one has {}\n"
                    "  hint: plan anew with the files that are given, or give those of the plan",
                    what, planned, given));
  };
  const std::string model = digest_of(print_graph(graph)), given = digest_of_cluster(cluster);
  if (model != plan.model_digest) return differ("model", plan.model_digest, model);
  if (given != plan.cluster_digest) return differ("cluster", plan.cluster_digest, given);
  graph.title = plan.model;  // all plans of a job have the same model name
  return {
      std::make_unique<PlansWithTheCompiler>(plan, std::move(graph), std::move(cluster), options)};
}

}  // namespace agpcs
