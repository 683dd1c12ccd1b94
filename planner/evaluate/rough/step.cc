// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/rough/step.h"

#include "cost_model/network/link_model.h"
#include "ir/base/at.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/interleaved.h"
#include "ir/strategy/state_parts.h"
#include "planner/problem/alike_hosts.h"
#include "planner/problem/stage_timer.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <numeric>
#include <set>
#include <span>
#include <utility>

namespace agpcs {
namespace {

/// The most devices in remembered groups; beyond, all of their all-reduces are forgotten.
constexpr std::size_t kMostGroupedDevices = std::size_t{1} << 24;
/// The most loads of remembered cuts and rings; beyond, all of these are forgotten.
constexpr std::size_t kMostLoads = std::size_t{1} << 20;
constexpr std::int64_t kSmall = std::int64_t{1} << 20, kLarge = std::int64_t{32} << 20;

/// Returns by how many micro-batches in flight some stage is ahead of 1F1B's textbook.
double ahead_of_textbook(const Strategy& strategy) {
  if (strategy.schedule == Schedule::kGPipe || strategy.schedule == Schedule::kInterleaved)
    return 0;
  std::int64_t ahead = 0;
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const auto stages = static_cast<std::int64_t>(strategy.stages.size());
    ahead = std::max(ahead, most_in_flight(strategy, s) -
                                textbook_in_flight(stages, static_cast<std::int64_t>(s),
                                                   strategy.micro_batches));
  }
  return static_cast<double>(ahead);
}

}  // namespace

double RoughModel::Line::at(double bytes) const {
  if (bytes <= 0) return 0;
  return bytes < static_cast<double>(kSmall) ? fixed + per_byte * bytes
                                             : fixed_if_large + per_byte_if_large * bytes;
}

RoughModel::RoughModel(const Problem& problem)
    : problem_(problem),
      teams_(problem),
      gradients_(gradients_of_blocks(problem)),
      alike_(alike_hosts(problem.cluster)) {
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
  for (const auto& [ends, bytes] : nets) {
    const auto& [from, to] = ends;
    nets_.push_back({from, to, bytes, std::min(from, to.front()), std::max(from, to.back())});
  }
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& tensor = problem.graph.tensor(id);
    if (!tensor.needs_gradient) continue;
    std::set<int> readers;
    for (const OpId consumer : tensor.consumers) readers.insert(blocks.block_of[at(consumer)]);
    if (readers.size() < 2) continue;
    tied_.push_back(
        {{readers.begin(), readers.end()}, blocks.block_of[at(tensor.consumers.front())], {}});
    add(gradient_of(problem, id), tied_.back().gradients);
  }
  stage_of_block_.resize(blocks.blocks.size());
  run_end_.resize(blocks.blocks.size());
  const int kind = problem.cluster.devices.front().kind;
  for (const Block& block : blocks.blocks) {
    first_op_.push_back(block.ops.front());
    StageTimer timer(problem, block.ops);
    backward_of_.push_back(timer.seconds(kind, blocks.samples) -
                           timer.forward_seconds(kind, blocks.samples));
  }
  if (may_offload_activations(problem)) kept_of_ = kept_of_blocks(problem);
  const Cluster& cluster = problem.cluster;
  for (Lanes* const lanes : {&cut_, &forward_, &backward_}) {
    lanes->seconds.resize(cluster.links.size() + 2 * cluster.devices.size());
  }
}

RoughStep RoughModel::step(const Strategy& strategy, const std::vector<StageTimer*>& timers) {
  const std::size_t stages = strategy.stages.size();
  const bool gpipe = strategy.schedule == Schedule::kGPipe;
  const auto micro_batches = static_cast<double>(strategy.micro_batches);
  forget_if_many();
  find_blocks(strategy);
  RoughStep rough;
  const std::vector<Passes>& passes = compute(strategy, timers, rough);
  const Messages& messages = pass_cuts(strategy, passes);
  Passes slowest;
  for (std::size_t s = 0; s < stages; ++s) {
    rough.longest_way = std::max(rough.longest_way, messages.way[s]);
    slowest.forward = std::max(slowest.forward, passes[s].forward);
    slowest.backward = std::max(slowest.backward, passes[s].backward);
  }
  const double both = most_of_both(), forward = forward_.empty(), backward = backward_.empty();
  reduce(strategy, timers, passes, messages.way, rough);
  rough.slowest_cut = gpipe ? forward + backward : both;
  const double pace =
      gpipe ? std::max(slowest.forward, forward) + std::max(slowest.backward, backward) : both;
  rough.seconds = rough.longest_way + (micro_batches - 1) * pace;
  // What fills the pipeline further than the textbook sends one way while nothing comes back.
  rough.seconds += messages.ahead * (forward + backward - both);
  if (!gpipe) add_waits_of_1f1b(strategy, passes, messages, rough);
  rough.seconds += rough.late;
  return rough;
}

/// Finds the stages of blocks.
void RoughModel::find_blocks(const Strategy& strategy) {
  for (std::size_t b = 0; b < first_op_.size(); ++b) {
    stage_of_block_[b] = strategy.stage_of[at(first_op_[b])];
  }
  int end = static_cast<int>(first_op_.size());
  for (std::size_t b = first_op_.size(); b-- > 0;) {
    if (stage_of_block_[b] != stage_of_block_[at(end - 1)]) end = static_cast<int>(b) + 1;
    run_end_[b] = end;
  }
}

/// Returns the seconds of the lane that is busiest in both directions together.
double RoughModel::most_of_both() const {
  if (backward_.busy.empty()) return forward_.most();
  double most = forward_.most();
  for (const std::size_t lane : backward_.busy) {
    most = std::max(most, forward_.seconds[lane] + backward_.seconds[lane]);
  }
  return most;
}

/// Returns the passes of each stage.
const std::vector<RoughModel::Passes>& RoughModel::compute(const Strategy& strategy,
                                                           const std::vector<StageTimer*>& timers,
                                                           RoughStep& rough) {
  std::vector<Passes>& passes = passes_;
  passes.assign(strategy.stages.size(), {});
  std::vector<double> kept(passes.size());
  const bool copies_any = std::ranges::any_of(
      strategy.stages, [](const StageSpec& spec) { return spec.recompute.in_host; });
  for (std::size_t b = 0; copies_any && b < kept_of_.size(); ++b) {
    kept[at(stage_of_block_[b])] += kept_of_[b];
  }
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    Passes& slowest = passes[s];
    if (spec.has_teams()) {
      double busy = 0;
      slowest = compute_teams(spec, strategy.bodies, busy);
      rough.busy += busy * static_cast<double>(strategy.micro_batches);
    }
    int last_kind = kNone;
    double forward = 0, own = 0, out = 0, in = 0;
    for (std::size_t i = 0; i < spec.devices.size() && !spec.has_teams(); ++i) {
      const int kind = problem_.cluster.devices[at(spec.devices[i])].kind;
      if (kind != last_kind || spec.shares[i] != spec.shares[i - 1]) {
        forward = timers[s]->forward_seconds(kind, spec.shares[i]);
        own = timers[s]->seconds(kind, spec.shares[i]) + spec.recompute.part() * forward;
        const double copies = copy_seconds(spec, kept[s], kind, spec.shares[i]);
        out = std::max(0.0, copies - forward);  // what a pass waits for them
        in = std::max(0.0, copies - (own - forward));
        last_kind = kind;
      }
      rough.busy += own * static_cast<double>(strategy.micro_batches);
      slowest.forward = std::max(slowest.forward, forward + out);
      slowest.backward = std::max(slowest.backward, own - forward + in);
      slowest.both = std::max(slowest.both, own + out + in);
      if (strategy.schedule != Schedule::kZeroBubble) continue;
      slowest.weight = std::max(slowest.weight, timers[s]->weight_seconds(kind, spec.shares[i]));
    }
    if (slowest.both > rough.slowest_stage) {
      rough.slowest_stage = slowest.both;
      rough.bottleneck = static_cast<int>(s);
    }
    rough.sum_of_stages += slowest.both;
  }
  return passes;
}

/// Returns how many seconds the last micro-batch's gradient waits for those before it at the
/// slowest stage.
double RoughModel::held_up(const Strategy& strategy, const std::vector<Passes>& passes,
                           const std::vector<double>& way, const RoughStep& rough) {
  if (strategy.schedule != Schedule::k1F1B) return 0;
  const std::size_t b = at(rough.bottleneck);
  const auto others = static_cast<double>(most_in_flight(strategy, b) - 1);
  return std::max(0.0, others * passes[b].backward - (way[b] - passes[b].way()));
}

void RoughModel::reduce(const Strategy& strategy, const std::vector<StageTimer*>& timers,
                        const std::vector<Passes>& passes, const std::vector<double>& way,
                        RoughStep& rough) {
  const std::map<std::vector<int>, GradientSum> shared = take_shared();
  const std::vector<Reduction>& all = reductions(strategy, timers, passes);
  give_back_shared();
  const double report = report_seconds(strategy);
  const double norm = problem().training.optimizer.clips() ? report : 0;  // as few bytes
  const double held_up_there = held_up(strategy, passes, way, rough);
  const double rounds = static_cast<double>(all.size()) / round_size(strategy);  // of each device
  double hidden = 0, last = 0, updates = 0;
  for (std::size_t s = 0; s < all.size(); ++s) {
    const std::vector<DeviceId>& devices = strategy.stages[s].devices;
    const auto bytes = static_cast<double>(all[s].gradients.bytes);
    const bool divides = divides_state(strategy.stages[s], problem_.training);
    const double update = most_update(devices, all[s].gradients, strategy.stages[s].state_in_host) *
                          rounds / (divides ? static_cast<double>(devices.size()) : 1);
    const double own = all[s].line.at(bytes);
    const double after = std::max(0.0, end_of_sums(all[s]) - passes[s].backward);
    // Where backward passes are parted, all stages end about together.
    const bool parted = strategy.schedule == Schedule::kZeroBubble;
    const double early = parted ? 0
                                : (rough.longest_way - way[s]) * 2 / 3 +
                                      (static_cast<int>(s) > rough.bottleneck ? held_up_there : 0);
    rough.reduces = std::max(rough.reduces, own);
    const bool gathers = all[s].gathers;  // so that nothing travels after the update
    const double last_gather = divides && !gathers ? own : 0;
    const double end = norm + (divides ? update + last_gather + report : std::max(update, report));
    // A backward pass ends when the gradients that it made are summed, but for the last bucket.
    const auto count = static_cast<double>(strategy.micro_batches);
    double behind = all[s].scatters ? after * (count - 1) : passes[s].step_end;
    if (gathers) {  // gathers are ahead of passes, or these wait
      behind = count * (std::max(0.0, own - (passes[s].both - passes[s].backward)) +
                        std::max(0.0, 2 * own - passes[s].backward));
    }
    rough.late = std::max(rough.late, behind + after + end - early);
    hidden = std::max(hidden, own - after + early);
    last = std::max(last, after - early);
    updates = std::max(updates, update);
    const double sums = all[s].scatters ? count : 1;
    const double halves = gathers ? 3 * count : 1 + sums;
    load_rings(strategy.stages[s], divides ? bytes / 2 * halves : bytes,
               divides ? own * halves : own);
  }
  if (!shared.empty()) {
    const double end = reduce_shared(strategy, shared, last) + norm + updates;
    rough.late = std::max(rough.late, end);
  }
  rough.late = std::max(rough.late, cut_.empty() - hidden + report);
}

/// Loads the lanes with all cuts and returns the messages' seconds.
const RoughModel::Messages& RoughModel::pass_cuts(const Strategy& strategy,
                                                  const std::vector<Passes>& passes) {
  const auto samples =
      static_cast<double>(problem_.training.batch) / static_cast<double>(strategy.micro_batches);
  Messages& messages = messages_;
  messages.ahead = ahead_of_textbook(strategy);
  const bool apart = strategy.schedule == Schedule::kGPipe || messages.ahead > 0;
  Lanes& back = apart ? backward_ : forward_;
  messages.way.clear();
  for (const Passes& own : passes) messages.way.push_back(own.way());
  messages.later_way = messages.way;
  messages.forward.assign(passes.size(), 0);
  messages.backward.assign(passes.size(), 0);
  const std::vector<CutSum>& cuts = cuts_of(strategy);
  for (auto cut = cuts.rbegin(); cut != cuts.rend(); ++cut) {
    const auto [from, to, bytes] = *cut;
    const auto [first, later] = load_cut(strategy, from, to, bytes * samples, back);
    const auto lengthen = [&, from = from, to = to](std::vector<double>& way, double own) {
      way[at(from)] = std::max(way[at(from)], passes[at(from)].way() + 2 * own + way[at(to)]);
    };
    lengthen(messages.way, first);
    lengthen(messages.later_way, later);
    messages.forward[at(to)] += later;
    messages.backward[at(from)] += later;
  }
  return messages;
}

/// Returns what the messages of each cut carry, by (from, to); each tensor counts once.
const std::vector<RoughModel::CutSum>& RoughModel::cuts_of(const Strategy& strategy) {
  last_net_.assign(strategy.stages.size(), nullptr);
  const int round = round_size(strategy);
  cuts_from_.resize(std::max(cuts_from_.size(), strategy.stages.size()));
  for (const Net& net : nets_) {
    if (run_end_[at(net.first)] > net.last) continue;  // all in one stage
    const int from = stage_of_block_[at(net.from)];
    for (const int block : net.to) {
      const int to = stage_of_block_[at(block)];
      if (to == from || std::exchange(last_net_[at(to)], &net) == &net) continue;
      if ((to - from) % round == 0) continue;  // of the same devices: no message carries it
      std::vector<CutSum>& cuts = cuts_from_[at(from)];
      const auto known =
          std::find_if(cuts.begin(), cuts.end(), [&](const CutSum& cut) { return cut.to == to; });
      if (known != cuts.end()) {
        known->bytes += net.bytes;
      } else {
        cuts.push_back({from, to, net.bytes});
      }
    }
  }
  cuts_.clear();
  for (std::vector<CutSum>& cuts : cuts_from_) {
    std::sort(cuts.begin(), cuts.end(),
              [](const CutSum& a, const CutSum& b) { return a.to < b.to; });
    cuts_.insert(cuts_.end(), cuts.begin(), cuts.end());
    cuts.clear();
  }
  return cuts_;
}

/// Keeps memory bounded: forgets what is remembered if it is much.
void RoughModel::forget_if_many() {
  teams_.forget_if_many();
  if (remembered_loads_ > kMostLoads) {
    rings_.clear();
    known_cuts_.clear();
    remembered_loads_ = 0;
  }
  if (remembered_ <= kMostGroupedDevices) return;
  reduces_.clear();
  reports_.clear();
  remembered_ = 0;
}

/// Returns what tells apart groups of devices on which an all-reduce takes different times: the
/// classes of their hosts, each followed by the places of the devices there.
const std::vector<int>& RoughModel::look_of(const std::vector<DeviceId>& devices) {
  look_.clear();
  int host = kNone;
  for (const DeviceId id : devices) {
    const Device& device = problem_.cluster.devices[at(id)];
    if (device.host != host) look_.push_back(-1 - alike_[at(device.host)]);
    host = device.host;
    look_.push_back(device.index);
  }
  return look_;
}

double RoughModel::report_seconds(const Strategy& strategy) {
  uses_.assign(problem_.cluster.devices.size(), 0);
  for (const StageSpec& spec : strategy.stages) {
    for (const DeviceId id : spec.devices) ++uses_[at(id)];
    for (const std::vector<DeviceId>& further : spec.further) {
      for (const DeviceId id : further) ++uses_[at(id)];
    }
  }
  if (uses_ == reported_uses_) return reported_;
  used_.clear();
  for (std::size_t id = 0; id < uses_.size(); ++id) {
    used_.insert(used_.end(), at(uses_[id]), static_cast<DeviceId>(id));
  }
  reported_uses_ = uses_;
  if (used_.size() < 2) return reported_ = 0;
  const auto [entry, added] = reports_.try_emplace(look_of(used_));
  if (added) {
    remembered_ += entry->first.size();
    entry->second = lone_seconds(
        problem_.cluster,
        report_all_reduce(problem_.cluster, used_, problem_.training.statistics_every));
  }
  return reported_ = entry->second;
}

const RoughModel::Line& RoughModel::reduce_line(const std::vector<DeviceId>& devices) {
  const auto [entry, added] = reduces_.try_emplace(look_of(devices));
  if (added) remembered_ += devices.size();
  if (added && devices.size() > 1) {
    const std::vector<double> seconds =
        all_reduce_seconds(problem_.cluster, devices, std::array{std::int64_t{1}, kSmall, kLarge});
    const double least = seconds[0], small = seconds[1], large = seconds[2];
    const double slope = (large - small) / static_cast<double>(kLarge - kSmall);
    entry->second = {least, (small - least) / static_cast<double>(kSmall),
                     small - slope * static_cast<double>(kSmall), slope};
  }
  return entry->second;
}

double all_reduce_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                          std::int64_t bytes) {
  return all_reduce_seconds(cluster, devices, std::span(&bytes, 1)).front();
}

std::vector<double> all_reduce_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                                       std::span<const std::int64_t> bytes) {
  std::vector<double> best(bytes.size(), std::numeric_limits<double>::infinity());
  for (const AllReduce algorithm : kAllReduces) {
    const std::vector<double> own = lone_all_reduce_seconds(cluster, devices, algorithm, bytes);
    for (std::size_t i = 0; i < best.size(); ++i) best[i] = std::min(best[i], own[i]);
  }
  return best;
}

std::vector<GradientSum> gradients_of_blocks(const Problem& problem) {
  std::vector<GradientSum> sums(problem.blocks.blocks.size());
  for (const TensorId id : problem.graph.parameters()) {
    const Tensor& parameter = problem.graph.tensor(id);
    if (!parameter.needs_gradient) continue;
    add(gradient_of(problem, id),
        sums[at(problem.blocks.block_of[at(parameter.consumers.front())])]);
  }
  return sums;
}

}  // namespace agpcs
