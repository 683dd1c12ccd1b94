// SPDX-License-Identifier: Apache-2.0
// Measures what control messages cost between 2 to 8 processes of this machine over Gloo, fits the
// costs of the simulation to it (tests/bench/coordination/control_messages.h), and shows how well
// they fit:
//
//     coordination_fit [ROUNDS]          a table, then a line for coordination_costs.h
//
// A round: every rank sends along the edges of a shape to rank 0, which answers along them, by the
// transport's messages as `GradientReducer` sends them. It takes from the last rank's begin to the
// last one's end (processes share the clock); what the fastest twentieth of the rounds reach.
//
// A step: `GradientReducer` sums gradients of one float each that all ranks submit at once; what it
// says it spent in cycles, on the rank that spent most. In Markdown.
#include "ir/base/median.h"
#include "runtime/support/operation_times.h"
#include "tests/bench/coordination/coordination.h"
#include "tests/bench/coordination/fit_control_costs.h"
#include "tests/bench/support/gloo_ranks.h"

#include <agpcs/gradient_reducer.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <string>
#include <sys/mman.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr ControlShape kShapes[] = {ControlShape::kStar, ControlShape::kBinary,
                                    ControlShape::kRing};
constexpr std::int64_t kBytes[] = {8, 4096, 65'536};
constexpr int kGradients[] = {10, 161, 2000};
constexpr int kRanks[] = {2, 3, 4, 6, 8};
constexpr std::chrono::milliseconds kLimit{60'000};

struct Case {
  int ranks = 0;
  ControlShape shape = ControlShape::kStar;
  std::int64_t bytes = 0;  // of a round; 0: a step
  int gradients = 0;       // of a step
  Coordination policy = Coordination::kCoordinator;
  double seconds = 0, cycles = 0;  // measured; cycles of a step
};

/// What a case's rank 0 tells.
struct Measured {
  double seconds = 0, cycles = 0;
};

/// A rank's side of a round.
class Round {
 public:
  Round(GlooRank& rank, ControlShape shape, std::int64_t bytes)
      : rank_(rank), children_(children_of(shape, rank.rank(), rank.ranks())) {
    for (int r = 0; r < rank.ranks(); ++r) {
      const std::vector<int> of = children_of(shape, r, rank.ranks());
      if (std::find(of.begin(), of.end(), rank.rank()) != of.end()) parent_ = r;
    }
    out_.assign(static_cast<std::size_t>(bytes), 'o');
    in_.assign(static_cast<std::size_t>(bytes), 'i');
  }

  void run() {
    for (const int child : children_) receive(child);
    if (parent_ >= 0) {
      send(parent_);
      receive(parent_);
    }
    for (std::size_t i = children_.size(); i-- > 0;) send(children_[i]);
    if (sent_ != 0) check(rank_.transport().wait(Stream::kSend, sent_, kLimit));
  }

 private:
  void send(int peer) {
    const auto ticket = rank_.transport().send(buffer(out_), peer, 1);
    check(ticket.status());
    sent_ = *ticket;
  }
  void receive(int peer) {
    const auto ticket = rank_.transport().recv(buffer(in_), peer, 1);
    check(ticket.status());
    check(rank_.transport().wait(Stream::kRecv, *ticket, kLimit));
  }
  static Buffer buffer(std::vector<char>& bytes) {
    return {bytes.data(), bytes.size(), DType::kUint8, false};
  }

  GlooRank& rank_;
  std::vector<int> children_;
  int parent_ = -1;
  std::vector<char> out_, in_;
  Ticket sent_ = 0;
};

/// Seconds of a round, the same on all ranks.
double time_round(GlooRank& rank, Round& round) {
  rank.slowest(0);
  const auto begin = static_cast<double>(steady_nanoseconds());
  round.run();
  const auto end = static_cast<double>(steady_nanoseconds());
  return (rank.slowest(end) - rank.slowest(begin)) * 1e-9;
}

/// What one in twenty falls below: a machine that does other work, too, makes rounds longer, never
/// shorter.
double low_quantile(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 20];
}

/// Rounds of all cases take turns, so that all meet the same noise.
void measure_rounds(GlooRank& rank, const std::vector<Case>& cases, int rounds,
                    Measured* measured) {
  std::vector<std::size_t> mine;
  std::vector<Round> round_of;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].ranks != rank.ranks() || cases[i].gradients > 0) continue;
    mine.push_back(i);
    round_of.emplace_back(rank, cases[i].shape, cases[i].bytes);
  }
  std::vector<std::vector<double>> times(mine.size());
  for (int i = 0; i <= rounds; ++i) {
    for (std::size_t c = 0; c < mine.size(); ++c) {
      const double took = time_round(rank, round_of[c]);
      if (i > 0) times[c].push_back(took);  // the first warms up
    }
  }
  if (rank.rank() != 0) return;
  for (std::size_t c = 0; c < mine.size(); ++c) measured[mine[c]].seconds = low_quantile(times[c]);
}

/// Steps of one case; as rounds.
Measured measure_steps(GlooRank& rank, const Case& of, int group, int steps) {
  GradientSet set;
  for (int g = 0; g < of.gradients; ++g) {
    set.gradients.push_back({fmt::format("g{}", g), DType::kFp32, 1});
  }
  ReducerOptions options;
  options.coordination = of.policy;
  options.cache_capacity = of.gradients;
  options.group = group;
  const auto reducer = GradientReducer::create(set, rank.transport(), options);
  check(reducer.status());
  std::vector<float> values(static_cast<std::size_t>(of.gradients));
  std::vector<double> seconds, cycles;
  ReducerStats before;
  for (int step = 0; step <= steps; ++step) {
    rank.slowest(0);
    for (int g = 0; g < of.gradients; ++g) {
      float* value = &values[static_cast<std::size_t>(g)];
      check((*reducer)->submit(g, {value, sizeof(float), DType::kFp32, false}));
    }
    check((*reducer)->wait_all());
    const ReducerStats after = (*reducer)->stats();
    const double took = static_cast<double>(after.control_ns - before.control_ns) * 1e-9;
    const double longest = rank.slowest(took);
    if (step > 0) {  // in the first the cache is empty
      seconds.push_back(longest);
      cycles.push_back(static_cast<double>(after.cycles - before.cycles));
    }
    before = after;
  }
  return {low_quantile(seconds), median(cycles)};
}

void measure(GlooRank& rank, const std::vector<Case>& cases, int rounds, Measured* measured) {
  measure_rounds(rank, cases, rounds, measured);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    if (cases[i].ranks != rank.ranks() || cases[i].gradients == 0) continue;
    const Measured of = measure_steps(rank, cases[i], static_cast<int>(i), rounds);
    if (rank.rank() == 0) measured[i] = of;
  }
}

/// Memory that forked ranks share.
std::vector<Case> measure_all(int rounds) {
  std::vector<Case> cases;
  for (const int ranks : kRanks) {
    for (const ControlShape shape : kShapes) {
      for (const std::int64_t bytes : kBytes) cases.push_back({ranks, shape, bytes});
    }
    for (const Coordination policy : {Coordination::kCoordinator, Coordination::kCached}) {
      for (const int gradients : kGradients) {
        cases.push_back({ranks, ControlShape::kStar, 0, gradients, policy});
      }
    }
  }
  void* memory = mmap(nullptr, cases.size() * sizeof(Measured), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) check(internal_error("no memory to share"));
  auto* measured = static_cast<Measured*>(memory);
  for (const int ranks : kRanks) {
    run_gloo_ranks(ranks, [&](GlooRank& rank) { measure(rank, cases, rounds, measured); });
  }
  for (std::size_t i = 0; i < cases.size(); ++i) {
    cases[i].seconds = measured[i].seconds;
    cases[i].cycles = measured[i].cycles;
  }
  munmap(memory, cases.size() * sizeof(Measured));
  return cases;
}

/// Up and down.
double model_of_round(const Case& of, const ControlCosts& costs) {
  ControlTraffic traffic;
  std::vector<double> times(static_cast<std::size_t>(of.ranks), 0.0);
  const double all = combine_to_first(of.shape, costs, times, of.bytes, traffic);
  spread_from_first(of.shape, costs, all, of.bytes, times, traffic);
  return *std::max_element(times.begin(), times.end());
}

/// A cycle in which `gradients` are ready everywhere, as `GradientReducer` has it.
double model_of_cycle(const Case& of, int gradients, const ControlCosts& costs) {
  CoordinationOptions options;
  options.policy = *find_coordination_policy(name_of(of.policy));
  options.costs = costs;
  options.cache_entries = gradients;
  options.gather = options.spread = ControlShape::kStar;
  options.combine = ControlShape::kBinary;
  options.list_bytes = options.request_bytes = options.response_bytes = 8;
  options.reduce_seconds = [](std::int64_t) { return 0.0; };
  const std::vector<std::int64_t> bytes(static_cast<std::size_t>(gradients), 4);
  Readiness readiness{of.ranks, gradients, {}};
  readiness.seconds.assign(bytes.size() * static_cast<std::size_t>(of.ranks), 0.0);
  const auto step = simulate_coordination(readiness, bytes, options);
  check(step.status());
  return step->control_seconds;
}

/// A step's first cycle takes what has come when it begins, which is little.
double model(const Case& of, const ControlCosts& costs) {
  if (of.gradients == 0) return model_of_round(of, costs);
  return model_of_cycle(of, of.gradients, costs) + (of.cycles - 1) * model_of_cycle(of, 1, costs);
}

std::string describe(const Case& of) {
  if (of.gradients == 0) return fmt::format("{}, {} bytes", name_of(of.shape), of.bytes);
  return fmt::format("{}, {} gradients, {} cycles", name_of(of.policy), of.gradients, of.cycles);
}

/// With as many processors as explain it best: other work may have taken some.
ControlFit best_fit(const std::vector<ControlObservation>& observations) {
  ControlFit best;
  double least = std::numeric_limits<double>::infinity();
  const int most = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (int processors = 1; processors <= most; ++processors) {
    ControlFit fit = fit_control_costs(observations, processors);
    const double error = mean_error(observations, fit.predicted);
    if (error >= least) continue;
    least = error;
    best = std::move(fit);
  }
  return best;
}

/// Of rounds and of steps, fitted and left out.
std::string errors_of(const std::vector<Case>& cases,
                      const std::vector<ControlObservation>& observations, const ControlFit& fit) {
  std::string text;
  for (const bool rounds : {true, false}) {
    std::vector<ControlObservation> of;
    std::vector<double> predicted, left_out;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      if ((cases[i].gradients == 0) != rounds) continue;
      of.push_back(observations[i]);
      predicted.push_back(fit.predicted[i]);
      left_out.push_back(fit.left_out[i]);
    }
    text += fmt::format("{}{} {}: {:.1f}%, each left out of the fit {:.1f}%", rounds ? "" : "; ",
                        of.size(), rounds ? "rounds" : "steps", 100 * mean_error(of, predicted),
                        100 * mean_error(of, left_out));
  }
  return text;
}

void run(int rounds) {
  const std::vector<Case> cases = measure_all(rounds);
  std::vector<ControlObservation> observations;
  for (const Case& of : cases) {
    observations.push_back(
        {of.seconds, [of](const ControlCosts& costs) { return model(of, costs); }});
  }
  const ControlFit fit = best_fit(observations);
  fmt::print(
      "| ranks | exchange | measured us | fitted us | off | left out us | off |\n"
      "| --- | --- | --- | --- | --- | --- | --- |\n");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Case& of = cases[i];
    fmt::print("| {} | {} | {:.1f} | {:.1f} | {:+.0f}% | {:.1f} | {:+.0f}% |\n", of.ranks,
               describe(of), of.seconds * 1e6, fit.predicted[i] * 1e6,
               100 * (fit.predicted[i] / of.seconds - 1), fit.left_out[i] * 1e6,
               100 * (fit.left_out[i] / of.seconds - 1));
  }
  fmt::print("\nMean errors: {}\n\n", errors_of(cases, observations, fit));
  fmt::print(
      "latency {:.3g} s, message {:.3g} s, byte {:.3g} s, request {:.3g} s, unit {:.3g} s, {} "
      "processors\n",
      fit.costs.latency, fit.costs.message, fit.costs.byte, fit.costs.request, fit.costs.unit,
      fit.costs.processors);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) { agpcs::run(argc > 1 ? std::max(10, std::atoi(argv[1])) : 300); }
