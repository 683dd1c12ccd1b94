// SPDX-License-Identifier: Apache-2.0
// ConsoleStages: the driver of agpcs-compile, which shows progress, times and dumps, and ends
// early.
#pragma once

#include "planner/stages.h"
#include "tools/common/common.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

class ConsoleStages : public Stages {
 public:
  struct Options {
    std::vector<std::string> dump_after;  ///< stages whose result is printed
    std::string stop_after;               ///< the last stage to run; empty: all run
    bool times = false;                   ///< print how long each stage took
  };

  ConsoleStages(Options options, Console console, Progress& progress,
                bool verify_all = kVerifyEveryCandidate)
      : Stages(verify_all), options_(std::move(options)), console_(console), progress_(progress) {}

  Progress& progress() { return progress_; }
  /// Prints warnings, if there are any. Those of a running stage follow when the next one begins.
  void warn(const std::string& warnings);

 private:
  void begins(std::string_view name) override;
  void took(std::string_view name, double seconds) override;
  bool dumps(std::string_view name) const override;
  void dump(std::string_view name, const std::string& text) override;
  bool is_last(std::string_view name) const override { return options_.stop_after == name; }

  Options options_;
  Console console_;
  Progress& progress_;
  bool runs_ = false;  // a stage
  std::string held_;   // warnings of the stage that runs, or of the last one
};

}  // namespace agpcs
