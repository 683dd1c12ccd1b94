// SPDX-License-Identifier: Apache-2.0
// All-reduces scheduled on topologies, as tables:
//   flow_bench table2 [methods...]     the paper's nine topologies, all methods, mean over 5 seeds;
//                                      also paper_form (our two policies on the paper's terms:
//                                      shortest-path trees, no detours, whole chunks) and
//                                      random_weights (untrained networks, other ones each seed)
//   flow_bench scale [method]          about 1,000 servers, and growth from 16 to 4096
//   flow_bench exact [TOPOLOGIES]      random topologies of up to 12 servers against a SAT solver
//   flow_bench orders                  two boxes of 8 V100: how long each order of replay takes
//   flow_bench row METHOD TOPOLOGY SEED EFFORT   one measurement, in a process of its own
#include "cost_model/flows/exchange.h"
#include "cost_model/flows/time.h"
#include "ir/base/rng.h"
#include "ir/base/shuffle.h"
#include "ir/cluster/topology.h"
#include "planner/flows/bound.h"
#include "planner/flows/method.h"
#include "planner/flows/policy/policy.h"
#include "planner/flows/trees/forests.h"
#include "tests/bench/network/cube_mesh.h"
#include "tests/bench/support/mistakes.h"
#include "tests/planner/flows/exact_rounds.h"
#include "tests/planner/flows/random_topologies.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kSeeds = 5;
constexpr int kSubChunks = 2;  // at most

/// Rounds that the paper reports (Table 2), and its number of workloads. Its DCell rows look like
/// one phase only.
struct PaperRow {
  std::string_view topology;
  bool drawn;  // the topology depends on the seed
  double parameter_server, ring, learned;
  int workloads;
};
constexpr PaperRow kPaper[] = {
    {"bcube:3,1", false, 16.8, 18.0, 10.2, 144},
    {"bcube:4,1", false, 31.8, 64.0, 20.8, 240},
    {"bcube:5,1", false, 51.6, 150.0, 34.7, 1200},
    {"dcell:4,1", false, 30.0, 47.1, 23.2, 380},
    {"dcell:5,1", false, 48.4, 75.9, 33.8, 870},
    {"dcell:6,1", false, 71.2, 112.3, 48.0, 1722},
    {"jellyfish:10,4,links=20", true, 23.0, 40.0, 22.7, 180},
    {"jellyfish:15,4,links=30", true, 36.0, 69.6, 39.9, 420},
    {"jellyfish:20,4,links=39", true, 51.2, 80.0, 62.2, 760},
};

/// The paper's own form, with the policies that ship.
Result<FlowSchedule> schedule_paper_form(const Topology& topology, const FlowOptions& options) {
  FlowOptions whole_chunks = options;
  whole_chunks.max_sub_chunks = 1;
  FlowRules rules;
  rules.detours = false;
  return schedule_by_policy(topology, whole_chunks, shipped_flow_policy(), rules,
                            ForestKind::kShortest);
}

/// Our trees and detours.
Result<FlowSchedule> schedule_random_weights(const Topology& topology, const FlowOptions& options) {
  const int units = shipped_flow_policy().workloads.units();
  return schedule_by_policy(topology, options, random_flow_policy(units, options.seed));
}

constexpr FlowMethod kOtherPolicies[] = {
    {"paper_form", "the paper's form of the policies", schedule_paper_form},
    {"random_weights", "networks that learned nothing", schedule_random_weights},
};

/// The table's, and those that are there to compare with.
std::vector<FlowMethod> compared_methods() {
  std::vector<FlowMethod> methods(flow_methods().begin(), flow_methods().end());
  methods.insert(methods.end(), std::begin(kOtherPolicies), std::end(kOtherPolicies));
  return methods;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Measured {
  bool ok = false;
  double rounds = 0, bound = 0, seconds = 0, bound_seconds = 0;
  int sub_chunks = 1, servers = 0;
  std::size_t workloads = 0;
  long peak_kib = 0;
};

/// Checked on both checkers; a schedule that fails one ends the program.
void require_valid(const Topology& topology, const FlowSchedule& schedule,
                   std::string_view method) {
  for (const Status& status : {verify_schedule(topology, schedule), check_sums(schedule, 1)}) {
    if (status.ok()) continue;
    fmt::print(stderr, "{} on {}: {}\n", method, topology.name, status.message());
    std::exit(70);
  }
}

Measured measure(const FlowMethod& method, const Topology& topology, const FlowOptions& options) {
  Measured measured;
  measured.servers = topology.servers;
  auto begin = std::chrono::steady_clock::now();
  const FlowBound bound = flow_bound(topology);
  measured.bound_seconds = seconds_since(begin);
  begin = std::chrono::steady_clock::now();
  const Result<FlowSchedule> schedule = method.schedule(topology, options);
  measured.seconds = seconds_since(begin);
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  measured.peak_kib = usage.ru_maxrss;
  if (!schedule.ok()) {
    fmt::print(stderr, "{}: {}\n", method.name, schedule.status().message());
    return measured;
  }
  require_valid(topology, *schedule, method.name);
  measured.ok = true;
  measured.rounds = schedule->rounds();
  measured.sub_chunks = schedule->sub_chunks;
  measured.workloads = schedule->reduce_scatter.size() + schedule->all_gather.size();
  measured.bound = bound.rounds(1);
  for (int k = 2; k <= options.max_sub_chunks; ++k) {
    measured.bound = std::min(measured.bound, bound.rounds(k));
  }
  return measured;
}

struct Mean {
  double rounds = 0, bound = 0, seconds = 0, worst_seconds = 0, workloads = 0;
  int ok = 0, optimal = 0;
};

Mean mean_of(const PaperRow& row, const FlowMethod& method) {
  Mean mean;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const std::string spec =
        row.drawn ? fmt::format("{},seed={}", row.topology, seed) : std::string(row.topology);
    FlowOptions options;
    options.seed = static_cast<std::uint64_t>(seed);
    options.max_sub_chunks = kSubChunks;
    const Measured one = measure(method, *make_topology(spec), options);
    if (!one.ok) continue;
    ++mean.ok;
    mean.rounds += one.rounds;
    mean.bound += one.bound;
    mean.seconds += one.seconds;
    mean.workloads += static_cast<double>(one.workloads);
    mean.worst_seconds = std::max(mean.worst_seconds, one.seconds);
    mean.optimal += one.rounds == one.bound ? 1 : 0;
  }
  for (double* sum : {&mean.rounds, &mean.bound, &mean.seconds, &mean.workloads}) {
    *sum /= std::max(1, mean.ok);
  }
  return mean;
}

void print_paper(const PaperRow& row, double bound) {
  const bool one_phase = std::string_view(row.topology).starts_with("dcell");
  const auto print = [&](std::string_view name, double rounds) {
    fmt::print("| {} | paper: {}{} | {} | {:.1f} | {:.1f} | {:.1f}% | | |\n", row.topology, name,
               one_phase ? " (as printed)" : "", row.workloads, rounds, bound,
               100 * (rounds / bound - 1));
    if (one_phase) {
      fmt::print(
          "| {} | paper: {} (read as one phase, doubled) | | {:.1f} | {:.1f} | {:.1f}% | | |\n",
          row.topology, name, 2 * rounds, bound, 100 * (2 * rounds / bound - 1));
    }
  };
  print("parameter server", row.parameter_server);
  print("ring", row.ring);
  print("learned", row.learned);
}

/// Rounds of one phase of a parameter server that merges nothing: every server's part goes to (or
/// every copy comes from) the owner of its own, over servers on its way in a round each; what is
/// ready first is sent first. No FlowSchedule can say that: servers send a chunk more than once.
int unmerged_rounds(const Topology& topology, bool gather, Rng rng) {
  struct Message {
    std::vector<FlowRoute> hops;
    std::size_t sent = 0;
  };
  std::vector<Message> ready;
  for (int owner = 0; owner < topology.servers; ++owner) {
    const ShortestWays ways(topology, owner, Rng(rng.next()));
    for (int server = 0; server < topology.servers; ++server) {
      if (server == owner) continue;
      Message message;
      for (int at = server; at != owner; at = message.hops.back().from) {
        message.hops.push_back(ways.last_hop(at));
      }
      if (gather) std::reverse(message.hops.begin(), message.hops.end());
      ready.push_back(std::move(message));
    }
  }
  shuffle(ready, rng);
  int rounds = 0;
  for (; !ready.empty(); ++rounds) {
    std::vector<std::int64_t> left;
    for (const Topology::Link& link : topology.links) left.push_back(link.capacity);
    std::vector<Message> waiting, moved;
    for (Message& message : ready) {
      const std::vector<int>& links = message.hops[message.sent].links;
      const bool fits = std::all_of(links.begin(), links.end(),
                                    [&](int l) { return left[static_cast<std::size_t>(l)] > 0; });
      if (fits) {
        for (const int l : links) --left[static_cast<std::size_t>(l)];
        ++message.sent;
      }
      if (message.sent == message.hops.size()) continue;
      (fits ? moved : waiting).push_back(std::move(message));
    }
    shuffle(moved, rng);
    ready = std::move(waiting);
    ready.insert(ready.end(), moved.begin(), moved.end());
  }
  return rounds;
}

void print_unmerged(const PaperRow& row, double bound) {
  double both = 0, one = 0;
  for (int seed = 1; seed <= kSeeds; ++seed) {
    const Topology topology = *make_topology(
        row.drawn ? fmt::format("{},seed={}", row.topology, seed) : std::string(row.topology));
    const Rng rng = Rng(static_cast<std::uint64_t>(seed)).fork("unmerged");
    one += unmerged_rounds(topology, false, rng.fork("scatter")) / static_cast<double>(kSeeds);
    both += unmerged_rounds(topology, true, rng.fork("gather")) / static_cast<double>(kSeeds);
  }
  both += one;
  fmt::print(
      "| {} | parameter server without merge (one phase: {:.1f}) | | {:.1f} | {:.1f} | {:.1f}% | "
      "| |\n",
      row.topology, one, both, bound, 100 * (both / bound - 1));
}

int table2(const std::vector<std::string>& wanted) {
  const std::vector<FlowMethod> methods = compared_methods();
  for (const std::string& name : wanted) {
    if (std::any_of(methods.begin(), methods.end(),
                    [&](const FlowMethod& method) { return method.name == name; })) {
      continue;
    }
    fmt::print(stderr, "no method '{}'\n", name);
    return 2;
  }
  fmt::print(
      "| topology | method | workloads | rounds | bound | gap | optimal seeds | seconds (worst) |\n"
      "|---|---|---|---|---|---|---|---|\n");
  for (const PaperRow& row : kPaper) {
    const std::string spec =
        row.drawn ? fmt::format("{},seed=1", row.topology) : std::string(row.topology);
    const double bound = flow_bound(*make_topology(spec)).rounds(kSubChunks);
    print_paper(row, bound);
    print_unmerged(row, bound);
    for (const FlowMethod& method : methods) {
      if (!wanted.empty() && std::find(wanted.begin(), wanted.end(), method.name) == wanted.end()) {
        continue;
      }
      const Mean mean = mean_of(row, method);
      if (mean.ok == 0) {
        fmt::print("| {} | {} | | none | | | | |\n", row.topology, method.name);
        continue;
      }
      fmt::print(
          "| {} | {}{} | {:.0f} | {:.1f} | {:.1f} | {:.1f}% | {} of {} | {:.3f} ({:.3f}) |\n",
          row.topology, method.name,
          mean.ok < kSeeds ? fmt::format(" ({} of {} seeds)", mean.ok, kSeeds) : "", mean.workloads,
          mean.rounds, mean.bound, 100 * (mean.rounds / mean.bound - 1), mean.optimal, mean.ok,
          mean.seconds, mean.worst_seconds);
      std::fflush(stdout);
    }
  }
  return 0;
}

int row(std::string_view name, std::string_view spec, std::uint64_t seed, std::int64_t effort) {
  const auto method = find_flow_method(name);
  const auto topology = make_topology(spec);
  for (const Status& status : {method.status(), topology.status()}) {
    if (status.ok()) continue;
    fmt::print(stderr, "{}\n", status.message());
    return 1;
  }
  FlowOptions options;
  options.seed = seed;
  options.effort = effort;
  options.max_sub_chunks = kSubChunks;
  const Measured one = measure(**method, *topology, options);
  if (!one.ok) {
    fmt::print("| {} | {} | none | | | | | | |\n", spec, topology->servers);
    return 0;
  }
  fmt::print("| {} | {} | {} | {:.1f} | {:.1f} | {:.2f}% | {:.2f} | {:.2f} | {:.0f} |\n", spec,
             one.servers, one.sub_chunks, one.rounds, one.bound, 100 * (one.rounds / one.bound - 1),
             one.bound_seconds, one.seconds, static_cast<double>(one.peak_kib) / 1024);
  return 0;
}

/// `row` in a process of its own, so that its peak of memory is its own.
void row_apart(const char* program, std::string_view method, const std::string& spec) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const std::string name(method);
    execl(program, program, "row", name.c_str(), spec.c_str(), "1", "1", nullptr);
    std::_Exit(127);
  }
  int status = 0;
  waitpid(child, &status, 0);
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) fmt::print("| {} | failed |\n", spec);
}

int scale(const char* program, std::string_view method) {
  constexpr std::string_view kLarge[] = {"bcube:32,1", "dcell:31,1", "jellyfish:1000,4",
                                         "fat_tree:16", "dgx:125,8"};
  constexpr std::string_view kGrowth[] = {
      "bcube:4,1",      "bcube:8,1",      "bcube:16,1",      "bcube:32,1",       "bcube:64,1",
      "jellyfish:16,4", "jellyfish:64,4", "jellyfish:256,4", "jellyfish:1024,4", "jellyfish:4096,4",
      "fat_tree:4",     "fat_tree:6",     "fat_tree:10",     "fat_tree:16",      "fat_tree:26"};
  fmt::print("method {}\n\n", method);
  fmt::print("| topology | servers | K | rounds | bound | gap | bound s | method s | peak MiB |\n");
  fmt::print("|---|---|---|---|---|---|---|---|---|\n");
  for (const std::string_view spec : kLarge) {
    row_apart(program, method, std::string(spec));
    row_apart(program, method, fmt::format("{},fail=0.01", spec));
  }
  for (const std::string_view spec : kGrowth) row_apart(program, method, std::string(spec));
  return 0;
}

struct Exactness {
  int schedules = 0, exact = 0;
  double rounds = 0, fewest = 0;
};

/// Random topologies on which the fewest rounds of both phases are known (K = 1): how often the
/// bound and each method meet them.
int exact(int topologies) {
  if (!have_sat_solver()) {
    fmt::print(stderr, "cadical is not installed\n");
    return 1;
  }
  constexpr int kSeconds = 20;
  int known = 0, bound_is_exact = 0, differ = 0;
  std::vector<Exactness> of_method(flow_methods().size());
  for (int seed = 0; seed < topologies; ++seed) {
    RandomTopologyOptions random;
    random.least_servers = 3;
    const Topology topology = random_topology(static_cast<std::uint64_t>(seed), random);
    const FlowBound bound = flow_bound(topology);
    const auto least = static_cast<int>(bound.exact_all_gather.sub_rounds(1));
    const auto least_back = static_cast<int>(bound.exact_reduce_scatter.sub_rounds(1));
    const auto gather = exact_rounds_by_sat(topology, least, kSeconds);
    const auto scatter = exact_rounds_by_sat(reversed(topology), least_back, kSeconds);
    if (!gather || !scatter) continue;
    ++known;
    bound_is_exact += *gather == least && *scatter == least_back ? 1 : 0;
    for (std::size_t m = 0; m < flow_methods().size(); ++m) {
      FlowOptions options;
      options.max_sub_chunks = 1;
      options.seed = static_cast<std::uint64_t>(seed);
      const auto schedule = flow_methods()[m].schedule(topology, options);
      if (!schedule.ok()) continue;
      require_valid(topology, *schedule, flow_methods()[m].name);
      const int fewest = *gather + *scatter;
      if (schedule->rounds() < fewest) ++differ;
      ++of_method[m].schedules;
      of_method[m].exact += schedule->rounds() == fewest ? 1 : 0;
      of_method[m].rounds += schedule->rounds();
      of_method[m].fewest += fewest;
    }
  }
  fmt::print(
      "{} of {} random topologies solved; the bound is the fewest rounds on {}; {} schedules "
      "below the fewest\n\n| method | schedules | exact | above the fewest, in all |\n"
      "|---|---|---|---|\n",
      known, topologies, bound_is_exact, differ);
  for (std::size_t m = 0; m < of_method.size(); ++m) {
    const Exactness& one = of_method[m];
    fmt::print("| {} | {} | {} | {:.1f}% |\n", flow_methods()[m].name, one.schedules, one.exact,
               100 * (one.rounds / std::max(1.0, one.fewest) - 1));
  }
  return differ == 0 ? 0 : 70;
}

/// An all-reduce of 1 GB on two boxes of V100, in the orders in which ranks can replay it.
int orders() {
  constexpr std::int64_t kBytes = 1'000'000'000;
  fmt::print(
      "| boxes | method | K | rounds | in rounds | by receivers | rounds, no waits | with waits "
      "(how many) | taken | over in rounds |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const bool doubled : {false, true}) {
    const Topology topology = two_cube_meshes(doubled);
    const std::vector<Link> links = links_of(topology, kCardBandwidth, kBoxLatency);
    for (const auto& [method, parts] :
         {std::pair("greedy", 8), {"trees", 8}, {"search", 2}, {"search", 4}, {"search", 8}}) {
      FlowOptions options;
      options.max_sub_chunks = parts;
      auto schedule = (*find_flow_method(method))->schedule(topology, options);
      if (!schedule.ok()) continue;
      normalize(*schedule);
      require_valid(topology, *schedule, method);
      const double in_rounds = lockstep_seconds(links, *schedule, kBytes);
      fmt::print("| {} | {} | {} | {:.2f} | {:.1f} |", topology.name, method, schedule->sub_chunks,
                 schedule->rounds(), 1e3 * in_rounds);
      for (const TimedReplay& replay : replay_seconds(links, *schedule, kBytes)) {
        fmt::print(" {:.1f}{} |", 1e3 * replay.seconds,
                   replay.waits > 0 ? fmt::format(" ({})", replay.waits) : "");
      }
      const double taken = fastest_replay(links, *schedule, kBytes).seconds;
      fmt::print(" {:.1f} | {:.3f} |\n", 1e3 * taken, taken / in_rounds);
    }
  }
  return 0;
}

int run(const std::vector<std::string>& words) {
  if (words.size() > 1 && words[1] == "table2") return table2({words.begin() + 2, words.end()});
  if (words.size() > 1 && words[1] == "scale") {
    const std::string method(words.size() > 2 ? words[2] : flow_methods().back().name);
    return scale("/proc/self/exe", method);
  }
  if (words.size() > 1 && words[1] == "exact") {
    return exact(words.size() > 2 ? bench::number_of<int>("flow_bench", words[2]) : 100);
  }
  if (words.size() > 1 && words[1] == "orders") return orders();
  if (words.size() == 6 && words[1] == "row") {
    return row(words[2], words[3], bench::number_of<std::uint64_t>("flow_bench", words[4]),
               bench::number_of<std::int64_t>("flow_bench", words[5]));
  }
  fmt::print(stderr,
             "usage: {} table2 [methods...] | scale [method] | exact [TOPOLOGIES] | orders | row "
             "METHOD TOPOLOGY SEED EFFORT\n",
             words[0]);
  return 2;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { return agpcs::run(std::vector<std::string>(argv, argv + argc)); }
