// SPDX-License-Identifier: Apache-2.0
#include "tools/run/keeper/head.h"

#include "ir/base/random_digits.h"
#include "runtime/support/caught.h"
#include "tools/run/rank.h"
#include "tools/run/replan.h"
#include "tools/run/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <fcntl.h>
#include <numeric>
#include <ostream>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

// Size of a piece of a plan's text. A value of the bootstrap may be a little longer.
constexpr std::size_t kPieceBytes = 60000;

}  // namespace

PlanTask::~PlanTask() {
  cancel();
  if (thread_.joinable()) thread_.join();
}

Status PlanTask::start(Work work) {
  AGPCS_RETURN_IF_ERROR(make_pipe(done_, tell_));
  cancel_ = false;
  thread_ = std::thread([this, work = std::move(work)] {
    made_ = caught([&] { return work(cancel_); });
    tell_.reset();  // makes the other end readable
  });
  return {};
}

std::optional<Result<NextPlan>> PlanTask::take() {
  char byte = 0;
  if (done_.get() < 0 || read(done_.get(), &byte, 1) != 0) return std::nullopt;
  thread_.join();
  done_.reset();
  return std::exchange(made_, std::nullopt);
}

Result<std::string> SeenFile::make(const std::string& folder) {
  AGPCS_RETURN_IF_ERROR(make_save_folder(folder));
  std::string name, path;
  Fd file;
  do {
    const std::string digits = random_digits();
    name = ".seen-" + digits;
    path = folder + "/" + name;
    if (digits.empty()) break;
    file = Fd(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  } while (file.get() < 0 && errno == EEXIST);
  if (file.get() < 0) {
    return invalid_input(fmt::format("{}: cannot be written: {}", path, std::strerror(errno)));
  }
  path_ = path;
  return name;
}

void SeenFile::remove() {
  if (!path_.empty()) unlink(std::exchange(path_, {}).c_str());
}

KeeperHead::KeeperHead(const Plan& plan, const RunOptions& options, Bootstrap& bootstrap,
                       Console console)
    : options_(options),
      bootstrap_(bootstrap),
      console_(console),
      count_(plan.rank_count()),
      running_{plan, options.plan, ""} {}

Status KeeperHead::begin() {
  auto name = seen_.make(options_.save);
  if (!name.ok()) return finish(name.status());
  AGPCS_RETURN_IF_ERROR(order(LookOrder{*name}));
  return task_.start([this](const std::atomic<bool>& /*cancel*/) -> Result<NextPlan> {
    AGPCS_TRY(replanner_, replanner_for(running_.plan, options_, console_));
    return running_;
  });
}

Status KeeperHead::step() {
  switch (state_) {
    case State::kGathering:
      return gather();
    case State::kRunning:
      return watch();
    case State::kEnding:
      return wait_for_ends();
    case State::kPlanning:
      return go_on();
    case State::kFinished:
      task_.take();  // the result is no longer needed
      return {};
  }
  return {};
}

Status KeeperHead::gather() {
  if (!count_.broken().ok() || count_.signal() != 0) return finish(count_.verdict());
  if (const auto prepared = task_.take()) {
    if (!prepared->ok()) return finish(prepared->status());
    prepared_ = true;
  }
  if (!prepared_ || !count_.all_ready()) return {};
  seen_.remove();
  std::vector<int> seats(static_cast<std::size_t>(running_.plan.rank_count()));
  std::iota(seats.begin(), seats.end(), 0);
  return start(std::move(seats));
}

Status KeeperHead::start(std::vector<int> seats) {
  ++generation_;
  const std::string text = generation_ == 0 ? "" : print_plan(running_.plan);
  int pieces = 0;
  for (std::size_t at = 0; at < text.size(); at += kPieceBytes, ++pieces) {
    AGPCS_RETURN_IF_ERROR(
        bootstrap_.set(plan_key(generation_, pieces), text.substr(at, kPieceBytes)));
  }
  const ReadyReport& first = *count_.ready(seats.front());
  AGPCS_RETURN_IF_ERROR(
      order(StartOrder{generation_, first.address, first.port, pieces, running_.label, seats}));
  count_.begin(generation_, std::move(seats));
  state_ = State::kRunning;
  deadline_ = Clock::time_point::max();
  return {};
}

Status KeeperHead::watch() {
  // A rank that is asked to stop asks all others; a keeper without a rank must let the head ask
  // one.
  if (count_.signal() != 0 && !count_.has_rank(count_.asked_seat()) && !asked_for_idle_) {
    asked_for_idle_ = true;
    AGPCS_RETURN_IF_ERROR(order(StopOrder{count_.seats().front()}));
  }
  if (count_.failing() || !count_.broken().ok()) {
    AGPCS_RETURN_IF_ERROR(order(EndOrder{generation_}));
    state_ = State::kEnding;
    deadline_ = Clock::now() + kEndGrace + milliseconds_of(options_.stall_limit);
  }
  return wait_for_ends();
}

Status KeeperHead::wait_for_ends() {
  if (Clock::now() >= deadline_) count_.stop_waiting();
  return count_.complete() ? settle() : Status();
}

Status KeeperHead::settle() {
  std::vector<int> lost = count_.lost();
  const bool ends = count_.signal() != 0 || !count_.broken().ok();
  if (ends || lost.empty() || lost.size() == count_.seats().size()) return finish(count_.verdict());
  state_ = State::kPlanning;
  deadline_ = Clock::time_point::max();
  return plan_on(std::move(lost));
}

Status KeeperHead::plan_on(std::vector<int> lost) {
  without_ = std::move(lost);
  return task_.start([this, lost = without_](const std::atomic<bool>& cancel) {
    return plan_without(lost, running_.plan, *replanner_, options_, cancel);
  });
}

Status KeeperHead::go_on() {
  if (count_.signal() != 0 || !count_.broken().ok()) return finish(count_.verdict());
  std::vector<int> lost = count_.lost();
  if (lost != without_) task_.cancel();  // more ranks were lost
  auto next = task_.take();
  if (!next) return {};
  if (lost.size() == count_.seats().size()) return finish(count_.verdict());
  if (lost != without_) return plan_on(std::move(lost));
  if (!next->ok()) return finish(no_going_on(count_.verdict(), next->status()));
  tell_going_on(count_.verdict(), lost, running_.plan, **next, options_, console_);
  auto seats = seats_of((**next).plan, running_.plan, count_.seats());
  if (!seats.ok()) return finish(seats.status());
  running_ = std::move(**next);
  return start(std::move(*seats));
}

Status KeeperHead::finish(const Status& status) {
  task_.cancel();
  state_ = State::kFinished;
  deadline_ = Clock::time_point::max();
  return order(FinishOrder{status});
}

}  // namespace agpcs
