// SPDX-License-Identifier: Apache-2.0
// RunningComputation: what a rank computes at the moment, in virtual time. Messages to and from the
// device may slow it, which moves its ends.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

namespace agpcs {

class RunningComputation {
 public:
  /// What has come to its end: all, a bucket's gradients, or what precedes a need of parameters.
  enum class End : std::uint8_t { kAll, kGradients, kNeed };
  /// Starts a computation of `work` seconds at full speed. It advances at `speed`, 0 to 1. If it
  /// `waits_within`, for what it does at its gradients, it ends after the last of them.
  void start(int instruction, double now, double work, double speed, bool waits_within) {
    instruction_ = instruction;
    waits_within_ = waits_within;
    begun_ = since_ = now;
    work_ = left_ = work;
    speed_ = speed;
    steady_ = speed == 1;
    over_ = false;
    gradients_.clear();
  }
  /// Adds gradients that `instruction` waits for; they are ready after `work` seconds at full
  /// speed.
  void add_gradients(int instruction, double work) {
    gradients_.push_back({End::kGradients, instruction, work});
  }
  /// Adds a place after `work` seconds at full speed, where it needs what `gather` brings.
  void add_need(int gather, double work) { gradients_.push_back({End::kNeed, gather, work}); }
  /// Notes that the gradients that `instruction` waits for are ready, or that what it brings is
  /// needed. Returns whether the computation goes on, which may be over before its gradients.
  bool reached(int instruction) {
    const auto found = std::find_if(gradients_.begin(), gradients_.end(), [&](const Gradients& g) {
      return g.instruction == instruction;
    });
    if (found == gradients_.end()) return false;
    gradients_.erase(found);
    return !over_;
  }

  /// Lets the computation advance at `speed` from now on. Returns true when that makes the
  /// announced end void.
  bool set_speed(double now, double speed) {
    if (speed == speed_) return false;
    const double done = speed_ * (now - since_);
    left_ = std::max(0.0, left_ - done);
    for (Gradients& g : gradients_) g.left = std::max(0.0, g.left - done);
    since_ = now;
    speed_ = speed;
    steady_ = false;
    ++version_;
    return true;
  }

  struct Ending {
    double time = 0;
    End end = End::kAll;
    int instruction = 0;
    friend auto operator<=>(const Ending&, const Ending&) = default;
  };
  /// Returns the first end that is left, of those of one time in the order of `Ending`; nothing at
  /// speed 0.
  std::optional<Ending> next_end() const {
    if (speed_ == 0) return std::nullopt;
    std::optional<Ending> next;
    if (!waits_within_ || gradients_.empty()) {
      next = {since_ + left_ / speed_, End::kAll, instruction_};
    }
    for_each_left([&](const Ending& ending) {
      if (!next || ending < *next) next = ending;
    });
    return next;
  }
  /// Calls `f(Ending)` for the gradients and needs that are left. Needs: not at speed 0.
  template <typename F>
  void for_each_left(F f) const {
    for (const Gradients& g : gradients_) f(Ending{since_ + g.left / speed_, g.end, g.instruction});
  }
  bool is_current(int version) const { return version == version_; }
  int version() const { return version_; }

  /// Ends the computation, and returns how long it has taken.
  double finish(double now) {
    over_ = true;
    return steady_ ? work_ : now - begun_;
  }

 private:
  struct Gradients {
    End end = End::kGradients;
    int instruction = 0;
    double left = 0;  // seconds of work, at `since_`
  };
  int instruction_ = -1;
  double begun_ = 0, work_ = 0;
  double since_ = 0, left_ = 0, speed_ = 1;  // left_: seconds of work that were left at `since_`
  bool steady_ = true;                       // at full speed all the time
  bool waits_within_ = false;
  bool over_ = false;
  int version_ = 0;  // version of its ends
  std::vector<Gradients> gradients_;
};

}  // namespace agpcs
