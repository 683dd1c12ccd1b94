// SPDX-License-Identifier: Apache-2.0
// What agpcs-profile computes from repeated steps, and the operators of one device.
#include "tools/profile/device.h"

#include "codegen/lower.h"
#include "ir/graph/op_signature.h"
#include "tests/support/plan_builders.h"
#include "tools/common/common.h"
#include "tools/profile/gather.h"
#include "tools/profile/network/pace.h"
#include "tools/profile/pool.h"
#include "tools/profile/statistics.h"
#include "tools/profile/step.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <condition_variable>
#include <ctime>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <pthread.h>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const char* const kModel = "samples/models/small_cnn.onnxtxt";

TEST(Measured, HasTheMedianAndTheRelativeInterquartileRange) {
  EXPECT_DOUBLE_EQ(summarize({4, 1, 2, 3, 5}).seconds, 3);
  EXPECT_DOUBLE_EQ(summarize({4, 1, 2, 3, 5}).spread, 2.0 / 3);
  EXPECT_DOUBLE_EQ(summarize({1, 2}).seconds, 1.5);
  EXPECT_DOUBLE_EQ(summarize({7}).spread, 0);
  EXPECT_DOUBLE_EQ(summarize({0, 0, 0}).spread, 0);
}

// A device that may compute `quota` of every `period` seconds, as CFS bandwidth control has it.
class ThrottledDevice {
 public:
  ThrottledDevice(double quota, double period) : quota_(quota), period_(period) {}
  TimedStep step(double seconds) {
    TimedStep timed;
    timed.forward = seconds;
    for (double left = seconds; left > 0;) {
      const double run = std::min(left, quota_ * period_ - used_);
      timed.wall += run;
      left -= run;
      used_ += run;
      if (left <= 0) break;
      timed.wall += period_ * (1 - quota_);
      used_ = 0;
    }
    return timed;
  }

 private:
  double quota_, period_;
  double used_ = 0;  // of the period
};

TEST(Stretch, IsOneOverTheQuotaWhateverTheLengthOfASteps) {
  for (const double period : {0.01, 0.1}) {
    for (const double seconds : {0.0007, 0.004, 0.036, 0.5}) {
      ThrottledDevice device(0.3, period);
      std::vector<TimedStep> steps;
      for (double passed = 0; passed < 12; passed += steps.back().wall) {
        steps.push_back(device.step(seconds));
      }
      EXPECT_NEAR(stretch(steps), 1 / 0.3, 0.02 / 0.3) << seconds << " of " << period;
    }
  }
}

TEST(Stretch, LeavesOutTheTimeInWhichSomethingElseRan) {
  std::vector<TimedStep> steps(100);
  for (TimedStep& step : steps) step = {0.1, 0.01, 0.03, 0.05, 0.01};
  for (int i = 40; i < 50; ++i) steps[static_cast<std::size_t>(i)].wall = 0.3;
  EXPECT_NEAR(stretch(steps), 1, 1e-9);
}

constexpr const char* kTwins = R"(
    input x [n,32]
    input labels int64[n]
    parameter w1 [32,32]
    parameter w2 [32,32]
    parameter w3 [32,4]
    m1 = MatMul(x, w1) [n,32]
    m2 = MatMul(m1, w2) [n,32]
    m3 = MatMul(m2, w2) [n,32]
    y = MatMul(m3, w3) [n,4]
    l = SoftmaxCrossEntropyLoss(y, labels) []
    outputs y
    loss l
)";

double sum_of(const std::vector<Measured>& times) {
  return std::accumulate(times.begin(), times.end(), 0.0,
                         [](double sum, const Measured& time) { return sum + time.seconds; });
}

TEST(StepBench, PartsAddUpToTheStep) {
  const Graph graph = testing::graph_of(kTwins);
  const Cluster cluster =
      testing::cluster_of("kind cpu memory=16e9 bandwidth=10e9 fp32=50e9\nhost a cpu 1\n");
  const Plan plan = testing::plan_of(graph, cluster, "micro-batches 1\nstage a/0=4 : *\n", 4);
  auto bench = StepBench::make(graph, plan, 1, "cpu");
  ASSERT_TRUE(bench.ok()) << bench.status().message();
  for (int i = 0; i < 6; ++i) ASSERT_TRUE((*bench)->step(i % 2 == 0).ok());
  const TimedSteps times = (*bench)->times();
  EXPECT_EQ(times.steps, 6);
  EXPECT_GT(sum_of(times.forward), 0);
  EXPECT_GT(sum_of(times.backward), 0);
  const double whole =
      times.begin.seconds + sum_of(times.forward) + sum_of(times.backward) + times.update.seconds;
  EXPECT_NEAR(times.step, whole, 1e-9 * whole);
}

TEST(OperatorPool, HasTheMeanOfOperatorsWithOneSignature) {
  const Graph graph = testing::graph_of(kTwins);
  ASSERT_NE(op_signature(graph, graph.find_op("m1")), op_signature(graph, graph.find_op("m2")));
  ASSERT_EQ(op_signature(graph, graph.find_op("m2")), op_signature(graph, graph.find_op("m3")));
  TimedSteps times;
  times.forward = {{1, 0.1}, {2, 0.1}, {4, 0.3}, {8, 0}, {16, 0}};
  times.backward = {{0, 0}, {3, 0}, {5, 0}, {7, 0}, {9, 0}};
  OperatorPool pool;
  pool.add(graph, 2, Precision::kFp32, times.forward, times.backward);
  pool.add(graph, 8, Precision::kFp32, times.forward, times.backward);
  const auto operators = pool.operators();
  ASSERT_EQ(operators.size(), 4U);
  for (const MeasuredOperator& op : operators) {
    ASSERT_EQ(op.points.size(), 2U);
    EXPECT_EQ(op.points[0].samples, 2);
    EXPECT_EQ(op.points[1].samples, 8);
    if (op.signature != op_signature(graph, graph.find_op("m2"))) continue;
    EXPECT_DOUBLE_EQ(op.points[0].forward.seconds, 3);
    EXPECT_DOUBLE_EQ(op.points[0].forward.spread, 0.2);
    EXPECT_DOUBLE_EQ(op.points[0].backward.seconds, 4);
    EXPECT_DOUBLE_EQ(op.points[0].work.forward_flops, 2 * 2 * 32 * 32);
  }
}

const Meet kAlone = [] { return Status(); };
void nobody(const std::string&) {}

DeviceOptions small_options() {
  DeviceOptions options;
  options.kind = "cpu";
  options.models = {kModel};
  options.optimizer.momentum = 0.9;
  options.samples = {2, 4};
  options.seconds = 0.5;
  options.memory_bytes = std::int64_t{1} << 30;
  return options;
}

TEST(ProfileDevice, OperatorsAddUpToWhatTheModelTakes) {
  const auto device = profile_device(small_options(), kAlone, nobody);
  ASSERT_TRUE(device.ok()) << device.status().message();
  Loss loss;
  const auto model = read_training_model(kModel, {}, loss);
  ASSERT_TRUE(model.ok());
  std::map<std::string, const MeasuredOperator*> by_signature;
  for (const auto& op : device->profile.operators) by_signature[op.signature] = &op;
  ASSERT_EQ(device->steps.size(), 2U);
  double update = 0;
  for (const auto& u : device->profile.updates) update += u.update.seconds + u.begin.seconds;
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_GE(device->steps[i].steps, kLeastSteps);
    double sum = 0;
    for (std::size_t op = 0; op < model->graph.ops.size(); ++op) {
      const auto* measured = by_signature.at(op_signature(model->graph, static_cast<OpId>(op)));
      ASSERT_EQ(measured->points.size(), 2U);
      EXPECT_EQ(measured->points[i].samples, device->steps[i].samples);
      sum += measured->points[i].forward.seconds + measured->points[i].backward.seconds;
    }
    // The update is the mean over both numbers of samples; all the rest is the step's.
    EXPECT_GT(sum, 0);
    EXPECT_LT(sum, device->steps[i].step);
    EXPECT_NEAR(device->steps[i].step - sum, update, update);
  }
}

TEST(ProfileDevice, MeasuresTheSamplesThatFitAndNoMore) {
  DeviceOptions options = small_options();
  options.samples = {1, 1000000};
  const auto device = profile_device(options, kAlone, nobody);
  ASSERT_TRUE(device.ok()) << device.status().message();
  ASSERT_EQ(device->steps.size(), 1U);
  EXPECT_EQ(device->steps[0].samples, 1);
}

/// A place where two devices meet, as often as they like.
class MeetingPlace {
 public:
  Status meet() {
    std::unique_lock lock(mutex_);
    const int round = arrived_++ / 2;
    changed_.notify_all();
    changed_.wait(lock, [&] { return arrived_ / 2 > round; });
    return {};
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
};

TEST(ProfileDevice, GoesUpToItsOwnNumberOfSamplesBesideASlowerDevice) {
  MeetingPlace place;
  const Meet meet = [&] { return place.meet(); };
  DeviceOptions fast = small_options(), slow = small_options();
  fast.samples.clear();
  slow.samples.clear();
  fast.seconds = 1;
  slow.seconds = 1e-6;  // no step is that short: as on a device whose steps are long
  std::optional<Result<MeasuredDevice>> of_slow;
  std::thread other([&] { of_slow = profile_device(slow, meet, nobody); });
  const auto of_fast = profile_device(fast, meet, nobody);
  other.join();
  ASSERT_TRUE(of_fast.ok()) << of_fast.status().message();
  ASSERT_TRUE(of_slow->ok()) << of_slow->status().message();
  EXPECT_EQ((*of_slow)->steps.size(), 2U);
  EXPECT_GT(of_fast->steps.size(), 2U);
}

double cpu_seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(ProfileDevice, ComputesOnUntilTheOthersAreDone) {
  clockid_t clock{};
  ASSERT_EQ(pthread_getcpuclockid(pthread_self(), &clock), 0);
  int met = 0;
  double computed = 0;
  const Meet meet = [&]() -> Status {
    if (met++ == 0) return {};
    const double before = cpu_seconds(clock);
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (computed < 0.1 && std::chrono::steady_clock::now() < late) {
      std::this_thread::yield();
      computed = cpu_seconds(clock) - before;
    }
    return {};
  };
  ASSERT_TRUE(profile_device(small_options(), meet, nobody).ok());
  EXPECT_EQ(met, 2);
  EXPECT_GE(computed, 0.1);
}

// On a link that costs next to nothing; what a member computes is not compared with anything here.
TEST(ProfileDevice, MeasuresWhatMembersOfTeamsHaveOfOperators) {
  DeviceOptions options = small_options();
  options.samples = {1, 2};
  options.teams = {2, 3};
  options.link = {1e15, 1e-12};
  auto device = profile_device(options, kAlone, nobody);
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_EQ(device->warnings, "");
  EXPECT_THAT(device->profile.teams, ElementsAre(2, 3));
  std::vector<std::string> names;
  for (const ProfiledBatch& step : device->steps) names.push_back(step.model);
  EXPECT_THAT(names, ElementsAre("small_cnn", "small_cnn", "small_cnn, of a team of 2",
                                 "small_cnn, of a team of 2", "small_cnn, of a team of 3",
                                 "small_cnn, of a team of 3"));
  int halves = 0;
  for (const MeasuredOperator& op : device->profile.operators) {
    EXPECT_EQ(op.points.size(), 2U) << op.signature;
    halves += op.signature.find("fp32[8,3,3,3]") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(halves, 0) << "of the first convolution's 16 channels";
  Profile profile;
  profile.devices.push_back(std::move(device->profile));
  seal_profile(profile);
  EXPECT_EQ(verify_profile(profile).message(), "");
}

TEST(ProfileDevice, ATeamThatDividesNothingIsWarnedOf) {
  DeviceOptions options = small_options();
  options.samples = {1};
  options.teams = {2};
  options.link = {1, 1};
  auto device = profile_device(options, kAlone, nobody);
  ASSERT_TRUE(device.ok()) << device.status().message();
  EXPECT_THAT(device->warnings, HasSubstr("warning: small_cnn: a team of 2 would divide nothing"));
  EXPECT_TRUE(device->profile.teams.empty());
}

TEST(ProfileDevice, ModelsOfOneNameAreNamedOnce) {
  DeviceOptions options = small_options();
  options.models = {kModel, kModel};
  options.samples = {1};
  auto device = profile_device(options, kAlone, nobody);
  ASSERT_TRUE(device.ok()) << device.status().message();
  Profile profile;
  profile.devices.push_back(std::move(device->profile));
  seal_profile(profile);
  EXPECT_EQ(verify_profile(profile).message(), "");
  EXPECT_EQ(profile.devices.front().models.size(), 1U);
}

TEST(ProfileDevice, SaysWhatHelpsWhenNotOneSampleFits) {
  DeviceOptions options = small_options();
  options.memory_bytes = 1000;
  const Status status = profile_device(options, kAlone, nobody).status();
  EXPECT_EQ(status.code(), StatusCode::kInfeasible);
  EXPECT_THAT(status.message(), HasSubstr("small_cnn.onnxtxt: error: 2 samples need "));
  EXPECT_THAT(status.message(),
              HasSubstr(", device 'cpu' has 1.00kB free\n  hint: profile a smaller "
                        "relative of the model"));
}

DeviceProfile device_named(const std::string& name, double seconds,
                           const std::string& processor = "abacus") {
  DeviceProfile device;
  device.name = name;
  device.hardware = {{"processor", processor}};
  device.models = {"m"};
  device.operators.push_back(
      {"Relu(fp32[n]') -> fp32[n]", OpClass::kElementwise, {{1, {}, {seconds, 0}, {seconds, 0}}}});
  return device;
}

double only_time(const DeviceProfile* device) {
  return device->operators.front().points.front().forward.seconds;
}

TEST(MergeDevices, RanksOfOneKindCountAlike) {
  const auto profile =
      merge_devices({device_named("b", 1), device_named("a", 2), device_named("b", 2),
                     device_named("b", 3), device_named("b", 6)});
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  ASSERT_TRUE(verify_profile(*profile).ok());
  ASSERT_EQ(profile->devices.size(), 2U);
  EXPECT_DOUBLE_EQ(only_time(profile->find_device("a")), 2);
  EXPECT_DOUBLE_EQ(only_time(profile->find_device("b")), 3);
}

TEST(MergeDevices, RefusesRanksOfOneKindWithOtherHardware) {
  const auto profile = merge_devices({device_named("a", 1), device_named("a", 1, "slide rule")});
  ASSERT_FALSE(profile.ok());
  EXPECT_THAT(profile.status().message(), HasSubstr("abacus"));
  EXPECT_THAT(profile.status().message(), HasSubstr("slide rule"));
  EXPECT_THAT(profile.status().message(), HasSubstr("rank 0"));
  EXPECT_THAT(profile.status().message(), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace agpcs
