// SPDX-License-Identifier: Apache-2.0
// What the two trained policies are worth: frozen, on the paper's nine topologies and on a fixed
// list that they were never trained on, beside other methods that get the same time, beside the
// same networks with random weights, and with each level replaced by a simple rule.
//
//   flow_policy_bench [--nine] [--policy FILE] [--topologies 100] [--seeds 5] [--sub-chunks 2]
//                     [--seconds S] [--csv FILE]
//
// Time is that of the processor. Without --seconds every method gets as long as the policy takes
// for one schedule, best of as many draws as that allows and at least one; with it, that long each,
// the policy too.
#include "planner/flows/bound.h"
#include "planner/flows/policy/policy.h"
#include "tests/bench/network/unseen_topologies.h"
#include "tests/bench/support/measuring.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <vector>

namespace agpcs {
namespace {

struct Settings {
  bool nine = false;
  int topologies = 100, seeds = 5, sub_chunks = 2;
  double seconds = 0;
  std::string csv;
  FlowPolicy policy = shipped_flow_policy();
};

struct Contender {
  std::string name;
  bool has_draws;  ///< whether more effort finds more
  std::function<Result<FlowSchedule>(const Topology&, const FlowOptions&)> schedule;
};

std::vector<Contender> contenders(const FlowPolicy& policy, bool all) {
  std::vector<Contender> result;
  const auto by_policy = [&](const char* name, const FlowPolicy& networks, FlowRules rules,
                             ForestKind kind) {
    result.push_back({name, true, [=](const Topology& topology, const FlowOptions& options) {
                        return Result<FlowSchedule>(
                            schedule_by_policy(topology, options, networks, rules, kind));
                      }});
  };
  constexpr auto kBalanced = ForestKind::kBalanced;
  by_policy("policy", policy, {}, kBalanced);
  for (const char* name :
       {"greedy", "search", "trees", "parameter_server", "ring", "hamiltonian"}) {
    const auto method = find_flow_method(name);
    if (!method.ok()) continue;
    if (!all && (std::string(name) == "ring" || std::string(name) == "hamiltonian")) continue;
    result.push_back({name, std::string(name) != "trees", (*method)->schedule});
  }
  if (!all) return result;
  by_policy("random weights", random_flow_policy(policy.workloads.units(), 1), {}, kBalanced);
  by_policy("formula (untrained)", formula_flow_policy(1, 0), {}, kBalanced);
  by_policy("trees: all", policy, {TreeRule::kAll, WorkloadRule::kPolicy}, kBalanced);
  by_policy("workloads: first come", policy, {TreeRule::kPolicy, WorkloadRule::kFirstCome},
            kBalanced);
  by_policy("workloads: longest chain", policy, {TreeRule::kPolicy, WorkloadRule::kLongestChain},
            kBalanced);
  by_policy("workloads: rarest first", policy, {TreeRule::kPolicy, WorkloadRule::kRarestFirst},
            kBalanced);
  by_policy("shortest-path trees", policy, {}, ForestKind::kShortest);
  constexpr FlowRules kFixed = {TreeRule::kPolicy, WorkloadRule::kPolicy, false};
  by_policy("fixed trees", policy, kFixed, kBalanced);
  by_policy("fixed shortest-path trees", policy, kFixed, ForestKind::kShortest);
  return result;
}

struct Measured {
  double rounds = NAN, seconds = 0;
};

/// The best that fits into `budget` seconds; 0: one draw.
Measured measure(const Contender& contender, const Topology& topology, FlowOptions options,
                 double budget) {
  Measured measured;
  const auto run = [&] {
    const double before = bench::processor_seconds();
    const Result<FlowSchedule> schedule = contender.schedule(topology, options);
    measured.seconds = bench::processor_seconds() - before;
    if (!schedule.ok()) return false;
    const Status valid = verify_schedule(topology, *schedule);
    if (!valid.ok()) {
      fmt::print(stderr, "{}, {}: {}\n", contender.name, topology.name, valid.message());
      std::exit(1);
    }
    measured.rounds = schedule->rounds();
    return true;
  };
  if (!run() || !contender.has_draws) return measured;
  options.effort = static_cast<std::int64_t>(budget / std::max(measured.seconds, 1e-6));
  if (options.effort > 1) run();
  return measured;
}

struct Row {
  std::string_view family;
  double bound = 0;
  std::vector<double> rounds, seconds;  ///< by contender, means over seeds
};

Row measure_all(const Settings& settings, const std::vector<Contender>& all,
                const std::function<Topology(int)>& topology_of, std::string_view family) {
  Row row = {family, 0, std::vector<double>(all.size(), 0), std::vector<double>(all.size(), 0)};
  for (int seed = 0; seed < settings.seeds; ++seed) {
    const Topology topology = topology_of(seed);
    const FlowBound bound = flow_bound(topology);
    double least = bound.rounds(1);
    for (int k = 2; k <= settings.sub_chunks; ++k) least = std::min(least, bound.rounds(k));
    row.bound += least / settings.seeds;
    FlowOptions options;
    options.seed = static_cast<std::uint64_t>(seed);
    options.max_sub_chunks = settings.sub_chunks;
    double budget = settings.seconds;
    for (std::size_t c = 0; c < all.size(); ++c) {
      const Measured measured = measure(all[c], topology, options, budget);
      if (c == 0 && settings.seconds == 0) budget = measured.seconds;
      row.rounds[c] += measured.rounds / settings.seeds;
      row.seconds[c] += measured.seconds / settings.seeds;
    }
  }
  return row;
}

void print_contenders(const std::vector<Contender>& all, const std::vector<Row>& rows) {
  fmt::print("| method | rounds / bound | within 5% | more than the policy | processor time |\n");
  fmt::print("| --- | --- | --- | --- | --- |\n");
  for (std::size_t c = 0; c < all.size(); ++c) {
    std::vector<double> ratios, more;
    double seconds = 0, near = 0;
    for (const Row& row : rows) {
      if (std::isnan(row.rounds[c])) continue;
      ratios.push_back(row.rounds[c] / row.bound);
      more.push_back((row.rounds[c] - row.rounds[0]) / row.bound);
      near += ratios.back() <= 1.05 ? 1 : 0;
      seconds += row.seconds[c];
    }
    if (ratios.empty()) continue;
    const auto count = static_cast<double>(ratios.size());
    const auto [ratio, ratio_half] = bench::interval(ratios);
    const auto [extra, extra_half] = bench::interval(more);
    fmt::print("| {}{} | {:.3f} +- {:.3f} | {:.0f}% | {} | {:.0f} ms |\n", all[c].name,
               ratios.size() < rows.size() ? fmt::format(" (on {})", ratios.size()) : "", ratio,
               ratio_half, 100 * near / count,
               c == 0 ? "" : fmt::format("{:+.3f} +- {:.3f}", extra, extra_half),
               1e3 * seconds / count);
  }
}

void print_families(const std::vector<Contender>& all, const std::vector<Row>& rows) {
  fmt::print("\n| family |");
  for (const Contender& contender : all) fmt::print(" {} |", contender.name);
  fmt::print("\n| --- |");
  for (std::size_t c = 0; c < all.size(); ++c) fmt::print(" --- |");
  fmt::print("\n");
  for (const std::string_view family : kUnseenFamilies) {
    fmt::print("| {} |", family);
    for (std::size_t c = 0; c < all.size(); ++c) {
      std::vector<double> ratios;
      for (const Row& row : rows) {
        if (row.family == family && !std::isnan(row.rounds[c])) {
          ratios.push_back(row.rounds[c] / row.bound);
        }
      }
      fmt::print(" {} |",
                 ratios.empty() ? "-" : fmt::format("{:.3f}", bench::interval(ratios).mean));
    }
    fmt::print("\n");
  }
}

void bench_unseen(const Settings& settings) {
  const std::vector<Contender> all = contenders(settings.policy, true);
  std::ofstream csv;  // what is written to it goes nowhere while it is not open
  if (!settings.csv.empty()) csv = bench::open_for_results(settings.csv);
  csv << "topology,family,bound";
  for (const Contender& contender : all) csv << ',' << contender.name << ",seconds";
  csv << '\n';
  std::vector<Row> rows;
  for (const UnseenTopology& unseen : unseen_topologies(settings.topologies)) {
    rows.push_back(measure_all(
        settings, all, [&](int) { return unseen.topology; }, unseen.family));
    const Row& row = rows.back();
    csv << '"' << unseen.topology.name << "\"," << row.family << ',' << row.bound;
    for (std::size_t c = 0; c < all.size(); ++c)
      csv << ',' << row.rounds[c] << ',' << row.seconds[c];
    csv << std::endl;
  }
  if (!settings.csv.empty()) bench::close_results(csv, settings.csv);
  print_contenders(all, rows);
  print_families(all, rows);
}

void bench_nine(const Settings& settings) {
  const std::vector<Contender> all = contenders(settings.policy, false);
  const std::vector<std::pair<std::string, double>> papers = {{"bcube:3,1", 10.2},
                                                              {"bcube:4,1", 20.8},
                                                              {"bcube:5,1", 34.7},
                                                              {"dcell:4,1", 23.2},
                                                              {"dcell:5,1", 33.8},
                                                              {"dcell:6,1", 48.0},
                                                              {"jellyfish:10,4,links=20", 22.7},
                                                              {"jellyfish:15,4,links=30", 39.9},
                                                              {"jellyfish:20,4,links=39", 62.2}};
  fmt::print("| topology | bound | paper's RL |");
  for (const Contender& contender : all) fmt::print(" {} |", contender.name);
  fmt::print(" ms of the policy |\n| --- | --- | --- | --- |");
  for (std::size_t c = 0; c < all.size(); ++c) fmt::print(" --- |");
  fmt::print("\n");
  for (const auto& [spec, rounds] : papers) {
    const Row row = measure_all(
        settings, all,
        [&, &name = spec](int seed) {
          return *make_topology(fmt::format("{},seed={}", name, seed));
        },
        spec);
    fmt::print("| {} | {:.1f} | {:.1f} |", spec, row.bound, rounds);
    for (const double mean : row.rounds) fmt::print(" {:.1f} |", mean);
    fmt::print(" {:.1f} |\n", 1e3 * row.seconds[0]);
  }
}

int run(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i < argc; ++i) {
    const std::string option = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (option == "--nine") {
      settings.nine = true;
      continue;
    }
    ++i;
    if (option == "--topologies") settings.topologies = std::atoi(value.c_str());
    if (option == "--seeds") settings.seeds = std::atoi(value.c_str());
    if (option == "--sub-chunks") settings.sub_chunks = std::atoi(value.c_str());
    if (option == "--seconds") settings.seconds = std::atof(value.c_str());
    if (option == "--csv") settings.csv = value;
    if (option != "--policy") continue;
    std::ifstream file(value);
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    const Result<FlowPolicy> policy = parse_flow_policy(text, value);
    if (!policy.ok()) {
      fmt::print(stderr, "{}\n", policy.status().message());
      return 1;
    }
    settings.policy = *policy;
  }
  settings.nine ? bench_nine(settings) : bench_unseen(settings);
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::run(argc, argv); }
