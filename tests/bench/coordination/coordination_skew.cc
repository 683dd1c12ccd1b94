// SPDX-License-Identifier: Apache-2.0
// Planned order against readiness order between processes of this machine over Gloo, with gradients
// that come at other times and in another order on each rank; measured steps beside what the
// simulation (tests/bench/coordination/coordination.h) predicts for the very same delays. A table
// in Markdown.
//
//     coordination_skew FOLDER [ROUNDS]
//
// FOLDER has profiled graphs of PipeDream (tests/bench/support/pipedream.h). A gradient is ready
// when the profile's backward says, plus a delay: the backward time of an operator of the same
// profile, drawn evenly for each step, rank and gradient. A thread of each rank sleeps until then
// in place of computing. Gradients of `planned` are made in their groups' memory, which no other
// policy has. What an all-reduce takes is measured before, by size, and control messages cost what
// coordination_costs.h has.
#include "ir/base/median.h"
#include "ir/base/rng.h"
#include "runtime/support/operation_times.h"
#include "tests/bench/coordination/coordination.h"
#include "tests/bench/coordination/coordination_costs.h"
#include "tests/bench/support/gloo_ranks.h"
#include "tests/bench/support/mistakes.h"
#include "tests/bench/support/pipedream.h"

#include <agpcs/gradient_reducer.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kRanks[] = {2, 4};
constexpr int kStepsOfRound = 2;
constexpr CoordinationPolicy kPolicies[] = {
    CoordinationPolicy::kCoordinator, CoordinationPolicy::kCached, CoordinationPolicy::kPlanned};

/// Floats that are summed, and where gradients lie in them.
struct Memory {
  std::vector<float> values;
  std::vector<std::size_t> begin;  // by gradient
};

Memory memory_of(const ProfiledModel& model) {
  Memory memory;
  std::size_t elements = 0;
  for (const ReadyGradient& gradient : model.gradients) {
    memory.begin.push_back(elements);
    elements += static_cast<std::size_t>(gradient.bytes) / sizeof(float);
  }
  memory.values.assign(elements, 1.F);
  return memory;
}

double time_reduce(GlooRank& rank, std::vector<float>& values, std::size_t elements) {
  std::vector<double> times;
  for (int i = 0; i < 9; ++i) {
    rank.slowest(0);
    const auto begin = static_cast<double>(steady_nanoseconds());
    const auto ticket = rank.transport().all_reduce(
        {values.data(), elements * sizeof(float), DType::kFp32, false}, 0, AllReduce::kRing);
    check(ticket.status());
    check(rank.transport().wait(Stream::kCollective, *ticket, std::chrono::minutes(2)));
    const auto end = static_cast<double>(steady_nanoseconds());
    times.push_back((rank.slowest(end) - rank.slowest(begin)) * 1e-9);
  }
  return median(times);
}

CostLine measure_reduces(GlooRank& rank, std::vector<float>& values) {
  const std::size_t small = 256, large = values.size();
  const double first = time_reduce(rank, values, small);
  const double last = time_reduce(rank, values, large);
  const double per_element = std::max(0.0, last - first) / static_cast<double>(large - small);
  return {std::max(0.0, first - per_element * small), per_element / sizeof(float)};
}

/// Of one step, the same on all ranks.
Readiness draw_delays(const ProfiledModel& model, int ranks, int step) {
  Rng rng = Rng(7).fork(fmt::format("step {}", step));
  Readiness readiness{ranks, static_cast<int>(model.gradients.size()), {}};
  // Forward is the same for all: steps begin with backward.
  const double begin =
      model.compute - std::accumulate(model.backward.begin(), model.backward.end(), 0.0);
  for (int r = 0; r < ranks; ++r) {
    for (const ReadyGradient& gradient : model.gradients) {
      const double delay = model.backward[rng.below(model.backward.size())];
      readiness.seconds.push_back(gradient.ready - begin + delay);
    }
  }
  return readiness;
}

/// Groups that end earliest if no rank is late.
std::vector<std::vector<int>> planned_groups(const ProfiledModel& model, const CostLine& line) {
  std::vector<std::vector<int>> groups;
  int next = 0;
  for (const int count : schedule_buckets(model.gradients, std::span(&line, 1))) {
    groups.emplace_back(static_cast<std::size_t>(count));
    std::iota(groups.back().begin(), groups.back().end(), next);
    next += count;
  }
  return groups;
}

GradientSet set_of(const ProfiledModel& model, const std::vector<std::vector<int>>& groups) {
  GradientSet set;
  for (std::size_t g = 0; g < model.gradients.size(); ++g) {
    set.gradients.push_back({fmt::format("g{}", g), DType::kFp32,
                             model.gradients[g].bytes / static_cast<std::int64_t>(sizeof(float))});
  }
  for (std::size_t i = 0; i < groups.size(); ++i) {
    set.groups.push_back({fmt::format("b{}", i), groups[i]});
  }
  return set;
}

/// As `GradientReducer` coordinates (runtime/reduce/negotiation.h).
CoordinationOptions simulated_as(CoordinationPolicy policy, const CostLine& line,
                                 std::vector<std::vector<int>> groups) {
  CoordinationOptions options;
  options.policy = policy;
  options.idle_cycles = false;
  options.waits_for_reduces = true;
  options.costs = kMeasuredCosts;
  options.gather = options.spread = ControlShape::kStar;
  options.combine = ControlShape::kBinary;
  options.list_bytes = options.request_bytes = options.response_bytes = 8;
  options.groups = std::move(groups);
  options.reduce_seconds = [line](std::int64_t bytes) { return line.of(bytes); };
  return options;
}

class Skew {
 public:
  Skew(GlooRank& rank, const ProfiledModel& model, std::string name)
      : rank_(rank), model_(model), name_(std::move(name)), memory_(memory_of(model)) {
    for (const ReadyGradient& gradient : model.gradients) bytes_.push_back(gradient.bytes);
  }

  /// Policies take turns, so that all meet the same noise.
  void run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      measure_line();
      for (std::size_t p = 0; p < std::size(kPolicies); ++p)
        run_policy(kPolicies[p], round, of_[p]);
    }
    if (rank_.rank() != 0) return;
    for (std::size_t p = 0; p < std::size(kPolicies); ++p) {
      const Steps& of = of_[p];
      const Steps& planned = of_[std::size(kPolicies) - 1];
      std::vector<double> off, ratio, predicted_ratio;
      for (std::size_t i = 0; i < of.measured.size(); ++i) {
        off.push_back(of.predicted[i] / of.measured[i] - 1);
        ratio.push_back(of.measured[i] / planned.measured[i]);
        predicted_ratio.push_back(of.predicted[i] / planned.predicted[i]);
      }
      fmt::print(
          "| {} | {} | {} | {:.1f} | {:.1f} | {:.1f} | {:+.1f}% | {:.3f} | {:.3f} | {:.1f} |\n",
          name_, rank_.ranks(), name_of(kPolicies[p]), median(of.ready) * 1e3,
          median(of.measured) * 1e3, median(of.predicted) * 1e3, 100 * median(off), median(ratio),
          median(predicted_ratio), median(of.messages));
    }
    std::fflush(stdout);
  }

 private:
  /// By step.
  struct Steps {
    std::vector<double> ready, measured, predicted;  // seconds
    std::vector<double> messages;                    // that rank 0 sends beside payload
  };

  void measure_line() {
    line_ = measure_reduces(rank_, memory_.values);
    // The processes' lines differ; all go by rank 0's.
    line_ = {rank_.slowest(rank_.rank() == 0 ? line_.seconds : 0),
             rank_.slowest(rank_.rank() == 0 ? line_.per_byte : 0)};
    groups_ = planned_groups(model_, line_);
  }

  void run_policy(CoordinationPolicy policy, int round, Steps& steps) {
    const bool planned = policy == CoordinationPolicy::kPlanned;
    ReducerOptions options;
    options.coordination = *coordination_named(name_of(policy));
    options.group = ++group_;
    auto reducer =
        GradientReducer::create(set_of(model_, planned ? groups_ : std::vector<std::vector<int>>{}),
                                rank_.transport(), options);
    check(reducer.status());
    const CoordinationOptions simulated = simulated_as(policy, line_, groups_);
    for (int step = 0; step <= kStepsOfRound; ++step) {
      const Readiness readiness =
          draw_delays(model_, rank_.ranks(), round * (kStepsOfRound + 1) + step);
      const std::int64_t before = (*reducer)->stats().control_messages;
      const double seconds = time_step(**reducer, policy, readiness);
      if (step == 0) continue;  // the cache is empty, memory is new
      steps.ready.push_back(readiness.last());
      steps.measured.push_back(seconds);
      const std::int64_t after = (*reducer)->stats().control_messages;
      steps.messages.push_back(static_cast<double>(after - before));
      const auto expected = simulate_coordination(readiness, bytes_, simulated);
      check(expected.status());
      steps.predicted.push_back(expected->seconds);
    }
  }

  /// By gradient.
  std::vector<Buffer> buffers_of(GradientReducer& reducer, CoordinationPolicy policy) {
    std::vector<Buffer> buffers;
    for (std::size_t g = 0; g < bytes_.size(); ++g) {
      if (policy == CoordinationPolicy::kPlanned) {
        buffers.push_back(reducer.place_of(static_cast<int>(g)).value());
      } else {
        buffers.push_back({memory_.values.data() + memory_.begin[g],
                           static_cast<std::size_t>(bytes_[g]), DType::kFp32, false});
      }
    }
    return buffers;
  }

  double time_step(GradientReducer& reducer, CoordinationPolicy policy,
                   const Readiness& readiness) {
    std::vector<int> order(model_.gradients.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return readiness.at(rank_.rank(), a) < readiness.at(rank_.rank(), b);
    });
    const std::vector<Buffer> buffers = buffers_of(reducer, policy);
    for (const Buffer& buffer : buffers) {
      std::fill_n(static_cast<float*>(buffer.data), buffer.bytes / sizeof(float), 1.F);
    }
    rank_.slowest(0);
    const auto begin = std::chrono::steady_clock::now();
    for (const int g : order) {
      const std::chrono::duration<double> ready(readiness.at(rank_.rank(), g));
      std::this_thread::sleep_until(begin +
                                    std::chrono::duration_cast<std::chrono::nanoseconds>(ready));
      check(reducer.submit(g, buffers[static_cast<std::size_t>(g)]));
    }
    check(reducer.wait_all());
    const auto seconds_of = [](std::chrono::steady_clock::time_point time) {
      return std::chrono::duration<double>(time.time_since_epoch()).count();
    };
    const double end = seconds_of(std::chrono::steady_clock::now());
    const float sum = *static_cast<const float*>(buffers.back().data);
    if (sum != static_cast<float>(rank_.ranks())) {
      check(internal_error(fmt::format("the sum is {}", sum)));
    }
    return rank_.slowest(end) - rank_.slowest(seconds_of(begin));
  }

  GlooRank& rank_;
  const ProfiledModel& model_;
  const std::string name_;
  Memory memory_;
  std::vector<std::int64_t> bytes_;
  CostLine line_;
  std::vector<std::vector<int>> groups_;
  int group_ = 0;
  std::array<Steps, std::size(kPolicies)> of_;
};

int run(int rounds, const std::filesystem::path& folder) {
  bench::need_data(folder, "a folder of PipeDream's profiled graphs");
  fmt::print(
      "| profile | ranks | policy | last gradient ms | measured ms | predicted ms | off | to "
      "planned, measured | to planned, predicted | control messages of rank 0 |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  for (const char* name : {"resnet50", "squeezenet1_0"}) {
    const ProfiledModel model = read_pipedream(folder / (std::string(name) + ".txt"));
    for (const int ranks : kRanks) {
      run_gloo_ranks(ranks, [&](GlooRank& rank) {
        std::vector<int> all(static_cast<std::size_t>(ranks)), hosts(all.size(), 0);
        std::iota(all.begin(), all.end(), 0);
        check(rank.transport().open_group(0, all, hosts));
        Skew(rank, model, name).run(rounds);
      });
    }
  }
  return 0;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    agpcs::bench::end_with_usage("coordination_skew", "no folder of profiled graphs",
                                 "FOLDER [ROUNDS], of PipeDream's profiles");
  }
  const int rounds = argc > 2 ? agpcs::bench::number_of<int>("coordination_skew", argv[2]) : 10;
  return agpcs::run(std::max(3, rounds), argv[1]);
}
