// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step_engine.h"

#include "cost_model/network.h"
#include "cost_model/running_computation.h"
#include "cost_model/step_state.h"
#include "ir/check.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

namespace agpcs {
namespace {

enum class EventKind : std::uint8_t {
  kComputed,   // rank's running computation ends; index: instruction
  kGradients,  // a bucket of rank has its last gradient; index: instruction that waits for it
  kFlowing,    // an exchange's phase has its latency behind it; rank: exchange
  kFlowEnd,    // a flow ends; rank: slot, index: version
  kBegun,      // an exchange has the instruction overhead of its ends behind it; rank: exchange
};

struct Event {
  double time = 0;
  EventKind kind = EventKind::kComputed;
  int rank = 0;
  int index = 0;
  int version = 0;  // of a computation's times
  friend bool operator>(const Event& a, const Event& b) {
    return std::tie(a.time, a.kind, a.rank, a.index, a.version) >
           std::tie(b.time, b.kind, b.rank, b.index, b.version);
  }
};

/// A transfer or collective on its way: where it stands in its phases.
struct RunningExchange {
  const Exchange* exchange = nullptr;
  Meeting meeting;
  std::size_t phase = 0;
  int flows_left = 0;
};

class Engine {
 public:
  Engine(const Plan& plan, const StepModel& model, const Cluster& cluster, bool timeline)
      : model_(model),
        cluster_(cluster),
        state_(plan, model),
        network_(cluster.links),
        keep_timeline_(timeline),
        rank_of_(cluster.devices.size(), -1) {
    run_.ranks.resize(model.ranks.size());
    run_.link_bytes.resize(cluster.links.size());
    computations_.resize(model.ranks.size());
    for (std::size_t r = 0; r < model.ranks.size(); ++r) {
      const DeviceId device = model.ranks[r].device;
      rank_of_[static_cast<std::size_t>(device)] = static_cast<int>(r);
      if (cluster.kind_of(device).overlap.compute_seconds_per_byte > 0) network_.watch(device);
    }
  }

  Result<StepRun> run() {
    gather_ready();
    begin_ready();
    while (!events_.empty()) {
      now_ = events_.top().time;
      while (!events_.empty() && events_.top().time == now_) {
        const Event event = events_.top();
        events_.pop();
        handle(event);
        begin_ready();
      }
      settle();
    }
    AGPCS_RETURN_IF_ERROR(state_.check_finished());
    return finish_run();
  }

 private:
  struct Ready {
    int rank, index;
  };

  void gather_ready() {
    for (int rank = 0; rank < static_cast<int>(model_.ranks.size()); ++rank) {
      const auto& program = state_.program_of(rank);
      for (int i = 0; i < static_cast<int>(program.size()); ++i) {
        if (program[static_cast<std::size_t>(i)].waits == 0) ready_.push_back({rank, i});
      }
    }
  }

  const StepInstruction& step(int rank, int index) const {
    return state_.program_of(rank)[static_cast<std::size_t>(index)];
  }
  RankRun& rank_run(int rank) { return run_.ranks[static_cast<std::size_t>(rank)]; }

  void handle(const Event& event) {
    switch (event.kind) {
      case EventKind::kComputed:
        if (computation(event.rank).is_current(event.version)) end_computation(event);
        break;
      case EventKind::kGradients:
        if (computation(event.rank).is_current(event.version)) {
          computation(event.rank).reached(event.index);
          satisfy(event.rank, event.index);
        }
        break;
      case EventKind::kBegun:
        start_phase(event.rank);
        break;
      case EventKind::kFlowing:
        start_flows(event.rank);
        break;
      case EventKind::kFlowEnd:
        end_flow({event.time, event.rank, event.index});
        break;
    }
  }

  void satisfy(int rank, int index) {
    if (state_.satisfy(rank, index)) ready_.push_back({rank, index});
  }

  /// Begins what nothing holds back any more; what it ends at once may free more.
  void begin_ready() {
    for (std::size_t i = 0; i < ready_.size(); ++i) {
      const Ready next = ready_[i];
      begin(next.rank, next.index);
    }
    ready_.clear();
  }

  void begin(int rank, int index) {
    const StepInstruction& instruction = step(rank, index);
    const bool lasts = state_.begin(rank, index, now_);
    if (!lasts) {
      finish(rank, index);
    } else if (instruction.stream == StreamKind::kCompute) {
      compute(rank, index, instruction);
    } else {
      state_.for_each_meeting(rank, instruction, [&](const Meeting& meeting) {
        if (state_.arrive(meeting)) start_exchange(meeting);
      });
    }
  }

  void compute(int rank, int index, const StepInstruction& instruction) {
    const RankTimes& times = model_.ranks[static_cast<std::size_t>(rank)].times;
    const Opcode opcode = instruction.id.opcode;
    const double seconds = opcode == Opcode::kForward    ? times.forward
                           : opcode == Opcode::kBackward ? times.backward
                                                         : times.update;
    account(rank);
    state_.rank(rank).computing = true;
    const DeviceKind& kind = kind_of(rank);
    const double slowdown = kind.overlap.compute_seconds_per_byte;
    Computation& running = computation(rank);
    const double lead = kind.instruction_overhead + (running.is_first() ? times.begin : 0);
    running.start(index, now_, lead + seconds, slowdown > 0 ? speed_of(rank, slowdown) : 1);
    for (const StepInstruction::Release& release : instruction.releases) {
      const double after = times.gradients[static_cast<std::size_t>(release.bucket)];
      running.add_gradients(release.instruction, lead + after);
    }
    computing_changed(rank);
    announce(rank);
  }

  /// Puts the ends of a rank's computation and gradients on the calendar.
  void announce(int rank) {
    computation(rank).for_each_end([&](double time, int instruction, bool gradients) {
      const EventKind kind = gradients ? EventKind::kGradients : EventKind::kComputed;
      events_.push({time, kind, rank, instruction, computation(rank).version()});
    });
  }

  void end_computation(const Event& event) {
    account(event.rank);
    state_.rank(event.rank).computing = false;
    rank_run(event.rank).compute_seconds += computation(event.rank).finish(now_);
    computing_changed(event.rank);
    finish(event.rank, event.index);
  }

  /// How fast a rank computes while messages come and go.
  double speed_of(int rank, double slowdown) const {
    const DeviceId device = model_.ranks[static_cast<std::size_t>(rank)].device;
    return std::max(0.0, 1 - slowdown * network_.rate_of(device));
  }

  /// While a device computes, its ports may carry less.
  void computing_changed(int rank) {
    if (kind_of(rank).overlap.communication_factor != 1) ports_.push_back(rank);
  }

  void finish(int rank, int index) {
    const StepInstruction& instruction = step(rank, index);
    const double start = state_.finish(rank, index);
    run_.seconds = std::max(run_.seconds, now_);
    if (keep_timeline_) run_.timeline.push_back({rank, instruction.id, start, now_});
    for (const int next : instruction.next) satisfy(rank, next);
  }

  void start_exchange(const Meeting& meeting) {
    const int id = new_exchange();
    exchanges_[static_cast<std::size_t>(id)] = {&state_.exchange_of(meeting), meeting, 0, 0};
    double overhead = 0;
    state_.for_each_participant(meeting, [&](int rank, StreamKind stream) {
      account(rank);
      state_.start_moving(rank, stream, now_);
      overhead = std::max(overhead, kind_of(rank).instruction_overhead);
    });
    if (overhead > 0) {
      events_.push({now_ + overhead, EventKind::kBegun, id, 0});
    } else {
      start_phase(id);
    }
  }

  int new_exchange() {
    if (free_exchanges_.empty()) {
      exchanges_.emplace_back();
      return static_cast<int>(exchanges_.size()) - 1;
    }
    const int id = free_exchanges_.back();
    free_exchanges_.pop_back();
    return id;
  }

  void start_phase(int id) {
    const RunningExchange& running = exchanges_[static_cast<std::size_t>(id)];
    if (running.phase == running.exchange->size()) {
      end_exchange(id);
      return;
    }
    const double latency = (*running.exchange)[running.phase].latency;
    events_.push({now_ + latency, EventKind::kFlowing, id, 0});
  }

  void start_flows(int id) {
    RunningExchange& running = exchanges_[static_cast<std::size_t>(id)];
    for (const Flow& flow : (*running.exchange)[running.phase].flows) {
      if (flow.bytes == 0 || flow.links.empty()) continue;
      ++running.flows_left;
      network_.start(flow, id, now_);
      for (const LinkId link : flow.links) {
        run_.link_bytes[static_cast<std::size_t>(link)] += flow.bytes;
      }
      for (const DeviceId sender : flow.senders) {
        rank_run(rank_of_[static_cast<std::size_t>(sender)]).bytes_sent += flow.bytes;
      }
    }
    if (running.flows_left == 0) next_phase(id);
  }

  void end_flow(const FlowEnd& end) {
    if (!network_.is_current(end)) return;
    const int id = network_.finish(end);
    if (--exchanges_[static_cast<std::size_t>(id)].flows_left == 0) next_phase(id);
  }

  void next_phase(int id) {
    ++exchanges_[static_cast<std::size_t>(id)].phase;
    start_phase(id);
  }

  void end_exchange(int id) {
    const Meeting meeting = exchanges_[static_cast<std::size_t>(id)].meeting;
    free_exchanges_.push_back(id);
    state_.for_each_participant(meeting, [&](int rank, StreamKind stream) {
      account(rank);
      if (state_.stop_moving(rank, stream)) {
        finish(rank, state_.rank(rank).running[static_cast<std::size_t>(stream)]);
      }
    });
  }

  void settle() {
    for (const int rank : ports_) {
      const DeviceId id = model_.ranks[static_cast<std::size_t>(rank)].device;
      const Device& device = cluster_.devices[static_cast<std::size_t>(id)];
      const bool computing = state_.rank(rank).computing;
      const double factor = computing ? kind_of(rank).overlap.communication_factor : 1;
      network_.scale(device.out, factor);
      network_.scale(device.in, factor);
    }
    ports_.clear();
    ends_.clear();
    network_.settle(now_, ends_);
    for (const FlowEnd& end : ends_) {
      events_.push({end.time, EventKind::kFlowEnd, end.slot, end.version});
    }
    retime_computations();
  }

  void retime_computations() {
    network_.take_touched(touched_);
    for (const DeviceId device : touched_) {
      const int rank = rank_of_[static_cast<std::size_t>(device)];
      if (!state_.rank(rank).computing) continue;
      const double slowdown = kind_of(rank).overlap.compute_seconds_per_byte;
      if (computation(rank).set_speed(now_, speed_of(rank, slowdown))) announce(rank);
    }
  }

  /// Adds the time since the rank's last change to what it spent on exposed communication.
  void account(int rank) {
    RankState& state = state_.rank(rank);
    if (!state.computing && state.moving > 0) {
      rank_run(rank).exposed_communication += now_ - state.since;
    }
    state.since = now_;
  }

  StepRun finish_run() {
    const auto key = [](const TimelineEvent& e) {
      return std::tuple(e.start, e.rank, stream_of(e.instruction.opcode), e.end);
    };
    std::stable_sort(run_.timeline.begin(), run_.timeline.end(),
                     [&](const auto& a, const auto& b) { return key(a) < key(b); });
    return std::move(run_);
  }

  Computation& computation(int rank) { return computations_[static_cast<std::size_t>(rank)]; }
  const DeviceKind& kind_of(int rank) const {
    return cluster_.kind_of(model_.ranks[static_cast<std::size_t>(rank)].device);
  }

  const StepModel& model_;
  const Cluster& cluster_;
  StepState state_;
  Network network_;
  bool keep_timeline_;
  std::vector<int> rank_of_;  // by device
  double now_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Ready> ready_;
  std::vector<RunningExchange> exchanges_;
  std::vector<int> free_exchanges_;
  std::vector<FlowEnd> ends_;
  std::vector<Computation> computations_;  // by rank
  std::vector<int> ports_;                 // ranks that began or ended computing
  std::vector<DeviceId> touched_;
  StepRun run_;
};

}  // namespace

Result<StepRun> run_step_model(const Plan& plan, const StepModel& model, const Cluster& cluster,
                               bool timeline) {
  return Engine(plan, model, cluster, timeline).run();
}

}  // namespace agpcs
