// SPDX-License-Identifier: Apache-2.0
#include "tools/run/keeper/keeper.h"

#include "ir/plan/lookup.h"
#include "runtime/bootstrap/listen_place.h"
#include "tools/run/keeper/head.h"
#include "tools/run/rank.h"
#include "tools/run/replan.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <mutex>
#include <poll.h>
#include <string_view>
#include <system_error>
#include <thread>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kMaxPort = 65535;

int keepers_port(int port) { return port < kMaxPort ? port + 1 : port - 1; }

// Waits for a bootstrap's events on a thread of its own, for a loop that polls.
class EventFollower {
 public:
  explicit EventFollower(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}
  ~EventFollower() {
    leaving_ = true;
    if (thread_.joinable()) thread_.join();
  }
  EventFollower(const EventFollower&) = delete;
  EventFollower& operator=(const EventFollower&) = delete;

  Status start() {
    AGPCS_RETURN_IF_ERROR(make_pipe(wake_read_, wake_write_));
    thread_ = std::thread([this] { run(); });
    return {};
  }
  int fd() const { return wake_read_.get(); }
  /// Returns the events since the last call. An error is always the last item.
  std::vector<Result<BootstrapEvent>> take() {
    char drained[64];
    while (read(wake_read_.get(), drained, sizeof drained) > 0) {
    }
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  void run() {
    constexpr milliseconds kLook{200};  // interval at which it checks whether to stop
    for (std::int64_t number = 0; !leaving_;) {
      auto event = bootstrap_.event(number, kLook);
      if (!event.ok() && event.status().code() == StatusCode::kTimeout) continue;
      const bool last = !event.ok();
      {
        const std::lock_guard lock(mutex_);
        events_.push_back(std::move(event));
      }
      [[maybe_unused]] const auto written = write(wake_write_.get(), "x", 1);
      if (last) return;
      ++number;
    }
  }

  Bootstrap& bootstrap_;
  Fd wake_read_, wake_write_;
  std::mutex mutex_;
  std::vector<Result<BootstrapEvent>> events_;
  std::atomic<bool> leaving_{false};
  std::thread thread_;
};

class Keeper {
 public:
  Keeper(const Plan& plan, const RunOptions& options, const RankPlace& place, Console console)
      : plan_(plan),
        options_(options),
        place_(place),
        console_(console),
        device_(devices_of_ranks(plan)[static_cast<std::size_t>(place.rank)]),
        rank_options_(options_of_ranks(options)) {}

  Status run();

 private:
  Status meet();
  void turn();
  void poll_all();
  void watch_rank();
  void take(const Result<BootstrapEvent>& event);
  void obey(const KeeperMessage& order);
  Result<ReadyReport> place_to_serve();
  void look(const LookOrder& order);
  Status sees_all(const LookOrder& order) const;
  Status start_rank(const StartOrder& order);
  Status resume_by(const StartOrder& order);
  void ask_to_stop();
  void finish(const Status& status);
  Status out_of_touch(const Status& why) const;
  void say(const KeeperMessage& message);

  const Plan& plan_;
  const RunOptions& options_;
  const RankPlace& place_;
  const Console console_;
  const std::string device_;
  GivenOptions rank_options_;  // of the running generation
  int generation_ = -1;
  bool finished_ = false, asked_ = false;
  Status status_;

  StarterSignals signals_;
  Fd listening_;  // where its rank serves if it becomes rank 0
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<EventFollower> events_;
  std::unique_ptr<KeeperHead> head_;   // on seat 0
  std::unique_ptr<RankProcess> rank_;  // null while there is no rank
  Clock::time_point rank_deadline_ = Clock::time_point::max();
};

Status Keeper::run() {
  AGPCS_RETURN_IF_ERROR(meet());
  events_ = std::make_unique<EventFollower>(*bootstrap_);
  AGPCS_RETURN_IF_ERROR(events_->start());
  if (place_.rank == 0) {
    head_ = std::make_unique<KeeperHead>(plan_, options_, *bootstrap_, console_);
    AGPCS_RETURN_IF_ERROR(head_->begin());
  }
  while (!finished_) turn();
  return status_;
}

// Joins the other keepers. Until they have met, a signal ends this one at once.
Status Keeper::meet() {
  AGPCS_RETURN_IF_ERROR(signals_.watch());
  BootstrapOptions meeting =
      bootstrap_options(options_, place_, device_, digest_of(print_plan(plan_)));
  if (place_.rank == 0) {  // who warns of the place is the keepers' own service
    AGPCS_TRY(const ListenPlace at,
              place_of_service(meeting.bind, meeting.address, meeting.one_machine));
    AGPCS_TRY(listening_, listen_at(at.address, place_.port));
  }
  meeting.port = keepers_port(place_.port);
  meeting.outlives_ranks = true;
  Result<std::unique_ptr<Bootstrap>> joined = internal_error("did not join");
  std::thread joiner([&] { joined = Bootstrap::join(meeting); });
  signals_.let_through();
  joiner.join();
  signals_.hold();
  if (joined.ok()) {
    bootstrap_ = std::move(*joined);
    return {};
  }
  const Status why = joined.status();
  if (why.code() != StatusCode::kUnavailable) return why;
  return {
      why.code(),
      fmt::format("{}\n  hint: every rank needs --elastic, and the port after the job's on rank "
                  "0's machine: {}",
                  why.message(), meeting.port)};
}

void Keeper::turn() {
  poll_all();
  if (signals_.read()) {
    say(AskedReport{signals_.caught()});
    ask_to_stop();
  }
  watch_rank();
  for (const auto& event : events_->take()) {
    if (!finished_) take(event);
  }
  if (!head_ || finished_) return;
  const Status status = head_->step();
  if (!status.ok()) finish(out_of_touch(status));
}

void Keeper::poll_all() {
  auto deadline = rank_deadline_;
  std::vector<pollfd> fds{{signals_.fd(), POLLIN, 0}, {events_->fd(), POLLIN, 0}};
  if (rank_ && rank_->report_fd() >= 0) fds.push_back({rank_->report_fd(), POLLIN, 0});
  if (head_) {
    deadline = std::min(deadline, head_->deadline());
    if (head_->task_fd() >= 0) fds.push_back({head_->task_fd(), POLLIN, 0});
  }
  poll(fds.data(), fds.size(), poll_timeout(deadline));
}

void Keeper::watch_rank() {
  if (!rank_) return;
  rank_->read_word();
  if (rank_->reap()) {
    say(EndedReport{generation_, rank_->end()});
    rank_.reset();
    rank_deadline_ = Clock::time_point::max();
  } else if (signals_.caught_twice() || Clock::now() >= rank_deadline_) {
    rank_->kill();
    rank_deadline_ = Clock::time_point::max();
  }
}

void Keeper::take(const Result<BootstrapEvent>& event) {
  if (!event.ok()) return finish(out_of_touch(event.status()));
  if (head_) head_->take(*event);
  if (event->rank != 0 || event->lost) return;
  const auto order = parse_keeper_message(event->text);
  if (order.ok()) return obey(*order);
  say(BrokenReport{order.status()});
}

void Keeper::obey(const KeeperMessage& order) {
  if (const auto* look_for = std::get_if<LookOrder>(&order)) {
    look(*look_for);
  } else if (const auto* start = std::get_if<StartOrder>(&order)) {
    const Status started = start_rank(*start);
    if (!started.ok()) say(BrokenReport{started});
  } else if (const auto* end = std::get_if<EndOrder>(&order)) {
    if (rank_ && end->generation == generation_) rank_deadline_ = Clock::now() + kEndGrace;
  } else if (const auto* stop = std::get_if<StopOrder>(&order)) {
    if (stop->seat == place_.rank) ask_to_stop();
  } else if (const auto* last = std::get_if<FinishOrder>(&order)) {
    finish(last->status);
  }
}

Result<ReadyReport> Keeper::place_to_serve() {
  if (place_.rank == 0) return ReadyReport{place_.address, place_.port};
  std::string here = options_.address.empty() ? bootstrap_->local_address() : options_.address;
  std::string place = here;
  if (!options_.bind.empty()) {
    AGPCS_TRY(place, address_of_bind(options_.bind, here));
    if (options_.address.empty() && !is_every_address(place)) here = place;
  }
  AGPCS_TRY(listening_, listen_at(place));
  return ReadyReport{std::move(here), port_of(listening_.get())};
}

// Checks that this keeper sees --save. Any rank may become rank 0, which plans and goes on from
// what another rank saved.
void Keeper::look(const LookOrder& order) {
  const auto ready = [&]() -> Result<ReadyReport> {
    AGPCS_RETURN_IF_ERROR(sees_all(order));
    return place_to_serve();
  }();
  if (ready.ok()) return say(*ready);
  const Status& why = ready.status();
  say(BrokenReport{
      {why.code(), fmt::format("{}: {}", rank_name(place_.rank, device_), why.message())}});
}

Status Keeper::sees_all(const LookOrder& order) const {
  std::error_code error;
  if (!std::filesystem::exists(options_.save + "/" + order.file, error)) {
    return invalid_input(
        fmt::format("--save {} is not the folder that rank 0 sees\n"
                    "  hint: with --elastic any rank may have to go on from a checkpoint: save to "
                    "a folder that all machines share",
                    options_.save));
  }
  return read_file(options_.replan, {"cluster file"}).status();
}

Status Keeper::start_rank(const StartOrder& order) {
  if (order.generation > 0) {
    AGPCS_RETURN_IF_ERROR(resume_by(order));
  }
  generation_ = order.generation;
  const auto seat = std::find(order.seats.begin(), order.seats.end(), place_.rank);
  if (seat == order.seats.end()) return {};  // its rank is lost; it waits for the end of the job
  const auto rank = static_cast<int>(seat - order.seats.begin());
  std::vector<std::string> argv{"agpcs-run"};
  const std::vector<std::string> args = rank_options_.arguments();
  argv.insert(argv.end(), args.begin(), args.end());
  // The token differs by generation, so that ranks of different generations do not meet.
  const std::string token = fmt::format("{}/{}", place_.token, generation_);
  const EnvironmentVariables variables{{"RANK", std::to_string(rank)},
                                       {"WORLD_SIZE", std::to_string(order.seats.size())},
                                       {"LOCAL_RANK", std::to_string(place_.local_rank)},
                                       {"LOCAL_WORLD_SIZE", std::to_string(place_.local_size)},
                                       {"MASTER_ADDR", order.address},
                                       {"AGPCS_PORT", std::to_string(order.port)},
                                       {"AGPCS_JOB_TOKEN", token},
                                       {"AGPCS_LAUNCHER", place_.launcher}};
  rank_ = std::make_unique<RankProcess>(rank_name(rank, device_));
  rank_deadline_ = Clock::time_point::max();
  AGPCS_RETURN_IF_ERROR(rank_->start(std::move(argv), variables, rank == 0 ? listening_.get() : -1,
                                     signals_.old_mask()));
  if (asked_) rank_->ask_to_stop();  // the request came while the order was on its way
  return {};
}

// Lets the ranks go on by the plan of a later generation, which is kept beside the first one.
Status Keeper::resume_by(const StartOrder& order) {
  std::string text;
  for (int piece = 0; piece < order.pieces; ++piece) {
    AGPCS_TRY(const std::string more, bootstrap_->get(plan_key(order.generation, piece),
                                                      milliseconds_of(options_.stall_limit)));
    text += more;
  }
  AGPCS_TRY(const std::string path,
            beside_plan_or_checkpoints(options_, [&](const std::string& old_plan) {
              return keep_beside(old_plan, order.label, text, console_);
            }));
  resume_by_plan(rank_options_, path, next_resume(options_));
  return {};
}

void Keeper::ask_to_stop() {
  if (rank_ && !asked_) rank_->ask_to_stop();
  asked_ = true;
}

void Keeper::finish(const Status& status) {
  finished_ = true;
  status_ = status;
}

// Returns the error of a keeper that has lost rank 0's keeper or is not trusted by it: it cannot go
// on.
Status Keeper::out_of_touch(const Status& why) const {
  const Status known = bootstrap_->wait_for_failure(std::chrono::seconds(1));
  const std::string text = known.ok() ? why.message() : known.message();
  if (place_.rank != 0 && text.rfind(fmt::format("rank {} ", place_.rank), 0) == 0) {
    return {StatusCode::kPeerFailed, text + "\n  the others go on without it"};
  }
  const std::string_view whose = text.rfind("rank 0", 0) == 0 ? "the starter of " : "";
  return {StatusCode::kPeerFailed,
          fmt::format("{}{}\n"
                      "  hint: rank 0's starter counts the ranks and plans for all, and without it "
                      "the job ends: start it again, with --resume {}",
                      whose, text, next_resume(options_))};
}

// Sends a message. A failure is ignored: the others then notice the silence.
void Keeper::say(const KeeperMessage& message) {
  [[maybe_unused]] const Status said = bootstrap_->say(text_of(message));
}

}  // namespace

Status run_keeper(const Plan& plan, const RunOptions& options, const RankPlace& place,
                  Console console) {
  AGPCS_RETURN_IF_ERROR(check_size(plan, place));
  Keeper keeper(plan, options, place, console);
  return keeper.run();
}

}  // namespace agpcs
