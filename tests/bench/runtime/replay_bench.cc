// SPDX-License-Identifier: Apache-2.0
// What replaying costs above what is replayed.
//   replay_bench instructions          nanoseconds that the replayer adds to an instruction
//   replay_bench gloo [SECONDS]        steps of all-reduces beside a loop written by hand over Gloo
//   replay_bench wire [SECONDS]        steps whose gradients travel in fp16 and bf16, beside fp32
//   replay_bench tls [SECONDS]         steps over TLS, beside plain TCP
#include "ir/base/median.h"
#include "runtime/job/renumbered_groups.h"
#include "tests/bench/runtime/bucket_plan.h"
#include "tests/bench/support/gloo_ranks.h"
#include "tests/runtime/null_executor.h"
#include "tests/runtime/plans.h"

#include <agpcs/loopback.h>
#include <agpcs/replayer.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// As a loop written by hand, it does not look at gradients.
ReplayOptions without_looking() {
  ReplayOptions options;
  options.check_finite = false;
  return options;
}

struct Shape {
  std::string name;
  TestPlan spec;
};

std::vector<Shape> shapes() {
  return {{"4 replicas, 64 micro-batches", {{{2, 1, 4, 1}}, {}, 64}},
          {"4 stages, 64 micro-batches",
           {{{2}, {2}, {2}, {2}}, {{0, 1, {"a"}}, {1, 2, {"b"}}, {2, 3, {"c"}}}, 64}},
          {"2 x 2, 64 micro-batches", {{{3, 1}, {1, 3}}, {{0, 1, {"a"}}}, 64}}};
}

// The replayer alone: what it calls returns at once.
double alone(const Plan& plan, int rank) {
  constexpr int kSteps = 200;
  InstantTransport transport(rank, plan.rank_count());
  NullExecutor executor;
  auto replayer = Replayer::create(plan, rank, transport, executor, without_looking());
  check(replayer.status());
  const auto instructions = static_cast<double>((*replayer)->instructions().size());
  std::vector<double> seconds;
  for (int round = 0; round < 20; ++round) {
    seconds.push_back(seconds_of([&] {
      for (int step = 0; step < kSteps; ++step) check((*replayer)->run_step().status());
    }));
  }
  return median(seconds) / kSteps / instructions;
}

// Seconds of a step of all ranks over loopback.
double over_loopback(const Plan& plan) {
  constexpr int kSteps = 30;
  LoopbackHub hub(plan.rank_count());
  std::vector<std::thread> threads;
  double seconds = 0;
  for (int rank = 0; rank < plan.rank_count(); ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = hub.join(rank);
      NullExecutor executor;
      auto replayer = Replayer::create(plan, rank, *transport, executor, without_looking());
      check(replayer.status());
      for (int step = 0; step < 3; ++step) check((*replayer)->run_step().status());
      const double took = seconds_of([&] {
        for (int step = 0; step < kSteps; ++step) check((*replayer)->run_step().status());
      });
      if (rank == 0) seconds = took / kSteps;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return seconds;
}

void instructions() {
  fmt::print("{:<30} {:>12} {:>22} {:>18}\n", "plan", "instructions", "replayer, ns each",
             "loopback, ns each");
  for (const Shape& shape : shapes()) {
    const Plan plan = make_plan(shape.spec);
    double worst = 0, all = 0;
    std::size_t count = 0;
    for (int rank = 0; rank < plan.rank_count(); ++rank) {
      worst = std::max(worst, alone(plan, rank));
      const auto stage = static_cast<std::size_t>(plan.stage_of_rank(rank));
      all += static_cast<double>(plan.programs[stage].instructions.size());
      count = std::max(count, plan.programs[stage].instructions.size());
    }
    fmt::print("{:<30} {:>12} {:>22.0f} {:>18.0f}\n", shape.name, count, worst * 1e9,
               over_loopback(plan) / all * 1e9);
  }
}

void compare(GlooRank& rank, const std::string& name, const Plan& plan, double seconds) {
  NullExecutor executor;
  auto replayer =
      Replayer::create(plan, rank.rank(), rank.transport(), executor, without_looking());
  check(replayer.status());
  std::vector<std::vector<float>> buffers;
  for (const PlanBucket& bucket : plan.buckets) {
    buffers.emplace_back(static_cast<std::size_t>(bucket.elements()), 1.F);
  }
  const auto by_hand = [&] {
    for (std::vector<float>& values : buffers) rank.gloo_ring(values);
    std::vector<float> loss(1, 1.F);
    rank.gloo_ring(loss);
  };
  const auto replayed = [&] { check((*replayer)->run_step().status()); };
  std::vector<double> ratios, hand;
  double spent = 0;
  for (int round = 0; round < 6 || spent < seconds; ++round) {
    for (auto& values : buffers) std::fill(values.begin(), values.end(), 1.F);
    const bool first = round % 2 == 0;
    const double a = rank.slowest(seconds_of(first ? std::function<void()>(by_hand) : replayed));
    const double b = rank.slowest(seconds_of(first ? std::function<void()>(replayed) : by_hand));
    spent += a + b;
    if (round < 2) continue;  // warm up
    hand.push_back(first ? a : b);
    ratios.push_back(first ? b / a : a / b);
  }
  if (rank.rank() != 0) return;
  fmt::print("{:<34} {:>6} {:>12.2f} {:>10.3f}\n", name, ratios.size(), median(hand) * 1e3,
             median(ratios));
}

void gloo_rows(int ranks, double seconds, const std::string& name,
               const std::vector<std::int64_t>& elements) {
  run_gloo_ranks(ranks, [&](GlooRank& rank) {
    compare(rank, fmt::format("{} ranks, {}", ranks, name), plan_of_buckets(ranks, elements),
            seconds);
  });
}

void gloo(double seconds) {
  fmt::print("{:<34} {:>6} {:>12} {:>10}\n", "buckets", "steps", "by hand, ms", "replayed");
  for (const int ranks : {2, 4}) {
    for (const Buckets& buckets : usual_buckets()) {
      gloo_rows(ranks, seconds, buckets.name, buckets.elements);
    }
  }
}

/// Steps of one plan, with gradients of usual sizes.
class WireSteps {
 public:
  WireSteps(Transport& transport, const Plan& plan, int number)
      : plan_(plan), groups_(transport, number * kGroups) {
    auto replayer = Replayer::create(plan, transport.rank(), groups_, executor_, without_looking());
    check(replayer.status());
    replayer_ = std::move(*replayer);
  }

  double step() {
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
      auto* const values = static_cast<float*>(executor_.bucket(static_cast<int>(b))->data);
      for (std::int64_t i = 0; i < plan_.buckets[b].elements(); ++i) {
        values[i] = 1e-4F * static_cast<float>(i % 1000 - 500);
      }
    }
    return seconds_of([&] { check(replayer_->run_step().status()); });
  }

 private:
  static constexpr int kGroups = 2;  // of a plan of one stage: its own, and all ranks
  const Plan plan_;
  NullExecutor executor_;
  RenumberedGroups groups_;
  std::unique_ptr<Replayer> replayer_;
};

constexpr std::array<std::optional<DType>, 3> kComparedTypes = {std::nullopt, DType::kFp16,
                                                                DType::kBf16};

/// The times of steps of several kinds, which take turns until they have had `seconds`, by kind.
std::vector<std::vector<double>> times_of(GlooRank& rank,
                                          const std::vector<std::unique_ptr<WireSteps>>& steps,
                                          double seconds) {
  std::vector<std::vector<double>> taken(steps.size());
  double spent = 0;
  for (std::size_t round = 0; round < 8 || spent < seconds; ++round) {
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const std::size_t turn = (round + i) % steps.size();
      rank.slowest(0);
      const double took = rank.slowest(steps[turn]->step());
      spent += took;
      if (round >= 2) taken[turn].push_back(took);  // warm
    }
  }
  return taken;
}

void compare_wire_types(GlooRank& rank, const std::string& name,
                        const std::vector<std::int64_t>& elements, double seconds) {
  std::vector<std::unique_ptr<WireSteps>> steps;
  for (const std::optional<DType> type : kComparedTypes) {
    Plan plan = plan_of_buckets(rank.ranks(), elements);
    plan.training.wire_type = type;
    steps.push_back(
        std::make_unique<WireSteps>(rank.transport(), plan, static_cast<int>(steps.size())));
  }
  const auto taken = times_of(rank, steps, seconds);
  if (rank.rank() != 0) return;
  const double plain = median(taken[0]);
  fmt::print("{:<34} {:>6} {:>10.2f} {:>12.3f} {:>12.3f}\n", name, taken[0].size(), plain * 1e3,
             median(taken[1]) / plain, median(taken[2]) / plain);
}

void compare_tls(GlooRank& rank, const std::string& name, const std::vector<std::int64_t>& elements,
                 double seconds) {
  const Plan plan = plan_of_buckets(rank.ranks(), elements);
  std::vector<std::unique_ptr<WireSteps>> steps;
  steps.push_back(std::make_unique<WireSteps>(rank.transport(), plan, 0));
  steps.push_back(std::make_unique<WireSteps>(rank.over_tls(), plan, 0));
  const auto taken = times_of(rank, steps, seconds);
  if (rank.rank() != 0) return;
  std::vector<double> ratios;
  for (std::size_t i = 0; i < taken[0].size(); ++i) ratios.push_back(taken[1][i] / taken[0][i]);
  fmt::print("{:<34} {:>6} {:>10.2f} {:>10.2f} {:>12.3f}\n", name, ratios.size(),
             median(taken[0]) * 1e3, median(taken[1]) * 1e3, median(ratios));
}

void wire(double seconds) {
  fmt::print("{:<34} {:>6} {:>10} {:>12} {:>12}\n", "buckets", "steps", "fp32, ms", "fp16 / fp32",
             "bf16 / fp32");
  for (const int ranks : {2, 4}) {
    for (const Buckets& buckets : usual_buckets()) {
      run_gloo_ranks(ranks, [&](GlooRank& rank) {
        compare_wire_types(rank, fmt::format("{} ranks, {}", ranks, buckets.name), buckets.elements,
                           seconds);
      });
    }
  }
}

void tls(double seconds) {
  fmt::print("{:<34} {:>6} {:>10} {:>10} {:>12}\n", "buckets", "rounds", "plain, ms", "TLS, ms",
             "TLS / plain");
  for (const int ranks : {2, 4}) {
    for (const Buckets& buckets : usual_buckets()) {
      run_gloo_ranks(ranks, [&](GlooRank& rank) {
        compare_tls(rank, fmt::format("{} ranks, {}", ranks, buckets.name), buckets.elements,
                    seconds);
      });
    }
  }
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  if (what == "instructions") {
    agpcs::instructions();
  } else if (what == "gloo") {
    agpcs::gloo(argc > 2 ? std::atof(argv[2]) : 5);
  } else if (what == "wire") {
    agpcs::wire(argc > 2 ? std::atof(argv[2]) : 5);
  } else if (what == "tls") {
    agpcs::tls(argc > 2 ? std::atof(argv[2]) : 5);
  } else {
    fmt::print(stderr,
               "usage: replay_bench instructions | gloo [SECONDS] | wire [SECONDS] | tls "
               "[SECONDS]\n");
    return 2;
  }
}
