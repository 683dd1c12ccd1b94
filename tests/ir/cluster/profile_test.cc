// SPDX-License-Identifier: Apache-2.0
#include "ir/cluster/profile.h"

#include "tests/support/profiles.h"

#include <agpcs/digest.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

std::string error_of(const Profile& profile) { return verify_profile(profile).message(); }

/// What is wrong with the profile after `change`, apart from its digest.
template <typename Change>
std::string error_after(Change change) {
  Profile profile = small_profile();
  change(profile);
  profile.digest = digest_of(print_measurements(profile));
  return error_of(profile);
}

TEST(Profile, DigestCoversEveryMeasurementAndNoFileName) {
  const Profile profile = small_profile();
  EXPECT_EQ(profile.digest, digest_of(print_measurements(profile)));
  EXPECT_EQ(
      print_measurements(profile),
      "device cpu precision=fp32\n"
      "hardware processor=Intel(R) Xeon(R)\n"
      "hardware cores=2\n"
      "software agpcs=0.1.0\n"
      "model small_cnn\n"
      "message-overhead 1.2e-05\n"
      "overlap 3e-10 0.8\n"
      "update sgd elements=1200 tensors=8 update=1.2e-05 spread=0.03 begin=4e-06 spread=0.02\n"
      "operator matmul MatMul(fp32[n,4]', fp32[4,8]*) -> fp32[n,8]\n"
      "point samples=1 forward=1e-06 spread=0.1 backward=2e-06 spread=0.2 flops=64,128 "
      "bytes=192,384\n"
      "point samples=4 forward=3e-06 spread=0.1 backward=6e-06 spread=0.2 flops=256,512 "
      "bytes=384,768\n"
      "operator elementwise Relu(fp32[n,8]) -> fp32[n,8]\n"
      "point samples=1 forward=5e-07 spread=0 backward=0 spread=0 flops=8,0 bytes=64,0\n"
      "path from a/0 to b/0\n"
      "link a/0 out\n"
      "link a nic out\n"
      "link b nic in\n"
      "link b/0 in\n"
      "messages bytes=1024 time=8e-05 spread=0.1\n"
      "messages bytes=1048576 time=0.0009 spread=0.05\n"
      "collective ring\n"
      "member a/0\n"
      "member b/0\n"
      "messages bytes=4096 time=0.0002 spread=0.1\n");
  Profile moved = profile;
  moved.file = "other.yaml";
  seal_profile(moved);
  EXPECT_EQ(moved.digest, profile.digest);
}

TEST(Profile, SealingSortsEveryList) {
  Profile profile = small_profile();
  const std::string digest = profile.digest;
  DeviceProfile& cpu = profile.devices[0];
  std::swap(cpu.operators[0], cpu.operators[1]);
  std::swap(cpu.operators[1].points[0], cpu.operators[1].points[1]);
  std::swap(profile.paths[0].points[0], profile.paths[0].points[1]);
  seal_profile(profile);
  EXPECT_EQ(profile.digest, digest);
  EXPECT_EQ(error_of(profile), "");
}

TEST(Profile, FindsADeviceByItsName) {
  const Profile profile = small_profile();
  EXPECT_EQ(profile.find_device("cpu"), &profile.devices[0]);
  EXPECT_EQ(profile.find_device("gpu"), nullptr);
}

TEST(Profile, NamesOptimizersByWhatTheyMove) {
  Optimizer optimizer;
  EXPECT_EQ(optimizer_name(optimizer), "sgd");
  optimizer.momentum = 0.9;
  EXPECT_EQ(optimizer_name(optimizer), "sgd momentum");
  optimizer.kind = OptimizerKind::kAdam;
  EXPECT_EQ(optimizer_name(optimizer), "adam");
}

TEST(VerifyProfile, RefusesADigestThatIsNotThatOfTheMeasurements) {
  Profile profile = small_profile();
  const std::string digest = profile.digest;
  profile.devices[0].operators[0].points[0].forward.seconds *= 2;
  EXPECT_EQ(error_of(profile), "lab.yaml: error: its digest is '" + digest +
                                   "', that of its measurements " +
                                   digest_of(print_measurements(profile)));
}

TEST(VerifyProfile, RefusesTimesThatNoClockGives) {
  const auto with_forward = [](double seconds) {
    return error_after(
        [=](Profile& p) { p.devices[0].operators[1].points[0].forward.seconds = seconds; });
  };
  const std::string what =
      "lab.yaml: error: device 'cpu': operator Relu(fp32[n,8]) -> fp32[n,8] takes ";
  EXPECT_EQ(with_forward(-1e-6), what + "-1e-06 seconds");
  EXPECT_EQ(with_forward(3600), what + "3600 seconds");
  EXPECT_EQ(with_forward(std::numeric_limits<double>::infinity()), what + "inf seconds");
  EXPECT_EQ(with_forward(std::numeric_limits<double>::quiet_NaN()), what + "nan seconds");
  EXPECT_EQ(with_forward(0), "");
  EXPECT_EQ(error_after([](Profile& p) { p.paths[0].points[0].time.seconds = 0; }),
            "lab.yaml: error: path from a/0 to b/0 takes 0 seconds");
  EXPECT_EQ(error_after([](Profile& p) { p.collectives[0].points[0].time.spread = -1; }),
            "lab.yaml: error: ring all-reduce over a/0, b/0 has a spread of -1");
  EXPECT_EQ(error_after([](Profile& p) { p.devices[0].overlap.communication_factor = 0; }),
            "lab.yaml: error: device 'cpu' has a communication factor of 0");
}

TEST(VerifyProfile, RefusesListsThatAreNotSortedOrHaveSomethingTwice) {
  EXPECT_EQ(error_after([](Profile& p) { p.devices.push_back(p.devices[0]); }),
            "lab.yaml: error: devices are not sorted, or one is there twice");
  EXPECT_EQ(error_after([](Profile& p) {
              std::swap(p.devices[0].operators[0], p.devices[0].operators[1]);
            }),
            "lab.yaml: error: operators of device 'cpu' are not sorted, or one is there twice");
  EXPECT_THAT(error_after([](Profile& p) { p.devices[0].operators[0].points[1].samples = 1; }),
              HasSubstr("its points are not sorted, or one is there twice"));
}

TEST(VerifyProfile, RefusesTextsThatWouldBreakALine) {
  EXPECT_EQ(error_after([](Profile& p) { p.devices[0].hardware[0].second = "two\nlines"; }),
            "lab.yaml: error: device 'cpu' has a line break or another control character in a "
            "text");
}

TEST(VerifyProfile, ReportsEverythingAtOnce) {
  const std::string error = error_after([](Profile& p) {
    p.devices[0].operators[0].points[0].samples = 0;
    p.devices[0].updates[0].tensors = -3;
    p.paths[0].points[0].bytes = 0;
  });
  EXPECT_THAT(error, HasSubstr("MatMul(fp32[n,4]', fp32[4,8]*) -> fp32[n,8] has 0 samples"));
  EXPECT_THAT(error, HasSubstr("update by sgd of 1200 elements in -3 tensors has -3 tensors"));
  EXPECT_THAT(error, HasSubstr("path from a/0 to b/0 has 0 bytes"));
}

TEST(MergeProfiles, TakesTheMeanOfWhatBothHaveAndTheLargestSpread) {
  const Profile a = small_profile();
  Profile b = a;
  b.file = "night.yaml";
  DeviceProfile& cpu = b.devices[0];
  cpu.operators[0].points[0].forward = {3e-6, 0.05};  // 1us with 0.1 before
  cpu.operators[0].points[1].forward = {3e-6, 0.5};   // the same 3us
  cpu.updates[0].update.seconds = 12e-6;
  cpu.message_overhead = 14e-6;
  cpu.message_compute = 20e-6;  // the other has none
  cpu.overlap = {};             // not measured
  b.paths[0].points[0].time.seconds = 100e-6;
  const Result<Profile> merged = merge_profiles(a, b);
  ASSERT_TRUE(merged.ok()) << merged.status().message();
  EXPECT_EQ(verify_profile(*merged).message(), "");
  EXPECT_EQ(merged->file, "lab.yaml");
  const DeviceProfile& both = merged->devices[0];
  EXPECT_DOUBLE_EQ(both.operators[0].points[0].forward.seconds, 2e-6);
  EXPECT_DOUBLE_EQ(both.operators[0].points[0].forward.spread, 1.0);  // 2us apart, mean 2us
  EXPECT_DOUBLE_EQ(both.operators[0].points[1].forward.seconds, 3e-6);
  EXPECT_DOUBLE_EQ(both.operators[0].points[1].forward.spread, 0.5);
  EXPECT_DOUBLE_EQ(both.message_overhead, 13e-6);
  EXPECT_DOUBLE_EQ(both.message_compute, 20e-6);
  EXPECT_DOUBLE_EQ(both.overlap.communication_factor, 0.8);
  EXPECT_DOUBLE_EQ(both.overlap.compute_seconds_per_byte, 0.3e-9);
  EXPECT_DOUBLE_EQ(merged->paths[0].points[0].time.seconds, 90e-6);
  EXPECT_DOUBLE_EQ(merged->paths[0].points[1].time.seconds, 900e-6);
}

TEST(MergeProfiles, KeepsWhatOneOfThemHas) {
  Profile a = small_profile(), b = a;
  DeviceProfile& cpu = b.devices[0];
  cpu.models = {"bert"};
  cpu.software = {{"agpcs", "0.2.0"}, {"libtorch", "1.13.1"}};
  cpu.operators.erase(cpu.operators.begin());
  cpu.operators[0].points[0].samples = 16;
  cpu.updates[0].optimizer = "adam";
  b.devices.push_back(cpu);
  b.devices[1].name = "a100";
  b.paths[0].from = "b/0";
  b.paths[0].to = "a/0";
  b.collectives[0].algorithm = AllReduce::kHierarchical;
  a.devices[0].teams = {2, 8};
  for (DeviceProfile& device : b.devices) device.teams = {2, 4};
  seal_profile(a);
  seal_profile(b);
  const Result<Profile> merged = merge_profiles(a, b);
  ASSERT_TRUE(merged.ok()) << merged.status().message();
  EXPECT_EQ(verify_profile(*merged).message(), "");
  ASSERT_EQ(merged->devices.size(), 2U);
  EXPECT_EQ(merged->devices[0].name, "a100");
  const DeviceProfile& both = merged->devices[1];
  EXPECT_EQ(both.models, (std::vector<std::string>{"bert", "small_cnn"}));
  EXPECT_EQ(both.teams, (std::vector<std::int64_t>{2, 4, 8}));
  EXPECT_EQ(both.software[0].second, "0.1.0, 0.2.0");
  EXPECT_EQ(both.software[1].second, "1.13.1");
  EXPECT_EQ(both.operators.size(), 2U);
  EXPECT_EQ(both.operators[1].points.size(), 2U);
  EXPECT_EQ(both.updates.size(), 2U);
  EXPECT_EQ(merged->paths.size(), 2U);
  EXPECT_EQ(merged->collectives.size(), 2U);
}

TEST(MergeProfiles, NamesEveryBlas) {
  Profile a = small_profile(), b = a;
  a.devices[0].software.emplace_back("blas", "libblas.so.3.11.0");
  b.devices[0].software.emplace_back("blas", "OpenBLAS 0.3.21 OpenMP SkylakeX");
  const auto blas_of = [](const Profile& x, const Profile& y) {
    const Result<Profile> merged = merge_profiles(x, y);
    return merged.ok() ? merged->devices[0].software.back().second : merged.status().message();
  };
  EXPECT_EQ(blas_of(a, b), "libblas.so.3.11.0, OpenBLAS 0.3.21 OpenMP SkylakeX");
  EXPECT_EQ(blas_of(a, small_profile()), "libblas.so.3.11.0");
  EXPECT_EQ(blas_of(small_profile(), b), "OpenBLAS 0.3.21 OpenMP SkylakeX");
}

TEST(MergeProfiles, AProfileWithItselfIsThatProfile) {
  const Profile a = small_profile();
  const Result<Profile> merged = merge_profiles(a, a);
  ASSERT_TRUE(merged.ok());
  EXPECT_EQ(merged->digest, a.digest);
}

TEST(MergeProfiles, RefusesDevicesOfOneNameThatAreNotTheSame) {
  const Profile a = small_profile();
  Profile b = a;
  b.file = "other.yaml";
  b.devices[0].hardware[1].second = "64";
  EXPECT_EQ(merge_profiles(a, b).status().message(),
            "other.yaml: error: device 'cpu' is other hardware: 'processor: Intel(R) Xeon(R), "
            "cores: 64', in lab.yaml 'processor: Intel(R) Xeon(R), cores: 2'\n"
            "  hint: give one of the two another name");
  b = a;
  b.file = "other.yaml";
  b.devices[0].precision = Precision::kFp16;
  b.paths[0].links = {"wire"};
  EXPECT_EQ(merge_profiles(a, b).status().message(),
            "other.yaml: error: device 'cpu' has another precision: 'fp16', in lab.yaml 'fp32'\n"
            "  hint: give one of the two another name\n"
            "other.yaml: error: path from a/0 to b/0 is over other links: 'wire', in lab.yaml "
            "'a/0 out, a nic out, b nic in, b/0 in'");
  b = a;
  b.devices[0].operators[1].op_class = OpClass::kView;
  EXPECT_EQ(merge_profiles(a, b).status().message(),
            "lab.yaml: error: device 'cpu': operator Relu(fp32[n,8]) -> fp32[n,8] is of another "
            "class: 'view', in lab.yaml 'elementwise'");
}

}  // namespace
}  // namespace agpcs
