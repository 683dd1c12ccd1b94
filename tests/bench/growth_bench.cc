// SPDX-License-Identifier: Apache-2.0
// How planning grows with operators and devices: seconds of each stage, and the peak of memory.
// Prints a table; every row is a process of its own.
//
//     growth_bench                           all rows
//     growth_bench chain|branches LAYERS DEVICES
//     growth_bench gpt DEVICES               the 96-layer GPT
#include "ir/check.h"
#include "planner/evaluator.h"
#include "planner/seeder.h"
#include "tests/bench/gpt.h"
#include "tests/builders.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
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
Graph layered(int layers, bool branches) {
  std::string text = "input x [n,512]\ninput labels int64[n]\n";
  std::string last = "x";
  const auto linear = [&](const std::string& name, const std::string& from) {
    text += "parameter w" + name + " [512,512]\nh" + name + " = MatMul(" + from + ", w" + name +
            ") [n,512]\n" + name + " = Relu(h" + name + ") [n,512]\n";
    return name;
  };
  for (int i = 0; i < layers; ++i) {
    const std::string n = "v" + std::to_string(i);
    if (!branches) {
      last = linear(n, last);
      continue;
    }
    const std::string a = linear(n + "a", last);
    const std::string b = linear(n + "c", linear(n + "b", last));
    text += n + "d = Add(" + a + ", " + b + ") [n,512]\n" + n + " = Add(" + n + "d, " + last +
            ") [n,512]\n";
    last = n;
  }
  text += "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last + "\nloss l\n";
  return testing::graph_of(text);
}

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
  if (c.model != "gpt") return layered(c.layers, c.model == "branches");
  bench::GptSize size;
  size.layers = c.layers;
  size.hidden = 4096;
  return bench::gpt(size);
}

void print_row(const Case& c) {
  Graph graph = graph_of(c);
  const std::size_t operators = graph.ops.size();
  Training training;
  training.batch = std::max(256, 4 * c.devices);
  training.precision = "fp16";
  double start = now();
  auto made = Problem::make(std::move(graph), cluster_of_size(c.devices), training, {});
  AGPCS_CHECK(made.ok(), "{}", made.status().message());
  const Problem& problem = **made;
  std::string row = fmt::format("| {} | {} | {} | {} | {:.2f}", c.model, operators,
                                problem.blocks.size(), c.devices, now() - start);
  std::vector<Strategy> all;
  for (const SeederEntry& entry : seeders()) {
    start = now();
    auto strategies = entry.make()->seed(problem, Rng(0));
    AGPCS_CHECK(strategies.ok(), "{}", strategies.status().message());
    row += fmt::format(" | {:.2f}", now() - start);
    for (Strategy& strategy : *strategies) all.push_back(std::move(strategy));
  }
  start = now();
  Evaluator evaluator(problem);
  double best = std::numeric_limits<double>::infinity();
  for (const Strategy& strategy : all) {
    const Score score = evaluator.evaluate(strategy);
    if (score.fits()) best = std::min(best, score.step_seconds);
  }
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  std::printf("%s | %zu | %.2f | %.1f | %ld |\n", row.c_str(), all.size(), now() - start,
              best * 1e3, usage.ru_maxrss / 1024);
}

void run_apart(const Case& c) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    print_row(c);
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
  if (argc == 3 && std::string(argv[1]) == "gpt") {
    cases.push_back({"gpt", 96, number(2)});
  } else if (argc == 4) {
    cases.push_back({argv[1], number(2), number(3)});
  } else {
    for (const int layers : {500, 5000, 50000}) cases.push_back({"chain", layers, 8});
    for (const int layers : {125, 1250, 12500}) cases.push_back({"branches", layers, 8});
    for (const int devices : {32, 128, 1024, 4096}) cases.push_back({"branches", 1250, devices});
    cases.push_back({"gpt", 96, 1024});
  }
  std::printf(
      "| model | operators | blocks | devices | problem s | data_parallel s | metis s | linear s | "
      "degree s | seeds | evaluation s | step ms | peak MB |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const Case& c : cases) agpcs::run_apart(c);
  return 0;
}
