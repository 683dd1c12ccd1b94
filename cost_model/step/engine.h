// SPDX-License-Identifier: Apache-2.0
// The event loop of the simulator: runs a step in virtual time.
#pragma once

#include "cost_model/network/event_queue.h"
#include "cost_model/network/flow_calendar.h"
#include "cost_model/network/network.h"
#include "cost_model/step/flat_step.h"
#include "cost_model/step/model.h"
#include "cost_model/step/running_computation.h"
#include "cost_model/step/simulator.h"
#include "ir/base/at.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <limits>
#include <vector>

namespace agpcs {

/// The figures of one rank in a step.
struct RankRun {
  double compute_seconds = 0;
  double exposed_communication = 0;
  double team_exchange = 0;  ///< of that, exchanges within passes of its team
  std::int64_t bytes_sent = 0;
  /// The time in all-reduces among the ranks of its stage alone, by its stages, and in sends. Each
  /// counts from the moment when all its ranks are ready. Only with `StepDetail::bytes`.
  std::vector<double> all_reduce_seconds;
  double send_seconds = 0;
};

/// The figures of a step.
struct StepRun {
  double seconds = 0;
  std::vector<RankRun> ranks;
  std::vector<std::int64_t> link_bytes;
  std::vector<TimelineEvent> timeline;  ///< by start, rank, stream
};

/// The quantities that a run counts besides time.
struct StepDetail {
  bool bytes = false;  ///< bytes by rank and link, and the seconds that they take
  bool timeline = false;
};

/// Runs one step after another without allocation, as long as steps do not grow. Results do not
/// depend on earlier runs. Refers to `cluster`. Not for concurrent use.
class StepEngine {
 public:
  explicit StepEngine(const Cluster& cluster);

  static constexpr double kAll = std::numeric_limits<double>::infinity();

  /// Runs a step. Returns false when instructions wait for each other or for one that never comes.
  /// It ends early, which `ended_early` tells, once it is sure that the step takes more than `most`
  /// seconds: `result().seconds` is then a bound above `most`, and the other figures say nothing.
  /// Cost: O(events x log events), plus bandwidth sharing among the flows that meet.
  bool run(const FlatStep& step, StepDetail detail = {}, double most = kAll);
  bool ended_early() const { return late_; }
  /// Returns the result of the last run.
  const StepRun& result() const { return run_; }
  StepRun& result() { return run_; }
  bool is_done(int rank, int instruction) const { return waits_of(rank)[instruction] == kDone; }

 private:
  static constexpr int kDone = -1;
  enum class EventKind : std::uint8_t {
    kComputed,   // rank's running computation ends; index: instruction
    kGradients,  // a bucket of rank gets its last gradient; index: the instruction that waits for
                 // it
    kFlowing,    // the latency of an exchange's phase has passed; rank: exchange
    kFlowEnd,    // a flow ends; rank: slot
    kBegun,      // the message overhead of an exchange's ends has passed; rank: exchange
    kNeed,       // a pass of rank needs parameters; index: the instruction that gathers them
  };
  struct Rank {
    bool computing = false;
    bool begun = false;      // the rank has computed in this step
    int moving = 0;          // number of the rank's transfers and collectives in progress
    double since = 0;        // when `computing` or `moving` last changed
    double owed = 0;         // seconds that messages add to the next computation
    double left = 0;         // seconds of passes that have not begun, and after; only with `most_`
    double left_to_sum = 0;  // the least of collectives that have not begun; only with `most_`
    bool retimed = false;    // what it computes is in computations_
    int waits_for = -1;      // the sum or gather for which its pass waits within; -1: none
    double exchanging = 0;   // seconds in which its team exchanges, in the pass in progress
    double paused = 0, paused_since = 0;  // seconds that the pass has waited; when the last began
    int first_wait = 0;                   // index in waits_
    int release = 0, release_end = 0;     // releases not announced yet, ascending by time
    double release_base = 0, release_lead = 0;  // times of releases count from the sum of both
    InstructionId backward;                     // the pass of these releases
    std::array<int, kStreamKindCount> running = {-1, -1, -1, -1};  // instruction; -1: empty
    std::array<int, kStreamKindCount> pending = {};  // number of its meetings that have not ended
    std::array<double, kStreamKindCount> start = {};
  };
  /// The effects of a device's kind on its ranks: o, p, c and f of `simulate` (simulator.h).
  struct Effects {
    double overhead = 0, post = 0, slowdown = 0, port_factor = 1;
  };
  /// A team, and the pass that it is in.
  struct Team {
    int met = 0;                             // members that are ready for the next pass
    int index = -1;                          // instruction; -1: in none
    const TeamScript::Pass* pass = nullptr;  // or the end of the step
    std::size_t next = 0;                    // meeting
    int first_exchange = 0;                  // index of the pass's exchanges in `team_exchanges`
    bool last = false;                       // the end of the step follows
    bool slowed = false;                     // messages may slow a member
    double begun = 0, lead = 0;              // the pass; seconds of it before it computes
    double since = 0;                        // when the exchange in progress began
    double exchanging = 0, settled = 0;      // seconds of the pass; those without a meeting
  };
  /// A transfer or collective in progress, and the phase that it is in.
  struct RunningExchange {
    const Exchange* exchange = nullptr;
    std::int64_t bytes = FlatChannel::kOf;
    int object = 0;  // index in arrivals_, or ~team
    std::size_t phase = 0;
    int flows_left = 0;
  };
  struct Ready {
    int rank, index;
  };

  void reset(const FlatStep& step, StepDetail detail, double most);
  void count_left();
  void count_teams();
  bool all_done() const;
  void push(double time, EventKind kind, int rank, int index, int version = 0);
  static std::uint64_t order_of(EventKind kind, int rank, int index);
  bool next_is_flow_end() const;
  bool handle_next();
  void handle(const StepEvent& event);
  int* waits_of(int rank) { return waits_.data() + ranks_[at(rank)].first_wait; }
  const int* waits_of(int rank) const { return waits_.data() + ranks_[at(rank)].first_wait; }
  void satisfy(int rank, int index);
  void begin_ready();
  void begin(int rank, int index);
  void finish(int rank, int index);

  double seconds_of(const FlatRank& rank, const InstructionId& id) const;
  void expect_end(int rank, double lead, double seconds);
  void expect_end_of_sums(int rank, double least);
  void end_if_after(double end);
  double lead_of(int rank) const;
  int first_of(int team) const { return step_->team_ranks[at(step_->team_first[at(team)])]; }
  /// Calls `f(rank)` for each member.
  template <typename F>
  void for_each_member(int team, F f) const {
    for (int i = step_->team_first[at(team)]; i < step_->team_first[at(team) + 1]; ++i) {
      f(step_->team_ranks[at(i)]);
    }
  }
  void meet_team(int team, int index);
  void begin_pass(int team, int index, double lead);
  void begin_run_of_team(int team, double seconds);
  void end_run_of_team(int team);
  void end_exchange_of_team(int team);
  void end_pass(int team);
  double speed_of_team(int team) const;
  void compute(int rank, const PrecedenceGraph::Instruction& instruction, int index, double lead);
  void compute_slowed(int rank, const PrecedenceGraph::Instruction& instruction, int index,
                      double lead, double seconds);
  double gradients_after(int rank, const InstructionId& backward, int bucket) const;
  double needs_after(int rank, const InstructionId& pass, int bucket) const;
  void go_on(int rank, int before, bool runs);
  void set_computing(int rank, bool computing);
  void resume(int rank);
  bool releases_in_order(int rank, const PrecedenceGraph::Instruction& instruction) const;
  void announce_release(int rank);
  void announce(int rank);
  void announce(int rank, const RunningComputation::Ending& ending);
  void end_computation(int rank, int index);
  double speed_of(int rank) const;
  double post_seconds(int rank) const { return effects_[at(step_->ranks[at(rank)].device)].post; }
  void retime_computations();
  void scale_ports();

  void arrive_at_channels(int rank, const PrecedenceGraph::Instruction& instruction);
  void arrive_at_collective(int rank, const PrecedenceGraph::Instruction& instruction);
  template <typename F>
  void for_each_participant(int object, F f) const;
  void start_exchange(int object);
  void start_exchange(const Exchange& exchange, std::int64_t bytes, int object);
  void start_phase(int id);
  void start_flows(int id);
  void count_bytes(const Flow& flow, std::int64_t bytes);
  void count_seconds(int rank, const InstructionId& id, double seconds);
  void end_flow(const FlowEnd& end);
  void next_phase(int id);
  void end_exchange(int id);
  void settle();
  void account(int rank);
  void sort_timeline();

  const Cluster& cluster_;
  const FlatStep* step_ = nullptr;
  StepDetail detail_;
  double most_ = kAll;  // seconds that count
  bool late_ = false;   // the step takes more
  Network network_;
  std::vector<Effects> effects_;  // by device
  std::vector<int> rank_of_;      // by device
  std::vector<Rank> ranks_;
  std::vector<int> waits_;     // by rank, then instruction; kDone after its end
  std::vector<int> arrivals_;  // channels by micro-batch, then as in FlatStep::collectives
  std::vector<Team> teams_;
  double now_ = 0;
  EventQueue events_;
  FlowCalendar flow_ends_;
  std::vector<Ready> ready_;
  std::vector<RunningExchange> exchanges_;
  std::vector<int> free_exchanges_;
  std::vector<FlowEnd> ends_;
  // By rank; used for ranks that messages slow, for passes that wait within, and with a team's
  // first rank for what its members compute.
  std::vector<RunningComputation> computations_;
  std::vector<int> ports_;  // ranks that began or ended computing
  std::vector<DeviceId> touched_;
  StepRun run_;
};

/// Runs `model` once. Errors (kInternal): instructions wait for each other or for one that never
/// comes; the message names them.
Result<StepRun> run_step_model(const Plan& plan, const StepModel& model, const Cluster& cluster,
                               bool timeline);

}  // namespace agpcs
