// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/processor_time.h"

#include "tests/support/temp_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <unistd.h>

namespace agpcs {
namespace {

using testing::ElementsAre;

constexpr const char* kVersion1 =
    "tmpfs /sys/fs/cgroup tmpfs rw 0 0\n"
    "cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n"
    "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
constexpr const char* kVersion2 = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0\n";

TEST(QuotaFiles, AreThoseOfAllCgroupsAboveAProcess) {
  EXPECT_THAT(quota_files("5:cpuset:/x\n4:cpu,cpuacct:/job/rank1\n0::/\n", kVersion1),
              ElementsAre("/sys/fs/cgroup/cpu,cpuacct/job/rank1/cpu.stat",
                          "/sys/fs/cgroup/cpu,cpuacct/job/cpu.stat",
                          "/sys/fs/cgroup/cpu,cpuacct/cpu.stat"));
  EXPECT_THAT(quota_files("0::/job.slice\n", kVersion2),
              ElementsAre("/sys/fs/cgroup/job.slice/cpu.stat", "/sys/fs/cgroup/cpu.stat"));
}

TEST(QuotaFiles, AreNoneWhereCgroupsAreNotMounted) {
  EXPECT_THAT(quota_files("4:cpu:/job\n0::/job\n", "proc /proc proc rw 0 0\n"), ElementsAre());
  EXPECT_THAT(quota_files("", ""), ElementsAre());
  EXPECT_THAT(quota_files("nonsense\n", kVersion1), ElementsAre());
}

/// Files of a kernel in a folder.
class Kernel {
 public:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  std::string root() const { return folder_.path().string(); }

 private:
  TempFolder folder_;
};

TEST(HeldTime, CountsTheQuotasOfBothVersions) {
  const Kernel kernel;
  kernel.write("/proc/self/cgroup", "4:cpu:/job\n0::/all\n");
  kernel.write("/proc/self/mounts", "cgroup /cpu cgroup rw,cpu 0 0\ncgroup2 /two cgroup2 rw 0 0\n");
  kernel.write("/cpu/job/cpu.stat", "nr_periods 9\nnr_throttled 2\nthrottled_time 5000000\n");
  kernel.write("/two/all/cpu.stat", "usage_usec 77\nthrottled_usec 40\n");
  HeldTime held(kernel.root());
  EXPECT_EQ(held.take(), 0);
  kernel.write("/cpu/job/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 7000000\n");
  EXPECT_EQ(held.take(), 2'000'000);
  kernel.write("/two/all/cpu.stat", "usage_usec 77\nthrottled_usec 90\n");
  EXPECT_EQ(held.take(), 50'000);
  EXPECT_EQ(held.take(), 0);
}

TEST(HeldTime, CountsWhatTheHostOfAVirtualMachineTakes) {
  const Kernel kernel;
  kernel.write("/proc/stat", "cpu  10 2 3 4000 5 6 7 100 8 9\ncpu0 1 2 3 4 5 6 7 8 9 10\n");
  HeldTime held(kernel.root());
  const long processors = sysconf(_SC_NPROCESSORS_ONLN);
  const std::string more = std::to_string(100 + 3 * processors);
  kernel.write("/proc/stat", "cpu  10 2 3 4000 5 6 7 " + more + " 8 9\ncpu0 1 2 3 4 5 6 7 8 9\n");
  EXPECT_EQ(held.take(), 3 * (1'000'000'000 / sysconf(_SC_CLK_TCK))) << "a mean over processors";
}

TEST(HeldTime, WhatTheKernelDoesNotTellIsNothing) {
  const Kernel kernel;
  kernel.write("/proc/stat", "garbage");
  HeldTime held(kernel.root());
  EXPECT_EQ(held.take(), 0);
}

TEST(ThreadProcessorTime, GrowsWithWorkAndStandsStillWithoutIt) {
  const std::int64_t begin = thread_processor_nanoseconds();
  ASSERT_GT(begin, 0);
  volatile double sum = 0;
  while (thread_processor_nanoseconds() < begin + 5'000'000) sum = sum + 1;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const std::int64_t before = thread_processor_nanoseconds();
  // Another process writes after a while in which this thread only waits.
  const pid_t writer = fork();
  if (writer == 0) {
    const std::int64_t from = thread_processor_nanoseconds();
    while (thread_processor_nanoseconds() < from + 100'000'000) sum = sum + 1;
    _exit(write(ends[1], "x", 1) == 1 ? 0 : 1);
  }
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1);
  EXPECT_LT(thread_processor_nanoseconds() - before, 50'000'000);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
}  // namespace agpcs
