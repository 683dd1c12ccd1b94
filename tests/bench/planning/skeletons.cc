// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/planning/skeletons.h"

#include "cost_model/network/link_model.h"
#include "ir/base/at.h"
#include "ir/strategy/plan_graph.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"

#include <algorithm>
#include <limits>

namespace agpcs::bench {
namespace {

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

}  // namespace

Skeletons::Skeletons(const Problem& problem, double below, std::int64_t most_evaluations)
    : problem_(problem), evaluator_(problem), most_(most_evaluations), below_(below) {}

Optimum Skeletons::run() {
  stage_of_.assign(at(problem_.blocks.size()), 0);
  assign_block(0, 0);
  return std::move(best_);
}

// --- Cuts: stage 0 to the last, none empty, no edge goes back.

void Skeletons::assign_block(int block, int used) {
  if (!goes_on()) return;
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
  const int most =
      std::min(problem_.cluster.device_count() * most_rounds(), problem_.blocks.size());
  for (int stage = least; stage < most; ++stage) {
    stage_of_[at(block)] = stage;
    assign_block(block + 1, std::max(used, stage + 1));
  }
  stage_of_[at(block)] = 0;
}

void Skeletons::try_cut(int stages) {
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
  for (int rounds = 1; rounds <= std::min(most_rounds(), stages); ++rounds) {
    groups_ = stages / rounds;
    if (groups_ * rounds != stages || (rounds > 1 && groups_ < 2)) continue;
    if (groups_ > problem_.cluster.device_count()) continue;
    for (const std::int64_t number : micro_batch_numbers(problem_)) {
      now_.micro_batches = number;
      group_of_.assign(at(problem_.cluster.device_count()), -1);
      assign_device(0);
    }
  }
}

void Skeletons::add_gradient(const Bucket& bucket) {
  Stage& stage = stages_[at(bucket.stage)];
  const Tensor& tensor = problem_.graph.tensor(bucket.parameters.front());
  const std::int64_t elements = elements_at(tensor.shape, 1);
  const DType held = held_type(tensor.type, problem_.training.precision);
  stage.each.push_back(bucket);
  stage.bytes.push_back(elements * static_cast<std::int64_t>(size_of(held)));
  stage.first.push_back(tensor.consumers.front());
  stage.elements += elements;
}

void Skeletons::find_crossings() {
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

bool Skeletons::alike(DeviceId a, DeviceId b) const {
  const Device &x = problem_.cluster.devices[at(a)], &y = problem_.cluster.devices[at(b)];
  return x.host == y.host && x.kind == y.kind && same_link(x.in, y.in) && same_link(x.out, y.out);
}
bool Skeletons::same_link(LinkId a, LinkId b) const {
  const Link &x = problem_.cluster.links[at(a)], &y = problem_.cluster.links[at(b)];
  return x.bandwidth == y.bandwidth && x.latency == y.latency;
}

void Skeletons::assign_device(DeviceId device) {
  if (!goes_on()) return;
  if (device == problem_.cluster.device_count()) {
    try_groups();
    return;
  }
  const int least = device > 0 && alike(device - 1, device) ? group_of_[at(device - 1)] : -1;
  for (int group = least; group < groups_; ++group) {
    group_of_[at(device)] = group;
    assign_device(device + 1);
  }
}

void Skeletons::try_groups() {
  const std::int64_t samples = largest_micro_batch(problem_, now_.micro_batches);
  report_ = report_seconds();
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    Stage& stage = stages_[s];
    stage.devices.clear();
    for (DeviceId d = 0; d < problem_.cluster.device_count(); ++d) {
      if (group_of_[at(d)] == static_cast<int>(s) % groups_) stage.devices.push_back(d);
    }
    if (stage.devices.empty()) return;
    if (static_cast<std::int64_t>(stage.devices.size()) > samples) return;
  }
  for (Stage& stage : stages_) {
    std::vector<Shares> all;
    Shares begun;
    compositions(samples, stage.devices.size(), begun, all);
    stage.shares.clear();
    for (Shares& shares : all) {
      if (stages_.size() == 1 && is_mirrored(stage, shares)) continue;
      set_replicas(stage, shares);
      for (Replica& r : stage.replicas) r.done = busy(r);
      if (bound_of(stage) < below_) stage.shares.push_back(std::move(shares));
    }
    if (stage.shares.empty()) return;
  }
  choose_shares(0);
}

/// One stage moves no rows, so devices that are alike may swap shares.
bool Skeletons::is_mirrored(const Stage& stage, const Shares& shares) const {
  for (std::size_t i = 1; i < shares.size(); ++i) {
    if (alike(stage.devices[i - 1], stage.devices[i]) && shares[i] > shares[i - 1]) return true;
  }
  return false;
}

double Skeletons::report_seconds() const {
  std::vector<DeviceId> used;
  for (DeviceId d = 0; d < problem_.cluster.device_count(); ++d) {
    if (group_of_[at(d)] >= 0) used.push_back(d);
  }
  return lone_seconds(problem_.cluster, small_all_reduce(problem_.cluster, used, 8));
}

double Skeletons::busy(const Replica& r, double part) const {
  return r.start + r.begin_seconds +
         static_cast<double>(now_.micro_batches) * (r.forward + part * r.backward);
}

void Skeletons::set_replicas(Stage& stage, const Shares& shares) {
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

const std::vector<OpSeconds>& Skeletons::times_of(int kind, std::int64_t samples) {
  const auto [entry, added] = times_.try_emplace({kind, samples});
  if (!added) return entry->second;
  for (OpId op = 0; op < static_cast<OpId>(problem_.graph.ops.size()); ++op) {
    entry->second.push_back(problem_.costs.seconds(kind, op, samples));
  }
  return entry->second;
}

void Skeletons::choose_shares(int group) {
  if (!goes_on()) return;
  if (group == groups_) {
    ++best_.skeletons;
    time_pipeline();
    if (!is_beaten()) try_skeleton();
    return;
  }
  for (const Shares& shares : stages_[at(group)].shares) {
    for (std::size_t s = at(group); s < stages_.size(); s += at(groups_)) {
      set_replicas(stages_[s], shares);
      now_.stages[s] = {stages_[s].devices, shares, {}};
    }
    choose_shares(group + 1);
  }
}

/// Whether a stage takes too long, or a device with all its stages.
bool Skeletons::is_beaten() {
  for (const Stage& stage : stages_) {
    if (bound_of(stage) >= below_) return true;
  }
  std::map<DeviceId, double> busy_seconds;
  for (const Stage& stage : stages_) {
    for (const Replica& r : stage.replicas) {
      const double passes = static_cast<double>(now_.micro_batches) * (r.forward + r.backward);
      if ((busy_seconds[r.device] += passes) >= below_) return true;
    }
  }
  return false;
}

// --- Bounds of what is left open.

double Skeletons::moved(DeviceId from, DeviceId to, std::int64_t bytes) {
  const auto [entry, added] = transfers_.try_emplace({from, to, bytes}, 0);
  if (added) {
    entry->second = lone_seconds(problem_.cluster, transfer(problem_.cluster, from, to, bytes));
  }
  return entry->second;
}

/// Starts of first passes from the first stage on, ends of last ones from the last stage back.
void Skeletons::time_pipeline() {
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    for (const Crossing& c : crossings_) {
      if (at(c.to) != s || !c.rows) continue;
      for (Replica& r : stages_[s].replicas) {
        for (const Replica& p : stages_[at(c.from)].replicas) {
          const std::int64_t rows = shared_rows(p, r);
          if (rows <= 0) continue;
          const double there = p.start + p.forward + moved(p.device, r.device, rows * c.row_bytes);
          r.start = std::max(r.start, there);
        }
      }
    }
  }
  for (std::size_t s = stages_.size(); s-- > 0;) {
    for (Replica& r : stages_[s].replicas) {
      r.done = busy(r);
      r.gone = busy(r, input_part());
    }
    for (const Crossing& c : crossings_) {
      if (at(c.from) != s || !c.gradient_rows) continue;
      for (Replica& p : stages_[s].replicas) {
        for (const Replica& r : stages_[at(c.to)].replicas) {
          const std::int64_t rows = shared_rows(p, r);
          if (rows <= 0) continue;
          // The last weight pass follows its input pass.
          const double back = r.gone + moved(r.device, p.device, rows * c.gradient_bytes);
          p.gone = std::max(p.gone, back + input_part() * p.backward);
          p.done = std::max(p.done, back + p.backward);
        }
      }
    }
  }
}

double Skeletons::reduced(const Stage& stage, AllReduce algorithm, std::int64_t bytes) {
  const auto [entry, added] = reductions_.try_emplace({stage.devices, algorithm, bytes}, 0);
  if (added) {
    entry->second = lone_seconds(problem_.cluster,
                                 all_reduce(problem_.cluster, stage.devices, algorithm, bytes));
  }
  return entry->second;
}

double Skeletons::least_reduced(const Stage& stage, std::int64_t bytes) {
  double least = std::numeric_limits<double>::infinity();
  for (const AllReduce algorithm : kAllReduces) {
    least = std::min(least, reduced(stage, algorithm, bytes));
  }
  return least;
}

/// When gradient `index` is there on all replicas.
double Skeletons::ready(const Stage& stage, std::size_t index) {
  double latest = 0;
  for (const Replica& r : stage.replicas) {
    latest = std::max(latest, r.done - r.backward + r.elapsed[index]);
  }
  return latest;
}

double Skeletons::longest_update(const Stage& stage) {
  double update = 0;
  for (const Replica& r : stage.replicas) update = std::max(update, r.update);
  return update;
}

double Skeletons::in_flight_bound(const std::vector<std::int64_t>& in_flight, double part) {
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> ways(stages_.size());  // from a stage to later ones and back, the least
  double bound = 0;
  for (std::size_t s = stages_.size(); s-- > 0;) {
    double start = kNever, passes = kNever;
    for (const Replica& r : stages_[s].replicas) {
      start = std::min(start, r.start);
      passes = std::min(passes, r.forward + part * r.backward);
    }
    double beyond = 0;
    for (const Crossing& c : crossings_) {
      if (at(c.from) != s || !c.rows || !c.gradient_rows) continue;
      double least = kNever;
      for (const Replica& p : stages_[s].replicas) {
        for (const Replica& r : stages_[at(c.to)].replicas) {
          const std::int64_t rows = shared_rows(p, r);
          if (rows <= 0) continue;
          least = std::min(least, moved(p.device, r.device, rows * c.row_bytes) +
                                      moved(r.device, p.device, rows * c.gradient_bytes));
        }
      }
      beyond = std::max(beyond, least + ways[at(c.to)]);
    }
    ways[s] = passes + beyond;
    const std::int64_t turns = (now_.micro_batches + in_flight[s] - 1) / in_flight[s];
    bound = std::max(bound, start + static_cast<double>(turns) * ways[s]);
  }
  return bound;
}

double Skeletons::passes_bound(const Stage& stage) const {
  double bound = 0;
  for (const Replica& r : stage.replicas) bound = std::max(bound, r.done + report_);
  return bound;
}

// --- Buckets.

/// Each run of gradients, each algorithm: buckets follow one another.
void Skeletons::add_groupings(const Stage& stage, std::size_t next, double end, double part,
                              double update, Grouping& begun, std::vector<Grouping>& all) {
  if (next == stage.each.size()) {
    begun.bound = end + update;
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
      const double ends = start + part * reduced(stage, bucket.algorithm, bytes);
      if (ends >= below_) continue;
      begun.buckets.push_back(bucket);
      add_groupings(stage, i + 1, ends, part, update, begun, all);
      begun.buckets.pop_back();
    }
  }
}

std::vector<Grouping> Skeletons::groupings_of(const Stage& stage, double part, double update) {
  std::vector<Grouping> all;
  Grouping begun;
  if (stage.replicas.size() > 1) {
    add_groupings(stage, 0, 0, part, update, begun, all);
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

void Skeletons::try_buckets(std::size_t place) {
  if (place == stages_.size()) {
    evaluate();
    return;
  }
  for (const Grouping& grouping : groupings_[at(stage_to_sum(now_, place))]) {
    if (grouping.bound >= below_) break;
    const std::size_t before = now_.buckets.size();
    now_.buckets.insert(now_.buckets.end(), grouping.buckets.begin(), grouping.buckets.end());
    try_buckets(place + 1);
    now_.buckets.resize(before);
    if (!goes_on()) return;
  }
}

void Skeletons::evaluate() {
  if (best_.evaluations == most_) {
    best_.complete = false;
    return;
  }
  ++best_.evaluations;
  const Score score = evaluator_.evaluate_up_to(now_, below_);
  if (!score.whole || !score.fits() || score.step_seconds >= below_) return;
  below_ = best_.seconds = score.step_seconds;
  best_.strategy = now_;
}

}  // namespace agpcs::bench
