// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/processor_time.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <ctime>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <unistd.h>

namespace agpcs {
namespace {

constexpr std::int64_t kNanoseconds = 1'000'000'000;

/// Takes the text up to `end`, which is dropped, off `text`.
std::string_view take_until(std::string_view& text, char end) {
  const std::string_view taken = text.substr(0, text.find(end));
  text.remove_prefix(std::min(taken.size() + 1, text.size()));
  return taken;
}

bool has_item(std::string_view list, std::string_view item) {
  while (!list.empty()) {
    if (take_until(list, ',') == item) return true;
  }
  return false;
}

std::int64_t number_of(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() ? value : 0;
}

/// Returns where cgroups with the controller `cpu` are mounted: version 1, or 2 without a
/// controller's name; empty: nowhere.
std::string mount_of(std::string_view mounts, bool first_version) {
  while (!mounts.empty()) {
    std::string_view line = take_until(mounts, '\n');
    take_until(line, ' ');
    const std::string_view folder = take_until(line, ' ');
    const std::string_view kind = take_until(line, ' ');
    const bool fits = first_version ? kind == "cgroup" && has_item(take_until(line, ' '), "cpu")
                                    : kind == "cgroup2";
    if (fits) return std::string(folder);
  }
  return "";
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

/// Returns the beginning of a file of the kernel, in `room`.
std::string_view read_again(int file, std::array<char, 4096>& room) {
  const ssize_t bytes = file < 0 ? -1 : pread(file, room.data(), room.size(), 0);
  return {room.data(), bytes < 0 ? 0 : static_cast<std::size_t>(bytes)};
}

/// Returns the time for which a quota stopped a cgroup, of a `cpu.stat` of either version.
std::int64_t throttled_nanoseconds(std::string_view text) {
  while (!text.empty()) {
    std::string_view line = take_until(text, '\n');
    const std::string_view key = take_until(line, ' ');
    if (key == "throttled_time") return number_of(line);
    if (key == "throttled_usec") return 1000 * number_of(line);
  }
  return 0;
}

/// Returns the mean `steal` over the machine's processors, of /proc/stat.
std::int64_t stolen_nanoseconds(std::string_view text) {
  constexpr int kStealField = 8;  // "cpu  user nice system idle iowait irq softirq steal ..."
  std::string_view line = take_until(text, '\n');
  if (line.substr(0, 5) != "cpu  ") return 0;
  line.remove_prefix(4);
  for (int field = 0; field < kStealField; ++field) take_until(line, ' ');
  const std::int64_t tick = kNanoseconds / std::max<std::int64_t>(1, sysconf(_SC_CLK_TCK));
  const std::int64_t processors = std::max<std::int64_t>(1, sysconf(_SC_NPROCESSORS_ONLN));
  return number_of(take_until(line, ' ')) * tick / processors;
}

}  // namespace

std::int64_t thread_processor_nanoseconds() {
  timespec now{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) != 0) return 0;
  return static_cast<std::int64_t>(now.tv_sec) * kNanoseconds + now.tv_nsec;
}

std::vector<std::string> quota_files(std::string_view cgroups, std::string_view mounts) {
  std::vector<std::string> files;
  while (!cgroups.empty()) {
    std::string_view line = take_until(cgroups, '\n');
    take_until(line, ':');
    const std::string_view controllers = take_until(line, ':');
    const bool first_version = has_item(controllers, "cpu");
    if (!first_version && !controllers.empty()) continue;
    const std::string mount = mount_of(mounts, first_version);
    if (mount.empty()) continue;
    while (line.size() > 1) {  // "/a/b", "/a"; the root has no quota
      files.push_back(mount + std::string(line) + "/cpu.stat");
      line = line.substr(0, line.rfind('/'));
    }
    files.push_back(mount + "/cpu.stat");  // of a container, whose cgroup looks like the root
  }
  return files;
}

HeldTime::HeldTime(const std::string& root) {
  const auto open_at = [&](const std::string& path) {
    return open((root + path).c_str(), O_RDONLY | O_CLOEXEC);
  };
  for (const std::string& path :
       quota_files(text_of(root + "/proc/self/cgroup"), text_of(root + "/proc/self/mounts"))) {
    const int file = open_at(path);
    if (file >= 0) quotas_.push_back(file);
  }
  machine_ = open_at("/proc/stat");
  last_ = total();
}

HeldTime::~HeldTime() {
  for (const int file : quotas_) close(file);
  if (machine_ >= 0) close(machine_);
}

std::int64_t HeldTime::take() {
  const std::int64_t before = last_;
  last_ = total();
  return std::max<std::int64_t>(0, last_ - before);
}

std::int64_t HeldTime::total() const {
  std::array<char, 4096> room{};
  std::int64_t sum = stolen_nanoseconds(read_again(machine_, room));
  for (const int file : quotas_) sum += throttled_nanoseconds(read_again(file, room));
  return sum;
}

}  // namespace agpcs
