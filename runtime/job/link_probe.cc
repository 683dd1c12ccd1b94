// SPDX-License-Identifier: Apache-2.0
// Probes one pair of ranks after the other, since pairs may share a NIC: a rank that has probed its
// pair passes the turn on. A round is a header (the number of bytes that follow; kLast: there are
// no more rounds), the payload if any, and an answer of a few bytes. Rounds in which a quota held
// an end back from its processor do not count: they say nothing of the link.
#include "ir/base/check.h"
#include "ir/plan/body/body.h"
#include "ir/plan/body/groups.h"
#include "ir/plan/body/slices.h"
#include "ir/plan/lookup.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/support/message_tags.h"
#include "runtime/support/processor_time.h"
#include "runtime/support/withdraw.h"

#include <agpcs/drift.h>
#include <agpcs/transport.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;
using Pair = std::pair<int, int>;

constexpr int kRoundTrips = 7, kRepeats = 6, kMoreRounds = 3;
constexpr std::size_t kLeastBytes = std::size_t{16} << 10, kMostBytes = std::size_t{8} << 20;
/// Seconds that a large enough payload takes: much longer than what a token bucket lets through at
/// once, or than a hiccup of the system.
constexpr double kLongEnough = 10e-3;
/// The payload counts for at least this part of a round. If the empty rounds met other work and
/// took as long as those with a payload, the difference would say nothing.
constexpr double kLeastRoundPart = 0.125;
/// A round counts if the kernel held either end back for at most this part of it.
constexpr double kMostHeld = 0.1;
constexpr std::size_t kFigures = 3;  // of a pair
constexpr std::int64_t kLast = -1;

/// A pair, and the payload of a glance at it in bytes; 0: the probe finds the size.
struct Task {
  int from = 0, to = 0;
  std::size_t bytes = 0;
};

std::vector<Task> tasks_of(const Plan& plan, const std::vector<LinkMeasurement>& glance_at) {
  std::vector<Task> tasks;
  for (const LinkMeasurement& link : glance_at) {
    const double bytes = kLongEnough / link.seconds_per_byte;
    tasks.push_back(
        {link.from, link.to,
         static_cast<std::size_t>(std::clamp(bytes, double{kLeastBytes}, double{kMostBytes}))});
  }
  if (!glance_at.empty()) return tasks;
  for (const LinkTraffic& traffic : link_traffic(plan)) tasks.push_back({traffic.from, traffic.to});
  return tasks;
}

class LinkProbe {
 public:
  LinkProbe(std::vector<Task> tasks, Transport& transport, std::chrono::milliseconds limit)
      : transport_(transport), limit_(limit), tasks_(std::move(tasks)), payload_(kMostBytes) {}

  Status run() {
    const int rank = transport_.rank();
    for (std::size_t i = 0; i < tasks_.size(); ++i) {
      if (tasks_[i].from == rank) AGPCS_RETURN_IF_ERROR(named(i, lead(i)));
      if (tasks_[i].to == rank) AGPCS_RETURN_IF_ERROR(named(i, follow(i)));
    }
    return {};
  }

  /// What this rank measured, in its places; zeros elsewhere.
  std::vector<double> figures;

 private:
  Status named(std::size_t pair, const Status& status) const {
    if (status.ok()) return status;
    return {status.code(), fmt::format("probe of the link from rank {} to rank {}: {}",
                                       tasks_[pair].from, tasks_[pair].to, status.message())};
  }

  Status lead(std::size_t pair) {
    figures.resize(kFigures * tasks_.size());
    if (pair > 0 && tasks_[pair - 1].from != transport_.rank()) {
      AGPCS_RETURN_IF_ERROR(recv_word(tasks_[pair - 1].from, 3));
    }
    const Task& task = tasks_[pair];
    double* const figure = &figures[kFigures * pair];
    AGPCS_RETURN_IF_ERROR(task.bytes > 0 ? glance(task, figure) : measure(task, figure));
    AGPCS_RETURN_IF_ERROR(send_word(task.to, kLast, 0));
    if (pair + 1 == tasks_.size() || tasks_[pair + 1].from == transport_.rank()) return {};
    return send_word(tasks_[pair + 1].from, 0, 3);
  }

  Status measure(const Task& task, double* figure) {
    AGPCS_TRY(const std::vector<double> trips, rounds_of(task.to, 0, kRoundTrips));
    const bool trips_held = held_;
    const double trip = trips.front();
    // Anything may delay a single round, so two rounds decide whether a size is large enough.
    std::size_t bytes = kLeastBytes;
    AGPCS_TRY(std::vector<double> rounds, rounds_of(task.to, bytes, 2));
    while (rounds[0] - trip < kLongEnough && bytes < kMostBytes) {
      bytes = std::min(bytes * 4, kMostBytes);
      AGPCS_TRY(rounds, rounds_of(task.to, bytes, 2));
    }
    AGPCS_TRY(rounds, rounds_of(task.to, bytes, kRepeats));
    // The second best round counts: a full token bucket may have let the best one through.
    fill(figure, rounds[1], trip, bytes, trips_held);
    return {};
  }

  Status glance(const Task& task, double* figure) {
    AGPCS_TRY(const std::vector<double> trips, rounds_of(task.to, 0, 2));
    const bool trips_held = held_;
    AGPCS_TRY(const std::vector<double> rounds, rounds_of(task.to, task.bytes, 2));
    fill(figure, rounds[1], trips[0], task.bytes, trips_held);
    return {};
  }

  void fill(double* figure, double round, double trip, std::size_t bytes, bool trips_held) const {
    figure[0] = std::max(round - trip, kLeastRoundPart * round) / static_cast<double>(bytes);
    figure[1] = trip / 2;
    figure[2] = held_ || trips_held ? 1 : 0;
  }

  /// Runs `count` rounds, and up to `kMoreRounds` more until two of them had their processors at
  /// both ends, and returns the seconds of those that had, ascending. If these are fewer than two,
  /// all count, and `held_` says so.
  Result<std::vector<double>> rounds_of(int peer, std::size_t bytes, int count) {
    std::vector<double> all, rounds;
    for (int i = 0; i < count || (rounds.size() < 2 && i < count + kMoreRounds); ++i) {
      here_.take();
      AGPCS_TRY(const double seconds, round(peer, bytes));
      const auto held = static_cast<double>(std::max(here_.take(), word_in_)) * 1e-9;
      all.push_back(seconds);
      if (held <= kMostHeld * seconds) rounds.push_back(seconds);
    }
    held_ = rounds.size() < 2;
    if (held_) rounds = std::move(all);
    std::sort(rounds.begin(), rounds.end());
    return rounds;
  }

  /// Runs a round. The answer, which stays in `word_in_`, says for how many nanoseconds the kernel
  /// held the other end back.
  Result<double> round(int peer, std::size_t bytes) {
    const auto begin = Clock::now();
    AGPCS_RETURN_IF_ERROR(send_word(peer, static_cast<std::int64_t>(bytes), 0));
    if (bytes > 0) {
      const Buffer payload{payload_.data(), bytes, DType::kUint8, false};
      AGPCS_TRY(const Ticket ticket, transport_.send(payload, peer, kProbeTag + 1));
      AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kSend, ticket, limit_));
    }
    AGPCS_RETURN_IF_ERROR(recv_word(peer, 2));
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

  Status follow(std::size_t pair) {
    const int peer = tasks_[pair].from;
    while (true) {
      here_.take();
      AGPCS_RETURN_IF_ERROR(recv_word(peer, 0));
      if (word_in_ == kLast) return {};
      if (word_in_ < 0 || word_in_ > static_cast<std::int64_t>(kMostBytes)) {
        return {StatusCode::kPeerFailed,
                fmt::format("rank {} announced a payload of {} bytes", peer, word_in_)};
      }
      if (word_in_ > 0) {
        const Buffer payload{payload_.data(), static_cast<std::size_t>(word_in_), DType::kUint8,
                             false};
        AGPCS_TRY(const Ticket ticket, transport_.recv(payload, peer, kProbeTag + 1));
        AGPCS_RETURN_IF_ERROR(transport_.wait(Stream::kRecv, ticket, limit_));
      }
      AGPCS_RETURN_IF_ERROR(send_word(peer, here_.take(), 2));
    }
  }

  Status send_word(int peer, std::int64_t word, std::uint64_t tag) {
    word_out_ = word;
    const Buffer buffer{&word_out_, sizeof word_out_, DType::kInt64, false};
    AGPCS_TRY(const Ticket ticket, transport_.send(buffer, peer, kProbeTag + tag));
    return transport_.wait(Stream::kSend, ticket, limit_);
  }
  Status recv_word(int peer, std::uint64_t tag) {
    const Buffer buffer{&word_in_, sizeof word_in_, DType::kInt64, false};
    AGPCS_TRY(const Ticket ticket, transport_.recv(buffer, peer, kProbeTag + tag));
    return transport_.wait(Stream::kRecv, ticket, limit_);
  }

  Transport& transport_;
  const std::chrono::milliseconds limit_;
  const std::vector<Task> tasks_;
  std::vector<char> payload_;
  HeldTime here_;
  bool held_ = false;  // in most of the last rounds, at either end
  std::int64_t word_out_ = 0, word_in_ = 0;
};

Status sum_over_ranks(std::vector<double>& figures, const Plan& plan, Transport& transport,
                      std::chrono::milliseconds limit) {
  const Buffer buffer{figures.data(), figures.size() * sizeof(double), DType::kFp64, false};
  AGPCS_TRY(const Ticket ticket, transport.all_reduce(buffer, world_group(plan), AllReduce::kRing));
  return transport.wait(Stream::kCollective, ticket, limit);
}

class TrafficCounter {
 public:
  explicit TrafficCounter(const Plan& plan) : plan_(plan) {}

  std::vector<LinkTraffic> run() {
    for (const PlanStage& stage : plan_.stages) {
      stage.idle() ? add_report(stage.ranks) : add_stage(stage);
    }
    for (const PlanBucket& bucket : plan_.buckets) add_bucket(bucket);
    for (std::size_t c = 0; c < plan_.cuts.size(); ++c) add_cut(static_cast<int>(c));
    std::vector<LinkTraffic> found;
    for (const auto& [pair, traffic] : traffic_) found.push_back(traffic);
    return found;
  }

 private:
  void add(int from, int to, double bytes, double messages) {
    LinkTraffic& traffic = traffic_[{from, to}];
    traffic = {from, to, traffic.bytes + bytes, traffic.messages + messages};
  }

  /// Adds what idle ranks have of the report's ring.
  void add_report(const std::vector<int>& idle) {
    const int ranks = plan_.rank_count();
    for (const int rank : idle) {
      add(rank, (rank + 1) % ranks, 0, 0);
      add((rank + ranks - 1) % ranks, rank, 0, 0);
    }
  }

  /// Adds neighbours that need not send anything, and what the members of teams exchange.
  void add_stage(const PlanStage& stage) {
    if (stage.has_unlike_teams()) {
      const auto index = static_cast<int>(&stage - plan_.stages.data());
      for (const PlanGroup& group : slice_groups(plan_, index)) add_ring(group.ranks, 0, 0);
    } else {
      for (const int rank : stage.members(0)) add_ring(replicas_of(plan_, rank).ranks, 0, 0);
    }
    for (std::size_t i = 0; stage.has_teams() && i < stage.ranks.size(); ++i) add_team(stage, i);
  }

  void add_team(const PlanStage& stage, std::size_t replica) {
    const std::vector<int> ranks = team_of(plan_, stage.ranks[replica])->ranks;
    const PlanBody& body = plan_.bodies[static_cast<std::size_t>(stage.body_of(replica))];
    add_ring(ranks, 0, 0);
    for (std::int64_t mb = 0; mb < plan_.micro_batches; ++mb) {
      const std::int64_t samples = stage.samples_of(replica, plan_.is_smaller(mb));
      for (const BodyStep& step : body.forward) add_exchange(body, step, true, samples, ranks);
      for (const BodyStep& step : body.backward) add_exchange(body, step, false, samples, ranks);
    }
    for (const BodyStep& step : body.step_end) add_exchange(body, step, false, 1, ranks);
  }

  void add_exchange(const PlanBody& body, const BodyStep& step, bool forward, std::int64_t samples,
                    const std::vector<int>& ranks) {
    if (!step.is_exchange()) return;
    const BodyTensor& tensor = body.tensors[static_cast<std::size_t>(step.tensor)];
    const TeamExchange exchange =
        forward ? forward_exchange(tensor, step.form) : backward_exchange(tensor, step.form);
    if (!is_collective(exchange)) return;
    const auto n = static_cast<double>(ranks.size());
    const double bytes = static_cast<double>(whole_elements(tensor, samples)) *
                         static_cast<double>(size_of(tensor.type));
    if (exchange != TeamExchange::kAllToAll) {
      const double rounds = exchange == TeamExchange::kAllReduce ? 2 : 1;
      return add_ring(ranks, rounds * (n - 1) / n * bytes, rounds * (n - 1));
    }
    for (const int from : ranks) {
      for (const int to : ranks) {
        if (from != to) add(from, to, bytes / n / n, 1);
      }
    }
  }

  void add_ring(const std::vector<int>& ranks, double bytes, double messages) {
    const std::size_t n = ranks.size();
    for (std::size_t i = 0; i < n && n > 1; ++i) {
      add(ranks[i], ranks[(i + 1) % n], bytes, messages);
    }
  }

  void add_bucket(const PlanBucket& bucket) {
    const PlanStage& stage = plan_.stages[static_cast<std::size_t>(bucket.stage)];
    if (stage.has_unlike_teams()) return add_slices(bucket);
    for (const int rank : stage.members(0)) {
      add_bucket(held_by(plan_, bucket, rank), summing_group(plan_, bucket, rank).ranks);
    }
  }

  void add_slices(const PlanBucket& bucket) {
    const StageSlices slices(plan_, bucket.stage);
    for (const SliceSum& sum : slices.sums(static_cast<int>(&bucket - plan_.buckets.data()))) {
      PlanBucket own = bucket;
      own.members = {{bucket.name, sum.elements}};
      add_bucket(own, slices.groups()[sum.group]);
    }
  }

  void add_bucket(const PlanBucket& bucket, const std::vector<int>& ranks) {
    const auto members = static_cast<double>(ranks.size());
    const auto bytes = static_cast<double>(travelling_bytes(plan_.training, bucket));
    if (bucket.flow < 0) {  // in a ring, every rank sends 2 (n - 1) parts of n
      return add_ring(ranks, 2 * (members - 1) / members * bytes, 2 * (members - 1));
    }
    const PlanFlow& flow = plan_.flows[static_cast<std::size_t>(bucket.flow)];
    for (const FlowStep& step : flow.steps) {
      for (const FlowMessage& message : step.messages) {
        add(ranks[static_cast<std::size_t>(message.from)],
            ranks[static_cast<std::size_t>(message.to)], bytes / members / flow.sub_chunks, 1);
      }
    }
  }

  void add_cut(int index) {
    const std::int64_t smaller_from = plan_.smaller_from();
    add_cut(index, 0, smaller_from);
    if (smaller_from < plan_.micro_batches) add_cut(index, smaller_from, plan_.micro_batches);
  }

  /// Adds what crosses a cut in the micro-batches [first, end), which are of one size.
  void add_cut(int index, std::int64_t first, std::int64_t end) {
    const Cut& cut = plan_.cuts[static_cast<std::size_t>(index)];
    const auto times = static_cast<double>(end - first);
    const auto tensor_of = [&](const Transfer& transfer) -> const CutTensor& {
      return cut.tensors[static_cast<std::size_t>(transfer.tensor)];
    };
    const auto bytes_of = [&](const Transfer& transfer) {
      const CutTensor& tensor = tensor_of(transfer);
      return static_cast<double>(transfer.rows * tensor.elements_per_row()) *
             static_cast<double>(size_of(tensor.type)) * times;
    };
    for (const int rank : plan_.stages[static_cast<std::size_t>(cut.from)].all_ranks()) {
      for (const Transfer& transfer : transfers(plan_, index, rank, first)) {
        add(rank, transfer.peer, bytes_of(transfer), times);
      }
      for (const Transfer& transfer : transfers(plan_, index, rank, first, true)) {
        if (tensor_of(transfer).gradient) add(transfer.peer, rank, bytes_of(transfer), times);
      }
    }
  }

  const Plan& plan_;
  std::map<Pair, LinkTraffic> traffic_;
};

}  // namespace

std::vector<LinkTraffic> link_traffic(const Plan& plan) { return TrafficCounter(plan).run(); }

Result<std::vector<LinkMeasurement>> probe_links(const Plan& plan, Transport& transport,
                                                 std::chrono::milliseconds limit,
                                                 const std::vector<LinkMeasurement>& glance_at) {
  const std::vector<Task> tasks = tasks_of(plan, glance_at);
  if (tasks.empty()) return std::vector<LinkMeasurement>();
  LinkProbe probe(tasks, transport, limit);
  Status status = probe.run();
  probe.figures.resize(kFigures * tasks.size());
  if (status.ok()) status = sum_over_ranks(probe.figures, plan, transport, limit);
  if (!status.ok()) return withdraw(transport, status, limit);
  std::vector<LinkMeasurement> links;
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    const double* const figure = &probe.figures[kFigures * i];
    links.push_back({tasks[i].from, tasks[i].to, figure[0], figure[1], figure[2] > 0});
  }
  return links;
}

std::vector<LinkChange> changed_links(const std::vector<LinkMeasurement>& before,
                                      const std::vector<LinkMeasurement>& now, double tolerance) {
  // Latency: the time in which a busy machine wakes its threads differs by less.
  constexpr double kNoticed = 200e-6;
  std::vector<LinkChange> changes;
  for (const LinkMeasurement& link : now) {
    const auto was = std::find_if(before.begin(), before.end(), [&](const LinkMeasurement& other) {
      return other.from == link.from && other.to == link.to;
    });
    if (was == before.end() || was->seconds_per_byte <= 0 || link.seconds_per_byte <= 0) continue;
    LinkChange change{link.from, link.to, link.seconds_per_byte / was->seconds_per_byte, 1};
    if (was->latency_seconds > 0 && link.latency_seconds > 0) {
      change.latency_factor = link.latency_seconds / was->latency_seconds;
    }
    const auto beyond = [&](double factor) { return factor > tolerance || factor < 1 / tolerance; };
    const bool latency = beyond(change.latency_factor) &&
                         std::abs(link.latency_seconds - was->latency_seconds) > kNoticed;
    if (beyond(change.factor) || latency) changes.push_back(change);
  }
  return changes;
}

std::string describe(const Plan& plan, const LinkChange& change) {
  const auto times = [](double factor) { return factor > 1 ? factor : 1 / factor; };
  std::string text = fmt::format("link {} -> {}: {:.3g} times {}",
                                 device_of_rank(plan, change.from), device_of_rank(plan, change.to),
                                 times(change.factor), change.factor > 1 ? "slower" : "faster");
  if (times(change.latency_factor) >= 1.5) {
    text += fmt::format(", latency {:.3g} times {}", times(change.latency_factor),
                        change.latency_factor > 1 ? "longer" : "shorter");
  }
  return text;
}

}  // namespace agpcs
