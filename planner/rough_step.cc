// SPDX-License-Identifier: Apache-2.0
#include "planner/rough_step.h"

#include "cost_model/link_model.h"
#include "ir/plan_graph.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

namespace agpcs {
namespace {

std::size_t at(int id) { return static_cast<std::size_t>(id); }

/// Devices of groups whose all-reduces are remembered.
constexpr std::size_t kMostRemembered = std::size_t{1} << 24;
constexpr std::int64_t kSmall = std::int64_t{1} << 20, kLarge = std::int64_t{32} << 20;

}  // namespace

/// The slowest forward pass and the slowest backward pass of any stage, for one micro-batch.
struct RoughModel::Passes {
  double forward = 0, backward = 0;
};

void RoughModel::Lanes::add(std::size_t lane, double more) {
  if (seconds[lane] == 0) busy.push_back(lane);
  seconds[lane] += more;
}

/// The seconds of the busiest; all go to `into`, where given.
double RoughModel::Lanes::empty(Lanes* into) {
  double most = 0;
  for (const std::size_t lane : busy) {
    const double own = std::exchange(seconds[lane], 0.0);
    most = std::max(most, own);
    if (into != nullptr) into->add(lane, own);
  }
  busy.clear();
  return most;
}

RoughModel::RoughModel(const Problem& problem)
    : problem_(problem), gradients_(gradients_of_blocks(problem)) {
  const BlockGraph& blocks = problem.blocks;
  const auto samples = static_cast<double>(blocks.samples);
  std::map<std::pair<int, std::vector<int>>, double> nets;
  for (const Tensor& tensor : problem.graph.tensors) {
    if (tensor.producer == kNone) continue;
    const int from = blocks.block_of[at(tensor.producer)];
    std::set<int> to;
    for (const OpId consumer : tensor.consumers) to.insert(blocks.block_of[at(consumer)]);
    to.erase(from);
    if (to.empty()) continue;
    nets[{from, {to.begin(), to.end()}}] +=
        static_cast<double>(elements_at(tensor.shape, blocks.samples)) / samples *
        static_cast<double>(element_bytes(tensor.type, problem.training.precision));
  }
  for (const auto& [ends, bytes] : nets) nets_.push_back({ends.first, ends.second, bytes});
  const Cluster& cluster = problem.cluster;
  for (Lanes* const lanes : {&cut_, &forward_, &backward_}) {
    lanes->seconds.resize(cluster.links.size() + 2 * cluster.devices.size());
  }
}

RoughStep RoughModel::step(const Strategy& strategy, const std::vector<StageTimer*>& timers) {
  const std::size_t stages = strategy.stages.size();
  const bool gpipe = strategy.schedule == Schedule::kGPipe;
  const auto micro_batches = static_cast<double>(strategy.micro_batches);
  RoughStep rough;
  std::vector<double> seconds(stages);
  const Passes slowest = compute(strategy, timers, seconds, rough);
  double pace = 0;
  const std::vector<double> way = pass_cuts(strategy, seconds);
  for (std::size_t s = 0; s < stages; ++s) {
    rough.longest_way = std::max(rough.longest_way, way[s]);
    const auto in_flight = static_cast<double>(stages - s);
    if (!gpipe && micro_batches > in_flight) pace = std::max(pace, way[s] / in_flight);
  }
  const double forward = forward_.empty(), backward = backward_.empty();
  reduce(strategy, seconds, way, rough);
  rough.slowest_cut = forward + backward;
  pace = gpipe ? std::max(slowest.forward, forward) + std::max(slowest.backward, backward)
               : std::max({pace, rough.slowest_stage, forward});
  rough.seconds = rough.longest_way + (micro_batches - 1) * pace + rough.late;
  return rough;
}

/// `seconds`: of a micro-batch, by stage.
RoughModel::Passes RoughModel::compute(const Strategy& strategy,
                                       const std::vector<StageTimer*>& timers,
                                       std::vector<double>& seconds, RoughStep& rough) {
  Passes slowest;
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const int kind = problem_.cluster.devices[at(spec.devices[i])].kind;
      const double forward = timers[s]->forward_seconds(kind, spec.shares[i]);
      const double own = timers[s]->seconds(kind, spec.shares[i]) + (spec.recompute ? forward : 0);
      rough.busy += own * static_cast<double>(strategy.micro_batches);
      seconds[s] = std::max(seconds[s], own);
      slowest.forward = std::max(slowest.forward, forward);
      slowest.backward = std::max(slowest.backward, own - forward);
    }
    if (seconds[s] > rough.slowest_stage) {
      rough.slowest_stage = seconds[s];
      rough.bottleneck = static_cast<int>(s);
    }
    rough.sum_of_stages += seconds[s];
  }
  return slowest;
}

void RoughModel::reduce(const Strategy& strategy, const std::vector<double>& seconds,
                        const std::vector<double>& way, RoughStep& rough) {
  std::vector<GradientSum> sums(seconds.size());
  for (std::size_t b = 0; b < gradients_.size(); ++b) {
    GradientSum& sum = sums[at(stage_of(strategy, static_cast<int>(b)))];
    sum.bytes += gradients_[b].bytes;
    sum.elements += gradients_[b].elements;
    sum.tensors += gradients_[b].tensors;
  }
  for (std::size_t s = 0; s < seconds.size(); ++s) {
    const std::vector<DeviceId>& devices = strategy.stages[s].devices;
    const auto bytes = static_cast<double>(sums[s].bytes);
    double update = 0;
    for (const DeviceId device : devices) {
      const int kind = problem_.cluster.devices[at(device)].kind;
      update =
          std::max(update, problem_.costs.update_seconds(kind, sums[s].elements, sums[s].tensors));
    }
    const double own = reduce_line(devices).at(bytes);
    const double early = (rough.longest_way - way[s]) * 2 / 3;
    rough.reduces = std::max(rough.reduces, own);
    rough.late = std::max(rough.late, std::max(0.0, own - seconds[s] / 2) + update - early);
    load_ring(devices, bytes);
  }
  rough.late = std::max(rough.late, cut_.empty() - rough.slowest_stage / 2);
}

void RoughModel::load_ring(const std::vector<DeviceId>& devices, double bytes) {
  const auto n = static_cast<double>(devices.size());
  for (std::size_t i = 0; devices.size() > 1 && i < devices.size(); ++i) {
    load_route(devices[i], devices[(i + 1) % devices.size()], 2 * (n - 1) / n * bytes, cut_);
  }
}

/// Loads the lanes. By stage: seconds of a micro-batch from there to the last stage and back.
std::vector<double> RoughModel::pass_cuts(const Strategy& strategy,
                                          const std::vector<double>& seconds) {
  const auto samples = static_cast<double>(problem_.training.batch / strategy.micro_batches);
  Lanes& back = strategy.schedule == Schedule::kGPipe ? backward_ : forward_;
  std::vector<double> way = seconds;
  const auto cuts = cuts_of(strategy);
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    const auto [from, to] = cut->first;
    const double own =
        load_cut(strategy.stages[at(from)], strategy.stages[at(to)], cut->second * samples, back);
    way[at(from)] = std::max(way[at(from)], seconds[at(from)] + 2 * own + way[at(to)]);
  }
  return way;
}

/// Bytes of a sample that each cut carries, one way: each tensor once.
std::map<std::pair<int, int>, double> RoughModel::cuts_of(const Strategy& strategy) {
  std::vector<const Net*> last(strategy.stages.size());  // that a stage reads
  std::map<std::pair<int, int>, double> cuts;
  for (const Net& net : nets_) {
    const int from = stage_of(strategy, net.from);
    for (const int block : net.to) {
      const int to = stage_of(strategy, block);
      if (to == from || std::exchange(last[at(to)], &net) == &net) continue;
      cuts[{from, to}] += net.bytes;
    }
  }
  return cuts;
}

/// `bytes` go from each replica to those that have the same samples, and as many `back`. Seconds of
/// one way, without other cuts.
double RoughModel::load_cut(const StageSpec& from, const StageSpec& to, double bytes, Lanes& back) {
  const auto samples =
      static_cast<double>(std::accumulate(from.shares.begin(), from.shares.end(), std::int64_t{0}));
  double latency = 0;
  std::int64_t done = 0, a_end = from.shares.front(), b_end = to.shares.front();
  for (std::size_t a = 0, b = 0;;) {
    const std::int64_t end = std::min(a_end, b_end);
    const double own = bytes * static_cast<double>(end - done) / samples;
    latency = std::max(latency, load_route(from.devices[a], to.devices[b], own, cut_));
    load_route(to.devices[b], from.devices[a], own, back);
    done = end;
    if (a_end == end && ++a == from.devices.size()) break;
    if (b_end == end && ++b == to.devices.size()) break;
    if (a_end == end) a_end += from.shares[a];
    if (b_end == end) b_end += to.shares[b];
  }
  return latency + cut_.empty(&forward_);
}

/// The route's latency, in seconds. A message takes it and the bytes at the slowest link's pace.
double RoughModel::load_route(DeviceId from, DeviceId to, double bytes, Lanes& lanes) const {
  const Cluster& cluster = problem_.cluster;
  const Device &a = cluster.devices[at(from)], &b = cluster.devices[at(to)];
  double latency = 0, slowest = 0;
  const auto pass = [&](LinkId id) {
    const Link& link = cluster.links[at(id)];
    const double seconds = bytes / link.bandwidth;
    latency += link.latency;
    slowest = std::max(slowest, seconds);
    lanes.add(at(id), seconds);
  };
  pass(a.out);
  if (a.host != b.host) {
    const std::size_t hosts = cluster.hosts.size();
    for (const LinkId id : cluster.host_routes[at(a.host) * hosts + at(b.host)]) pass(id);
  }
  pass(b.in);
  const std::size_t senders = cluster.links.size(), receivers = senders + cluster.devices.size();
  lanes.add(senders + at(from), latency + slowest);
  lanes.add(receivers + at(to), latency + slowest);
  return latency;
}

int RoughModel::stage_of(const Strategy& strategy, int block) const {
  return strategy.stage_of[at(problem_.blocks.blocks[at(block)].ops.front())];
}

const RoughModel::Line& RoughModel::reduce_line(const std::vector<DeviceId>& devices) {
  if (remembered_ > kMostRemembered) {
    reduces_.clear();
    remembered_ = 0;
  }
  const auto [entry, added] = reduces_.try_emplace(devices);
  if (added) remembered_ += devices.size();
  if (added && devices.size() > 1) {
    const auto seconds = [&](std::int64_t bytes) {
      return all_reduce_seconds(problem_.cluster, devices, bytes);
    };
    const double small = seconds(kSmall);
    const double slope = (seconds(kLarge) - small) / static_cast<double>(kLarge - kSmall);
    entry->second = {std::max(0.0, small - slope * kSmall), slope};
  }
  return entry->second;
}

double all_reduce_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes) {
  double best = std::numeric_limits<double>::infinity();
  for (const AllReduce algorithm : kAllReduces) {
    best = std::min(best, lone_seconds(cluster, all_reduce(cluster, devices, algorithm, bytes)));
  }
  return best;
}

std::vector<GradientSum> gradients_of_blocks(const Problem& problem) {
  std::vector<GradientSum> sums(problem.blocks.blocks.size());
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& parameter = problem.graph.tensor(id);
    if (!parameter.needs_gradient) continue;
    const DType held = held_type(parameter.type, problem.training.precision);
    const std::int64_t elements = elements_at(parameter.shape, 1);
    GradientSum& sum = sums[at(problem.blocks.block_of[at(parameter.consumers.front())])];
    sum.bytes += elements * static_cast<std::int64_t>(size_of(held));
    sum.elements += elements;
    ++sum.tensors;
  }
  return sums;
}

}  // namespace agpcs
