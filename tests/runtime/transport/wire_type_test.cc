// SPDX-License-Identifier: Apache-2.0
// Steps whose gradients travel in fp16 or bf16: how exact their sums are, and who refuses.
#include "ir/base/rng.h"
#include "tests/runtime/null_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"

#include <agpcs/replayer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

/// The value of an element of a bucket on a rank in a step.
using Value = std::function<float(int rank, int bucket, std::size_t element)>;

/// Its gradients are `value`s; `sums`, by bucket, are what it was given to update by. Its loss is
/// 1 / (rank + 3), which no half holds.
class GivenExecutor : public NullExecutor {
 public:
  explicit GivenExecutor(Value value) : value_(std::move(value)) {}
  Status prepare(const Plan& plan, int rank) override {
    rank_ = rank;
    for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
      const bool own = plan.buckets[b].stage == plan.stage_of_rank(rank);
      if (own && plan.buckets[b].type == DType::kFp32) own_.push_back(static_cast<int>(b));
    }
    sums.resize(plan.buckets.size());
    return NullExecutor::prepare(plan, rank);
  }
  Status begin_step(std::int64_t /*step*/) override {
    for (const int b : own_) {
      const auto [values, count] = memory(b);
      for (std::size_t i = 0; i < count; ++i) values[i] = value_(rank_, b, i);
    }
    return {};
  }
  Status update() override {
    for (const int b : own_) {
      const auto [values, count] = memory(b);
      sums[static_cast<std::size_t>(b)].assign(values, values + count);
    }
    return {};
  }
  double loss() const override { return 1.0 / (rank_ + 3); }

  std::vector<std::vector<float>> sums;

 protected:
  std::pair<float*, std::size_t> memory(int b) {
    const Buffer buffer = *NullExecutor::bucket(b);
    return {static_cast<float*>(buffer.data), buffer.bytes / sizeof(float)};
  }

 private:
  const Value value_;
  int rank_ = 0;
  std::vector<int> own_;
};

/// What each rank was given to update by in the last of two steps; `losses` by rank.
struct Outcome {
  std::vector<std::vector<std::vector<float>>> sums;  ///< by rank, bucket
  std::vector<double> losses;
  std::vector<std::string> said;  ///< how a rank failed
};

Outcome replay(const WorldKind& world, const Plan& plan, const Value& value,
               bool check_finite = true) {
  const auto ranks = static_cast<std::size_t>(plan.rank_count());
  Outcome outcome{std::vector<std::vector<std::vector<float>>>(ranks), std::vector<double>(ranks),
                  std::vector<std::string>(ranks)};
  world.run(plan.rank_count(), [&](Transport& transport) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    GivenExecutor executor(value);
    ReplayOptions options;
    options.limit = std::chrono::seconds(60);
    options.check_finite = check_finite;
    auto replayer = Replayer::create(plan, transport.rank(), transport, executor, options);
    Status status = replayer.status();
    for (int step = 0; step < 2 && status.ok(); ++step) {
      const auto report = (*replayer)->run_step();
      status = report.status();
      if (report.ok()) outcome.losses[rank] = report->loss;
    }
    outcome.said[rank] = status.message();
    outcome.sums[rank] = executor.sums;
  });
  return outcome;
}

/// Over some orders of magnitude.
float drawn(int rank, int bucket, std::size_t element) {
  Rng rng(static_cast<std::uint64_t>(rank) * 1'000'003 +
          static_cast<std::uint64_t>(bucket) * 10'007 + element);
  return static_cast<float>((rng.uniform() - 0.5) * (rng.below(2) == 0 ? 1 : 1e-4));
}

/// The bound of docs/reference/gradient_reducer.md: n roundings of what n ranks add up.
double bound_of(DType wire, int ranks, double magnitude) {
  const double u = wire == DType::kFp16 ? 0x1p-11 : 0x1p-8;
  const double below = wire == DType::kFp16 ? 0x1p-25 : 0;
  return (std::pow(1 + u, ranks) - 1) * magnitude + ranks * below;
}

struct Way {
  std::string name;
  int ranks = 2;
  AllReduce algorithm = AllReduce::kRing;
  DType wire = DType::kFp16;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

std::vector<Way> ways() {
  std::vector<Way> all;
  for (const int ranks : {2, 4}) {
    for (const AllReduce algorithm :
         {AllReduce::kRing, AllReduce::kHierarchical, AllReduce::kTree, AllReduce::kFlow}) {
      for (const DType wire : {DType::kFp16, DType::kBf16}) {
        all.push_back({std::to_string(ranks) + "_ranks_" + std::string(name_of(algorithm)) + "_" +
                           std::string(name_of(wire)),
                       ranks, algorithm, wire});
      }
    }
  }
  return all;
}

class WireTypeOver : public testing::TestWithParam<std::tuple<WorldKind, Way>> {
 protected:
  void SetUp() override {
    const std::string obstacle = std::get<0>(GetParam()).obstacle();
    if (!obstacle.empty()) GTEST_SKIP() << obstacle;
  }
};

TEST_P(WireTypeOver, SumsAreAsExactAsStatedAndTheSameOnAllRanks) {
  const auto& [world, way] = GetParam();
  TestPlan spec;
  spec.shares = {std::vector<std::int64_t>(static_cast<std::size_t>(way.ranks), 1)};
  spec.shares[0][0] = 3;
  spec.algorithm = way.algorithm;
  spec.wire_type = way.wire;
  spec.elements = {3001, 257};
  const Outcome outcome = replay(world, make_plan(spec), drawn);
  for (const std::string& said : outcome.said) ASSERT_EQ(said, "");
  double largest = 0, loss = 0;
  for (int r = 0; r < way.ranks; ++r) loss += 1.0 / (r + 3);
  for (int r = 0; r < way.ranks; ++r) {
    EXPECT_EQ(outcome.sums[static_cast<std::size_t>(r)], outcome.sums[0]);
    EXPECT_NEAR(outcome.losses[static_cast<std::size_t>(r)], loss, 1e-15);  // travels in fp64
  }
  for (int b = 0; b < 2; ++b) {
    const std::vector<float>& sums = outcome.sums[0][static_cast<std::size_t>(b)];
    for (std::size_t i = 0; i < sums.size(); ++i) {
      double exact = 0, magnitude = 0;
      for (int r = 0; r < way.ranks; ++r) {
        const double value = drawn(r, b, i);
        exact += value;
        magnitude += std::abs(value);
      }
      const double bound = bound_of(way.wire, way.ranks, magnitude);
      const double error = std::abs(static_cast<double>(sums[i]) - exact);
      ASSERT_LE(error, bound) << "bucket " << b << ", element " << i;
      largest = std::max(largest, error / bound);
    }
  }
  EXPECT_GT(largest, 0.1);  // the bound is not idle
}

INSTANTIATE_TEST_SUITE_P(
    All, WireTypeOver,
    testing::Combine(testing::Values(loopback_world(), tcp_world(), gloo_world()),
                     testing::ValuesIn(ways())),
    [](const auto& of) { return std::get<0>(of.param).name + "_" + std::get<1>(of.param).name; });

Plan two_ranks(DType wire) {
  TestPlan spec = {{{1, 1}}, {}};
  spec.wire_type = wire;
  return make_plan(spec);
}

TEST(WireType, RoundsGradientsBeforeTheyAreSummed) {
  // A bit more than 1 than the wire type can tell from 1.
  const auto near_one = [](DType wire) {
    return [more = wire == DType::kFp16 ? 0x1p-12F : 0x1p-9F](int, int, std::size_t) {
      return 1 + more;
    };
  };
  for (const DType wire : {DType::kFp16, DType::kBf16}) {
    const Outcome outcome = replay(loopback_world(), two_ranks(wire), near_one(wire));
    EXPECT_EQ(outcome.sums[0][0], std::vector<float>(4, 2));
    EXPECT_EQ(outcome.sums[1][1], std::vector<float>(3, 2));
  }
}

TEST(WireType, OfAStageOfOneRankRoundsNothing) {
  TestPlan spec = {{{2, 2}, {4}}, {{0, 1, {"a"}}}};
  spec.wire_type = DType::kBf16;
  const Outcome outcome =
      replay(loopback_world(), make_plan(spec), [](int, int, std::size_t) { return 1 + 0x1p-20F; });
  for (const std::string& said : outcome.said) EXPECT_EQ(said, "");
  EXPECT_EQ(outcome.sums[0][0], std::vector<float>(4, 2));
  EXPECT_EQ(outcome.sums[2][2], std::vector<float>(4, 1 + 0x1p-20F));
}

TEST(WireType, GradientsOfOtherTypesTravelAsTheyAre) {
  Plan plan = two_ranks(DType::kBf16);
  plan.buckets[1].type = DType::kFp64;
  const Outcome outcome = replay(loopback_world(), plan, drawn);
  for (const std::string& said : outcome.said) EXPECT_EQ(said, "");
}

TEST(WireType, GradientsBeyondFp16EndTheStepBeforeTheyAreUsed) {
  const auto large = [](int, int bucket, std::size_t element) {
    return bucket == 1 && element == 2 ? 40000.F : 1.F;  // their sum is beyond 65504
  };
  const Outcome outcome = replay(loopback_world(), two_ranks(DType::kFp16), large);
  const char* const cause =
      ": all_reduce b1: step 0: summed in fp16, the gradient of 'w1' is not finite: 1 of the 3 "
      "values of bucket b1, the first inf\n"
      "  hint: fp16 holds at most 65504, bf16 as much as fp32: plan with --wire-type bf16, or "
      "without";
  for (const std::string& said : outcome.said) EXPECT_THAT(said, EndsWith(cause));
  for (const auto& sums : outcome.sums) EXPECT_TRUE(sums[1].empty());  // no update was made
}

TEST(WireType, GradientsBeyondFp16AreTrainedOnWithWhereThatIsAllowed) {
  const auto large = [](int, int, std::size_t) { return 1e5F; };
  const Outcome outcome = replay(loopback_world(), two_ranks(DType::kFp16), large, false);
  EXPECT_EQ(outcome.said, (std::vector<std::string>{"", ""}));
  EXPECT_EQ(outcome.sums[0][0], std::vector<float>(4, INFINITY));
  const Outcome in_bf16 = replay(loopback_world(), two_ranks(DType::kBf16), large);
  EXPECT_EQ(in_bf16.said, (std::vector<std::string>{"", ""}));
  EXPECT_NEAR(in_bf16.sums[0][0][0], 2e5, 2e5 * 0x1p-7);
}

/// Its buckets are said to be in an accelerator's memory.
class OnAccelerator : public GivenExecutor {
 public:
  using GivenExecutor::GivenExecutor;
  Result<Buffer> bucket(int bucket) override {
    AGPCS_TRY(Buffer buffer, NullExecutor::bucket(bucket));
    buffer.on_gpu = true;
    return buffer;
  }
};

/// And it rounds there. Notes what it is asked for.
class RoundingOnAccelerator final : public OnAccelerator {
 public:
  using OnAccelerator::OnAccelerator;
  Result<Buffer> round_bucket(int bucket, DType type) override {
    asked += "round b" + std::to_string(bucket) + " to " + std::string(name_of(type)) + "; ";
    return Buffer{rounded_, memory(bucket).second * size_of(type), type, true};
  }
  Status widen_bucket(int bucket) override {
    asked += "widen b" + std::to_string(bucket) + "; ";
    return {};
  }
  Status update() override {
    asked += "update; ";
    return {};
  }
  std::string asked;

 private:
  char rounded_[64] = {};
};

/// Notes what is summed.
class NotingTransport final : public InstantTransport {
 public:
  using InstantTransport::InstantTransport;
  Result<Ticket> all_reduce(const Buffer& buffer, int group, AllReduce algorithm) override {
    summed +=
        std::to_string(buffer.bytes) + " bytes of " + std::string(name_of(buffer.type)) + "; ";
    return InstantTransport::all_reduce(buffer, group, algorithm);
  }
  std::string summed;
};

float one(int, int, std::size_t) { return 1; }

TEST(WireType, AnExecutorThatDoesNotRoundOnItsAcceleratorIsRefusedAtTheStart) {
  NotingTransport transport(0, 2);
  OnAccelerator executor(one);
  const auto replayer = Replayer::create(two_ranks(DType::kFp16), 0, transport, executor);
  ASSERT_FALSE(replayer.ok());
  EXPECT_EQ(replayer.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(replayer.status().message(),
            "rank 0 (host0/0): the executor does not round gradients to fp16 on its accelerator\n"
            "  hint: plan without --wire-type");
}

TEST(WireType, AnAcceleratorRoundsWhenGradientsAreThereAndWidensBeforeTheUpdate) {
  NotingTransport transport(0, 2);
  RoundingOnAccelerator executor(one);
  auto replayer = Replayer::create(two_ranks(DType::kBf16), 0, transport, executor);
  ASSERT_TRUE(replayer.ok()) << replayer.status().message();
  executor.asked.clear();
  transport.summed.clear();
  ASSERT_TRUE((*replayer)->run_step().ok());
  EXPECT_EQ(executor.asked, "round b0 to bf16; round b1 to bf16; widen b0; widen b1; update; ");
  EXPECT_EQ(transport.summed, "8 bytes of bf16; 6 bytes of bf16; 16 bytes of fp64; ");
}

/// Holds its gradients in another type than the plan says.
class InDoubles final : public NullExecutor {
 public:
  Result<Buffer> bucket(int /*bucket*/) override {
    return Buffer{values_, sizeof values_, DType::kFp64, false};
  }

 private:
  double values_[4] = {};
};

TEST(WireType, AnExecutorWhoseGradientsAreOfAnotherTypeIsRefused) {
  InstantTransport transport(0, 2);
  InDoubles executor;
  const auto replayer = Replayer::create(two_ranks(DType::kFp16), 0, transport, executor);
  ASSERT_FALSE(replayer.ok());
  EXPECT_THAT(replayer.status().message(),
              HasSubstr("bucket b0 is fp64 in the executor's memory, and its fp32 gradients are to "
                        "travel in fp16"));
}

}  // namespace
}  // namespace agpcs
