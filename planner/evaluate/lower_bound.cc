// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/lower_bound.h"

#include "ir/base/at.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/stage_memory.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>

// One device computes one thing at a time; transfers and overlap only lengthen a step, and
// recomputation only adds to it. So all bounds here count computations, and messages that must
// follow one another.

namespace agpcs {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
/// The most that rounding may change when sums of seconds are formed in another order than the
/// engine's.
constexpr double kRounding = 1e-9;

void raise(LowerBound& bound, double seconds, std::string_view reason) {
  if (seconds > bound.seconds) bound = {seconds, reason};
}

void lower(LowerBound& bound, const LowerBound& way) {
  if (way.seconds < bound.seconds) bound = way;
}

/// All trained parameters: those that are updated at least once.
struct Trained {
  std::int64_t elements = 0, tensors = 0, held_bytes = 0;
  std::int64_t bytes = 0;                         // bytes that travel
  OpId first = std::numeric_limits<OpId>::max();  // the first consumer, whose gradient is the last
  std::int64_t last_bytes = 0;                    // bytes of that gradient that travel
};

/// A latency and a bandwidth that no message beats.
struct Wires {
  double latency = 0;    // from one device to another
  double bandwidth = 0;  // for the bytes that leave or enter one of two partners, the slower one
};

class Bounder {
 public:
  explicit Bounder(const Problem& problem)
      : problem_(problem), batch_(problem.training.batch), costs_(problem.costs) {
    const std::int64_t fixed = problem.options.micro_batches;
    numbers_ = fixed > 0 ? std::vector{fixed} : micro_batch_numbers(batch_);
    samples_ = batch_ / numbers_.front();
    largest_ = largest_micro_batch(batch_, numbers_.front());
    std::vector<double> devices(problem.cluster.kinds.size());
    for (const Device& device : problem.cluster.devices) ++devices[at(device.kind)];
    for (std::size_t k = 0; k < devices.size(); ++k) {
      if (devices[k] > 0) kinds_.push_back(static_cast<int>(k));
      if (devices[k] > 0) work_.devices.push_back(devices[k]);
    }
    find_trained();
    sums_.resize(problem.cluster.kinds.size());
    for (const CollectiveFit& fit : problem.cluster.collectives) {
      stretch_ = std::min(stretch_, fit.stretch);
    }
  }

  LowerBound run() {
    LowerBound bound = several_stages();
    enough_ = bound.seconds;
    lower(bound, one_stage());
    bound.seconds *= 1 - kRounding;
    return bound;
  }

 private:
  /// The seconds of all operators on one device.
  struct Sum {
    double forward = 0, backward = 0;
    double tail = 0;  // part of `backward` after the last gradient
  };
  using Seconds = double (*)(const Sum&, double micro_batches);

  void find_trained() {
    for (const TensorId id : problem_.graph.parameters()) {
      const Tensor& tensor = problem_.graph.tensor(id);
      if (!tensor.needs_gradient || tensor.consumers.empty()) continue;
      const GradientSize gradient = gradient_of(problem_, id);
      parameters_.push_back(gradient.elements);
      trained_.elements += gradient.elements;
      trained_.bytes += gradient.travelling_bytes;
      trained_.held_bytes += gradient.held_bytes;
      ++trained_.tensors;
      if (tensor.consumers.front() >= trained_.first) continue;
      trained_.first = tensor.consumers.front();
      trained_.last_bytes = gradient.travelling_bytes;
    }
  }

  // --- Several stages, with any number of devices.

  /// Bounds strategies of several stages. The work bound falls with fewer micro-batches. So once it
  /// alone is no better than what was found, more micro-batches are no better either.
  LowerBound several_stages() {
    LowerBound best{kForever, "work"};
    if (problem_.cluster.device_count() < 2 || problem_.graph.ops.size() < 2) return best;
    const double report = 2 * wires_between_any().latency;
    for (const std::int64_t number : numbers_) {
      set_floors(largest_micro_batch(batch_, number));
      if (prices_.empty()) prices_ = price_kinds(work_);
      const double computing = price_work(work_, prices_);
      LowerBound bound{computing + price_updates(), "work"};
      if (bound.seconds >= best.seconds) break;
      raise(bound, computing + report, "report");
      raise(bound, longest_path(batch_ / number), "latency");
      lower(best, bound);
    }
    raise(best, heaviest_operator(), "granularity");
    return best;
  }

  /// Sets floors: every sample of every operator is computed on some device. There it takes at
  /// least the least seconds a sample among passes of up to `most` samples, a micro-batch.
  void set_floors(std::int64_t most) {
    const auto ops = static_cast<OpId>(problem_.graph.ops.size());
    floors_.clear();
    work_.seconds.clear();
    for (OpId op = 0; op < ops; ++op) {
      for (const int kind : kinds_) {
        floors_.push_back(costs_.floor(kind, op, most));
        work_.seconds.push_back(static_cast<double>(batch_) *
                                floors_.back().least_per_sample.sum());
      }
    }
  }

  /// Prices the updates: for every parameter, at least one device zeroes the gradient and makes the
  /// update. These are further items of the work, at the same prices.
  double price_updates() const {
    double total = 0;
    for (const std::int64_t elements : parameters_) {
      double least = kForever;
      for (std::size_t k = 0; k < kinds_.size(); ++k) {
        const double seconds = costs_.begin_seconds(kinds_[k], elements) +
                               costs_.update_seconds(kinds_[k], elements, 1);
        least = std::min(least, prices_[k] * seconds);
      }
      total += least;
    }
    return total;
  }

  /// Bounds a pass of an operator on a micro-batch of `samples` samples, on average over the
  /// samples. The replica that has n of them takes a + b n or more, so the average is at least the
  /// least a (+ b, as n >= 1), and sum n (a + b n) / samples >= a + samples / sum(1 / b) (Cauchy,
  /// Schwarz).
  double pass(OpId op, std::int64_t samples, double OpSeconds::*which) const {
    double one = kForever, fixed = kForever, speed = 0;
    for (std::size_t k = 0; k < kinds_.size(); ++k) {
      const OpFloor& floor = floors_[at(op) * kinds_.size() + k];
      const double a = floor.fixed.*which, b = floor.per_sample.*which;
      one = std::min(one, a + b);
      fixed = std::min(fixed, a);
      speed += b > 0 ? work_.devices[k] / b : kForever;
    }
    return std::max(one, fixed + static_cast<double>(samples) / speed);
  }

  /// Bounds the latency. A sample's rows go forward along a path, operator after operator: those of
  /// a stage run one after another, and a stage waits for the replica that has the row. The
  /// sample's gradients go back along another path that starts where the first ends. The averages
  /// of a path's operators over the samples add up, and some sample takes no less than the average.
  double longest_path(std::int64_t samples) {
    const Graph& graph = problem_.graph;
    if (crossing_.empty()) crossing_ = can_cross(graph);
    const auto ops = static_cast<OpId>(graph.ops.size());
    std::vector<double> there(graph.ops.size()), back(graph.ops.size());
    double longest = 0;
    for (OpId op = 0; op < ops; ++op) {
      for (const TensorId id : graph.op(op).inputs) {
        if (id == kNone || graph.tensor(id).producer == kNone) continue;
        const Tensor& tensor = graph.tensor(id);
        const bool follows = !crossing_[at(id)] || depends_on_batch(tensor.shape);
        if (!follows) continue;
        there[at(op)] = std::max(there[at(op)], there[at(tensor.producer)]);
        if (!tensor.needs_gradient && crossing_[at(id)]) continue;
        back[at(op)] = std::max(back[at(op)], back[at(tensor.producer)]);
      }
      there[at(op)] += pass(op, samples, &OpSeconds::forward);
      back[at(op)] += pass(op, samples, &OpSeconds::backward);
      longest = std::max(longest, there[at(op)] + back[at(op)]);
    }
    return longest;
  }

  /// Bounds the granularity: an operator belongs to one stage, whose devices share whole samples.
  double heaviest_operator() {
    const auto ops = static_cast<OpId>(problem_.graph.ops.size());
    OpId heaviest = 0;
    double most = -1;
    set_floors(largest_);
    for (OpId op = 0; op < ops; ++op) {
      const double priced = work_.seconds[at(op) * kinds_.size()];
      if (priced > most) heaviest = op;
      most = std::max(most, priced);
    }
    const auto seconds = [&](int kind, std::int64_t n) {
      return costs_.least_seconds(kind, heaviest, n, largest_).sum() *
             static_cast<double>(numbers_.front());
    };
    return spread(count_devices(0, problem_.cluster.device_count()), seconds);
  }

  // --- One stage.

  /// Counts, by kind, the devices that can hold the parameters of all operators, `needed` bytes.
  std::vector<int> count_devices(DeviceId first, DeviceId end, std::int64_t needed = 0) const {
    std::vector<int> counts(problem_.cluster.kinds.size());
    for (DeviceId id = first; id < end; ++id) {
      const Device& device = problem_.cluster.devices[at(id)];
      if (problem_.cluster.kinds[at(device.kind)].memory_bytes >= needed) ++counts[at(device.kind)];
    }
    return counts;
  }

  /// Returns the bytes that every device holds, alone or not, so without rounded gradients.
  std::int64_t resident_bytes() const {
    StageParts parts;
    parts.ops = all_ops(problem_);
    parts.gradients = trained_.held_bytes;
    StageMemoryModel model(problem_.graph, problem_.training);
    const StageMemory memory = model.of(parts, 1);
    return memory.parameters + memory.gradients + memory.optimizer;
  }

  LowerBound one_stage() {
    const std::int64_t needed = resident_bytes();
    const Cluster& cluster = problem_.cluster;
    LowerBound best{kForever, "work"};
    const std::vector<int> all = count_devices(0, cluster.device_count(), needed);
    for (const int kind : kinds_) {
      if (all[at(kind)] == 0) continue;
      std::vector<int> alone(all.size());
      alone[at(kind)] = 1;
      lower(best, replicas(alone, nullptr));
    }
    std::map<std::vector<int>, Wires> hosts;  // equal hosts appear once, with the best wires
    for (const Host& host : cluster.hosts) {
      const std::vector<int> counts =
          count_devices(host.first_device, host.first_device + host.device_count, needed);
      if (std::accumulate(counts.begin(), counts.end(), 0) < 2) continue;
      const Wires wires = wires_inside(host);
      const auto [known, added] = hosts.try_emplace(counts, wires);
      known->second.latency = std::min(known->second.latency, wires.latency);
      known->second.bandwidth = std::max(known->second.bandwidth, wires.bandwidth);
    }
    for (const auto& [counts, wires] : hosts) lower(best, replicas(counts, &wires));
    if (cluster.hosts.size() > 1 && std::accumulate(all.begin(), all.end(), 0) > 1) {
      const Wires wires = wires_between_hosts();
      lower(best, replicas(all, &wires));
    }
    return best;
  }

  /// Bounds strategies of one stage on these devices or some of them; on at least two if there are
  /// wires.
  ///
  /// All of a stage's replicas take part in each of its exchanges, after its gradients are there. A
  /// sum over two devices or more needs a message there and one back. It takes each gradient's
  /// bytes out of and into each device (and host, if there are two), so it takes no less than these
  /// bytes at the bandwidth of the slower of two. The first sum begins after the backward passes of
  /// all but the last micro-batch, the last one after the gradient of the first operator with a
  /// parameter.
  LowerBound replicas(const std::vector<int>& counts, const Wires* wires) {
    double update = kForever;
    for (const int kind : kinds_) update = std::min(update, update_of(kind));
    const auto spread_with = [&](Seconds seconds, bool updates) {
      return spread(counts, [&](int kind, std::int64_t n) {
        return costs_.begin_seconds(kind, trained_.elements) +
               seconds(sum_of(kind, n), static_cast<double>(numbers_.front())) +
               (updates ? update_of(kind) : 0);
      });
    };
    const Seconds all = [](const Sum& s, double m) { return m * (s.forward + s.backward); };
    LowerBound bound{spread_with(all, true), "work"};
    if (wires == nullptr || bound.seconds >= enough_) return bound;
    raise(bound, spread_with(all, false) + 2 * wires->latency, "report");
    if (trained_.bytes == 0) return bound;
    const Seconds before = [](const Sum& s, double m) {
      return m * s.forward + (m - 1) * s.backward;
    };
    const Seconds until = [](const Sum& s, double m) {
      return m * (s.forward + s.backward) - s.tail;
    };
    const auto moving = [&](std::int64_t bytes) {
      return 2 * wires->latency + stretch_ * static_cast<double>(bytes) / wires->bandwidth + update;
    };
    raise(bound, spread_with(before, false) + moving(trained_.bytes), "communication");
    raise(bound, spread_with(until, false) + moving(trained_.last_bytes), "communication");
    return bound;
  }

  double update_of(int kind) const {
    return costs_.update_seconds(kind, trained_.elements, trained_.tensors);
  }

  const Sum& sum_of(int kind, std::int64_t n) {
    const auto [entry, added] = sums_[at(kind)].try_emplace(n);
    if (!added) return entry->second;
    Sum& sum = entry->second;
    for (OpId op = 0; op < static_cast<OpId>(problem_.graph.ops.size()); ++op) {
      const OpSeconds seconds = costs_.least_seconds(kind, op, n, largest_);
      sum.forward += seconds.forward;
      sum.backward += seconds.backward;
      if (op < trained_.first) sum.tail += seconds.backward;
    }
    return sum;
  }

  /// Returns the least time in which `counts` devices of each kind take a micro-batch's samples,
  /// whole ones, if n samples take seconds(kind, n), which does not fall with n. The bisection
  /// returns its lower end, a time in which they take fewer; or `enough_` if even that is too
  /// short.
  template <typename F>
  double spread(const std::vector<int>& counts, F seconds) const {
    const auto taken = [&](int kind, double time) {
      std::int64_t low = 0, high = samples_ + 1;  // the kind takes `low`, not `high`
      while (high - low > 1) {
        const std::int64_t middle = low + (high - low) / 2;
        (seconds(kind, middle) <= time ? low : high) = middle;
      }
      return low;
    };
    const auto suffices = [&](double time) {
      double total = 0;
      for (const int kind : kinds_) {
        if (counts[at(kind)] == 0) continue;
        total += static_cast<double>(taken(kind, time)) * counts[at(kind)];
      }
      return total >= static_cast<double>(samples_);
    };
    if (enough_ < kForever && !suffices(enough_)) return enough_;
    double low = 0, high = 0;
    for (const int kind : kinds_) {
      if (counts[at(kind)] > 0) high = std::max(high, seconds(kind, samples_));
    }
    if (high == 0) return std::accumulate(counts.begin(), counts.end(), 0) > 0 ? 0 : kForever;
    for (int i = 0; i < 40; ++i) {
      const double time = (low + high) / 2;
      (suffices(time) ? high : low) = time;
    }
    return low;
  }

  // --- Wires.

  const Link& link(LinkId id) const { return problem_.cluster.links[at(id)]; }

  Wires wires_inside(const Host& host) const {
    Wires wires;
    double in = kForever, out = kForever;
    for (DeviceId id = host.first_device; id < host.first_device + host.device_count; ++id) {
      const Device& device = problem_.cluster.devices[at(id)];
      in = std::min(in, link(device.in).latency);
      out = std::min(out, link(device.out).latency);
      wires.bandwidth = std::max(wires.bandwidth,
                                 std::min(link(device.in).bandwidth, link(device.out).bandwidth));
    }
    wires.latency = in + out;
    return wires;
  }

  /// Bytes that leave a host go over one of the first links of its routes.
  Wires wires_between_hosts() const {
    const Cluster& cluster = problem_.cluster;
    const std::size_t hosts = cluster.hosts.size();
    Wires wires{kForever, 0};
    std::vector<double> leaving;
    for (std::size_t a = 0; a < hosts; ++a) {
      std::vector<LinkId> firsts;
      for (std::size_t b = 0; b < hosts; ++b) {
        const std::vector<LinkId>& route = cluster.host_routes[a * hosts + b];
        if (a == b || route.empty()) continue;
        double latency = 0;
        for (const LinkId id : route) latency += link(id).latency;
        wires.latency = std::min(wires.latency, latency);
        if (firsts.empty() || firsts.back() != route.front()) firsts.push_back(route.front());
      }
      std::sort(firsts.begin(), firsts.end());
      firsts.erase(std::unique(firsts.begin(), firsts.end()), firsts.end());
      leaving.push_back(0);
      for (const LinkId id : firsts) leaving.back() += link(id).bandwidth;
    }
    std::sort(leaving.rbegin(), leaving.rend());
    wires.bandwidth = leaving[1];
    return wires;
  }

  Wires wires_between_any() const {
    Wires wires{kForever, 0};
    for (const Host& host : problem_.cluster.hosts) {
      if (host.device_count > 1)
        wires.latency = std::min(wires.latency, wires_inside(host).latency);
    }
    if (problem_.cluster.hosts.size() > 1) {
      wires.latency = std::min(wires.latency, wires_between_hosts().latency);
    }
    return wires;
  }

  const Problem& problem_;
  const std::int64_t batch_;
  const CostTable& costs_;
  std::vector<std::int64_t> numbers_;  // numbers of micro-batches, ascending
  // Of the fewest micro-batches: samples that each has at least, and at most.
  std::int64_t samples_ = 1, largest_ = 1;
  std::vector<int> kinds_;                // the kinds of the devices
  std::vector<std::int64_t> parameters_;  // elements of each trained parameter
  Trained trained_;
  double enough_ = kForever;  // the best so far: a way that takes as long does not decide
  double stretch_ = 1;
  SpreadWork work_;              // the work of the operators, on `kinds_`
  std::vector<double> prices_;   // of `kinds_`
  std::vector<OpFloor> floors_;  // by operator, then kind
  std::vector<bool> crossing_;
  std::vector<std::map<std::int64_t, Sum>> sums_;  // by kind, then samples
};

}  // namespace

LowerBound lower_bound(const Problem& problem) { return Bounder(problem).run(); }

}  // namespace agpcs
