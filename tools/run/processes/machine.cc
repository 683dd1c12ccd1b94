// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/machine.h"

#include "ir/base/significant_digits.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace agpcs {
namespace {

/// Returns the value of the first line "KEY : VALUE" of a file of /proc; empty if there is none.
std::string value_in(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key, 0) != 0) continue;
    const std::size_t colon = line.find(':');
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? std::string() : line.substr(begin);
  }
  return {};
}

/// Returns the bytes of a line of /proc/meminfo, which is in KiB.
std::int64_t memory_line(const std::string& key) {
  return 1024 * std::atoll(value_in("/proc/meminfo", key).c_str());
}

/// Returns the folders of this process's control groups for `controller`, from its own up to the
/// root. Version 2 has all controllers in one hierarchy.
std::vector<std::string> control_groups(const std::string& controller) {
  std::vector<std::string> folders;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // "4:cpu,cpuacct:/user/job"
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string names = line.substr(first + 1, second - first - 1);
    const bool mine = names.empty() ||
                      fmt::format(",{},", names).find("," + controller + ",") != std::string::npos;
    if (!mine) continue;
    const std::string root = "/sys/fs/cgroup/" + (names.empty() ? std::string() : names + "/");
    std::string path = line.substr(second + 1);
    while (true) {
      folders.push_back(root + path + "/");
      if (path.size() <= 1) break;
      path.resize(std::max<std::size_t>(path.rfind('/'), 1));
    }
  }
  return folders;
}

/// Returns the numbers in a file of a control group. "max" is not a number.
std::vector<double> numbers_in(const std::string& path) {
  std::vector<double> numbers;
  std::ifstream file(path);
  for (double number = 0; file >> number;) numbers.push_back(number);
  return numbers;
}

}  // namespace

double cpu_quota() {
  double least = 0;
  const auto limit = [&](double quota, double period) {
    if (quota > 0 && period > 0)
      least = least > 0 ? std::min(least, quota / period) : quota / period;
  };
  for (const std::string& folder : control_groups("cpu")) {
    const auto v1 = numbers_in(folder + "cpu.cfs_quota_us");
    const auto period = numbers_in(folder + "cpu.cfs_period_us");
    if (v1.size() == 1 && period.size() == 1) limit(v1[0], period[0]);
    const auto v2 = numbers_in(folder + "cpu.max");
    if (v2.size() == 2) limit(v2[0], v2[1]);
  }
  return least;
}

std::int64_t free_memory() {
  std::int64_t least = memory_line("MemAvailable");
  for (const std::string& folder : control_groups("memory")) {
    for (const auto& [limit, used] : {std::pair("memory.limit_in_bytes", "memory.usage_in_bytes"),
                                      std::pair("memory.max", "memory.current")}) {
      const auto most = numbers_in(folder + limit), now = numbers_in(folder + used);
      if (most.size() != 1 || now.size() != 1 || most[0] > 1e15) continue;
      least = std::min(least, static_cast<std::int64_t>(std::max(0.0, most[0] - now[0])));
    }
  }
  return least;
}

VectorUnit vector_unit() {
#if defined(__x86_64__)
  const int operations = __builtin_cpu_supports("fma") ? 4 : 2;
  if (__builtin_cpu_supports("avx512f")) return {16, operations};
  if (__builtin_cpu_supports("avx")) return {8, operations};
  return {4, 2};
#elif defined(__aarch64__)
  return {4, 4};
#else
  return {};
#endif
}

double core_clock() {
  const double now = leading_number(value_in("/proc/cpuinfo", "cpu MHz"));
  if (now > 0) return 1e6 * now;
  const auto most = numbers_in("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");  // kHz
  return most.empty() ? 0 : 1e3 * most.front();
}

NamedTexts hardware_of(const std::string& gpu, int threads) {
  NamedTexts texts;
  if (!gpu.empty()) texts.emplace_back("gpu", gpu);
  std::string processor = value_in("/proc/cpuinfo", "model name");
  texts.emplace_back("processor", processor.empty() ? "unknown" : processor);
  texts.emplace_back("cores", std::to_string(std::thread::hardware_concurrency()));
  if (const double quota = cpu_quota(); quota > 0) {
    texts.emplace_back("quota", fmt::format("{:.2g} cores", quota));
  }
  texts.emplace_back("threads", std::to_string(threads));
  texts.emplace_back(
      "memory",
      fmt::format("{:.0f} GiB", static_cast<double>(memory_line("MemTotal")) / (1 << 30)));
  return texts;
}

}  // namespace agpcs
