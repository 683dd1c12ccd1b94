// SPDX-License-Identifier: Apache-2.0
// What each dimension of the space of plans is worth: models that hardly fit, planned with all of
// them and without one at a time. Run it in the root of the repository.
//
//     space_bench                     all rows
//     space_bench MODEL CLUSTER       one row: "gpt-1.3b" "v100x8"
#include "frontend/cluster/file.h"
#include "ir/base/check.h"
#include "planner/plan_problem.h"
#include "planner/refine/dqn.h"
#include "tests/bench/planning/gpt.h"
#include "tests/support/builders.h"

#include <agpcs/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct Model {
  std::string_view name;
  bench::GptSize size;
  std::int64_t batch = 0;
};

/// The shapes of GPT-3 (Brown et al., 2020, table 2.1), sequences of 1,024 tokens.
const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"gpt-1.3b", {24, 2048, 1024, 50257, 4}, 256},
      {"gpt-2.7b", {32, 2560, 1024, 50257, 4}, 256},
      {"gpt-6.7b", {32, 4096, 1024, 50257, 4}, 256},
  };
  return all;
}

const std::vector<std::string_view>& clusters() {
  static const std::vector<std::string_view> all = {"v100x4-rtx3090x4", "mixed-32", "v100x8",
                                                    "a100x16"};
  return all;
}

Cluster cluster_named(std::string_view name) {
  if (name == "v100x8") {
    return testing::cluster_of(
        "kind v memory=16e9 bandwidth=900e9 fp32=15.7e12 fp16=125e12\n"
        "host h0 v 8 bandwidth=150e9 latency=3e-6 nic=12.5e9\n");
  }
  if (name == "a100x16") {
    return testing::cluster_of(
        "kind a memory=40e9 bandwidth=1555e9 fp32=19.5e12 fp16=312e12\n"
        "host h0 a 8 bandwidth=250e9 latency=2e-6 nic=25e9\n"
        "host h1 a 8 bandwidth=250e9 latency=2e-6 nic=25e9\n");
  }
  Result<ClusterFile> file = read_cluster(fmt::format("samples/clusters/{}.yaml", name));
  AGPCS_CHECK(file.ok(), "{}", file.status().message());
  return std::move(file->cluster);
}

/// What a plan uses of the space.
std::string uses(const Strategy& strategy) {
  std::size_t divides = 0, recomputes = 0, devices = 0;
  for (const StageSpec& spec : strategy.stages) {
    divides += spec.divides_state ? 1 : 0;
    recomputes += spec.recompute ? 1 : 0;
    devices += spec.devices.size();
  }
  return fmt::format("{} stages, {} devices, {} divide, {} recompute, {} micro-batches",
                     strategy.stages.size(), devices, divides, recomputes, strategy.micro_batches);
}

struct Row {
  std::optional<double> seconds;
  double bound = 0, processor = 0;
  std::string uses;
};

Row plan(const Model& model, std::string_view cluster, const ProblemOptions& options) {
  Training training;
  training.batch = model.batch;
  training.precision = Precision::kFp16;
  training.optimizer.kind = OptimizerKind::kAdam;
  auto problem = Problem::make(bench::gpt(model.size), cluster_named(cluster), training, options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions plan_options;
  plan_options.refiner = refiner.get();
  plan_options.threads = 1;
  const std::clock_t begin = std::clock();
  const Result<Planned> planned = plan_problem(**problem, plan_options);
  Row row;
  row.processor = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  if (!planned.ok()) {
    AGPCS_CHECK(planned.status().code() == StatusCode::kInfeasible, "{}",
                planned.status().message());
    return row;
  }
  row.seconds = planned->best.estimate.step_seconds;
  row.bound = planned->bound->any.seconds;
  row.uses = uses(planned->best.strategy);
  return row;
}

void print_row(const Model& model, std::string_view cluster) {
  const Row whole = plan(model, cluster, {});
  ProblemOptions without_state;
  without_state.divide_state = false;
  const Row without = plan(model, cluster, without_state);
  const auto seconds = [](const Row& row) {
    return row.seconds ? fmt::format("{:.3f}", *row.seconds) : std::string("does not fit");
  };
  const std::string worth = whole.seconds && without.seconds
                                ? fmt::format("{:.3f}", *without.seconds / *whole.seconds)
                                : "";
  fmt::print("| {} | {} | {} | {:.3f} | {} | {} | {} | {:.1f} | {:.1f} |\n", model.name, cluster,
             seconds(whole), whole.bound, seconds(without), worth, whole.uses, whole.processor,
             without.processor);
  std::fflush(stdout);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc != 1 && argc != 3) {
    std::fputs("space_bench [MODEL CLUSTER]\n", stderr);
    return 2;
  }
  fmt::print(
      "| model | cluster | step s | bound s | without state s | without / with | plan | "
      "processor s | without: processor s |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const agpcs::Model& model : agpcs::models()) {
    if (argc == 3 && model.name != argv[1]) continue;
    for (const std::string_view cluster : agpcs::clusters()) {
      if (argc == 1 || cluster == argv[2]) agpcs::print_row(model, cluster);
    }
  }
  return 0;
}
