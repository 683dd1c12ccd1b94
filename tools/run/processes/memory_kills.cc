// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/memory_kills.h"

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

namespace agpcs {

std::int64_t memory_kills_of(std::string_view vmstat) {
  constexpr std::string_view kName = "oom_kill ";
  for (std::size_t at = 0; (at = vmstat.find(kName, at)) != std::string_view::npos; ++at) {
    if (at > 0 && vmstat[at - 1] != '\n') continue;
    const std::string_view rest = vmstat.substr(at + kName.size());
    std::int64_t count = -1;
    std::from_chars(rest.data(), rest.data() + rest.size(), count);
    return count;
  }
  return -1;
}

std::int64_t memory_kills() {
  std::ifstream file("/proc/vmstat");
  return memory_kills_of(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace agpcs
