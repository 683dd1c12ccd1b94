// SPDX-License-Identifier: Apache-2.0
// Teams on the chain of 26 equal layers (chain.h), on half A100-40GB, half V100-16GB in hosts of
// four, with the operators' times by degree. A row a number of devices and batch: the step of the
// plan, with and without teams; on 4 + 4 devices also the best step of all that follow:
//
// * one stage of all devices or of those of a host, in teams of 1, 2 or 4 of a host; or one stage
//   for each host, either first, after any layer, each in teams of 1, 2 or 4;
// * 1, 2, 4, ... micro-batches up to the batch;
// * shares, parts and bodies as the planner makes them (StageTeams).
//
//     chain_teams_bench [NIC [BUDGET [DEVICES...]]]
//
// NIC: bytes/s of a host's NIC, 6e9 if absent. DEVICES: multiples of eight, 8 16 32 if absent.
//
// Ends with 1 if a plan with teams in the space is slower than the plan without, or than all these.
#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/evaluate/evaluator.h"
#include "planner/plan_problem.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/refine/dqn.h"
#include "planner/refine/moves/moves.h"
#include "planner/team/stage_teams.h"
#include "tests/bench/planning/chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kDegrees[] = {1, 2, 4};
constexpr double kRounding = 1 + 1e-9;

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

std::unique_ptr<const Problem> problem_of(int devices, std::int64_t batch, double nic, bool teams) {
  Graph graph = bench::chain_of_layers();
  Cluster cluster = bench::chain_cluster(devices / 4, 4, nic, graph, {2, 4});
  Training training;
  training.batch = batch;
  training.precision = Precision::kFp16;
  training.optimizer.kind = OptimizerKind::kAdam;
  ProblemOptions options;
  options.choose_teams = teams;
  auto problem = Problem::make(std::move(graph), std::move(cluster), training, options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return *std::move(problem);
}

struct Made {
  double step = 0, seconds = 0;
  std::string text;
};

std::string text_of(const Strategy& strategy) {
  std::string text;
  for (const StageSpec& spec : strategy.stages) {
    const std::size_t degree = spec.has_teams() ? spec.further[0].size() + 1 : 1;
    text += fmt::format("{}{} x {}", text.empty() ? "" : " | ", spec.devices.size(), degree);
  }
  return fmt::format("{}, {} mb", text, strategy.micro_batches);
}

Made planned(const Problem& problem, std::int64_t budget) {
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions options;
  options.refiner = refiner.get();
  options.budget = budget;
  const double begin = processor_seconds();
  const Result<Planned> planned = plan_problem(problem, options);
  AGPCS_CHECK(planned.ok(), "{}", planned.status().message());
  return {planned->best.estimate.step_seconds, processor_seconds() - begin,
          text_of(planned->best.strategy)};
}

/// Tries all arrangements of two hosts.
class AllArrangements {
 public:
  explicit AllArrangements(const Problem& problem)
      : problem_(problem), evaluator_(problem), teams_(problem) {}

  Made run() {
    const double begin = processor_seconds();
    best_.step = std::numeric_limits<double>::infinity();
    for (std::int64_t count = 1; count <= problem_.training.batch; count *= 2) {
      for (const int degree : kDegrees) {
        try_stages({{devices_of(0, 8), degree}}, 0, count);
        try_stages({{devices_of(0, 4), degree}}, 0, count);
        try_stages({{devices_of(4, 4), degree}}, 0, count);
      }
      for (const int first : {0, 4}) {
        for (int layers = 1; layers < bench::kChainLayers; ++layers) {
          for (const int degree : kDegrees) {
            for (const int other : kDegrees) {
              try_stages({{devices_of(first, 4), degree}, {devices_of(4 - first, 4), other}},
                         layers, count);
            }
          }
        }
      }
    }
    best_.seconds = processor_seconds() - begin;
    return best_;
  }
  int tried() const { return tried_; }

 private:
  struct Stage {
    std::vector<DeviceId> devices;
    int degree = 1;
  };

  static std::vector<DeviceId> devices_of(DeviceId first, int count) {
    std::vector<DeviceId> devices;
    for (int i = 0; i < count; ++i) devices.push_back(first + i);
    return devices;
  }

  /// `layers`: of the first of two stages.
  void try_stages(const std::vector<Stage>& stages, int layers, std::int64_t micro_batches) {
    Strategy strategy;
    strategy.micro_batches = micro_batches;
    const auto cut = static_cast<OpId>(stages.size() > 1 ? 3 * layers : problem_.graph.ops.size());
    for (OpId op = 0; op < static_cast<OpId>(problem_.graph.ops.size()); ++op) {
      strategy.stage_of.push_back(op < cut ? 0 : 1);
    }
    const auto ops = ops_of_stages(strategy.stage_of, static_cast<int>(stages.size()));
    for (std::size_t s = 0; s < stages.size(); ++s) {
      if (!add_stage(stages[s], ops[s], strategy)) return;
    }
    if (!covers_all(strategy)) return;
    ++tried_;
    const Score score = evaluator_.evaluate_up_to(strategy, best_.step);
    if (!score.fits() || !score.whole || score.step_seconds >= best_.step) return;
    best_.step = score.step_seconds;
    best_.text = text_of(strategy);
    if (stages.size() > 1) best_.text += fmt::format(", {} layers first", layers);
  }

  bool covers_all(const Strategy& strategy) const {
    return std::ranges::all_of(strategy.stages, [&](const StageSpec& spec) {
      return covers(spec, problem_.training.batch, strategy.micro_batches);
    });
  }

  bool add_stage(const Stage& stage, const std::vector<OpId>& ops, Strategy& strategy) {
    if (stage.degree == 1) {
      const std::int64_t samples = largest_micro_batch(problem_, strategy.micro_batches);
      const auto [timer, added] = timers_.try_emplace(ops, nullptr);
      if (added) timer->second = std::make_unique<StageTimer>(problem_, ops);
      strategy.stages.push_back(balanced_stage(problem_, *timer->second, stage.devices, samples));
      return true;
    }
    TeamOrder order;
    order.ops = ops;
    order.teams = teams_within_hosts(problem_.cluster, stage.devices, at(stage.degree));
    order.micro_batches = strategy.micro_batches;
    std::optional<FormedStage> made = teams_.make(std::move(order));
    if (!made) return false;
    made->spec.body = static_cast<int>(strategy.bodies.size());
    strategy.stages.push_back(std::move(made->spec));
    strategy.bodies.push_back(std::move(made->body));
    return true;
  }

  const Problem& problem_;
  Evaluator evaluator_;
  StageTeams teams_;
  std::map<std::vector<OpId>, std::unique_ptr<StageTimer>> timers_;
  Made best_;
  int tried_ = 0;
};

/// Returns whether the plan with teams in the space is the best of the row.
bool print_row(int devices, std::int64_t batch, double nic, std::int64_t budget) {
  const auto with = problem_of(devices, batch, nic, true);
  const Made teams = planned(*with, budget);
  const Made plain = planned(*problem_of(devices, batch, nic, false), budget);
  fmt::print("| {} | {} | {:.2f} | {} | {:.2f} | {} | {:.3f} | {:.2f} | {:.2f} |", devices, batch,
             teams.step * 1e3, teams.text, plain.step * 1e3, plain.text, plain.step / teams.step,
             teams.seconds, plain.seconds);
  bool best = teams.step <= plain.step * kRounding;
  if (devices == 8) {
    AllArrangements all(*with);
    const Made found = all.run();
    best = best && teams.step <= found.step * kRounding;
    fmt::print(" {:.2f} | {} | {:.3f} | {} in {:.1f} s |\n", found.step * 1e3, found.text,
               teams.step / found.step, all.tried(), found.seconds);
  } else {
    fmt::print(" | | | |\n");
  }
  std::fflush(stdout);
  return best;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const double nic = argc > 1 ? std::stod(argv[1]) : 6e9;
  const std::int64_t budget = argc > 2 ? std::stoll(argv[2]) : 0;
  std::fputs(
      "| devices | batch | step ms | plan | without ms | plan without | without / with | processor "
      "s | without s | all ms | best of all | plan / all | tried |\n| --- | --- | --- | --- | --- "
      "| "
      "--- | --- | --- | --- | --- | --- | --- | --- |\n",
      stdout);
  std::vector<int> sizes = {8, 16, 32};
  if (argc > 3) sizes.clear();
  for (int i = 3; i < argc; ++i) {
    sizes.push_back(std::stoi(argv[i]));
    AGPCS_CHECK(sizes.back() > 0 && sizes.back() % 8 == 0, "{} is no multiple of eight", argv[i]);
  }
  bool best = true;
  for (const int devices : sizes) {
    for (const std::int64_t batch : {1, 2, 4, 8, 64, 1024}) {
      best = agpcs::print_row(devices, batch, nic, budget) && best;
    }
  }
  return best ? 0 : 1;
}
