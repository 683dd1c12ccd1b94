// SPDX-License-Identifier: Apache-2.0
// Stages: the driver of the pipeline. It names, times, verifies and dumps each stage.
#pragma once

#include "planner/evaluate/evaluate.h"

#include <agpcs/status.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// How the driver prints and verifies the value of a stage.
template <typename T>
struct StageValue {
  std::function<std::string(const T&)> print;
  std::function<Status(const T&)> verify;
  bool always = false;  ///< release builds verify the value, too
};

/// This driver is silent and never stops. A derived one says what is done, and ends early.
class Stages {
 public:
  /// The names of all stages, in the order in which they run.
  static const std::vector<std::string>& names();

  /// `verify_all`: the driver verifies the value of each stage, else only what `always` is set for.
  explicit Stages(bool verify_all = kVerifyEveryCandidate) : verify_all_(verify_all) {}
  Stages(const Stages&) = delete;
  Stages& operator=(const Stages&) = delete;
  virtual ~Stages() = default;

  /// Runs the stage `name` and returns its value: what `work` returns, a Result<T>.
  /// Needs: `name` is one of `names()`, and comes after the stages that ran.
  /// Errors: those of `work`; kInternal where the value does not verify; kCancelled after the stage
  /// that is to be the last: `stopped()` is true then. Bugs of ours (kInternal) name the stage.
  template <typename T, typename Work>
  Result<T> run(std::string_view name, const StageValue<T>& kind, Work work) {
    begin(name);
    const auto began = std::chrono::steady_clock::now();
    Result<T> value = work();
    if (!value.ok()) return named(name, value.status());
    took(name, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    if (verify_all_ || kind.always) {
      const Status valid = kind.verify(*value);
      if (!valid.ok()) return invalid(name, valid);
    }
    if (dumps(name)) dump(name, kind.print(*value));
    stopped_ = is_last(name);
    if (stopped_) return Status(StatusCode::kCancelled, "stopped after stage " + std::string(name));
    return value;
  }

  /// Runs `work`, whose value stands beside the plan: the driver only times it.
  template <typename Work>
  auto beside(std::string_view name, Work work) -> decltype(work()) {
    const auto began = std::chrono::steady_clock::now();
    auto value = work();
    took(name, std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    return value;
  }

  bool stopped() const { return stopped_; }

 protected:
  virtual void begins(std::string_view /*name*/) {}
  virtual void took(std::string_view /*name*/, double /*seconds*/) {}
  virtual bool dumps(std::string_view /*name*/) const { return false; }
  virtual void dump(std::string_view /*name*/, const std::string& /*text*/) {}
  virtual bool is_last(std::string_view /*name*/) const { return false; }

 private:
  void begin(std::string_view name);
  static Status named(std::string_view name, const Status& failed);
  static Status invalid(std::string_view name, const Status& why);

  bool verify_all_;
  bool stopped_ = false;
  std::size_t next_ = 0;  // the stages of names() before it ran, or are left out
};

}  // namespace agpcs
