// SPDX-License-Identifier: Apache-2.0
// Solves one max-load problem by every seeder and refiner, and by the default search.
//
//   max_load_bench [--budget EVALUATIONS] [--work PINS] [--seed N] [--no-cpu] [--only-ours] <
//   problem
//
// `tests/bench/max_load/max_load.py` writes the problem and judges the answers. Numbers, separated
// by white space: nodes, edges, accelerators, whether there is a CPU (0 or 1), capacity; for each
// node its time, CPU time, whether an accelerator can run it, size, out-cost and colour (-1: none);
// for each edge its producer and consumer. Answers, one a line: name, CPU seconds, the device of
// each node.
#include "planner/refine/refiner.h"
#include "tests/bench/max_load/max_load.h"
#include "tests/bench/max_load/max_load_search.h"

#include <charconv>
#include <ctime>
#include <iostream>
#include <string>
#include <string_view>

namespace agpcs {
namespace {

constexpr int kMetisSeeds = 15;

struct Flags {
  std::int64_t budget = 100'000;
  std::int64_t work = MaxLoadOptions().work;
  std::uint64_t seed = 1;
  bool cpu = true, only_ours = false;
};

bool read_problem(std::istream& in, MaxLoadProblem& problem) {
  std::size_t nodes = 0, edges = 0;
  in >> nodes >> edges >> problem.devices >> problem.cpu >> problem.capacity;
  for (std::size_t i = 0; in && i < nodes; ++i) {
    MaxLoadNode& node = problem.nodes.emplace_back();
    in >> node.time >> node.cpu_time >> node.accelerator >> node.size >> node.out_cost >>
        node.colour;
  }
  for (std::size_t i = 0; in && i < edges; ++i) {
    auto& [from, to] = problem.edges.emplace_back();
    in >> from >> to;
  }
  return static_cast<bool>(in);
}

void print(std::string_view name, double seconds, const std::vector<int>& device_of_node) {
  std::cout << name << ' ' << seconds;
  for (const int device : device_of_node) std::cout << ' ' << device;
  std::cout << std::endl;
}

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

class Bench {
 public:
  Bench(const MaxLoadProblem& problem, const MaxLoadItems& items, const std::vector<int>& item_of,
        const Flags& flags)
      : problem_(problem), items_(items), item_of_(item_of), flags_(flags) {}

  Status run() {
    if (!flags_.only_ours) baselines();
    const double before = cpu_seconds();
    const Result<std::vector<int>> ours =
        solve_max_load(problem_, {flags_.work}, Rng(flags_.seed).fork("ours"));
    if (!ours) return ours.status();
    print("ours", cpu_seconds() - before, ours.value());
    return {};
  }

 private:
  void baselines() {
    const double begin = cpu_seconds();
    std::vector<int> metis = metis_max_load(items_, {});
    for (int seed = 1; seed < kMetisSeeds; ++seed) {
      std::vector<int> other = metis_max_load(items_, {.seed = static_cast<std::uint64_t>(seed)});
      if (value(other) < value(metis)) metis = std::move(other);
    }
    answer("metis", begin, metis);
    const double after_metis = cpu_seconds();
    const std::vector<int> linear = best_linear_max_load(items_);
    answer("linear", after_metis, linear);
    std::vector<std::vector<int>> starts = {linear, metis};
    if (value(metis) < value(linear)) std::swap(starts[0], starts[1]);
    for (const RefinerEntry& entry : refiners()) {
      if (entry.name == "none") continue;
      const double before = cpu_seconds();
      MaxLoadSearch search(items_, starts);
      SearchBudget budget(flags_.budget);
      entry.make()->refine(search, budget, Rng(flags_.seed).fork(entry.name));
      answer(entry.name, before, search.state().devices());
    }
  }

  /// First what is lacked of memory, then the max load.
  std::pair<std::int64_t, std::int64_t> value(const std::vector<int>& devices) const {
    const MaxLoadState state(items_, devices);
    return {state.excess(), state.max_load()};
  }

  void answer(std::string_view name, double since, const std::vector<int>& device_of_item) const {
    const double seconds = cpu_seconds() - since;
    std::vector<int> devices;
    for (const int item : item_of_)
      devices.push_back(device_of_item[static_cast<std::size_t>(item)]);
    print(name, seconds, devices);
  }

  const MaxLoadProblem& problem_;
  const MaxLoadItems& items_;
  const std::vector<int>& item_of_;
  const Flags& flags_;
};

bool parse(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag == "--no-cpu" || flag == "--only-ours") {
      (flag == "--no-cpu" ? flags.cpu : flags.only_ours) = flag == "--only-ours";
      continue;
    }
    const std::string_view text = i + 1 < argc ? argv[++i] : "";
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size()) return false;
    if (flag == "--budget")
      flags.budget = number;
    else if (flag == "--work")
      flags.work = number;
    else if (flag == "--seed")
      flags.seed = static_cast<std::uint64_t>(number);
    else
      return false;
  }
  return true;
}

int run(int argc, char** argv) {
  Flags flags;
  if (!parse(argc, argv, flags)) {
    std::cerr << "usage: max_load_bench [--budget N] [--work N] [--seed N] [--no-cpu] "
                 "[--only-ours] < problem\n";
    return 2;
  }
  MaxLoadProblem problem;
  if (!read_problem(std::cin, problem)) {
    std::cerr
        << "max_load_bench: the problem ends too early, or has a word where a number belongs\n";
    return 1;
  }
  problem.cpu = problem.cpu && flags.cpu;
  std::vector<int> item_of;
  const Result<MaxLoadItems> items = make_max_load_items(problem, item_of);
  const Status status =
      items ? Bench(problem, items.value(), item_of, flags).run() : items.status();
  if (!status) std::cerr << "max_load_bench: " << status.message() << '\n';
  return exit_code(status.code());
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::run(argc, argv); }
