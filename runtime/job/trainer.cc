// SPDX-License-Identifier: Apache-2.0
// The trainer runs steps, and between them what the last report asked for. Words of a report, which
// are the same on all ranks, decide all that ranks do together. What only rank 0 knows (a better
// plan, or that no plan is better) it says in such a word.
#include "ir/base/median.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/lookup.h"
#include "runtime/job/drift/expectation.h"
#include "runtime/job/idle_probe.h"
#include "runtime/job/link_watch.h"
#include "runtime/job/move_cost.h"
#include "runtime/job/probe_pace.h"
#include "runtime/job/proposal.h"
#include "runtime/job/recording_trainer.h"
#include "runtime/job/renumbered_groups.h"
#include "runtime/job/replan_task.h"
#include "runtime/job/state_moves.h"
#include "runtime/job/switch_budget.h"
#include "runtime/replay/plan_agreement.h"
#include "runtime/replay/plan_exchange.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/support/operation_times.h"
#include "runtime/support/processor_time.h"

#include <agpcs/trainer.h>

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr int kTransportNumbers = 65536;  // numbers for groups, and for flows

// Indices of words in a report (`report_words`).
constexpr std::size_t kStopWord = 0;  // number of ranks that ask to stop
constexpr std::size_t kPlanWord = 1;  // rank 0's: bytes of a better plan's text, or a value below
constexpr std::size_t kStatisticsWord = 2;
constexpr double kKeep = -1;    // take the present state as what is expected from now on
constexpr double kProbe = -2;   // all ranks probe the links
constexpr double kGlance = -3;  // all ranks glance at a link that is slow

// The first steps of a plan fill caches and pools, so they say nothing about the hardware.
// Likewise, steps before replays begin say nothing about replayed steps.
constexpr int kWarmUpSteps = 2;
constexpr std::size_t kRecentSteps = 16;

// Part of a step that an idle rank's probe takes of its processor, and the least seconds: it shows
// a quota that stops a rank sooner than that.
constexpr double kProbeOfStep = 0.2, kLeastProbe = 0.05;

double seconds_since(std::int64_t begin) {
  return static_cast<double>(steady_nanoseconds() - begin) * 1e-9;
}

// A plan and all that replays it. Members are destroyed in reverse order.
struct Generation {
  Plan plan;
  std::unique_ptr<RenumberedGroups> transport;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<RecordingReplayer> replayer;
  std::optional<StepStatistics> statistics;
  std::optional<DriftDetector> detector;
  std::optional<LinkWatch> links;
  std::unique_ptr<IdleProbe> idle_probe;
  int steps = 0;
};

class PlanTrainer final : public Trainer {
 public:
  PlanTrainer(int rank, Transport& transport, ExecutorFactory make_executor,
              const TrainerOptions& options, TrainerRecording recording)
      : rank_(rank),
        transport_(transport),
        make_executor_(std::move(make_executor)),
        options_(options),
        recording_(std::move(recording)),
        warm_up_steps_(std::max(kWarmUpSteps, recording_.after)),
        budget_(options.switching),
        next_step_(options.replay.first_step) {
    if (rank_ == 0 && options_.replanner != nullptr) replanning_.emplace(*options_.replanner);
  }

  Status begin(const Plan& plan);
  Result<StepReport> run_step() override;
  Result<Evaluation> evaluate() override { return now_->replayer->evaluate(); }
  void ask_to_stop() override { stop_asked_.store(true, std::memory_order_relaxed); }
  bool stops() const override { return stops_; }
  std::int64_t next_step() const override { return next_step_; }
  const Plan& plan() const override { return now_->plan; }
  Executor& executor() override { return *now_->executor; }
  const Replayer& replayer() const override { return *now_->replayer; }

 private:
  bool exchanges() const;
  bool idle() const;
  void fill_report();
  void read_report(const StepReport& report);
  Status between_steps();
  Status look_at_links();
  Status glance();
  Result<bool> probe();
  Status handle_drift();
  void tell_drift();
  bool wants_probe() const;
  bool wants_glance() const;
  void watch_replanning();
  void say_waiting();
  void consider(Replan replan);
  void keep(std::string why, const Replan* replan = nullptr);
  Result<double> seconds_to_move(const Plan& plan) const;
  Status take_over(std::int64_t announced);
  Result<std::string> prepare(const Plan& plan, Generation& next);
  Status move_to(Generation next, std::int64_t begin);
  Result<bool> all_agree(bool here);
  void tell(const TrainerEvent& event) const {
    if (options_.on_event) options_.on_event(event);
  }
  TrainerEvent event(TrainerEvent::Kind kind) const;

  const int rank_;
  Transport& transport_;
  const ExecutorFactory make_executor_;
  const TrainerOptions options_;
  const TrainerRecording recording_;
  const int warm_up_steps_;
  SwitchBudget budget_;
  HeldTime held_;
  std::optional<ReplanTask> replanning_;  // on rank 0 only
  std::int64_t next_step_;
  int next_number_ = 0;  // first free number of groups and flows on `transport_`
  std::unique_ptr<Generation> now_;
  double prepare_seconds_ = 0;  // time that preparing a plan took

  std::atomic<bool> stop_asked_{false};
  bool stops_ = false;
  bool look_at_links_ = false;        // a probe is due before the next step
  bool glance_ = false;               // a glance is due before the next step
  std::vector<DriftChange> drift_;    // changes just established, not yet handled
  std::int64_t announced_bytes_ = 0;  // size of a plan that rank 0 has announced; 0: none
  bool moved_ = false;                // the job has left its first plan
  ProbePace pace_;
  std::deque<double> recent_;  // seconds of steps, for each batch

  // Used on rank 0 only.
  Proposal proposal_;
  bool keep_ = false;     // the next exchange says `kKeep`
  bool waiting_ = false;  // a search is due once the budget allows it
  bool said_waiting_ = false;
};

Status PlanTrainer::begin(const Plan& plan) {
  auto first = std::make_unique<Generation>();
  first->plan = plan;
  const std::int64_t begin = steady_nanoseconds();
  first->transport = std::make_unique<RenumberedGroups>(transport_, next_number_);
  next_number_ += numbers_of(plan);
  AGPCS_TRY(first->executor, make_executor_());
  AGPCS_TRY(first->replayer,
            RecordingReplayer::create(first->plan, rank_, *first->transport, *first->executor,
                                      options_.replay, recording_.after));
  first->statistics.emplace(first->plan, rank_);
  first->detector.emplace(first->plan, options_.drift);
  first->links.emplace(first->plan);
  now_ = std::move(first);
  prepare_seconds_ = seconds_since(begin);
  return {};
}

bool PlanTrainer::exchanges() const {
  const std::int64_t every = now_->plan.training.statistics_every;
  return every > 0 && (next_step_ + 1) % every == 0;
}

bool PlanTrainer::idle() const {
  const int stage = now_->plan.stage_of_rank(rank_);
  return now_->plan.stages[static_cast<std::size_t>(stage)].idle();
}

Result<StepReport> PlanTrainer::run_step() {
  AGPCS_RETURN_IF_ERROR(between_steps());
  fill_report();
  const StepRecording& recording = now_->replayer->recording();
  const bool decided = recording.decided;
  AGPCS_TRY(const StepReport report, now_->replayer->run_step());
  if (recording.decided && !decided && recording_.on_decided) {
    recording_.on_decided(next_step_, recording);
  }
  read_report(report);
  return report;
}

void PlanTrainer::fill_report() {
  std::vector<double>& words = now_->replayer->to_report();
  words[kStopWord] = stop_asked_.load(std::memory_order_relaxed) ? 1 : 0;
  if (!exchanges()) return;
  if (idle()) {
    if (!now_->idle_probe) now_->idle_probe = std::make_unique<IdleProbe>(*now_->executor);
    const double seconds = std::max(kLeastProbe, kProbeOfStep * step_seconds(now_->plan));
    if (const auto took = now_->idle_probe->take(seconds)) now_->statistics->add_probe(*took);
  }
  const StatisticsWords mine = words_of(now_->statistics->take(held_.take()));
  const std::size_t first = kStatisticsWord + static_cast<std::size_t>(rank_) * mine.size();
  std::copy(mine.begin(), mine.end(), words.begin() + static_cast<std::ptrdiff_t>(first));
  watch_replanning();
  const bool returned = now_->links->returned_lately();
  const std::size_t bytes = proposal_.announced(now_->detector->suspects_devices(), returned);
  words[kPlanWord] = keep_ ? kKeep : static_cast<double>(bytes);
  if (words[kPlanWord] == 0)
    words[kPlanWord] = wants_probe() ? kProbe : wants_glance() ? kGlance : 0;
  keep_ = false;
}

void PlanTrainer::read_report(const StepReport& report) {
  const bool exchanged = exchanges();
  const std::vector<double>& words = now_->replayer->reported();
  if (++now_->steps > warm_up_steps_) {
    now_->statistics->add(now_->replayer->times().row(report.step));
    recent_.push_back(report.seconds / options_.replay.batches);
    if (recent_.size() > kRecentSteps) recent_.pop_front();
  }
  stops_ = words[kStopWord] > 0;
  next_step_ = report.step + 1;
  if (!exchanged || now_->steps <= warm_up_steps_) return;
  std::vector<RankStatistics> by_rank(static_cast<std::size_t>(transport_.size()));
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    StatisticsWords of_rank{};
    std::copy_n(words.begin() + static_cast<std::ptrdiff_t>(kStatisticsWord + r * of_rank.size()),
                of_rank.size(), of_rank.begin());
    by_rank[r] = statistics_of(of_rank);
  }
  drift_ = now_->detector->add(report.step, by_rank);
  look_at_links_ = now_->links->due(now_->detector->suspects_links(), words[kPlanWord] == kProbe) &&
                   transport_.size() > 1;
  glance_ = words[kPlanWord] == kGlance;
  if (words[kPlanWord] == kKeep) now_->detector->accept();
  announced_bytes_ = std::max<std::int64_t>(0, static_cast<std::int64_t>(words[kPlanWord]));
}

Status PlanTrainer::between_steps() {
  const bool confirms = pace_.confirms();
  const bool look = std::exchange(look_at_links_, false) || confirms;
  const bool glances = std::exchange(glance_, false);
  const std::int64_t announced = std::exchange(announced_bytes_, 0);
  if (announced > 0) {
    AGPCS_RETURN_IF_ERROR(take_over(announced));
  } else if (!drift_.empty()) {
    AGPCS_RETURN_IF_ERROR(handle_drift());
  } else if (look) {
    AGPCS_RETURN_IF_ERROR(look_at_links());
  } else if (glances) {
    AGPCS_RETURN_IF_ERROR(glance());
  }
  drift_.clear();
  return {};
}

Status PlanTrainer::glance() {
  const std::int64_t begin = steady_nanoseconds();
  AGPCS_TRY(const auto glanced, probe_links(now_->plan, *now_->transport, options_.replay.limit,
                                            {now_->links->glance_at()}));
  pace_.glanced(begin, steady_nanoseconds());
  return now_->links->glance(glanced) ? look_at_links() : Status();
}

Status PlanTrainer::look_at_links() {
  AGPCS_TRY(const bool changed, probe());
  pace_.confirm(now_->links->confirming(), step_seconds(now_->plan));
  if (!changed) return {};
  now_->detector->learn_communication_anew();
  tell_drift();
  return {};
}

Result<bool> PlanTrainer::probe() {
  const std::int64_t begin = steady_nanoseconds();
  AGPCS_TRY(auto probed, probe_links(now_->plan, *now_->transport, options_.replay.limit));
  pace_.probed(begin, steady_nanoseconds());
  return now_->links->note(std::move(probed));
}

Status PlanTrainer::handle_drift() {
  if (transport_.size() > 1) AGPCS_RETURN_IF_ERROR(probe().status());
  if (now_->links->accept()) now_->detector->learn_communication_anew();
  tell_drift();
  return {};
}

void PlanTrainer::tell_drift() {
  TrainerEvent drift = event(TrainerEvent::Kind::kDrift);
  drift.changes = drift_;
  drift.before = now_->links->before();
  drift.now = now_->links->now();
  tell(drift);
  if (!replanning_) return;
  proposal_.drop();  // it was made for hardware that has changed
  replanning_->stop();
  waiting_ = true;
}

// Returns whether to ask for a probe of all links: on rank 0, while something differs from the
// job's start. Called before each exchange.
bool PlanTrainer::wants_probe() const {
  if (rank_ != 0 || now_->links->before().empty()) return false;
  const bool degraded = moved_ || now_->links->changed() || !now_->detector->established().empty();
  return degraded && pace_.probe_due(steady_nanoseconds());
}

// Returns whether to ask for a glance, under the same conditions.
bool PlanTrainer::wants_glance() const {
  return rank_ == 0 && !now_->links->slow().empty() &&
         pace_.glance_due(steady_nanoseconds(), now_->links->glances_in_vain());
}

TrainerEvent PlanTrainer::event(TrainerEvent::Kind kind) const {
  TrainerEvent made;
  made.kind = kind;
  made.step = next_step_;
  return made;
}

// Follows the search for a better plan. Called on rank 0 before each exchange.
void PlanTrainer::watch_replanning() {
  if (!replanning_) return;
  if (replanning_->busy()) {
    auto outcome = replanning_->take();
    if (!outcome) return;
    if (!outcome->ok()) return keep(outcome->status().message());
    if (!outcome->value()) return keep("the hardware is as the plan expects");
    return consider(std::move(*outcome->value()));
  }
  if (!waiting_ || proposal_.made()) return;
  if (now_->detector->established().empty() && !now_->links->changed()) {  // all is as before
    waiting_ = false;
    return;
  }
  if (!budget_.allows(steady_nanoseconds())) return say_waiting();
  waiting_ = said_waiting_ = false;
  HardwareReport hardware;
  hardware.step = next_step_;
  hardware.changes = now_->detector->established();
  hardware.computing = now_->detector->computing();
  hardware.before = now_->links->before();
  hardware.now = now_->links->now();
  if (!recent_.empty()) hardware.step_seconds = median({recent_.begin(), recent_.end()});
  replanning_->start(now_->plan, hardware);
}

void PlanTrainer::say_waiting() {
  if (std::exchange(said_waiting_, true)) return;
  TrainerEvent kept = event(TrainerEvent::Kind::kKept);
  kept.why = fmt::format("there were {} moves within {:.0f} s; the next one has to wait",
                         options_.switching.most_switches, options_.switching.window_seconds);
  tell(kept);
}

void PlanTrainer::consider(Replan replan) {
  std::string why = obstacle_to_switch(now_->plan, replan.plan);
  if (!why.empty()) return keep("the new plan does not fit: " + why, &replan);
  const Result<double> seconds = seconds_to_move(replan.plan);
  if (!seconds.ok())
    return keep("the new plan does not fit: " + seconds.status().message(), &replan);
  why = why_not_worth_it(replan, options_.switching, *seconds);
  if (!why.empty()) return keep(std::move(why), &replan);
  const Replan& made = proposal_.make(std::move(replan));
  TrainerEvent proposed = event(TrainerEvent::Kind::kProposed);
  proposed.plan = &made.plan;
  proposed.running_step_seconds = made.running_step_seconds;
  proposed.step_seconds = made.step_seconds;
  tell(proposed);
}

void PlanTrainer::keep(std::string why, const Replan* replan) {
  keep_ = true;
  TrainerEvent kept = event(TrainerEvent::Kind::kKept);
  if (replan != nullptr) {
    kept.running_step_seconds = replan->running_step_seconds;
    kept.step_seconds = replan->step_seconds;
  }
  kept.why = std::move(why);
  tell(kept);
}

// A move prepares a plan, and carries what ranks do not hold yet.
Result<double> PlanTrainer::seconds_to_move(const Plan& plan) const {
  AGPCS_TRY(const std::vector<StateMove> moves,
            plan_state_moves(state_under(now_->plan), state_under(plan)));
  return prepare_seconds_ + seconds_of(moves, now_->links->now());
}

Result<bool> PlanTrainer::all_agree(bool here) {
  AGPCS_TRY(const std::int64_t agreeing, sum_over_ranks(here ? 1 : 0, world_group(now_->plan),
                                                        *now_->transport, options_.replay.limit));
  return agreeing == transport_.size();
}

// Distributes the plan that rank 0 announced. All ranks move to it, or none does.
Status PlanTrainer::take_over(std::int64_t announced) {
  const std::int64_t begin = steady_nanoseconds();
  AGPCS_TRY(const std::string text,
            share_text(proposal_.text(), announced, *now_->transport, options_.replay.limit));
  proposal_.drop();
  auto plan = parse_plan(text, "the new plan");
  Generation next;
  std::string why = plan.ok() ? obstacle_to_switch(now_->plan, *plan) : plan.status().message();
  if (why.empty()) {
    const auto prepared = prepare(*plan, next);
    why = prepared.ok() ? *prepared : prepared.status().message();
  }
  AGPCS_TRY(const bool agreed, all_agree(why.empty()));
  if (agreed) return move_to(std::move(next), begin);
  if (rank_ == 0) keep(why.empty() ? "a rank could not prepare the new plan" : why);
  return {};
}

// Does the part of a move that can fail on this rank alone.
Result<std::string> PlanTrainer::prepare(const Plan& plan, Generation& next) {
  next.plan = plan;
  AGPCS_TRY(next.executor, make_executor_());
  AGPCS_RETURN_IF_ERROR(prepare_executor(next.plan, rank_, *next.executor));
  if (next_number_ + numbers_of(plan) > kTransportNumbers) {
    return std::string("groups and flows have no more numbers");
  }
  return std::string();
}

Status PlanTrainer::move_to(Generation next, std::int64_t begin) {
  next.transport = std::make_unique<RenumberedGroups>(transport_, next_number_);
  next_number_ += numbers_of(next.plan);
  ReplayOptions replay = options_.replay;
  replay.first_step = next_step_;
  replay.prepared = true;
  AGPCS_TRY(next.replayer, RecordingReplayer::create(next.plan, rank_, *next.transport,
                                                     *next.executor, replay, recording_.after));
  const auto limit = options_.replay.limit;
  AGPCS_TRY(const StateOwners before,
            share_state_owners(now_->executor->state(), *next.transport, limit));
  AGPCS_TRY(const StateOwners after,
            share_state_owners(next.executor->state(), *next.transport, limit));
  AGPCS_TRY(const std::vector<StateMove> moves, plan_state_moves(before, after));
  AGPCS_RETURN_IF_ERROR(move_state(moves, *now_->executor, *next.executor, *next.transport, limit));
  next.statistics.emplace(next.plan, rank_);
  next.detector.emplace(next.plan, options_.drift);
  next.links.emplace(next.plan, now_->links->first());
  const std::unique_ptr<RenumberedGroups> left = std::move(now_->transport);
  const int groups_left = group_count(now_->plan);
  now_ = nullptr;  // destroys the replayer before the executor
  now_ = std::make_unique<Generation>(std::move(next));
  // Closing waits for all ranks, but only as long as opening does, so all ranks must have their
  // state first.
  AGPCS_RETURN_IF_ERROR(all_agree(true).status());
  AGPCS_RETURN_IF_ERROR(left->close_groups(0, groups_left));
  moved_ = true;
  recent_.clear();
  budget_.spend(steady_nanoseconds());
  TrainerEvent switched = event(TrainerEvent::Kind::kSwitched);
  switched.plan = &now_->plan;
  switched.bytes_moved = bytes_of(moves);
  switched.seconds = prepare_seconds_ = seconds_since(begin);
  tell(switched);
  return {};
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(const Plan& plan, int rank, Transport& transport,
                                                 ExecutorFactory make_executor,
                                                 const TrainerOptions& options) {
  return make_recording_trainer(plan, rank, transport, std::move(make_executor), options, {});
}

Result<std::unique_ptr<Trainer>> make_recording_trainer(const Plan& plan, int rank,
                                                        Transport& transport,
                                                        ExecutorFactory make_executor,
                                                        const TrainerOptions& options,
                                                        TrainerRecording recording) {
  auto trainer = std::make_unique<PlanTrainer>(rank, transport, std::move(make_executor), options,
                                               std::move(recording));
  AGPCS_RETURN_IF_ERROR(trainer->begin(plan));
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace agpcs
