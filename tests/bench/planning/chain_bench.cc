// SPDX-License-Identifier: Apache-2.0
// Processor seconds of seeding and search on a chain of 26 equal layers with profiled times, on
// half A100-40GB, half V100-16GB. It stands for OPT-350M, on which planners for mixed clusters are
// compared. Prints a table, a row a number of devices; figures are medians. The first plan is found
// after so many seconds of wall time without the problem's making.
//
//     chain_bench                                  8, 32, 128 and 512 devices, five times each
//     chain_bench DEVICES [THREADS [TIMES [BUDGET]]]
//
// * A layer has three operators: MatMul of [n,2048,1024] with [1024,6144], Relu, MatMul with
//   [6144,1024]. That makes 12.6e6 parameters, as many as a layer of OPT-350M.
// * The profile has the times of 1, 2, 4, 8 and 16 samples: 30 us an operator, and for each sample
//   of a layer 0.6 ms on an A100 and 1.6 ms on a V100, of which each MatMul takes 45%. Backward
//   takes twice as long as forward.
// * Hosts have four devices of one kind, at 250 GB/s each (A100) or 120 GB/s (V100), and a NIC of
//   6 GB/s. The batch is 1,024 samples, in fp16, with Adam.
#include "cost_model/fit/calibrate.h"
#include "ir/base/check.h"
#include "ir/graph/op_signature.h"
#include "ir/graph/training_graph.h"
#include "planner/pipeline.h"
#include "planner/refine/dqn.h"
#include "tests/bench/support/mistakes.h"
#include "tests/support/builders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kLayers = 26;
constexpr std::int64_t kTokens = 2048, kWidth = 1024, kInner = 6144;
constexpr double kFixed = 30e-6;

Graph chain_of_layers() {
  std::string text = fmt::format("input x [n,{},{}]\n", kTokens, kWidth);
  std::string last = "x";
  for (int i = 0; i < kLayers; ++i) {
    text += fmt::format(
        "parameter v{0} [{3},{4}]\nparameter w{0} [{4},{3}]\na{0} = MatMul({1}, v{0}) [n,{2},{4}]\n"
        "b{0} = Relu(a{0}) [n,{2},{4}]\nc{0} = MatMul(b{0}, w{0}) [n,{2},{3}]\n",
        i, last, kTokens, kWidth, kInner);
    last = fmt::format("c{}", i);
  }
  text += fmt::format("outputs {}\n", last);
  Loss loss;
  loss.kind = LossKind::kMse;
  Result<Graph> with_loss = attach_loss(testing::graph_of(text), loss);
  AGPCS_CHECK(with_loss.ok(), "{}", with_loss.status().message());
  Result<Graph> graph = derive_backward(*std::move(with_loss));
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  return *std::move(graph);
}

/// The layers as measured on device `name`, on which a sample of a layer takes `layer` seconds.
DeviceProfile measured(const std::string& name, const Graph& graph, double layer) {
  DeviceProfile device;
  device.name = name;
  device.precision = Precision::kFp16;
  device.models = {graph.name};
  std::map<std::string, MeasuredOperator> by_signature;
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    const std::string& type = graph.op(op).type;
    if (type != "MatMul" && type != "Relu") continue;
    MeasuredOperator one{op_signature(graph, op), class_of(graph.op(op)), {}};
    const double part = (type == "MatMul" ? 0.45 : 0.1) * layer;
    for (const std::int64_t n : {1, 2, 4, 8, 16}) {
      const double seconds = kFixed + part * static_cast<double>(n);
      one.points.push_back(
          {n, op_cost(graph, op, n, Precision::kFp16), {seconds, 0}, {2 * seconds, 0}});
    }
    by_signature.try_emplace(one.signature, one);
  }
  for (auto& [signature, one] : by_signature) device.operators.push_back(std::move(one));
  return device;
}

Cluster cluster_of_size(int devices, const Graph& graph) {
  std::string text =
      "kind a100-40 memory=40e9 bandwidth=1555e9 fp16=312e12\n"
      "kind v100-16 memory=16e9 bandwidth=900e9 fp16=125e12\n";
  const int hosts = devices / 4;
  for (int host = 0; host < hosts; ++host) {
    const bool fast = host < hosts / 2;
    text += fmt::format("host h{} {} 4 bandwidth={} latency=3e-6 nic=6e9 nic-latency=10e-6\n", host,
                        fast ? "a100-40" : "v100-16", fast ? "250e9" : "120e9");
  }
  Cluster cluster = testing::cluster_of(text);
  Profile profile;
  profile.file = "chain.yaml";
  profile.devices = {measured("a100-40", graph, 0.6e-3), measured("v100-16", graph, 1.6e-3)};
  seal_profile(profile);
  cluster.profiles = {std::move(profile)};
  for (DeviceKind& kind : cluster.kinds) kind.profile = {0, kind.name};
  Result<Calibrated> calibrated = calibrate(std::move(cluster));
  AGPCS_CHECK(calibrated.ok(), "{}", calibrated.status().message());
  return std::move(calibrated->cluster);
}

double seconds_of(clockid_t clock) {
  timespec now = {};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Takes the processor time of each stage.
class TimedStages : public Stages {
 public:
  double processor_seconds(const std::string& stage) const { return processor_.at(stage); }
  double wall_seconds(const std::string& stage) const { return wall_.at(stage); }

 protected:
  void begins(std::string_view) override { began_ = seconds_of(CLOCK_PROCESS_CPUTIME_ID); }
  void took(std::string_view name, double seconds) override {
    processor_[std::string(name)] = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - began_;
    wall_[std::string(name)] = seconds;
  }

 private:
  double began_ = 0;
  std::map<std::string, double> processor_, wall_;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Settings {
  int threads = 1, times = 5;
  std::int64_t budget = 0;
};

void print_row(int devices, const Settings& settings) {
  Graph graph = chain_of_layers();
  Cluster cluster = cluster_of_size(devices, graph);
  Training training;
  training.batch = 1024;
  training.precision = Precision::kFp16;
  training.optimizer.kind = OptimizerKind::kAdam;
  auto problem = Problem::make(std::move(graph), std::move(cluster), training);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions options;
  options.refiner = refiner.get();
  options.threads = settings.threads;
  options.budget = settings.budget;
  PipelineInput input;
  input.problem = problem->get();
  input.options = [&](const Problem&) -> Result<PlanOptions> { return options; };
  std::vector<double> seed, search, both, wall, first;
  double began = 0;
  bool shown = false;
  options.found = [&](double, std::string_view) {
    if (!std::exchange(shown, true)) first.push_back(seconds_of(CLOCK_MONOTONIC) - began);
  };
  Compiled compiled;
  for (int i = 0; i < settings.times; ++i) {
    TimedStages stages;
    shown = false;
    began = seconds_of(CLOCK_MONOTONIC);
    const Status status = run_pipeline(input, stages, compiled);
    AGPCS_CHECK(status.ok(), "{}", status.message());
    seed.push_back(stages.processor_seconds("seed"));
    search.push_back(stages.processor_seconds("refine"));
    both.push_back(seed.back() + search.back());
    wall.push_back(stages.wall_seconds("seed") + stages.wall_seconds("refine"));
  }
  const Planned& planned = compiled.planned;
  const double step = planned.best.estimate.step_seconds;
  std::size_t used = 0;
  for (const StageSpec& spec : planned.best.strategy.stages) used += spec.devices.size();
  std::printf("| %d | %.3f | %.3f | %.3f | %.3f | %ld | %.2f | %.4f | %.3f | %zu in %zu | %.3f |\n",
              devices, median(seed), median(search), median(both), median(wall),
              static_cast<long>(planned.best.plan.made_by.evaluations), step * 1e3,
              planned.refinement.start_seconds.value_or(step) / step,
              step / planned.bound->any.seconds, used, planned.best.strategy.stages.size(),
              median(first));
  std::fflush(stdout);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const auto number = [&](int i) { return agpcs::bench::number_of<int>("chain_bench", argv[i]); };
  agpcs::Settings settings;
  std::vector<int> sizes = {8, 32, 128, 512};
  if (argc > 1) sizes = {number(1)};
  if (argc > 2) settings.threads = number(2);
  if (argc > 3) settings.times = number(3);
  if (argc > 4) settings.budget = number(4);
  if (sizes.front() < 8 || sizes.front() % 8 != 0 || settings.threads < 1 || settings.times < 1) {
    agpcs::bench::end_with_usage("chain_bench", "wrong numbers",
                                 "[DEVICES [THREADS [TIMES [BUDGET]]]], DEVICES a multiple of 8");
  }
  std::printf(
      "| devices | seeding s | search s | both s | wall s | evaluations | step ms | best seed / "
      "plan | plan / bound | devices used, in stages | first plan s |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int devices : sizes) agpcs::print_row(devices, settings);
  return 0;
}
