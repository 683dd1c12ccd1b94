// SPDX-License-Identifier: Apache-2.0
// Processor seconds of seeding and search on a chain of 26 equal layers with profiled times, on
// half A100-40GB, half V100-16GB. It stands for OPT-350M, on which planners for mixed clusters are
// compared. Prints a table, a row a number of devices; figures are medians. The first plan is found
// after so many seconds of wall time without the problem's making.
//
//     chain_bench                                  8, 32, 128 and 512 devices, five times each
//     chain_bench DEVICES [THREADS [TIMES [BUDGET]]]
//
// The batch is 1,024 samples, in fp16, with Adam; tests/bench/planning/chain.h says the rest.
#include "ir/base/check.h"
#include "planner/pipeline.h"
#include "planner/refine/dqn.h"
#include "tests/bench/planning/chain.h"
#include "tests/bench/support/mistakes.h"

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
  Graph graph = bench::chain_of_layers();
  Cluster cluster = bench::chain_cluster(devices / 4, 4, 6e9, graph);
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
