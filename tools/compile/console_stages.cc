// SPDX-License-Identifier: Apache-2.0
#include "tools/compile/console_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace agpcs {

void ConsoleStages::warn(const std::string& warnings) {
  if (warnings.empty()) return;
  if (runs_) {
    held_ += warnings + (warnings.back() == '\n' ? "" : "\n");
    return;
  }
  progress_.done();
  console_.err << warnings << (warnings.back() == '\n' ? "" : "\n");
}

void ConsoleStages::begins(std::string_view name) {
  runs_ = false;
  warn(std::exchange(held_, ""));
  progress_.step(name);
  runs_ = true;
}

void ConsoleStages::took(std::string_view name, double seconds) {
  runs_ = false;
  if (!options_.times) return;
  progress_.done();
  console_.err << fmt::format("{:<10} {:.3f} s\n", name, seconds);
}

bool ConsoleStages::dumps(std::string_view name) const {
  return std::find(options_.dump_after.begin(), options_.dump_after.end(), name) !=
         options_.dump_after.end();
}

void ConsoleStages::dump(std::string_view name, const std::string& text) {
  progress_.done();
  console_.out << fmt::format("--- {}\n{}", name, text);
}

}  // namespace agpcs
