// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/critical_path.h"

#include "cost_model/network/link_model.h"
#include "cost_model/step/model.h"
#include "ir/base/at.h"
#include "ir/plan/lookup.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

/// Walks along the path from the step's end to its start.
class PathFinder {
 public:
  explicit PathFinder(const StepWaits& waits) : waits_(waits) {
    for (int i = 0; i < waits.event_count(); ++i) step_ = std::max(step_, waits.event(i).end);
  }

  std::vector<PathStep> run() {
    int event = last_event();
    double until = step_;
    while (event >= 0) event = add(event, until);
    std::reverse(steps_.begin(), steps_.end());
    return std::move(steps_);
  }

 private:
  /// Returns the instruction that ends with the step: of the lowest rank, the last one.
  int last_event() const {
    int last = 0;
    for (int i = 0; i < waits_.event_count(); ++i) {
      const double end = waits_.event(last).end;
      const bool same_rank = waits_.event(i).rank == waits_.event(last).rank;
      if (waits_.event(i).end > end || (waits_.event(i).end == end && same_rank)) last = i;
    }
    return last;
  }

  /// Adds `event`, on which the path is until `until`. Returns the event before it on the path (-1:
  /// there is none), and sets `until` to the time when that event released this one.
  int add(int event, double& until) {
    const int holder = last_to_come(event);
    if (holder != event) {
      const StreamKind stream = stream_of(waits_.event(event).instruction.opcode);
      const bool transfer = stream == StreamKind::kSend || stream == StreamKind::kRecv;
      push(event, until, until, transfer ? WaitReason::kPeer : WaitReason::kMember);
      event = holder;
    }
    Wait wait = waits_.last_wait(event);
    for (const Pause& pause : waits_.pauses(event)) {
      const bool on_path = pause.until < until - kSame * step_ && pause.until > wait.time;
      if (on_path) wait = {pause.event, WaitReason::kAfter, pause.until};
    }
    const double since = std::min(wait.event < 0 ? 0 : wait.time, until);
    push(event, since, until, wait.reason);
    until = since;
    return wait.event;
  }

  void push(int event, double since, double until, WaitReason reason) {
    const TimelineEvent& e = waits_.event(event);
    steps_.push_back({e.rank, e.instruction, e.start, e.end, since, until, reason, e.exchanging});
  }

  /// Returns the participant that came last to the meeting that determined the end of `event`.
  int last_to_come(int event) const {
    int last = event;
    double start = -1;
    const double end = waits_.event(event).end - kSame * step_;
    for (const int id : waits_.meetings_of(event)) {
      const WaitMeeting& meeting = waits_.meetings()[at(id)];
      if (meeting.end < end || meeting.start <= start) continue;
      start = meeting.start;
      last = event;
      for (const int other : meeting.events) {
        if (waits_.arrival(other) > waits_.arrival(last) + kSame * step_) last = other;
      }
    }
    return last;
  }

  const StepWaits& waits_;
  double step_ = 0;
  std::vector<PathStep> steps_;
};

/// Sums the path's time by sort.
class PathSorter {
 public:
  PathSorter(const Plan& plan, const StepModel& model, const Cluster& cluster)
      : plan_(plan), model_(model), cluster_(cluster) {}

  std::vector<PathPart> run(const std::vector<PathStep>& steps) {
    for (const PathStep& step : steps) add(step);
    std::vector<PathPart> parts;
    for (const auto& [key, seconds] : seconds_) {
      if (seconds > 0) parts.push_back({key.first, name_of_part(key.first, key.second), seconds});
    }
    return parts;
  }

 private:
  void add(const PathStep& step) {
    double rest = step.until - step.since;
    if (rest <= 0) return;
    const bool compute = stream_of(step.instruction.opcode) == StreamKind::kCompute;
    const double overhead = compute ? 0 : std::min(rest, alone(step).overhead);
    seconds_[{PathSort::kOverhead, 0}] += overhead;
    rest -= overhead;
    if (compute) {
      const int stage = Plan::stage_of_pass(step.instruction, model_.ranks[at(step.rank)].stage);
      const double exchange = std::min(rest, step.exchanging);
      seconds_[{PathSort::kCompute, stage}] += rest - exchange;
      seconds_[{PathSort::kTeam, stage}] += exchange;
    } else {
      add_communication(step, rest);
    }
  }

  void add_communication(const PathStep& step, double seconds) {
    const InstructionId& id = step.instruction;
    const double latency = std::min(seconds, alone(step).latency);
    // Rounding leaves differences in the last digits, which are not sharing.
    const double more = seconds - alone(step).seconds;
    const double sharing = more > kSame * step.until ? more : 0;
    seconds_[{PathSort::kLatency, 0}] += latency;
    seconds_[{PathSort::kSharing, 0}] += sharing;
    const bool transfer = stream_of(id.opcode) != StreamKind::kCollective;
    const PathSort sort = transfer ? PathSort::kTransfer : PathSort::kReduce;
    const bool small = is_of_all_ranks(id.opcode);  // has only a few bytes
    seconds_[{small ? PathSort::kLatency : sort, small ? 0 : id.object}] +=
        std::max(0.0, seconds - latency - sharing);
  }

  /// The times of a communicating instruction that has all links to itself.
  struct Alone {
    double overhead = 0, latency = 0, seconds = 0;
  };

  double overhead_of(int rank) const {
    return cluster_.kind_of(model_.ranks[at(rank)].device).message_overhead;
  }

  /// Returns the times of the instruction's slowest exchange.
  const Alone& alone(const PathStep& step) {
    const InstructionId& id = step.instruction;
    const bool transfer = stream_of(id.opcode) != StreamKind::kCollective;
    const int member = model_.ranks[at(step.rank)].member;
    const auto [entry, added] =
        alone_.try_emplace(std::tuple(transfer ? step.rank : -1 - member, id.opcode, id.object,
                                      transfer && id.micro_batch >= model_.smaller_from));
    Alone& slowest = entry->second;
    if (!added) return slowest;
    if (transfer) {
      for (const int channel : model_.channels_of(step.rank, id)) {
        const Channel& c = model_.channels[at(channel)];
        add_exchange(c.exchange, {c.from, c.to}, slowest);
      }
    } else if (is_of_all_ranks(id.opcode)) {
      std::vector<int> all(model_.ranks.size());
      std::iota(all.begin(), all.end(), 0);
      add_exchange(model_.collective_of(step.rank, id), all, slowest);
    } else {
      for (const std::vector<int>& ranks : meeting_ranks(plan_, plan_.buckets[at(id.object)])) {
        if (!std::binary_search(ranks.begin(), ranks.end(), step.rank)) continue;
        add_exchange(model_.collective_of(step.rank, id), ranks, slowest);
      }
    }
    return slowest;
  }

  void add_exchange(const Exchange& exchange, const std::vector<int>& ranks, Alone& slowest) const {
    const double seconds = lone_seconds(cluster_, exchange);
    if (seconds >= slowest.seconds) {
      slowest.seconds = seconds;
      slowest.latency = latency_of(exchange);
    }
    for (const int rank : ranks) slowest.overhead = std::max(slowest.overhead, overhead_of(rank));
  }

  std::string name_of_part(PathSort sort, int index) const {
    switch (sort) {
      case PathSort::kCompute:
      case PathSort::kTeam:
        return plan_.stages[at(index)].name;
      case PathSort::kTransfer:
        return plan_.cuts[at(index)].name;
      case PathSort::kReduce:
        return plan_.buckets[at(index)].name;
      default:
        return "";
    }
  }

  const Plan& plan_;
  const StepModel& model_;
  const Cluster& cluster_;
  std::map<std::pair<PathSort, int>, double> seconds_;
  std::map<std::tuple<int, Opcode, int, bool>, Alone> alone_;
};

/// Finds the latest time at which each instruction may end, from the step's end back.
class SlackFinder {
 public:
  SlackFinder(const StepWaits& waits, double step)
      : waits_(waits),
        step_(step),
        latest_(at(waits.event_count()), step),
        slack_(at(waits.event_count())) {
    // A backward pass waits for such a sum, so it has no slack.
    for (int event = 0; event < waits.event_count(); ++event) {
      for (const Pause& pause : waits.pauses(event)) {
        latest_[at(pause.event)] = waits.event(pause.event).end;
      }
    }
  }

  std::vector<double> run() {
    const std::vector<std::vector<int>> groups = waits_.in_order();
    for (auto group = groups.rbegin(); group != groups.rend(); ++group) {
      for (const int event : *group) finish(event);
    }
    return std::move(slack_);
  }

 private:
  void finish(int event) {
    const TimelineEvent& e = waits_.event(event);
    double begin = latest_[at(event)] - (e.end - e.start);  // latest start
    double slack = latest_[at(event)] - e.end;
    for (const int id : waits_.meetings_of(event)) {
      const double end = latest_end(id);
      const WaitMeeting& meeting = waits_.meetings()[at(id)];
      begin = std::min(begin, end - (meeting.end - meeting.start));
      slack = std::min(slack, end - meeting.end);
    }
    slack_[at(event)] = slack > kSame * step_ ? slack : 0;
    waits_.for_each_wait(event, [&](const Wait& wait) {
      // A bucket's gradients are ready this long before the end of their backward pass.
      const double before = waits_.event(wait.event).end - wait.time;
      latest_[at(wait.event)] = std::min(latest_[at(wait.event)], begin + before);
    });
  }

  /// Returns the earliest of the latest ends of the participants, which are all known by now.
  double latest_end(int meeting) {
    const auto [entry, added] = known_.try_emplace(meeting, step_);
    if (!added) return entry->second;
    for (const int event : waits_.meetings()[at(meeting)].events) {
      entry->second = std::min(entry->second, latest_[at(event)]);
    }
    return entry->second;
  }

  const StepWaits& waits_;
  double step_;
  std::vector<double> latest_;  // the latest end, by event
  std::vector<double> slack_;
  std::map<int, double> known_;  // the latest end, by meeting
};

}  // namespace

CriticalPath critical_path(const Plan& plan, const StepModel& model, const Cluster& cluster,
                           const StepWaits& waits) {
  CriticalPath path;
  path.steps = PathFinder(waits).run();
  path.parts = PathSorter(plan, model, cluster).run(path.steps);
  path.slack = SlackFinder(waits, path.steps.back().until).run();
  return path;
}

}  // namespace agpcs
