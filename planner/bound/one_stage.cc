// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/offload.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/state_parts.h"
#include "planner/bound/ways.h"
#include "planner/bound/wires.h"
#include "planner/problem/shares.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <vector>

namespace agpcs {
namespace {

/// All trained parameters: those that are updated at least once.
struct Trained {
  std::int64_t elements = 0, tensors = 0, held_bytes = 0;
  std::int64_t bytes = 0;                         // bytes that travel
  OpId first = std::numeric_limits<OpId>::max();  // the first consumer, whose gradient is the last
  std::int64_t last_bytes = 0;                    // bytes of that gradient that travel
  std::int64_t first_held = 0;                    // bytes of its parameter
};

class OneStage {
 public:
  explicit OneStage(const BoundFacts& facts)
      : facts_(facts), costs_(facts.costs), sums_(facts.problem.cluster.kinds.size()) {
    find_trained();
    for (const CollectiveFit& fit : facts_.problem.cluster.collectives) {
      stretch_ = std::min(stretch_, fit.stretch);
    }
  }

  Limit run() {
    add_forms(StateLevel::kWhole);
    for (const StateLevel level : kDividingLevels) {
      if (may_divide(facts_.problem, level)) add_forms(level);
    }
    return best_;
  }

 private:
  /// Considers all strategies whose replicas each keep all state, or those whose replicas divide
  /// what `level` says.
  void add_forms(StateLevel level) {
    const Cluster& cluster = facts_.problem.cluster;
    const bool divided = level != StateLevel::kWhole;
    level_ = level;
    const std::int64_t needed = resident_bytes(level);
    needed_ = needed;
    // Each element of what they divide is somewhere.
    divided_bytes_ =
        level >= StateLevel::kGradients ? resident_bytes(StateLevel::kWhole) - needed : 0;
    const std::vector<int> all = count_devices(cluster, 0, cluster.device_count(), needed);
    for (const int kind : facts_.kinds) {
      if (divided || all[at(kind)] == 0) continue;
      std::vector<int> alone(all.size());
      alone[at(kind)] = 1;
      consider(alone, nullptr, divided);
    }
    std::map<std::vector<int>, Wires> hosts;  // equal hosts appear once, with the best wires
    for (const Host& host : cluster.hosts) {
      const std::vector<int> counts =
          count_devices(cluster, host.first_device, host.first_device + host.device_count, needed);
      if (std::accumulate(counts.begin(), counts.end(), 0) < 2) continue;
      const Wires wires = wires_inside(cluster, host);
      const auto [known, added] = hosts.try_emplace(counts, wires);
      known->second.latency = std::min(known->second.latency, wires.latency);
      known->second.bandwidth = std::max(known->second.bandwidth, wires.bandwidth);
    }
    for (const auto& [counts, wires] : hosts) consider(counts, &wires, divided);
    const std::vector<HostNetwork> networks = networks_of_hosts(cluster);
    for (const Wires& wires : wires_between_hosts(cluster, networks)) {
      consider(count_hosts(networks, wires.bandwidth, needed), &wires, divided);
    }
  }

  /// The seconds of all operators on one device.
  struct Sum {
    double forward = 0, backward = 0;
    double head = 0;  // part of `forward` before the first operator with a parameter
    double tail = 0;  // part of `backward` after the last gradient
  };
  using Seconds = double (*)(const Sum&, double micro_batches);

  void find_trained() {
    const Graph& graph = facts_.problem.graph;
    for (const TensorId id : graph.parameters()) {
      const Tensor& tensor = graph.tensor(id);
      if (!tensor.needs_gradient || tensor.consumers.empty()) continue;
      const GradientSize gradient = gradient_of(facts_.problem, id);
      trained_.elements += gradient.elements;
      trained_.bytes += gradient.travelling_bytes;
      trained_.held_bytes += gradient.held_bytes;
      ++trained_.tensors;
      if (tensor.consumers.front() >= trained_.first) continue;
      trained_.first = tensor.consumers.front();
      trained_.last_bytes = gradient.travelling_bytes;
      trained_.first_held = gradient.held_bytes;
    }
  }

  /// Returns the bytes that every device holds, alone or not, so without rounded gradients. With
  /// divided state, it may hold none of it, nor of gradients and parameters that are divided. Where
  /// the state may be in the memory of hosts, it may hold the window alone.
  std::int64_t resident_bytes(StateLevel level) const {
    StageParts parts;
    parts.ops = all_ops(facts_.problem);
    parts.gradients = trained_.held_bytes;
    StageMemoryModel model(facts_.problem.graph, facts_.problem.training);
    StageMemory memory = model.of(parts, 1);
    if (may_offload(facts_.problem)) move_state_to_host(facts_.problem.training, memory);
    return memory.parameters - (level == StateLevel::kParameters ? trained_.held_bytes : 0) +
           (level >= StateLevel::kGradients ? 0 : memory.gradients) +
           (level == StateLevel::kWhole ? memory.optimizer : 0);
  }

  /// Counts, by kind, the devices that can hold `needed` bytes in hosts whose network is at least
  /// so fast.
  std::vector<int> count_hosts(const std::vector<HostNetwork>& networks, double bandwidth,
                               std::int64_t needed) const {
    const Cluster& cluster = facts_.problem.cluster;
    std::vector<int> counts(cluster.kinds.size());
    for (std::size_t h = 0; h < cluster.hosts.size(); ++h) {
      if (networks[h].slower() < bandwidth) continue;
      const Host& host = cluster.hosts[h];
      const std::vector<int> some =
          count_devices(cluster, host.first_device, host.first_device + host.device_count, needed);
      for (std::size_t k = 0; k < counts.size(); ++k) counts[k] += some[k];
    }
    return counts;
  }

  /// Lowers the best; ways that take as long do not matter.
  void consider(const std::vector<int>& counts, const Wires* wires, bool divided) {
    if (std::accumulate(counts.begin(), counts.end(), 0) == 0) return;
    double room = 0;  // of all of them
    for (std::size_t k = 0; k < counts.size(); ++k) {
      room +=
          counts[k] * static_cast<double>(facts_.problem.cluster.kinds[k].memory_bytes - needed_);
    }
    if (room < static_cast<double>(divided_bytes_)) return;
    lower(best_, replicas(counts, wires, divided));
  }

  /// Bounds strategies of one stage on these devices or some of them; on at least two if there are
  /// wires.
  ///
  /// All of a stage's replicas take part in each of its exchanges, after its gradients are there. A
  /// sum over two devices or more needs a message there and one back. It takes each gradient's
  /// bytes out of and into each device (and host, if there are two), so it takes no less than these
  /// bytes at the bandwidth of the slowest that takes part. The first sum begins after the backward
  /// passes of all but the last micro-batch, the last one after the gradient of the first operator
  /// with a parameter.
  ///
  /// With divided state, a replica may have nothing to update. The parameters travel after all sums
  /// are there. A replica that owns a part f of them receives or sends at least the larger of f and
  /// 1 - f of the bytes each time, so at least half of them in both. Where gradients are divided,
  /// too, that holds for those of the last micro-batch, and others only come on top.
  ///
  /// Where parameters are divided, too, nothing travels after the update, so of the last
  /// micro-batch's gradients one message and at least half of the bytes remain. The first operator
  /// with a parameter waits for its bucket, which also is the last one to be summed. Each pass
  /// gathers parameters, and each backward pass sums gradients: a replica sends and receives, both
  /// together, all bytes of a bucket each time, so in one of the directions at least half of those
  /// of all times.
  Limit replicas(const std::vector<int>& counts, const Wires* wires, bool divided) {
    const auto update_of = [&](int kind) {
      return divided ? 0 : costs_.update_seconds(kind, trained_.elements, trained_.tensors);
    };
    double update = std::numeric_limits<double>::infinity();
    for (const int kind : facts_.kinds) update = std::min(update, update_of(kind));
    const auto time_of = [&](Seconds seconds, bool updates) {
      return least_time(facts_, counts, best_.seconds, [&](int kind, std::int64_t n) {
        return costs_.begin_seconds(kind, trained_.elements) +
               seconds(sum_of(kind, n), static_cast<double>(facts_.numbers.front())) +
               (updates ? update_of(kind) : 0);
      });
    };
    const Seconds all = [](const Sum& s, double m) { return m * (s.forward + s.backward); };
    Limit limit{time_of(all, true), "work"};
    if (wires == nullptr) return limit;
    const bool gathers = level_ == StateLevel::kParameters;
    if (gathers) {
      const double bytes =
          static_cast<double>(facts_.numbers.front()) *
          (static_cast<double>(trained_.held_bytes) + static_cast<double>(trained_.bytes) / 2);
      raise(limit, stretch_ * bytes / wires->bandwidth, "communication");
    } else if (divided) {
      limit.seconds += wires->latency +
                       stretch_ * static_cast<double>(trained_.held_bytes) / 2 / wires->bandwidth;
    }
    if (limit.seconds >= best_.seconds) return limit;
    raise(limit, time_of(all, false) + 2 * wires->latency, "report");
    if (trained_.bytes == 0) return limit;
    const Seconds before = [](const Sum& s, double m) {
      return m * s.forward + (m - 1) * s.backward;
    };
    const Seconds until = [](const Sum& s, double m) {
      return m * (s.forward + s.backward) - s.tail;
    };
    const Seconds between = [](const Sum& s, double m) {
      return m * (s.forward + s.backward) - s.head - s.tail;
    };
    const auto moving = [&](std::int64_t bytes) {
      return 2 * wires->latency + stretch_ * static_cast<double>(bytes) / wires->bandwidth + update;
    };
    if (gathers) {
      const double half = stretch_ * static_cast<double>(trained_.bytes) / 2 / wires->bandwidth;
      raise(limit, time_of(before, false) + wires->latency + half, "communication");
      raise(limit,
            time_of(between, false) + moving((trained_.first_held + trained_.last_bytes) / 2),
            "communication");
      return limit;
    }
    raise(limit, time_of(before, false) + moving(trained_.bytes), "communication");
    raise(limit, time_of(until, false) + moving(trained_.last_bytes), "communication");
    return limit;
  }

  const Sum& sum_of(int kind, std::int64_t n) {
    const auto [entry, added] = sums_[at(kind)].try_emplace(n);
    if (!added) return entry->second;
    Sum& sum = entry->second;
    for (OpId op = 0; op < static_cast<OpId>(facts_.problem.graph.ops.size()); ++op) {
      const OpSeconds seconds = costs_.least_seconds(kind, op, n, facts_.largest);
      sum.forward += seconds.forward;
      sum.backward += seconds.backward;
      if (op >= trained_.first) continue;
      sum.head += seconds.forward;
      sum.tail += seconds.backward;
    }
    return sum;
  }

  const BoundFacts& facts_;
  const CostTable& costs_;
  Trained trained_;
  Limit best_;
  StateLevel level_ = StateLevel::kWhole;        // of the forms at hand
  std::int64_t needed_ = 0, divided_bytes_ = 0;  // of each device, and of all together
  double stretch_ = 1;
  std::vector<std::map<std::int64_t, Sum>> sums_;  // by kind, then samples
};

}  // namespace

Limit one_stage_limit(const BoundFacts& facts) { return OneStage(facts).run(); }

}  // namespace agpcs
