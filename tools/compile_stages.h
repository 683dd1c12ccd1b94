// SPDX-License-Identifier: Apache-2.0
// CompileStages: runs the pipeline's stages one by one: progress, times, dumps and an early end.
#pragma once

#include "tools/common.h"

#include <agpcs/status.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

class CompileStages {
 public:
  struct Options {
    std::vector<std::string> dump_after;  ///< stages whose result is printed
    std::string stop_after;               ///< stage that is the last; empty: none
    bool times = false;                   ///< print how long each stage took
  };

  /// The stages in the order in which they run; the names for --dump-after and --stop-after.
  static const std::vector<std::string>& names();

  CompileStages(Options options, Console console, Progress& progress)
      : options_(std::move(options)), console_(console), progress_(progress) {}

  /// The result of `work`, a Result<T>. `print` gives T's text form, and is called where a dump is
  /// asked for. After the last stage asked for the status is kCancelled, and `stopped()` true.
  template <typename Work, typename Print>
  auto run(std::string_view name, Work work, Print print) -> decltype(work()) {
    begin(name);
    auto result = work();
    if (!result.ok()) return result;
    const bool dump = end(name);
    if (dump) write(name, print(*result));
    if (stopped_) return Status(StatusCode::kCancelled, "stopped after stage " + std::string(name));
    return result;
  }

  bool stopped() const { return stopped_; }
  Progress& progress() { return progress_; }
  /// Prints warnings, unless there are none.
  void warn(const std::string& warnings);

 private:
  void begin(std::string_view name);
  bool end(std::string_view name);  ///< whether to dump
  void write(std::string_view name, const std::string& text);

  Options options_;
  Console console_;
  Progress& progress_;
  std::chrono::steady_clock::time_point began_;
  bool stopped_ = false;
};

}  // namespace agpcs
