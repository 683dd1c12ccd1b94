// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator.h"

#include "ir/strategy/interleaved.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/state_parts.h"
#include "planner/evaluate/memory_bound.h"
#include "tests/planner/evaluate/by_simulation.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/problems.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>
#include <new>
#include <optional>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

namespace {

thread_local std::int64_t allocations = 0;

}  // namespace

// Every allocation of this program is counted. Not inlined, so that the compiler sees pairs.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(std::max<std::size_t>(size, 1))) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(std::max<std::size_t>(size, 1));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace agpcs {
namespace {

using testing::between;
using testing::by_simulation;
using testing::chain;
using testing::cluster_of;
using testing::expect_equal;
using testing::fast_and_slow;
using testing::graph_of;
using testing::problem_of;
using testing::random_interleaved;
using testing::random_strategy;

/// Paths that skip stages, a tensor without samples that crosses, a parameter used twice, an
/// embedding whose input has no gradient.
Graph branches() {
  std::string text =
      "input x [n,64]\ninput labels int64[n]\nparameter bias [64]\nparameter shared [64,64]\n"
      "s = Sigmoid(bias) [64]\nh0 = MatMul(x, shared) [n,64]\ng0 = MatMul(h0, shared) [n,64]\n";
  std::string last = "g0";
  for (int i = 1; i <= 9; ++i) {
    const std::string n = std::to_string(i);
    text += "parameter w" + n + " [64,64]\nh" + n + " = MatMul(" + last + ", w" + n + ") [n,64]\n";
    text += "g" + n + " = Add(h" + n + ", " + (i % 3 == 0 ? "g0" : "s") + ") [n,64]\n";
    last = "g" + n;
  }
  return graph_of(text + "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last +
                  "\nloss l\n");
}

/// A table of words that is the head, too, and a matrix in every other layer.
Graph tied() {
  std::string text =
      "input ids int64[n,4]\ninput labels int64[n]\nparameter table [50,64]\n"
      "parameter often [64,64]\n"
      "e = Gather(table, ids) [n,4,64]\nh0 = Flatten(e) [n,256]\nparameter into [256,64]\n"
      "g0 = MatMul(h0, into) [n,64]\n";
  for (int i = 1; i <= 8; ++i) {
    const std::string n = std::to_string(i), last = "g" + std::to_string(i - 1);
    const std::string own = i % 2 == 0 ? "often" : "w" + n;
    if (i % 2 != 0) text += "parameter w" + n + " [64,64]\n";
    text += "h" + n + " = MatMul(" + last + ", " + own + ") [n,64]\n";
    text += "g" + n + " = Relu(h" + n + ") [n,64]\n";
  }
  return graph_of(text +
                  "t = Transpose(table) [64,50]\nlogits = MatMul(g8, t) [n,50]\n"
                  "l = SoftmaxCrossEntropyLoss(logits, labels) []\noutputs logits\nloss l\n");
}

Cluster three_hosts() {
  return cluster_of(
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12 fp16=100e12\n"
      "kind slow memory=2e6 bandwidth=300e9 fp32=5e12 fp16=40e12\n"
      "host a fast 3 nic=1e9\nhost b slow 2 nic=2e9 bandwidth=10e9\nhost c slow 1 nic=3e9\n");
}

/// Everything that profiles can say of devices and collectives.
Cluster measured() {
  Cluster cluster = three_hosts();
  cluster.kinds[0].message_overhead = 3e-6;
  cluster.kinds[1].message_overhead = 5e-6;
  cluster.kinds[1].message_compute = 2e-6;
  cluster.kinds[1].overlap = {2e-11, 0.7};
  cluster.kinds[0].overlap = {1e-11, 0.9};
  cluster.collectives = {CollectiveFit{2e-6, 1.3}, CollectiveFit{1e-6, 1.1}};
  return cluster;
}

/// All links have protocols of NCCL but those of one host.
Cluster with_known_protocols() { return testing::with_protocols(three_hosts(), "c/"); }

struct Case {
  const char* name;
  Graph (*graph)();
  Cluster (*cluster)();
  std::int64_t batch;
  std::int64_t bucket_bytes;
  std::optional<DType> wire_type = {};
};

void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }  // NOLINT

constexpr Case kCases[] = {
    {"chain", [] { return chain(12); }, [] { return fast_and_slow(); }, 48, 25'000'000},
    {"chain_small_buckets", [] { return chain(12); }, three_hosts, 24, 300'000},
    {"branches", branches, [] { return fast_and_slow(); }, 32, 20'000},
    {"branches_on_three_hosts", branches, three_hosts, 60, 25'000'000},
    {"branches_measured", branches, measured, 36, 40'000},
    {"chain_scheduled_buckets", [] { return chain(12); }, three_hosts, 24, 0},
    {"branches_measured_scheduled_buckets", branches, measured, 36, 0},
    {"chain_measured", [] { return chain(7, 32); }, measured, 64, 5'000},
    {"chain_of_a_prime", [] { return chain(12); }, three_hosts, 37, 300'000},
    {"branches_measured_of_a_prime", branches, measured, 61, 0},
    {"branches_of_a_prime", branches, [] { return fast_and_slow(); }, 47, 20'000},
    {"branches_with_protocols", branches, with_known_protocols, 60, 40'000},
    {"branches_with_protocols_scheduled_buckets", branches, with_known_protocols, 60, 0},
    {"tied", tied, three_hosts, 60, 25'000'000},
    {"tied_in_small_buckets", tied, three_hosts, 37, 5'000},
    {"tied_measured_scheduled_buckets_in_fp16", tied, measured, 36, 0, DType::kFp16},
    {"branches_in_fp16", branches, three_hosts, 60, 20'000, DType::kFp16},
    {"branches_measured_scheduled_buckets_in_bf16", branches, measured, 36, 0, DType::kBf16},
};

class EvaluatorOf : public ::testing::TestWithParam<Case> {
 protected:
  EvaluatorOf() {
    ProblemOptions options;
    options.bucket_bytes = GetParam().bucket_bytes;
    problem_ = problem_of(GetParam().graph(), GetParam().cluster(), GetParam().batch, options,
                          GetParam().wire_type);
  }
  std::unique_ptr<const Problem> problem_;
};

TEST_P(EvaluatorOf, SaysToTheBitWhatTheSimulatorSays) {
  Rng rng(7);
  Evaluator evaluator(*problem_);
  for (int i = 0; i < 150 && !HasFailure(); ++i) {
    const Strategy strategy = random_strategy(rng, *problem_);
    expect_equal(evaluator.evaluate(strategy), by_simulation(*problem_, strategy),
                 print_strategy(strategy, problem_->graph, problem_->cluster));
  }
}

TEST_P(EvaluatorOf, SaysToTheBitWhatTheSimulatorSaysOfFlows) {
  Rng rng(9);
  Evaluator evaluator(*problem_);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    Strategy strategy = random_strategy(rng, *problem_);
    for (Bucket& bucket : strategy.buckets) {
      const auto members =
          static_cast<int>(strategy.stages[static_cast<std::size_t>(bucket.stage)].devices.size());
      if (members < 2 || bucket.is_shared() || rng.below(2) == 0) continue;
      bucket.algorithm = AllReduce::kFlow;
      bucket.flow = static_cast<int>(strategy.flows.size());
      strategy.flows.push_back(testing::random_flow(members, 2, Rng(rng.below(3))));
      strategy.flows.back().stage = bucket.stage;
    }
    expect_equal(evaluator.evaluate(strategy), by_simulation(*problem_, strategy),
                 print_strategy(strategy, problem_->graph, problem_->cluster));
  }
}

TEST_P(EvaluatorOf, SaysToTheBitWhatTheSimulatorSaysOfDividedState) {
  for (const double max_norm : {0.0, 1.0}) {
    Training training = problem_->training;
    training.optimizer.kind = OptimizerKind::kAdam;
    training.optimizer.max_norm = max_norm;
    const auto made =
        Problem::make(problem_->graph, problem_->cluster, training, problem_->options);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Problem& problem = **made;
    Rng rng(12);
    Evaluator evaluator(problem);
    int divided = 0;
    for (int i = 0; i < 50 && !HasFailure(); ++i) {
      Strategy strategy = random_strategy(rng, problem);
      for (StageSpec& spec : strategy.stages) {
        spec.state = static_cast<StateLevel>(rng.below(1 + kDividingLevels.size()));
        divided += divides_state(spec, training) ? 1 : 0;
      }
      fit_in_flight(strategy);  // where gradients are divided, backward passes are whole
      const Score score = evaluator.evaluate(strategy);
      expect_equal(score, by_simulation(problem, strategy),
                   print_strategy(strategy, problem.graph, problem.cluster));
      EXPECT_EQ(evaluator.lacking(strategy), score.lacking);
      EXPECT_LE(score.lacking, MemoryBound(problem).most_lacking(strategy));
    }
    EXPECT_GT(divided, 10);
  }
}

/// Returns the problem with Adam, and with `room` bytes in each host and a link to it.
Result<std::unique_ptr<const Problem>> with_hosts(const Problem& problem, std::int64_t room) {
  Training training = problem.training;
  training.optimizer.kind = OptimizerKind::kAdam;
  Cluster cluster = problem.cluster;
  for (DeviceKind& kind : cluster.kinds) kind.host_link = {"pcie", 12e9, 5e-6};
  for (Host& host : cluster.hosts) host.memory_bytes = room;
  return Problem::make(problem.graph, std::move(cluster), training, problem.options);
}

TEST_P(EvaluatorOf, SaysToTheBitWhatTheSimulatorSaysOfStateInTheMemoryOfHosts) {
  for (const std::int64_t room : {std::int64_t{1} << 16, std::int64_t{1} << 30}) {
    const auto made = with_hosts(*problem_, room);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Problem& problem = **made;
    Rng rng(21);
    Evaluator evaluator(problem);
    int longer = 0, offloaded = 0;
    for (int i = 0; i < 50 && !HasFailure(); ++i) {
      Strategy strategy = random_strategy(rng, problem);
      for (StageSpec& spec : strategy.stages) {
        spec.state = static_cast<StateLevel>(rng.below(1 + kDividingLevels.size()));
      }
      fit_in_flight(strategy);
      const double before = evaluator.evaluate(strategy).step_seconds;
      for (StageSpec& spec : strategy.stages) spec.state_in_host = rng.below(2) == 0;
      fit_offload(strategy, problem.cluster);
      for (const StageSpec& spec : strategy.stages) offloaded += spec.state_in_host ? 1 : 0;
      const Score score = evaluator.evaluate(strategy);
      expect_equal(score, by_simulation(problem, strategy),
                   print_strategy(strategy, problem.graph, problem.cluster));
      EXPECT_EQ(evaluator.lacking(strategy), score.lacking);
      const std::int64_t most = MemoryBound(problem).most_lacking(strategy);
      EXPECT_LE(score.lacking, most);
      EXPECT_LT(most, std::numeric_limits<std::int64_t>::max());
      longer += score.step_seconds > before ? 1 : 0;
    }
    EXPECT_GT(offloaded, 10);
    EXPECT_GT(longer, 0);
  }
}

TEST_P(EvaluatorOf, SaysToTheBitWhatTheSimulatorSaysOfActivationsInTheMemoryOfHosts) {
  for (const std::int64_t room : {std::int64_t{1} << 16, std::int64_t{1} << 30}) {
    const auto made = with_hosts(*problem_, room);
    ASSERT_TRUE(made.ok()) << made.status().message();
    const Problem& problem = **made;
    Rng rng(22);
    Evaluator evaluator(problem);
    int longer = 0, offloaded = 0;
    for (int i = 0; i < 50 && !HasFailure(); ++i) {
      Strategy strategy = random_strategy(rng, problem);
      for (StageSpec& spec : strategy.stages) {
        spec.recompute.segments = between(rng, 0, 9);
        if (!spec.recompute) continue;
        spec.recompute.kept = between(rng, 0, spec.recompute.segments - 1);
      }
      fit_in_flight(strategy);
      const double before = evaluator.evaluate(strategy).step_seconds;
      for (StageSpec& spec : strategy.stages) {
        spec.state_in_host = rng.below(2) == 0;
        spec.recompute.in_host = spec.recompute && rng.below(4) > 0;
        spec.recompute.again = !spec.recompute.in_host || rng.below(2) == 0;
      }
      fit_offload(strategy, problem.cluster);
      for (const StageSpec& spec : strategy.stages) offloaded += spec.recompute.in_host ? 1 : 0;
      const Score score = evaluator.evaluate(strategy);
      expect_equal(score, by_simulation(problem, strategy),
                   print_strategy(strategy, problem.graph, problem.cluster));
      EXPECT_EQ(evaluator.lacking(strategy), score.lacking);
      EXPECT_LE(score.lacking, MemoryBound(problem).most_lacking(strategy));
      longer += score.step_seconds > before ? 1 : 0;
    }
    EXPECT_GT(offloaded, 10);
    EXPECT_GT(longer, 0);
  }
}

TEST_P(EvaluatorOf, SaysToTheBitWhatTheSimulatorSaysOfInterleavedStages) {
  Rng rng(15);
  Evaluator evaluator(*problem_);
  int found = 0, local = 0;
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const std::optional<Strategy> strategy = random_interleaved(rng, *problem_);
    if (!strategy) continue;
    ++found;
    for_each_crossing(problem_->graph, strategy->stage_of, [&](int from, int to, TensorId) {
      if ((to - from) % round_size(*strategy) == 0) ++local;
    });
    const Score score = by_simulation(*problem_, *strategy);
    expect_equal(evaluator.evaluate(*strategy), score,
                 print_strategy(*strategy, problem_->graph, problem_->cluster));
    EXPECT_EQ(evaluator.lacking(*strategy), score.lacking);
    for (const double factor : {0.5, 0.99, 1.0}) {
      const double most = factor * score.step_seconds;
      const Score up_to = evaluator.evaluate_up_to(*strategy, most);
      EXPECT_EQ(up_to.lacking, score.lacking);
      if (up_to.whole) {
        expect_equal(up_to, score, "");
      } else if (score.fits()) {
        EXPECT_GT(up_to.step_seconds, most);
      }
      EXPECT_TRUE(factor < 1 || up_to.whole == score.fits());
    }
    // What another stage needs besides is part of what a device needs.
    const std::int64_t peak = evaluator.replica_bytes(*strategy, 0, strategy->stages[0].shares[0],
                                                      strategy->stages[0].recompute);
    const DeviceKind& kind = problem_->cluster.kind_of(strategy->stages[0].devices[0]);
    EXPECT_LE(peak - kind.memory_bytes, score.lacking);
    evaluator.evaluate(random_strategy(rng, *problem_));  // of another schedule in between
  }
  const std::string name = GetParam().name;
  if (name.substr(0, 4) != "tied") {
    EXPECT_GT(found, 30);
  }
  if (name.substr(0, 8) == "branches") {
    EXPECT_GT(local, 30) << "tensors that skip to a stage of the same devices";
  }
}

TEST_P(EvaluatorOf, SaysToTheBitWhatTheSimulatorSaysOfClippedGradients) {
  Training training = problem_->training;
  training.optimizer.max_norm = 1;
  const auto made = Problem::make(problem_->graph, problem_->cluster, training, problem_->options);
  ASSERT_TRUE(made.ok()) << made.status().message();
  Evaluator evaluator(**made), without(*problem_);
  Rng rng(13);
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const Strategy strategy = random_strategy(rng, **made);
    const Score score = evaluator.evaluate(strategy);
    expect_equal(score, by_simulation(**made, strategy),
                 print_strategy(strategy, problem_->graph, problem_->cluster));
    EXPECT_GE(score.step_seconds, without.evaluate(strategy).step_seconds);
  }
}

TEST_P(EvaluatorOf, SaysThatSumsWithoutTimeMakeStepsShorter) {
  Evaluator evaluator(*problem_);
  Rng rng(7);
  bool shorter = false;
  for (int i = 0; i < 20; ++i) {
    const Strategy strategy = random_strategy(rng, *problem_);
    const double step = evaluator.evaluate(strategy).step_seconds;
    const double least = evaluator.seconds_without_sums(strategy, Evaluator::kEveryStage);
    EXPECT_LE(least, 1.001 * step) << i;
    shorter = shorter || least < step;
    for (int stage = 0; stage < static_cast<int>(strategy.stages.size()); ++stage) {
      const double own = evaluator.seconds_without_sums(strategy, stage);
      EXPECT_LE(own, 1.005 * step) << i;  // other messages meet on the links then
      EXPECT_GE(own, 0.999 * least) << i;
    }
    EXPECT_EQ(evaluator.evaluate(strategy).step_seconds, step) << i;
  }
  EXPECT_TRUE(shorter);
}

TEST_P(EvaluatorOf, MayEndOnceAStepTakesMoreThanItLooksAt) {
  Evaluator evaluator(*problem_);
  Rng rng(14);
  int early = 0;
  for (int i = 0; i < 60 && !HasFailure(); ++i) {
    const Strategy strategy = random_strategy(rng, *problem_);
    const Score score = evaluator.evaluate(strategy);
    for (const double factor : {0.3, 0.9, 0.99, 1.0, 1.1}) {
      const double most = factor * score.step_seconds;
      const Score found = evaluator.evaluate_up_to(strategy, most);
      EXPECT_EQ(found.lacking, score.lacking);
      if (found.whole) {
        expect_equal(found, score, "");
      } else if (score.fits()) {
        EXPECT_GT(found.step_seconds, most);
        EXPECT_LE(found.step_seconds, score.step_seconds * (1 + 1e-9));
        early += found.step_seconds < score.step_seconds ? 1 : 0;
      }
      EXPECT_TRUE(factor < 1 || found.whole == score.fits());
    }
    expect_equal(evaluator.evaluate(strategy), score, "as before");
  }
  EXPECT_GT(early, 0);
}

TEST_P(EvaluatorOf, ForgetsWhatItEvaluatedBefore) {
  Rng rng(8);
  std::vector<Strategy> strategies;
  for (int i = 0; i < 30; ++i) strategies.push_back(random_strategy(rng, *problem_));
  Evaluator used(*problem_);
  for (const Strategy& strategy : strategies) used.evaluate(strategy);
  for (const Strategy& strategy : strategies) {
    const Score score = used.evaluate(strategy);
    expect_equal(score, Evaluator(*problem_).evaluate(strategy), "");
    EXPECT_EQ(used.lacking(strategy), score.lacking);
  }
}

TEST_P(EvaluatorOf, AllocatesNothingForShapesThatItHasSeen) {
  Rng rng(9);
  std::vector<Strategy> strategies;
  for (int i = 0; i < 30; ++i) strategies.push_back(random_strategy(rng, *problem_));
  Evaluator evaluator(*problem_);
  for (const Strategy& strategy : strategies) evaluator.evaluate(strategy);
  const std::int64_t before = allocations;
  double sum = 0;
  for (int round = 0; round < 3; ++round) {
    for (const Strategy& strategy : strategies) sum += evaluator.evaluate(strategy).step_seconds;
  }
  EXPECT_EQ(allocations - before, 0);
  EXPECT_GT(sum, 0);
}

TEST_P(EvaluatorOf, SaysTheSameOnEveryThread) {
  Rng rng(10);
  std::vector<Strategy> strategies;
  for (int i = 0; i < 20; ++i) strategies.push_back(random_strategy(rng, *problem_));
  std::vector<std::vector<Score>> scores(4);
  std::vector<std::thread> threads;
  for (std::vector<Score>& own : scores) {
    threads.emplace_back([&] {
      Evaluator evaluator(*problem_);
      for (const Strategy& strategy : strategies) own.push_back(evaluator.evaluate(strategy));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t i = 0; i < strategies.size(); ++i) {
    for (const std::vector<Score>& own : scores) expect_equal(own[i], scores[0][i], "");
    expect_equal(scores[0][i], by_simulation(*problem_, strategies[i]), "");
  }
}

/// The bound is useful if it tells that most of those that fit do so.
TEST_P(EvaluatorOf, MemoryIsNoMoreThanItsBound) {
  Rng rng(11);
  Evaluator evaluator(*problem_);
  MemoryBound bound(*problem_);
  int fitting = 0, told = 0;
  for (int i = 0; i < 300 && !HasFailure(); ++i) {
    const Strategy strategy = random_strategy(rng, *problem_);
    const std::int64_t lacking = evaluator.lacking(strategy), most = bound.most_lacking(strategy);
    EXPECT_LE(lacking, most) << print_strategy(strategy, problem_->graph, problem_->cluster);
    fitting += lacking <= 0 ? 1 : 0;
    told += most <= 0 ? 1 : 0;
  }
  EXPECT_GT(fitting, 0);
  EXPECT_GE(3 * told, fitting) << fitting;
}

INSTANTIATE_TEST_SUITE_P(Problems, EvaluatorOf, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return std::string(param.param.name); });

// A profile may say that messages are faster while devices compute. Then what they take alone is no
// bound on the step.
TEST(Evaluator, JudgesWhollyWhereMessagesAreFasterBesideComputing) {
  for (double bandwidth = 1e7; bandwidth < 1e12; bandwidth *= 2) {  // somewhere sums take as long
    const std::string host = fmt::format("host a fast 4 bandwidth={:g}\n", bandwidth);
    Cluster cluster = cluster_of("kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n" + host);
    cluster.kinds[0].overlap.communication_factor = 8;
    ProblemOptions options;
    options.bucket_bytes = 20'000;
    const auto problem = problem_of(branches(), std::move(cluster), 60, options);
    Evaluator evaluator(*problem);
    Rng rng(14);
    for (int i = 0; i < 20; ++i) {
      const Strategy strategy = random_strategy(rng, *problem);
      const Score score = evaluator.evaluate(strategy);
      const Score up_to = evaluator.evaluate_up_to(strategy, score.step_seconds);
      EXPECT_EQ(up_to.whole, score.fits()) << host;
    }
  }
}

TEST(Evaluator, CountsAllocations) {
  const std::int64_t before = allocations;
  EXPECT_NE(std::make_unique<int>(1), nullptr);
  EXPECT_EQ(allocations - before, 1);
}

}  // namespace
}  // namespace agpcs
