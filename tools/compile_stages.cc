// SPDX-License-Identifier: Apache-2.0
#include "tools/compile_stages.h"

#include <fmt/format.h>

#include <algorithm>
#include <ostream>

namespace agpcs {

const std::vector<std::string>& CompileStages::names() {
  static const std::vector<std::string> names = {"cluster",  "import", "loss",
                                                 "backward", "blocks", "plan"};
  return names;
}

void CompileStages::warn(const std::string& warnings) {
  if (warnings.empty()) return;
  progress_.done();
  console_.err << warnings << (warnings.back() == '\n' ? "" : "\n");
}

void CompileStages::begin(std::string_view name) {
  progress_.step(name);
  began_ = std::chrono::steady_clock::now();
}

bool CompileStages::end(std::string_view name) {
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began_;
  if (options_.times) {
    progress_.done();
    console_.err << fmt::format("{:<10} {:.3f} s\n", name, took.count());
  }
  stopped_ = options_.stop_after == name;
  return std::find(options_.dump_after.begin(), options_.dump_after.end(), name) !=
         options_.dump_after.end();
}

void CompileStages::write(std::string_view name, const std::string& text) {
  progress_.done();
  console_.out << fmt::format("--- {}\n{}", name, text);
}

}  // namespace agpcs
