// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/finite.h"

#include "runtime/support/half.h"
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"

#include <agpcs/replayer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
NotFinite look(std::vector<T> values, DType type) {
  return find_not_finite({values.data(), values.size() * sizeof(T), type, false});
}

TEST(FindNotFinite, TakesEveryFiniteNumberForOne) {
  constexpr auto kFloat = std::numeric_limits<float>();
  EXPECT_EQ(
      look<float>({0, -0.0F, kFloat.max(), kFloat.lowest(), kFloat.denorm_min()}, DType::kFp32)
          .count,
      0);
  constexpr auto kDouble = std::numeric_limits<double>();
  EXPECT_EQ(look<double>({0, kDouble.max(), kDouble.lowest()}, DType::kFp64).count, 0);
  EXPECT_EQ(look<std::uint16_t>({0, 0x7bff, 0xfbff, 1}, DType::kFp16).count, 0);
  EXPECT_EQ(look<std::uint16_t>({0, 0x7f7f, 0xff7f, 1}, DType::kBf16).count, 0);
  EXPECT_EQ(look<std::int64_t>({-1, 0x7ff0000000000000}, DType::kInt64).count, 0);
  EXPECT_EQ(look<float>({}, DType::kFp32).count, 0);
}

TEST(FindNotFinite, FindsOneAnywhere) {
  for (std::size_t at = 0; at < 10000; at += 37) {
    std::vector<float> values(10000, 1.5F);
    values[at] = at % 2 == 0 ? kInfinity : std::nanf("");
    values.back() = -kInfinity;
    const NotFinite found = look(values, DType::kFp32);
    EXPECT_EQ(found.count, at == 9999 ? 1 : 2);
    EXPECT_EQ(found.first, static_cast<std::int64_t>(at));
  }
}

TEST(FindNotFinite, KnowsEveryTypeOfFloatingPointNumber) {
  EXPECT_EQ(look<double>({1, -INFINITY}, DType::kFp64).value, -INFINITY);
  EXPECT_EQ(look<std::uint16_t>({0x3c00, 0x7c00}, DType::kFp16).value, INFINITY);
  EXPECT_EQ(look<std::uint16_t>({bf16_of(1), bf16_of(-kInfinity)}, DType::kBf16).value, -INFINITY);
}

TEST(FindNotFinite, NamesTheParameter) {
  PlanBucket bucket{"b0", 0, AllReduce::kRing, DType::kFp32, {{"w1", 4}, {"w2", 3}}, -1};
  EXPECT_EQ(describe(bucket, {2, 4, -INFINITY}),
            "the gradient of 'w2' is not finite: 2 of the 7 values of bucket b0, the first -inf");
  EXPECT_EQ(describe(bucket, {1, 3, INFINITY}),
            "the gradient of 'w1' is not finite: 1 of the 7 values of bucket b0, the first inf");
}

TEST(CheckGradient, OfOneMemberNamesIt) {
  const PlanBucket bucket{"b0", 0, AllReduce::kRing, DType::kFp32, {{"w1", 4}, {"w2", 3}}, -1};
  std::vector<float> values = {1, kInfinity, -kInfinity};
  const Buffer buffer{values.data(), values.size() * sizeof(float), DType::kFp32, false};
  EXPECT_THAT(check_gradient(bucket, 1, buffer, 3).message(),
              testing::StartsWith("step 3: the gradient of 'w2' is not finite: 2 of the 7 values"));
  EXPECT_TRUE(check_gradient(bucket, 1, Buffer{}, 3).ok());
}

TEST(CheckSum, LooksAtWhatTheRankOwns) {
  const PlanBucket bucket{"b0", 0, AllReduce::kRing, DType::kFp32, {{"w1", 4}, {"w2", 3}}, -1};
  std::vector<float> values = {kInfinity, 1, 1, 1, 1, kInfinity, -kInfinity};
  const Buffer buffer{values.data(), values.size() * sizeof(float), DType::kFp32, false};
  EXPECT_TRUE(check_sum(bucket, buffer, {1, 5}, DType::kBf16, 3).ok());
  EXPECT_TRUE(check_sum(bucket, buffer, {7, 7}, DType::kBf16, 3).ok());
  EXPECT_THAT(
      check_sum(bucket, buffer, {2, 7}, DType::kBf16, 3).message(),
      testing::StartsWith("step 3: summed in bf16, the gradient of 'w2' is not finite: 2 of "
                          "the 7 values of bucket b0, the first inf\n"));
  EXPECT_THAT(check_sum(bucket, buffer, {0, 5}, DType::kBf16, 3).message(),
              testing::HasSubstr("the gradient of 'w1' is not finite: 1 of the 7 values"));
}

/// Spoils the loss from a micro-batch on, or a gradient, of the second step.
class SpoiltExecutor final : public FakeExecutor {
 public:
  bool spoil_loss = false, spoil_gradient = false;
  Status begin_step(std::int64_t step) override {
    step_ = step;
    return FakeExecutor::begin_step(step);
  }
  double loss() const override {
    return spoil_loss && step_ == 1 ? -INFINITY : FakeExecutor::loss();
  }
  Result<Buffer> bucket(int bucket) override {
    AGPCS_TRY(const Buffer buffer, FakeExecutor::bucket(bucket));
    if (spoil_gradient && step_ == 1) static_cast<double*>(buffer.data)[1] = INFINITY;
    return buffer;
  }

 private:
  std::int64_t step_ = 0;
};

/// What each rank of two says of three steps in which rank 1 is spoilt.
std::vector<std::string> said(bool loss, bool gradient, bool check) {
  const Plan plan = make_plan({{{2, 1}}, {}, 2});
  std::vector<std::string> said(2);
  loopback_world().run(2, [&](Transport& transport) {
    SpoiltExecutor executor;
    executor.spoil_loss = loss && transport.rank() == 1;
    executor.spoil_gradient = gradient && transport.rank() == 1;
    ReplayOptions options;
    options.check_finite = check;
    auto replayer = Replayer::create(plan, transport.rank(), transport, executor, options);
    Status status = replayer.status();
    for (int step = 0; step < 3 && status.ok(); ++step) status = (*replayer)->run_step().status();
    said[static_cast<std::size_t>(transport.rank())] = status.message();
  });
  return said;
}

constexpr const char* kHint =
    "\n  hint: look at the samples of this step, lower the learning rate, or train on with "
    "--allow-nan";

TEST(NotFiniteNumbers, ALossEndsTheRunWhereItComesFrom) {
  const std::string cause =
      std::string("rank 1 (host0/1): forward mb=0: the loss of step 1 is not finite: -inf") + kHint;
  const auto by_rank = said(true, false, true);
  EXPECT_EQ(by_rank[1], cause);
  EXPECT_THAT(by_rank[0], testing::EndsWith(cause));
}

TEST(NotFiniteNumbers, AGradientEndsTheRunWhereItComesFrom) {
  const std::string cause =
      std::string(
          "rank 1 (host0/1): backward mb=1: step 1: the gradient of 'w1' is not finite: 1 "
          "of the 3 values of bucket b1, the first inf") +
      kHint;
  const auto by_rank = said(false, true, true);
  EXPECT_EQ(by_rank[1], cause);
  EXPECT_THAT(by_rank[0], testing::EndsWith(cause));
}

TEST(NotFiniteNumbers, AreTrainedOnWithWhereThatIsAllowed) {
  EXPECT_EQ(said(true, true, false), (std::vector<std::string>{"", ""}));
}

}  // namespace
}  // namespace agpcs
