// SPDX-License-Identifier: Apache-2.0
// What a warm-started re-plan is worth on hardware that changed: a table of steps (simulated) of
// the running plan, of the re-plan, and of a whole compilation for the new hardware, with the part
// of the possible gain that the re-plan reaches, and what planning took on one thread.
//
//     replan_bench FOLDER MODEL... -- CLUSTER.yaml...      models are FOLDER/MODEL.onnx
#include "cost_model/explain/drifted_cluster.h"
#include "cost_model/fit/calibrate.h"
#include "frontend/cluster/file.h"
#include "frontend/onnx/import_onnx.h"
#include "ir/base/check.h"
#include "ir/graph/training_graph.h"
#include "planner/plan_problem.h"
#include "planner/refine/dqn.h"
#include "planner/replan.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr double kSlower = 2.5;  // 40% of the speed
constexpr double kThinner = 4;

template <typename T>
T need(Result<T> result) {
  AGPCS_CHECK(result.ok(), "{}", result.status().message());
  return *std::move(result);
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Graph read_graph(const std::string& path, Loss& loss) {
  Graph graph = need(import_onnx(path)).graph;
  graph = need(attach_loss(std::move(graph), loss));
  return need(derive_backward(std::move(graph)));
}

/// As agpcs-compile plans, on one thread.
Planned compile(const Problem& problem) {
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions options;
  options.refiner = refiner.get();
  return need(plan_problem(problem, options));
}

std::unique_ptr<const Problem> problem_of(const Graph& graph, const Cluster& cluster,
                                          const Training& training, Ranks ranks) {
  ProblemOptions options;
  options.ranks = ranks;
  return need(Problem::make(Graph(graph), cluster, training, options));
}

/// The cluster's devices that the plan uses: those of the job.
Cluster in_use(const Cluster& cluster, const Plan& plan) {
  std::set<std::string> used;
  for (const PlanStage& stage : plan.stages) {
    used.insert(stage.devices.begin(), stage.devices.end());
  }
  std::vector<DeviceId> idle;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    if (used.count(cluster.device_name(id)) == 0) idle.push_back(id);
  }
  return without_devices(cluster, idle);
}

/// Both directions of the NIC of the last host: a quarter.
void thin_link(const Cluster& cluster, HardwareDrift& drift) {
  const std::string nic = cluster.hosts.back().name + " nic ";
  for (LinkId id = 0; id < static_cast<LinkId>(cluster.links.size()); ++id) {
    if (cluster.links[static_cast<std::size_t>(id)].name.rfind(nic, 0) == 0) {
      drift.links[id].seconds_per_byte = kThinner;
    }
  }
}

struct Totals {
  int rows = 0, reached = 0;
  double least = std::numeric_limits<double>::infinity();
};

void print_row(const std::string& model, const Cluster& cluster, const char* what,
               const Graph& graph, const Training& training, const Plan& running,
               const HardwareDrift& drift, Totals& totals) {
  const Cluster drifted = drifted_cluster(cluster, drift);
  double began = now();
  const auto problem = problem_of(graph, drifted, training, Ranks::kAll);
  ReplanOptions options;
  options.least_gain = -1;
  const auto warm = need(replan(*problem, running, options));
  const double warm_took = now() - began;
  began = now();
  const Planned whole = compile(*problem_of(graph, drifted, training, Ranks::kUsed));
  const double whole_took = now() - began;
  const double old = warm->running_step_seconds, best = whole.best.estimate.step_seconds;
  const double got = warm->best.estimate.step_seconds;
  // Less than 3% to gain is nothing to switch for.
  const bool counts = old > best * 1.03;
  const double share = (old - got) / (old - best);
  if (counts) {
    ++totals.rows;
    totals.reached += share >= 0.95 ? 1 : 0;
    totals.least = std::min(totals.least, share);
  }
  fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {} | {:.1f} | {:.1f} |\n", model,
             cluster.name, what, 1e3 * old, 1e3 * got, 1e3 * best,
             counts ? fmt::format("{:.0f}%", 100 * share) : "-", warm_took, whole_took);
  std::fflush(stdout);
}

void print_rows(const std::string& path, const std::string& cluster_file, Totals& totals) {
  ClusterFile file = need(read_cluster(cluster_file));
  const Cluster cluster = need(calibrate(std::move(file.cluster))).cluster;
  const Graph graph = read_graph(path, file.training.loss);
  const Plan running = compile(*problem_of(graph, cluster, file.training, Ranks::kUsed)).best.plan;
  const Cluster job = in_use(cluster, running);
  HardwareDrift device, link, both;
  device.devices[0] = kSlower;
  thin_link(job, link);
  both = compose(device, link);
  const std::string model = std::filesystem::path(path).stem().string();
  print_row(model, job, "device", graph, file.training, running, device, totals);
  print_row(model, job, "link", graph, file.training, running, link, totals);
  print_row(model, job, "both", graph, file.training, running, both, totals);
}

int run(const std::vector<std::string>& words) {
  std::vector<std::string> models, clusters;
  bool after = false;
  for (std::size_t i = 1; i < words.size(); ++i) {
    if (words[i] == "--") {
      after = true;
    } else {
      (after ? clusters : models).push_back(words[i]);
    }
  }
  if (models.empty() || clusters.empty()) {
    bench::end_with_usage("replan_bench", "no models, or no clusters",
                          "FOLDER MODEL... -- CLUSTER.yaml..., such as samples/models resnet50 "
                          "-- samples/clusters/mixed-32.yaml");
  }
  const std::string& folder = words[0];
  fmt::print(
      "| model | cluster | changed | running plan ms | re-plan ms | whole compilation ms | of the "
      "gain | re-plan s | compilation s |\n|{}\n",
      " --- | --- | --- | --- | --- | --- | --- | --- | --- |");
  Totals totals;
  for (const std::string& cluster : clusters) {
    for (const std::string& model : models)
      print_rows(folder + "/" + model + ".onnx", cluster, totals);
  }
  fmt::print("\nOf {} rows with 3% or more to gain, {} reach 95% of it; the least is {:.0f}%.\n",
             totals.rows, totals.reached, 100 * totals.least);
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  return agpcs::run(std::vector<std::string>(argv + 1, argv + argc));
}
