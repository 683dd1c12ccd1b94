// SPDX-License-Identifier: Apache-2.0
// best_below: every strategy of a small problem, as far as bounds do not exclude it.
#include "cost_model/network/link_model.h"
#include "ir/base/at.h"
#include "ir/strategy/plan_graph.h"
#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "tests/bench/planning/small_cases.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs::bench {
namespace {

using Shares = std::vector<std::int64_t>;

/// All ways to write `samples` as `parts` positive numbers in order.
void compositions(std::int64_t samples, std::size_t parts, Shares& begun,
                  std::vector<Shares>& all) {
  if (parts == 1) {
    begun.push_back(samples);
    all.push_back(begun);
    begun.pop_back();
    return;
  }
  for (std::int64_t first = 1; first + static_cast<std::int64_t>(parts) - 1 <= samples; ++first) {
    begun.push_back(first);
    compositions(samples - first, parts - 1, begun, all);
    begun.pop_back();
  }
}

/// Buckets of a stage's gradients, with the seconds that no step with them is below.
struct Grouping {
  double bound = 0;
  std::vector<Bucket> buckets;
};

class Enumeration {
 public:
  Enumeration(const Problem& problem, double below, std::int64_t most_evaluations)
      : problem_(problem), evaluator_(problem), most_(most_evaluations), below_(below) {}

  Optimum run() {
    stage_of_.assign(at(problem_.blocks.size()), 0);
    assign_block(0, 0);
    return std::move(best_);
  }

 private:
  /// A replica in a pipeline that nothing delays but what it must wait for: no strategy of the same
  /// cuts, groups, shares and micro-batches is earlier.
  struct Replica {
    DeviceId device = 0;
    int kind = 0;
    std::int64_t begin = 0, end = 0;  // its rows
    double begin_seconds = 0, forward = 0, backward = 0, update = 0;
    double start = 0;  // of its first forward pass
    double done = 0;   // end of its last backward pass
    std::vector<double>
        elapsed;  // by parameter of the stage: of backward, when its gradient is there
  };
  struct Crossing {
    int from = 0, to = 0;
    std::int64_t row_bytes = 0, gradient_bytes = 0;
    bool rows = false, gradient_rows = false;
  };
  struct Stage {
    std::vector<OpId> ops;
    std::vector<Bucket> each;         // one bucket for each gradient, in backward order
    std::vector<std::int64_t> bytes;  // parallel
    std::vector<OpId> first;          // consumer, parallel
    std::int64_t elements = 0;
    std::vector<DeviceId> devices;
    std::vector<Shares> shares;
    std::vector<Replica> replicas;
  };

  // --- Cuts: stage 0 to the last, none empty, no edge goes back.

  void assign_block(int block, int used) {
    if (!best_.complete) return;
    if (block == problem_.blocks.size()) {
      for (int stage = 0; stage < used; ++stage) {
        if (std::find(stage_of_.begin(), stage_of_.end(), stage) == stage_of_.end()) return;
      }
      try_cut(used);
      return;
    }
    int least = 0;
    for (const BlockEdge& edge : problem_.blocks.edges) {
      if (edge.to == block) least = std::max(least, stage_of_[at(edge.from)]);
    }
    const int most = std::min(problem_.cluster.device_count(), problem_.blocks.size());
    for (int stage = least; stage < most; ++stage) {
      stage_of_[at(block)] = stage;
      assign_block(block + 1, std::max(used, stage + 1));
    }
    stage_of_[at(block)] = 0;
  }

  void try_cut(int stages) {
    now_ = {};
    now_.stage_of = stage_of_ops(problem_.blocks, stage_of_);
    stages_.assign(at(stages), {});
    const std::vector<std::vector<OpId>> ops = ops_of_stages(now_.stage_of, stages);
    for (int s = 0; s < stages; ++s) stages_[at(s)].ops = ops[at(s)];
    now_.stages.assign(at(stages), {{0}, {1}, false});
    now_.buckets.clear();
    const Strategy grouped = group_gradients(problem_, now_, 1);
    for (const Bucket& bucket : grouped.buckets) add_gradient(bucket);
    find_crossings();
    for (const std::int64_t number : micro_batch_numbers(problem_.training.batch)) {
      if (problem_.options.micro_batches > 0 && number != problem_.options.micro_batches) continue;
      now_.micro_batches = number;
      group_of_.assign(at(problem_.cluster.device_count()), -1);
      assign_device(0, stages);
    }
  }

  void add_gradient(const Bucket& bucket) {
    Stage& stage = stages_[at(bucket.stage)];
    const Tensor& tensor = problem_.graph.tensor(bucket.parameters.front());
    const std::int64_t elements = elements_at(tensor.shape, 1);
    const DType held = held_type(tensor.type, problem_.training.precision);
    stage.each.push_back(bucket);
    stage.bytes.push_back(elements * static_cast<std::int64_t>(size_of(held)));
    stage.first.push_back(tensor.consumers.front());
    stage.elements += elements;
  }

  void find_crossings() {
    std::map<std::pair<int, int>, Crossing> cuts;
    for_each_crossing(problem_.graph, now_.stage_of, [&](int from, int to, TensorId id) {
      const Tensor& tensor = problem_.graph.tensor(id);
      const CutTensor cut = cut_tensor(tensor, problem_.training.precision);
      Crossing& crossing = cuts[{from, to}];
      crossing.from = from;
      crossing.to = to;
      if (!cut.batched) return;
      const std::int64_t bytes =
          cut.elements_per_row() * static_cast<std::int64_t>(size_of(cut.type));
      crossing.rows = true;
      crossing.row_bytes += bytes;
      crossing.gradient_rows = crossing.gradient_rows || tensor.needs_gradient;
      crossing.gradient_bytes += tensor.needs_gradient ? bytes : 0;
    });
    crossings_.clear();
    for (const auto& [ends, crossing] : cuts) crossings_.push_back(crossing);
  }

  // --- Groups and shares.

  bool alike(DeviceId a, DeviceId b) const {
    const Device &x = problem_.cluster.devices[at(a)], &y = problem_.cluster.devices[at(b)];
    return x.host == y.host && x.kind == y.kind && same_link(x.in, y.in) && same_link(x.out, y.out);
  }
  bool same_link(LinkId a, LinkId b) const {
    const Link &x = problem_.cluster.links[at(a)], &y = problem_.cluster.links[at(b)];
    return x.bandwidth == y.bandwidth && x.latency == y.latency;
  }

  void assign_device(DeviceId device, int stages) {
    if (!best_.complete) return;
    if (device == problem_.cluster.device_count()) {
      try_groups(stages);
      return;
    }
    const int least = device > 0 && alike(device - 1, device) ? group_of_[at(device - 1)] : -1;
    for (int stage = least; stage < stages; ++stage) {
      group_of_[at(device)] = stage;
      assign_device(device + 1, stages);
    }
  }

  void try_groups(int stages) {
    const std::int64_t samples = largest_micro_batch(problem_, now_.micro_batches);
    report_ = report_seconds();
    for (int s = 0; s < stages; ++s) {
      Stage& stage = stages_[at(s)];
      stage.devices.clear();
      for (DeviceId d = 0; d < problem_.cluster.device_count(); ++d) {
        if (group_of_[at(d)] == s) stage.devices.push_back(d);
      }
      if (stage.devices.empty()) return;
      if (static_cast<std::int64_t>(stage.devices.size()) > samples) return;
    }
    for (int s = 0; s < stages; ++s) {
      Stage& stage = stages_[at(s)];
      std::vector<Shares> all;
      Shares begun;
      compositions(samples, stage.devices.size(), begun, all);
      stage.shares.clear();
      for (Shares& shares : all) {
        if (stages == 1 && is_mirrored(stage, shares)) continue;
        set_replicas(stage, shares);
        for (Replica& r : stage.replicas) r.done = busy(r);
        if (bound_of(stage) < below_) stage.shares.push_back(std::move(shares));
      }
      if (stage.shares.empty()) return;
    }
    choose_shares(0);
  }

  /// One stage moves no rows, so devices that are alike may swap shares.
  bool is_mirrored(const Stage& stage, const Shares& shares) const {
    for (std::size_t i = 1; i < shares.size(); ++i) {
      if (alike(stage.devices[i - 1], stage.devices[i]) && shares[i] > shares[i - 1]) return true;
    }
    return false;
  }

  double report_seconds() const {
    std::vector<DeviceId> used;
    for (DeviceId d = 0; d < problem_.cluster.device_count(); ++d) {
      if (group_of_[at(d)] >= 0) used.push_back(d);
    }
    return lone_seconds(problem_.cluster, small_all_reduce(problem_.cluster, used, 8));
  }

  double busy(const Replica& r) const {
    return r.start + r.begin_seconds +
           static_cast<double>(now_.micro_batches) * (r.forward + r.backward);
  }

  void set_replicas(Stage& stage, const Shares& shares) {
    stage.replicas.assign(shares.size(), {});
    std::int64_t row = 0;
    for (std::size_t i = 0; i < shares.size(); ++i) {
      Replica& r = stage.replicas[i];
      r.device = stage.devices[i];
      r.kind = problem_.cluster.devices[at(r.device)].kind;
      r.begin = row;
      r.end = row += shares[i];
      const auto tensors = static_cast<std::int64_t>(stage.each.size());
      r.begin_seconds = problem_.costs.begin_seconds(r.kind, stage.elements);
      r.update = problem_.costs.update_seconds(r.kind, stage.elements, tensors);
      const std::vector<OpSeconds>& times = times_of(r.kind, shares[i]);
      r.elapsed.reserve(stage.each.size());
      for (const OpId op : stage.ops) r.forward += times[at(op)].forward;
      for (std::size_t o = stage.ops.size(); o-- > 0;) {
        r.backward += times[at(stage.ops[o])].backward;
        while (r.elapsed.size() < stage.first.size() &&
               stage.first[r.elapsed.size()] == stage.ops[o]) {
          r.elapsed.push_back(r.backward);
        }
      }
    }
  }

  const std::vector<OpSeconds>& times_of(int kind, std::int64_t samples) {
    const auto [entry, added] = times_.try_emplace({kind, samples});
    if (!added) return entry->second;
    for (OpId op = 0; op < static_cast<OpId>(problem_.graph.ops.size()); ++op) {
      entry->second.push_back(problem_.costs.seconds(kind, op, samples));
    }
    return entry->second;
  }

  void choose_shares(std::size_t s) {
    if (!best_.complete) return;
    if (s == stages_.size()) {
      try_skeleton();
      return;
    }
    for (const Shares& shares : stages_[s].shares) {
      set_replicas(stages_[s], shares);
      now_.stages[s] = {stages_[s].devices, shares, false};
      choose_shares(s + 1);
    }
  }

  // --- Bounds of what is left open.

  double moved(DeviceId from, DeviceId to, std::int64_t bytes) {
    const auto [entry, added] = transfers_.try_emplace({from, to, bytes}, 0);
    if (added) {
      entry->second = lone_seconds(problem_.cluster, transfer(problem_.cluster, from, to, bytes));
    }
    return entry->second;
  }

  /// Starts of first passes from the first stage on, ends of last ones from the last stage back.
  void time_pipeline() {
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      for (const Crossing& c : crossings_) {
        if (at(c.to) != s || !c.rows) continue;
        for (Replica& r : stages_[s].replicas) {
          for (const Replica& p : stages_[at(c.from)].replicas) {
            const std::int64_t rows = std::min(p.end, r.end) - std::max(p.begin, r.begin);
            if (rows <= 0) continue;
            const double there =
                p.start + p.forward + moved(p.device, r.device, rows * c.row_bytes);
            r.start = std::max(r.start, there);
          }
        }
      }
    }
    for (std::size_t s = stages_.size(); s-- > 0;) {
      for (Replica& r : stages_[s].replicas) r.done = busy(r);
      for (const Crossing& c : crossings_) {
        if (at(c.from) != s || !c.gradient_rows) continue;
        for (Replica& p : stages_[s].replicas) {
          for (const Replica& r : stages_[at(c.to)].replicas) {
            const std::int64_t rows = std::min(p.end, r.end) - std::max(p.begin, r.begin);
            if (rows <= 0) continue;
            const double back = r.done + moved(r.device, p.device, rows * c.gradient_bytes);
            p.done = std::max(p.done, back + p.backward);
          }
        }
      }
    }
  }

  double reduced(const Stage& stage, AllReduce algorithm, std::int64_t bytes) {
    const auto [entry, added] = reductions_.try_emplace({stage.devices, algorithm, bytes}, 0);
    if (added) {
      entry->second = lone_seconds(problem_.cluster,
                                   all_reduce(problem_.cluster, stage.devices, algorithm, bytes));
    }
    return entry->second;
  }

  double least_reduced(const Stage& stage, std::int64_t bytes) {
    double least = std::numeric_limits<double>::infinity();
    for (const AllReduce algorithm : kAllReduces) {
      least = std::min(least, reduced(stage, algorithm, bytes));
    }
    return least;
  }

  /// When gradient `index` is there on all replicas.
  static double ready(const Stage& stage, std::size_t index) {
    double latest = 0;
    for (const Replica& r : stage.replicas) {
      latest = std::max(latest, r.done - r.backward + r.elapsed[index]);
    }
    return latest;
  }

  static double longest_update(const Stage& stage) {
    double update = 0;
    for (const Replica& r : stage.replicas) update = std::max(update, r.update);
    return update;
  }

  /// With any buckets: those that hold no more than the last gradient end no earlier.
  double bound_of(const Stage& stage) {
    double bound = 0;
    for (const Replica& r : stage.replicas) {
      bound = std::max({bound, r.done + r.update, r.done + report_});
    }
    if (stage.replicas.size() < 2 || stage.each.empty()) return bound;
    const std::size_t last = stage.each.size() - 1;
    return std::max(bound, ready(stage, last) + least_reduced(stage, stage.bytes[last]) +
                               longest_update(stage));
  }

  /// Each run of gradients, each algorithm: buckets follow one another.
  void add_groupings(const Stage& stage, std::size_t next, double end, Grouping& begun,
                     std::vector<Grouping>& all) {
    if (next == stage.each.size()) {
      begun.bound = end + longest_update(stage);
      if (begun.bound < below_) all.push_back(begun);
      return;
    }
    Bucket bucket{stage.each[next].stage, AllReduce::kRing, {}};
    std::int64_t bytes = 0;
    for (std::size_t i = next; i < stage.each.size(); ++i) {
      bucket.parameters.push_back(stage.each[i].parameters.front());
      bytes += stage.bytes[i];
      const double start = std::max(end, ready(stage, i));
      for (const AllReduce algorithm : kAllReduces) {
        bucket.algorithm = algorithm;
        const double ends = start + reduced(stage, bucket.algorithm, bytes);
        if (ends >= below_) continue;
        begun.buckets.push_back(bucket);
        add_groupings(stage, i + 1, ends, begun, all);
        begun.buckets.pop_back();
      }
    }
  }

  std::vector<Grouping> groupings_of(const Stage& stage) {
    std::vector<Grouping> all;
    Grouping begun;
    if (stage.replicas.size() > 1) {
      add_groupings(stage, 0, 0, begun, all);
    } else {
      if (!stage.each.empty()) begun.buckets.push_back(stage.each.front());
      for (std::size_t i = 1; i < stage.each.size(); ++i) {
        begun.buckets.front().parameters.push_back(stage.each[i].parameters.front());
      }
      all.push_back(begun);
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Grouping& a, const Grouping& b) { return a.bound < b.bound; });
    return all;
  }

  // --- What is left is evaluated.

  void try_skeleton() {
    ++best_.skeletons;
    time_pipeline();
    for (const Stage& stage : stages_) {
      if (bound_of(stage) >= below_) return;
    }
    groupings_.clear();
    for (const Stage& stage : stages_) {
      groupings_.push_back(groupings_of(stage));
      if (groupings_.back().empty()) return;
    }
    for (const Strategy& form : schedules_of(now_)) {
      now_ = form;
      try_recomputation();
    }
  }

  void try_recomputation() {
    std::vector<unsigned> fitting;
    std::vector<unsigned> masks;
    for (unsigned mask = 0; mask < 1U << stages_.size(); ++mask) masks.push_back(mask);
    std::stable_sort(masks.begin(), masks.end(), [](unsigned a, unsigned b) {
      return __builtin_popcount(a) < __builtin_popcount(b);
    });
    for (const unsigned mask : masks) {
      const bool needless = std::any_of(fitting.begin(), fitting.end(),
                                        [&](unsigned less) { return (less & mask) == less; });
      if (needless) continue;
      for (std::size_t s = 0; s < stages_.size(); ++s)
        now_.stages[s].recompute = (mask >> s & 1) != 0 ? kWholeStage : Recomputation{};
      now_.buckets.clear();
      if (evaluator_.lacking(now_) > 0) continue;
      fitting.push_back(mask);
      choose_buckets(0);
    }
  }

  void choose_buckets(std::size_t s) {
    if (s == stages_.size()) {
      evaluate();
      return;
    }
    for (const Grouping& grouping : groupings_[s]) {
      if (grouping.bound >= below_) break;
      const std::size_t before = now_.buckets.size();
      now_.buckets.insert(now_.buckets.end(), grouping.buckets.begin(), grouping.buckets.end());
      choose_buckets(s + 1);
      now_.buckets.resize(before);
      if (!best_.complete) return;
    }
  }

  void evaluate() {
    if (best_.evaluations == most_) {
      best_.complete = false;
      return;
    }
    ++best_.evaluations;
    const Score score = evaluator_.evaluate(now_);
    if (!score.fits() || score.step_seconds >= below_) return;
    below_ = best_.seconds = score.step_seconds;
    best_.strategy = now_;
  }

  const Problem& problem_;
  Evaluator evaluator_;
  const std::int64_t most_;
  double below_;
  Optimum best_;

  // Of the strategy at hand.
  std::vector<int> stage_of_;  // by block
  std::vector<int> group_of_;  // stage by device; -1: idle
  std::vector<Stage> stages_;
  std::vector<Crossing> crossings_;
  std::vector<std::vector<Grouping>> groupings_;
  double report_ = 0;
  Strategy now_;

  std::map<std::pair<int, std::int64_t>, std::vector<OpSeconds>> times_;
  std::map<std::tuple<DeviceId, DeviceId, std::int64_t>, double> transfers_;
  std::map<std::tuple<std::vector<DeviceId>, AllReduce, std::int64_t>, double> reductions_;
};

}  // namespace

Optimum best_below(const Problem& problem, double below, std::int64_t most_evaluations) {
  return Enumeration(problem, below, most_evaluations).run();
}

}  // namespace agpcs::bench
