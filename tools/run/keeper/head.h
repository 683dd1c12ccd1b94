// SPDX-License-Identifier: Apache-2.0
// KeeperHead: the keeper of rank 0 uses it to direct all keepers of an elastic job.
#pragma once

#include "runtime/bootstrap/socket.h"
#include "tools/run/compiler_replanner.h"
#include "tools/run/keeper/elastic.h"
#include "tools/run/keeper/head_count.h"
#include "tools/run/options.h"

#include <agpcs/bootstrap.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {

/// Runs planning on a thread of its own, for a loop that polls.
class PlanTask {
 public:
  using Work = std::function<Result<NextPlan>(const std::atomic<bool>& cancel)>;
  PlanTask() = default;
  ~PlanTask();  ///< cancels, and waits for the end
  PlanTask(const PlanTask&) = delete;
  PlanTask& operator=(const PlanTask&) = delete;

  /// Starts the work. Only one can run at a time.
  Status start(Work work);
  void cancel() { cancel_ = true; }
  int fd() const { return done_.get(); }  ///< readable when the work is done
  /// Returns the result, once; nullopt while the work is in progress.
  std::optional<Result<NextPlan>> take();

 private:
  Fd done_, tell_;
  std::atomic<bool> cancel_{false};
  std::optional<Result<NextPlan>> made_;
  std::thread thread_;
};

/// A file in a folder, by which keepers show that they see the same folder.
class SeenFile {
 public:
  SeenFile() = default;
  ~SeenFile() { remove(); }
  SeenFile(const SeenFile&) = delete;
  SeenFile& operator=(const SeenFile&) = delete;
  /// Creates the folder, if necessary, and the file. Returns the file's name.
  Result<std::string> make(const std::string& folder);
  void remove();

 private:
  std::string path_;
};

/// Takes all events and gives the orders that follow from them.
class KeeperHead {
 public:
  KeeperHead(const Plan& plan, const RunOptions& options, Bootstrap& bootstrap, Console console);

  /// Orders all keepers to look at --save, and starts reading the files that planning needs.
  Status begin();
  void take(const BootstrapEvent& event) { count_.take(event); }
  /// Gives the orders that are due.
  Status step();
  int task_fd() const { return task_.fd(); }  ///< for polling; -1: none
  /// Returns when to call `step` if nothing happens earlier.
  std::chrono::steady_clock::time_point deadline() const { return deadline_; }

 private:
  using Clock = std::chrono::steady_clock;
  enum class State { kGathering, kRunning, kEnding, kPlanning, kFinished };

  Status gather();
  Status watch();
  Status wait_for_ends();
  Status settle();
  Status plan_on(std::vector<int> lost);
  Status go_on();
  Status start(std::vector<int> seats);
  Status finish(const Status& status);
  Status order(const KeeperMessage& message) { return bootstrap_.say(text_of(message)); }

  const RunOptions& options_;
  Bootstrap& bootstrap_;
  const Console console_;
  HeadCount count_;
  SeenFile seen_;
  std::unique_ptr<CompilerReplanner> replanner_;  // belongs to the task while it runs
  NextPlan running_;
  std::vector<int> without_;  // the lost ranks that planning leaves out
  int generation_ = -1;
  bool prepared_ = false, asked_for_idle_ = false;
  State state_ = State::kGathering;
  Clock::time_point deadline_ = Clock::time_point::max();
  PlanTask task_;
};

}  // namespace agpcs
