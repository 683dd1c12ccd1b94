// SPDX-License-Identifier: Apache-2.0
// The event loop of the simulator: runs a step in virtual time.
#pragma once

#include "cost_model/event_queue.h"
#include "cost_model/flat_step.h"
#include "cost_model/flow_calendar.h"
#include "cost_model/network.h"
#include "cost_model/running_computation.h"
#include "cost_model/simulator.h"
#include "cost_model/step_model.h"
#include "ir/at.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <array>
#include <cstdint>
#include <vector>

namespace agpcs {

struct RankRun {
  double compute_seconds = 0;
  double exposed_communication = 0;
  std::int64_t bytes_sent = 0;
  /// In all-reduces, and in sends, each from when its ends were there; with `StepDetail::bytes`.
  double all_reduce_seconds = 0, send_seconds = 0;
};

struct StepRun {
  double seconds = 0;
  std::vector<RankRun> ranks;
  std::vector<std::int64_t> link_bytes;
  std::vector<TimelineEvent> timeline;  ///< by start, rank, stream
};

/// What is counted besides time.
struct StepDetail {
  bool bytes = false;  ///< by rank and link, and the seconds that they take
  bool timeline = false;
};

/// Runs one step after another without allocation, as long as they do not grow. Results do not
/// depend on what ran before. Not for concurrent use. Refers to `cluster`.
class StepEngine {
 public:
  explicit StepEngine(const Cluster& cluster);

  /// False when instructions wait for each other or for one that never comes.
  /// Cost: O(events x log events), plus bandwidth sharing among the flows that meet.
  bool run(const FlatStep& step, StepDetail detail = {});
  /// Of the last run.
  const StepRun& result() const { return run_; }
  StepRun& result() { return run_; }
  bool is_done(int rank, int instruction) const { return waits_of(rank)[instruction] == kDone; }
  /// The instruction at the head of a stream, or -1.
  int running(int rank, StreamKind stream) const {
    return ranks_[at(rank)].running[at(static_cast<int>(stream))];
  }

 private:
  static constexpr int kDone = -1;
  enum class EventKind : std::uint8_t {
    kComputed,   // rank's running computation ends; index: instruction
    kGradients,  // a bucket of rank has its last gradient; index: instruction that waits for it
    kFlowing,    // an exchange's phase has its latency behind it; rank: exchange
    kFlowEnd,    // a flow ends; rank: slot
    kBegun,      // an exchange has the message overhead of its ends behind it; rank: exchange
  };
  struct Rank {
    bool computing = false;
    bool begun = false;                // it has computed
    int moving = 0;                    // transfers and collectives of this rank that run
    double since = 0;                  // of computing and moving
    int first_wait = 0;                // in waits_
    int release = 0, release_end = 0;  // in its program: not announced yet, in order of time
    double release_base = 0, release_lead = 0;                     // their times count from the sum
    std::array<int, kStreamKindCount> running = {-1, -1, -1, -1};  // instruction; -1: none
    std::array<int, kStreamKindCount> pending = {};                // its meetings that did not end
    std::array<double, kStreamKindCount> start = {};
  };
  /// What a device's kind does to its ranks.
  struct Effects {
    double overhead = 0, slowdown = 0, port_factor = 1;
  };
  /// A transfer or collective on its way: where it stands in its phases.
  struct RunningExchange {
    const Exchange* exchange = nullptr;
    std::int64_t bytes = FlatChannel::kOf;
    int object = 0;
    std::size_t phase = 0;
    int flows_left = 0;
  };
  struct Ready {
    int rank, index;
  };

  void reset(const FlatStep& step, StepDetail detail);
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

  void compute(int rank, const PrecedenceGraph::Instruction& instruction, int index);
  void compute_slowed(int rank, const PrecedenceGraph::Instruction& instruction, int index,
                      double lead, double seconds);
  double gradients_after(int rank, int bucket) const;
  bool releases_in_order(int rank, const PrecedenceGraph::Instruction& instruction) const;
  void announce_release(int rank);
  void announce(int rank);
  void end_computation(int rank, int index);
  double speed_of(int rank) const;
  void retime_computations();
  void scale_ports();

  void arrive_at_channels(int rank, const PrecedenceGraph::Instruction& instruction);
  void arrive_at_collective(int rank, const PrecedenceGraph::Instruction& instruction);
  template <typename F>
  void for_each_participant(int object, F f) const;
  void start_exchange(int object);
  void start_phase(int id);
  void start_flows(int id);
  void count_bytes(const Flow& flow, std::int64_t bytes);
  void count_seconds(int rank, Opcode opcode, double seconds);
  void end_flow(const FlowEnd& end);
  void next_phase(int id);
  void end_exchange(int id);
  void settle();
  void account(int rank);
  void sort_timeline();

  const Cluster& cluster_;
  const FlatStep* step_ = nullptr;
  StepDetail detail_;
  Network network_;
  std::vector<Effects> effects_;  // by device
  std::vector<int> rank_of_;      // by device
  std::vector<Rank> ranks_;
  std::vector<int> waits_;     // by rank, then instruction; kDone after its end
  std::vector<int> arrivals_;  // channels by micro-batch, then buckets, last the report
  double now_ = 0;
  EventQueue events_;
  FlowCalendar flow_ends_;
  std::vector<Ready> ready_;
  std::vector<RunningExchange> exchanges_;
  std::vector<int> free_exchanges_;
  std::vector<FlowEnd> ends_;
  std::vector<RunningComputation> computations_;  // by rank, of those that messages slow
  std::vector<int> ports_;                        // ranks that began or ended computing
  std::vector<DeviceId> touched_;
  StepRun run_;
};

/// Runs `model` once. Errors: kInternal when instructions wait for each other or for one that never
/// comes; names them.
Result<StepRun> run_step_model(const Plan& plan, const StepModel& model, const Cluster& cluster,
                               bool timeline);

}  // namespace agpcs
