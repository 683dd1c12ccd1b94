// SPDX-License-Identifier: Apache-2.0
// How planning grows with operators and devices: seconds of each stage, and the peak of memory.
// Prints a table; every row is a process of its own.
//
//     growth_bench                           all rows
//     growth_bench chain|branches|gpt LAYERS DEVICES [THREADS [BUDGET]]
//     growth_bench g1 96 1024|160 [THREADS [BUDGET]]    G1, or G1 on its H100 alone (g1.h)
//     growth_bench --coarsening              steps planned with and without coarsening
#include "ir/base/check.h"
#include "ir/graph/training_graph.h"
#include "planner/plan_problem.h"
#include "planner/refine/dqn.h"
#include "tests/bench/planning/g1.h"
#include "tests/bench/planning/gpt.h"
#include "tests/bench/planning/uses.h"
#include "tests/support/builders.h"

#include <agpcs/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// `layers` layers; with branches each has three parallel ones of different length, and a skip.
class LayeredGraph {
 public:
  Graph make(int layers, bool branches) {
    graph_.name = "layered";
    TensorId last = tensor("x", TensorKind::kInput, {{0, 1}, {kWidth, 0}});
    graph_.inputs.push_back(last);
    for (int i = 0; i < layers; ++i) last = branches ? fork(last) : linear(last);
    graph_.outputs = {last};
    link_graph(graph_);
    Loss loss;
    Result<Graph> with_loss = attach_loss(std::move(graph_), loss);
    AGPCS_CHECK(with_loss.ok(), "{}", with_loss.status().message());
    Result<Graph> graph = derive_backward(*std::move(with_loss));
    AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
    return *std::move(graph);
  }

 private:
  static constexpr std::int64_t kWidth = 512;

  TensorId tensor(std::string name, TensorKind kind, Shape shape) {
    Tensor tensor;
    tensor.name = std::move(name);
    tensor.kind = kind;
    tensor.shape = std::move(shape);
    graph_.tensors.push_back(std::move(tensor));
    return static_cast<TensorId>(graph_.tensors.size()) - 1;
  }
  std::string next_name() const { return "t" + std::to_string(graph_.tensors.size()); }

  TensorId op(const char* type, std::vector<TensorId> inputs) {
    Op op;
    op.name = next_name();
    op.type = type;
    op.version = 17;
    op.inputs = std::move(inputs);
    op.outputs = {tensor(op.name, TensorKind::kActivation, {{0, 1}, {kWidth, 0}})};
    graph_.ops.push_back(std::move(op));
    return graph_.ops.back().outputs.front();
  }
  TensorId linear(TensorId x) {
    const TensorId w = tensor(next_name(), TensorKind::kParameter, {{kWidth, 0}, {kWidth, 0}});
    return op("Relu", {op("MatMul", {x, w})});
  }
  TensorId fork(TensorId x) {
    const TensorId a = linear(x);
    const TensorId b = linear(linear(x));
    return op("Add", {op("Add", {a, b}), x});
  }

  Graph graph_;
};

/// Hosts of eight, of two kinds.
Cluster cluster_of_size(int devices) {
  std::string text =
      "kind a memory=80e9 bandwidth=2000e9 fp32=19e12 fp16=312e12\n"
      "kind v memory=32e9 bandwidth=900e9 fp32=15e12 fp16=125e12\n";
  const int hosts = (devices + 7) / 8;
  for (int host = 0; host < hosts; ++host) {
    text += fmt::format("host h{} {} {} bandwidth=200e9 latency=3e-6 nic=12.5e9\n", host,
                        host < (hosts + 1) / 2 ? "a" : "v", std::min(8, devices - 8 * host));
  }
  return testing::cluster_of(text);
}

struct Case {
  std::string model;
  int layers = 0, devices = 0;
};

Graph graph_of(const Case& c) {
  if (c.model != "gpt") return LayeredGraph().make(c.layers, c.model == "branches");
  bench::GptSize size;
  size.layers = c.layers;
  size.hidden = 4096;
  return bench::gpt(size);
}

std::unique_ptr<const Problem> problem_of(const Case& c, Graph graph, int most_blocks) {
  Training training;
  training.batch = std::max(256, 4 * c.devices);
  training.precision = Precision::kFp16;
  ProblemOptions options;
  options.most_blocks = most_blocks;
  auto made = Problem::make(std::move(graph), cluster_of_size(c.devices), training, options);
  AGPCS_CHECK(made.ok(), "{}", made.status().message());
  return *std::move(made);
}

long peak_megabytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss / 1024;
}

/// Seconds between the calls of `next`.
class Laps {
 public:
  void next(std::string_view) { starts_.push_back(now()); }
  double seconds(std::size_t first, std::size_t end) const {
    return starts_.at(end) - starts_.at(first);
  }
  std::size_t size() const { return starts_.size(); }
  void found() {
    if (first_plan_ == 0) first_plan_ = now();
  }
  double first_plan() const { return first_plan_; }

 private:
  std::vector<double> starts_;
  double first_plan_ = 0;  // when it was found
};

struct Settings {
  std::int64_t budget = 0;
  int threads = 1;
};

/// Plans with everything that agpcs-compile does by default.
Planned plan(const Problem& problem, const Settings& settings, Laps& laps) {
  const auto refiner = make_dqn_refiner(shipped_policy());
  PlanOptions options;
  options.refiner = refiner.get();
  options.threads = settings.threads;
  options.budget = settings.budget;
  options.progress = [&](std::string_view what, int, int) { laps.next(what); };
  options.found = [&](double, std::string_view) { laps.found(); };
  Result<Planned> planned = plan_problem(problem, options);
  laps.next("end");
  AGPCS_CHECK(planned.ok(), "{}", planned.status().message());
  return *std::move(planned);
}

void print_row(const Case& c, const Settings& settings) {
  const bool is_g1 = c.model == "g1";
  Graph graph = is_g1 ? bench::g1_graph() : graph_of(c);
  const double start = now();
  const auto problem =
      is_g1 ? bench::g1_problem(std::move(graph), bench::g1_cluster(c.devices < 1024))
            : problem_of(c, std::move(graph), ProblemOptions().most_blocks);
  std::string row = fmt::format("| {} | {} | {} | {} | {:.2f}", c.model, problem->graph.ops.size(),
                                problem->blocks.size(), c.devices, now() - start);
  Laps laps;
  const Planned planned = plan(*problem, settings, laps);
  const std::size_t seeded = planned.seeders.size();
  for (std::size_t i = 0; i < seeded; ++i) row += fmt::format(" | {:.2f}", laps.seconds(i, i + 1));
  row += fmt::format(" | {:.2f} | {:.2f}", laps.seconds(seeded, seeded + 2),
                     laps.seconds(seeded + 2, seeded + 3));
  const double before = now();
  const std::string text = print_plan(planned.best.plan);
  const Status verified = verify_plan(planned.best.plan);
  AGPCS_CHECK(verified.ok(), "{}", verified.message());
  const double step = planned.best.estimate.step_seconds;
  std::printf("%s | %ld | %.2f | %.2f | %.1f | %.2f | %.2f | %ld | %.2f | %s |\n", row.c_str(),
              static_cast<long>(planned.best.plan.made_by.evaluations), now() - before,
              now() - start, step * 1e3, planned.refinement.start_seconds.value_or(step) / step,
              step / planned.bound->any.seconds, peak_megabytes(), laps.first_plan() - start,
              bench::uses(planned.best.strategy).c_str());
}

/// Plans with the blocks of one limit and of another, at the same budget; prints both steps.
void compare_coarsening(const Case& c, int fewer) {
  Settings settings;
  settings.budget = 500;
  double steps[2] = {}, seconds[2] = {};
  int blocks[2] = {};
  for (const int coarse : {0, 1}) {
    const auto problem =
        problem_of(c, graph_of(c), coarse == 1 ? fewer : std::numeric_limits<int>::max());
    Laps laps;
    const double start = now();
    steps[coarse] = plan(*problem, settings, laps).best.estimate.step_seconds;
    seconds[coarse] = now() - start;
    blocks[coarse] = problem->blocks.size();
  }
  std::printf("| %s | %d | %d | %d | %d | %.3f | %.3f | %+.2f%% | %.1f | %.1f |\n", c.model.c_str(),
              c.layers, c.devices, blocks[0], blocks[1], steps[0] * 1e3, steps[1] * 1e3,
              (steps[1] / steps[0] - 1) * 100, seconds[0], seconds[1]);
  std::fflush(stdout);
}

/// The limit in use, and as coarse as it gets.
void print_coarsening() {
  std::printf(
      "| model | layers | devices | blocks | coarser | step ms | coarser: step ms | change | s | "
      "coarser: s |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const int devices : {8, 32}) {
    for (const Case& c : {Case{"branches", 400, devices}, Case{"branches", 1250, devices},
                          Case{"gpt", 24, devices}, Case{"gpt", 96, devices}}) {
      compare_coarsening(c, ProblemOptions().most_blocks);
      compare_coarsening(c, 1);
    }
  }
}

void run_apart(const Case& c, const Settings& settings) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    print_row(c, settings);
    std::fflush(stdout);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (status != 0) std::printf("| %s | failed |\n", c.model.c_str());
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  using agpcs::Case;
  std::vector<Case> cases;
  const auto number = [&](int i) { return i < argc ? std::atoi(argv[i]) : 0; };
  if (argc == 2 && std::string_view(argv[1]) == "--coarsening") {
    agpcs::print_coarsening();
    return 0;
  }
  if (argc == 2 || argc == 3) {
    std::fputs(
        "growth_bench: [--coarsening | chain|branches|gpt|g1 LAYERS DEVICES [THREADS [BUDGET]]]\n",
        stderr);
    return 2;
  }
  if (argc >= 4) {
    cases.push_back({argv[1], number(2), number(3)});
  } else {
    for (const int layers : {500, 5000, 50000}) cases.push_back({"chain", layers, 8});
    for (const int layers : {125, 1250, 12500}) cases.push_back({"branches", layers, 8});
    for (const int devices : {8, 32, 128, 512, 1024, 4096}) {
      cases.push_back({"branches", 125, devices});
    }
    cases.push_back({"gpt", 96, 1024});
    for (const int devices : {160, 1024}) cases.push_back({"g1", 96, devices});
  }
  agpcs::Settings settings;
  if (argc > 4) settings.threads = number(4);
  if (argc > 5) settings.budget = number(5);
  std::printf(
      "| model | operators | blocks | devices | problem s | data_parallel s | metis s | linear s | "
      "even s | degree s | baselines s | search, lower s | evaluations | print, verify s | "
      "whole s | step ms | best seed / plan | plan / bound | peak MB | "
      "first plan s | plan |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | "
      "--- | "
      "--- | "
      "--- | --- | --- | --- |\n");
  for (const Case& c : cases) agpcs::run_apart(c, settings);
  return 0;
}
