// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/time.h"

#include "cost_model/flows/turns.h"
#include "cost_model/network/event_queue.h"
#include "cost_model/network/flow_calendar.h"
#include "cost_model/network/network.h"
#include "ir/base/at.h"
#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

/// Lets a message end earlier by up to this fraction of its own time, together with another one
/// that ends. Where many messages share links, their ends are close together, and rates are
/// recomputed after every end.
constexpr double kEarly = 1e-3;
/// Relative difference of equal times that different sums have reached.
constexpr double kSameMoment = 1e-12;

/// Returns the number of pairs of a sub-chunk and a server.
std::size_t slots_of(const FlowSchedule& schedule) {
  return static_cast<std::size_t>(schedule.servers) * static_cast<std::size_t>(schedule.servers) *
         static_cast<std::size_t>(schedule.sub_chunks);
}

std::size_t workloads_of(const FlowSchedule& schedule) {
  return schedule.reduce_scatter.size() + schedule.all_gather.size();
}

double route_latency(std::span<const Link> links, const FlowRoute& route) {
  double latency = 0;
  for (const int link : route.links) latency += links[static_cast<std::size_t>(link)].latency;
  return latency;
}

/// Plays the messages of a schedule in virtual time.
class MessageRun {
 public:
  MessageRun(std::span<const Link> links, const FlowSchedule& schedule, std::int64_t bytes,
             const FlowOverheads& overheads)
      : schedule_(schedule), overheads_(overheads), network_(links) {
    add_flows(links, bytes, overheads.stretch);
    add_messages();
    if (in_rounds()) {
      words_.assign(2 * overheads.waits.size(), 1);
      turns_ = FlowTurns(at(schedule.servers), messages_.size() + words_.size());
      take_turns_by_server();
    } else {
      turns_ = FlowTurns(at(schedule.servers), messages_.size());
      take_turns_by_receiver();
    }
    for (std::size_t i = 0; i < messages_.size(); ++i) messages_[i].waits += turns_.closed(i);
    add_gathers();
  }

  double seconds() {
    for (const Message& message : messages_) {
      if (is_ready(message)) leave(message);
    }
    for (std::size_t i = 0; i < words_.size(); ++i) {
      words_[i] += turns_.closed(messages_.size() + i);
      if (i % 2 == 0)
        open(messages_.size() + i);  // the first part of a signal waits for its turn only
    }
    while (!doors_.empty() || !ends_.empty()) {
      const double door = doors_.empty() ? kNever : doors_.top().time;
      now_ = std::max(now_, std::min(door, ends_.empty() ? kNever : ends_.top().time));
      pass_doors();
      end_flows();
      pass_doors();
      settle();
    }
    AGPCS_CHECK(arrived_ == messages_.size(), "{} of {} messages of a schedule have arrived",
                arrived_, messages_.size());
    return over_;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  static constexpr double kNotYet = -1;
  struct Message {
    Workload workload;
    bool gather = false;
    int waits = 1;  // open conditions: its data (or the latency to pass), and its turns
    bool left = false;
  };

  bool in_rounds() const { return overheads_.order == FlowOrder::kRounds; }

  void add_flows(std::span<const Link> links, std::int64_t bytes, double stretch) {
    flows_.reserve(schedule_.routes.size());
    for (const FlowRoute& route : schedule_.routes) {
      Flow flow;
      flow.bytes = bytes;
      flow.links = route.links;
      flow.stretch = stretch;
      flow.lone_rate = kNever;
      for (const int link : route.links) {
        flow.lone_rate = std::min(flow.lone_rate, links[static_cast<std::size_t>(link)].bandwidth);
      }
      flows_.push_back(std::move(flow));
      latencies_.push_back(route_latency(links, route));
    }
  }

  /// Sorts the messages by round; within a round, those of the reduce-scatter come first.
  void add_messages() {
    messages_.reserve(workloads_of(schedule_));
    auto reduce = schedule_.reduce_scatter.begin();
    auto gather = schedule_.all_gather.begin();
    while (reduce != schedule_.reduce_scatter.end() || gather != schedule_.all_gather.end()) {
      const bool is_gather =
          reduce == schedule_.reduce_scatter.end() ||
          (gather != schedule_.all_gather.end() && gather->round < reduce->round);
      messages_.push_back({is_gather ? *gather++ : *reduce++, is_gather});
    }
    missing_.assign(slots_of(schedule_), 0);
    reduce_.assign(slots_of(schedule_), -1);
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const Message& message = messages_[i];
      if (message.gather) continue;
      ++missing_[slot(message, route_of(message).to)];
      reduce_[slot(message, route_of(message).from)] = static_cast<int>(i);
    }
  }

  void take_turns_by_receiver() {
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      turns_.add(i, at(route_of(messages_[i]).to), messages_[i].workload.round);
    }
  }

  /// Gives turns to signals ("words") and messages; within a round, signals come first. A signal
  /// has two parts, numbered after the messages: it leaves the server that is waited for, then it
  /// has arrived.
  void take_turns_by_server() {
    std::size_t word = 0;
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      const std::int32_t round = messages_[i].workload.round;
      for (; word < overheads_.waits.size() && overheads_.waits[word].round <= round; ++word) {
        const RoundWait& wait = overheads_.waits[word];
        turns_.add(messages_.size() + 2 * word, at(wait.from), 2 * wait.round);
        turns_.add(messages_.size() + 2 * word + 1, at(wait.to), 2 * wait.round);
      }
      turns_.add(i, at(route_of(messages_[i]).from), 2 * round + 1);
      turns_.add(i, at(route_of(messages_[i]).to), 2 * round + 1);
    }
  }

  /// Indexes the all-gather's messages by chunk and sender, in their order.
  void add_gathers() {
    first_gather_.assign(slots_of(schedule_) + 1, 0);
    for (const Message& message : messages_) {
      if (message.gather) ++first_gather_[slot(message, route_of(message).from) + 1];
    }
    for (std::size_t i = 1; i < first_gather_.size(); ++i) first_gather_[i] += first_gather_[i - 1];
    gathers_.resize(schedule_.all_gather.size());
    std::vector<std::size_t> at(first_gather_.begin(), first_gather_.end() - 1);
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      if (!messages_[i].gather) continue;
      gathers_[at[slot(messages_[i], route_of(messages_[i]).from)]++] = static_cast<int>(i);
    }
  }

  double latency_of(const Message& message) const {
    return latencies_[static_cast<std::size_t>(message.workload.route)];
  }
  const FlowRoute& route_of(const Message& message) const {
    return schedule_.routes[static_cast<std::size_t>(message.workload.route)];
  }
  std::size_t slot(const Message& message, int server) const {
    return static_cast<std::size_t>(message.workload.chunk) *
               static_cast<std::size_t>(schedule_.servers) +
           static_cast<std::size_t>(server);
  }
  int number_of(const Message& message) const {
    return static_cast<int>(&message - messages_.data());
  }

  /// Returns true when the message waits for no other message.
  bool is_ready(const Message& message) const {
    const int sender = route_of(message).from;
    if (missing_[slot(message, sender)] > 0) return false;
    return !message.gather || schedule_.owner_of(message.workload.chunk) == sender;
  }

  /// Notes that the message's data is complete. Unless the message first waits for its turn, its
  /// latency begins to pass.
  void leave(const Message& message) {
    const double wait = in_rounds() ? 0 : overheads_.message + latency_of(message);
    doors_.push({now_ + wait, static_cast<std::uint64_t>(number_of(message)), 0});
  }

  /// Closes one more condition of a message or of a part of a signal.
  void open(std::size_t item) {
    const double wait = in_rounds() ? 0 : overheads_.message;
    doors_.push({now_ + wait, static_cast<std::uint64_t>(item), 0});
  }

  void pass_doors() {
    const double until = now_ * (1 + kSameMoment);
    while (!doors_.empty() && doors_.top().time <= until) {
      const std::size_t item = doors_.top().order;
      doors_.pop();
      if (item < messages_.size()) {
        pass(messages_[item]);
      } else if (--words_[item - messages_.size()] == 0) {
        pass_word(item);
      }
    }
  }

  void pass(Message& message) {
    if (--message.waits > 0) return;
    if (in_rounds() && !std::exchange(message.left, true)) {
      ++message.waits;
      const double wait = overheads_.message + latency_of(message);
      doors_.push({now_ + wait, static_cast<std::uint64_t>(number_of(message)), 0});
      return;
    }
    const Flow& flow = flows_[static_cast<std::size_t>(message.workload.route)];
    network_.start(flow, number_of(message), now_);
  }

  void pass_word(std::size_t item) {
    go(item);
    if ((item - messages_.size()) % 2 > 0) return;
    const double wait =
        overheads_.message + *std::max_element(latencies_.begin(), latencies_.end());
    doors_.push({now_ + wait, static_cast<std::uint64_t>(item + 1), 0});
  }

  /// Ends the item's turn, and opens the turns that waited for it.
  void go(std::size_t item) {
    opened_.clear();
    turns_.go(item, opened_);
    for (const int next : opened_) open(at(next));
  }

  void end_flows() {
    while (!ends_.empty()) {
      const FlowEnd end = ends_.top();
      double& began = began_[static_cast<std::size_t>(end.slot)];
      if (end.time - now_ > kEarly * (end.time - began) + kSameMoment * now_) return;
      ends_.pop();
      began = kNotYet;
      arrive(messages_[static_cast<std::size_t>(network_.finish(end))]);
    }
  }

  void arrive(const Message& message) {
    ++arrived_;
    over_ = now_;
    go(at(number_of(message)));
    const int server = route_of(message).to;
    const std::size_t at = slot(message, server);
    if (!message.gather) {
      if (--missing_[at] > 0) return;
      if (reduce_[at] != -1) leave(messages_[static_cast<std::size_t>(reduce_[at])]);
      if (schedule_.owner_of(message.workload.chunk) != server) return;
    }
    for (std::size_t i = first_gather_[at]; i < first_gather_[at + 1]; ++i) {
      leave(messages_[static_cast<std::size_t>(gathers_[i])]);
    }
  }

  void settle() {
    moved_.clear();
    network_.settle(now_, moved_);
    for (const FlowEnd& end : moved_) {
      const auto slot = static_cast<std::size_t>(end.slot);
      if (slot >= began_.size()) began_.resize(slot + 1, kNotYet);
      if (began_[slot] == kNotYet) began_[slot] = now_;
      ends_.set(end);
    }
  }

  const FlowSchedule& schedule_;
  const FlowOverheads& overheads_;
  Network network_;
  std::vector<Flow> flows_;        // by route
  std::vector<double> latencies_;  // by route
  std::vector<Message> messages_;
  // By chunk, then server: the number of messages that it still must receive in the reduce-scatter,
  // and the message that it then sends.
  std::vector<int> missing_, reduce_;
  std::vector<std::size_t> first_gather_;  // by chunk, then server: index in gathers_
  std::vector<int> gathers_;
  std::vector<int> words_;  // by part of a signal: number of open conditions
  FlowTurns turns_ = {0, 0};
  std::vector<int> opened_;
  EventQueue doors_;  // a message's latency has passed, or its turn has come
  FlowCalendar ends_;
  std::vector<FlowEnd> moved_;
  std::vector<double> began_;  // by the network's slot
  double now_ = 0, over_ = 0;  // `over_`: when the last message arrived
  std::size_t arrived_ = 0;
};

/// The workloads that each link carries in one round.
class RoundLoad {
 public:
  RoundLoad(std::span<const Link> links, const FlowSchedule& schedule)
      : links_(links), schedule_(schedule), load_(links.size()) {
    for (const FlowRoute& route : schedule.routes)
      latencies_.push_back(route_latency(links, route));
  }

  void add(const Workload& workload) {
    const auto route = static_cast<std::size_t>(workload.route);
    latency_ = std::max(latency_, latencies_[route]);
    for (const int id : schedule_.routes[route].links) {
      const auto link = static_cast<std::size_t>(id);
      if (load_[link]++ == 0) used_.push_back(link);
    }
  }

  /// Returns the seconds of the round, and starts the next one.
  double take(double bytes) {
    double seconds = 0;
    for (const std::size_t link : used_) {
      seconds = std::max(seconds, load_[link] * bytes / links_[link].bandwidth);
      load_[link] = 0;
    }
    used_.clear();
    return std::exchange(latency_, 0) + seconds;
  }

 private:
  std::span<const Link> links_;
  const FlowSchedule& schedule_;
  std::vector<double> latencies_;  // by route
  std::vector<int> load_;          // by link
  std::vector<std::size_t> used_;
  double latency_ = 0;
};

}  // namespace

std::vector<Link> links_of(const Topology& topology, double bandwidth, double latency) {
  std::vector<Link> links;
  links.reserve(topology.links.size());
  for (const Topology::Link& link : topology.links) {
    links.push_back(
        {fmt::format("{} -> {}", topology.name_of(link.from), topology.name_of(link.to)),
         "ethernet",
         bandwidth * static_cast<double>(link.capacity),
         latency,
         {}});
  }
  return links;
}

std::int64_t message_bytes(const FlowSchedule& schedule, std::int64_t bytes) {
  const std::int64_t parts = static_cast<std::int64_t>(schedule.servers) * schedule.sub_chunks;
  return std::max<std::int64_t>(1, bytes / parts + (bytes % parts > 0 ? 1 : 0));
}

bool is_timed(const FlowSchedule& schedule) {
  return std::max(workloads_of(schedule), slots_of(schedule)) <= kMostTimedWorkloads;
}

double schedule_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads) {
  if (!is_timed(schedule)) return lockstep_seconds(links, schedule, bytes, overheads);
  return MessageRun(links, schedule, message_bytes(schedule, bytes), overheads).seconds();
}

double lockstep_seconds(std::span<const Link> links, const FlowSchedule& schedule,
                        std::int64_t bytes, const FlowOverheads& overheads) {
  const double each = overheads.stretch * static_cast<double>(message_bytes(schedule, bytes));
  RoundLoad load(links, schedule);
  double seconds = 0;
  auto reduce = schedule.reduce_scatter.begin();
  auto gather = schedule.all_gather.begin();
  while (reduce != schedule.reduce_scatter.end() || gather != schedule.all_gather.end()) {
    std::int32_t round = std::numeric_limits<std::int32_t>::max();
    if (reduce != schedule.reduce_scatter.end()) round = reduce->round;
    if (gather != schedule.all_gather.end()) round = std::min(round, gather->round);
    for (; reduce != schedule.reduce_scatter.end() && reduce->round == round; ++reduce) {
      load.add(*reduce);
    }
    for (; gather != schedule.all_gather.end() && gather->round == round; ++gather) {
      load.add(*gather);
    }
    seconds += overheads.message + load.take(each);
  }
  return seconds;
}

}  // namespace agpcs
