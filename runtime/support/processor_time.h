// SPDX-License-Identifier: Apache-2.0
// Processor time: what a thread had of a processor, and for how long processors were held back.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns the processor time of the calling thread in nanoseconds; 0: the system does not tell.
/// It stands still while the thread waits, while a quota stops it, and while other work has its
/// processor. It does not count other threads that compute for this one, and it says nothing of
/// work on an accelerator.
std::int64_t thread_processor_nanoseconds();

/// Returns the paths of the `cpu.stat` files that tell for how long quotas stopped a process: those
/// of its cgroup and of all cgroups above it, of versions 1 and 2. `cgroups` is the text of
/// /proc/self/cgroup, `mounts` that of /proc/self/mounts.
std::vector<std::string> quota_files(std::string_view cgroups, std::string_view mounts);

/// Counts the time for which this process was held back from processors that it wanted: by the
/// quotas of its cgroups (`cpu.stat`), and by the host of a virtual machine (`steal` in /proc/stat,
/// the mean over the machine's processors). Where a file is not there, its time counts as 0. The
/// pressure of the machine (/proc/pressure/cpu) is not read: it counts whoever waits, also work
/// that gives way to this process, whose own clock says more.
class HeldTime {
 public:
  /// Reads from now on. `root` stands before all paths; tests bring files of their own.
  explicit HeldTime(const std::string& root = "");
  ~HeldTime();
  HeldTime(const HeldTime&) = delete;
  HeldTime& operator=(const HeldTime&) = delete;
  /// Returns the nanoseconds since the last call, or since the beginning. Allocates nothing.
  std::int64_t take();

 private:
  std::int64_t total() const;

  std::vector<int> quotas_;  // open files
  int machine_ = -1;         // the open /proc/stat
  std::int64_t last_ = 0;
};

}  // namespace agpcs
