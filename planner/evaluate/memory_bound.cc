// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/memory_bound.h"

#include "ir/base/at.h"
#include "ir/graph/op_table.h"
#include "ir/plan/choices.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/state_parts.h"
#include "ir/strategy/weight_pass.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace agpcs {
namespace {

/// Room for rounding errors of sums.
constexpr double kRoom = 1 + 1e-9;

}  // namespace

void MemoryBound::Sums::add(const Sums& other) {
  resident += other.resident;
  state += other.state;
  gradients += other.gradients;
  of_update = std::max(of_update, other.of_update);
  weights += other.weights;
  inputs.add(other.inputs);
  kept.add(other.kept);
  made.add(other.made);
}

MemoryBound::MemoryBound(const Problem& problem)
    : problem_(problem), blocks_(problem.blocks.blocks.size()) {
  for (const Block& block : problem.blocks.blocks) first_op_.push_back(block.ops.front());
  for (TensorId id = 0; id < static_cast<TensorId>(problem.graph.tensors.size()); ++id) {
    root_.push_back(storage_of(problem.graph, id));
  }
  add_resident();
  add_activations();
  add_nets();
  stage_of_block_.resize(blocks_.size());
}

/// Returns the chord of a convex function between one sample and the whole batch.
template <typename F>
MemoryBound::Bytes MemoryBound::convex(F bytes_at) const {
  const std::int64_t all = problem_.training.batch;
  const auto one = static_cast<double>(bytes_at(1));
  if (all < 2) return {one, 0};
  return {one, (static_cast<double>(bytes_at(all)) - one) / static_cast<double>(all - 1)};
}

/// Returns the bytes of a tensor.
std::int64_t MemoryBound::size(TensorId id, std::int64_t samples) const {
  const Graph& graph = problem_.graph;
  if (graph.is_fused_away(id)) return 0;
  const Tensor& tensor = graph.tensor(id);
  return elements_at(tensor.shape, samples) *
         static_cast<std::int64_t>(element_bytes(tensor.type, problem_.training.precision));
}

/// Adds what is no activation to each block that reads it.
void MemoryBound::add_resident() {
  const Graph& graph = problem_.graph;
  constexpr double kFp32Bytes = 4;
  const auto states = static_cast<double>(variant_of(problem_.training.optimizer).state_tensors);
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.kind == TensorKind::kActivation) continue;
    std::set<int> readers;
    for (const OpId op : tensor.consumers) readers.insert(problem_.blocks.block_of[at(op)]);
    const Bytes bytes = convex([&](std::int64_t samples) { return size(id, samples); });
    double gradients = 0, state = 0;
    double resident = std::max(bytes.of_one, bytes.at(problem_.training.batch));
    if (tensor.kind == TensorKind::kParameter) {
      const double full = kFp32Bytes * static_cast<double>(elements_at(tensor.shape, 1));
      state = full * (states + 1);
      resident += state;
      if (tensor.needs_gradient) {
        const GradientSize gradient = gradient_of(problem_, id);
        gradients = static_cast<double>(gradient.held_bytes + gradient.rounded_bytes);
        resident += gradients;
      }
    }
    for (const int block : readers) {
      blocks_[at(block)].gradients += gradients;
      if (tensor.kind == TensorKind::kInput) {
        blocks_[at(block)].inputs.add(bytes);
      } else {
        blocks_[at(block)].resident += resident;
        blocks_[at(block)].state += state;
      }
    }
  }
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    double passing = 0;
    for (const TensorId id : graph.op(op).inputs) {
      if (id == kNone || graph.tensor(id).kind != TensorKind::kParameter) continue;
      passing += static_cast<double>(size(id, 1));
    }
    Sums& block = blocks_[at(problem_.blocks.block_of[at(op)])];
    block.of_update = std::max(block.of_update, passing);
    const int weight = put_off_input(graph, op);
    if (weight == kNone) continue;
    block.weights += 2 * static_cast<double>(size(graph.op(op).inputs[at(weight)], 1));
  }
}

/// Adds the activations that each block makes, as roots of what shares their storage, and what its
/// operators keep besides.
void MemoryBound::add_activations() {
  const Graph& graph = problem_.graph;
  const auto kept_of = [&](OpId op, std::int64_t samples) {
    return kept_for_backward(graph, op, samples, problem_.training.precision);
  };
  std::vector<bool> kept(graph.tensors.size());
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    Sums& block = blocks_[at(problem_.blocks.block_of[at(op)])];
    Bytes extra = convex([&](std::int64_t samples) {
      const Kept own = kept_of(op, samples);
      for (const TensorId id : own.tensors) kept[at(root_[at(id)])] = true;
      return own.extra_bytes;
    });
    extra.of_one += 2;  // they are whole numbers
    block.kept.add(extra);
    block.made.add(extra);
  }
  std::vector<Bytes> bytes(graph.tensors.size());  // by root: the most of what shares its storage
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    const Bytes own = convex([&](std::int64_t samples) { return size(id, samples); });
    Bytes& most = bytes[at(root_[at(id)])];
    most = {std::max(most.of_one, own.of_one), std::max(most.of_each_more, own.of_each_more)};
  }
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    const OpId producer = graph.tensor(id).producer;
    if (producer == kNone || root_[at(id)] != id) continue;
    Sums& block = blocks_[at(problem_.blocks.block_of[at(producer)])];
    block.made.add(bytes[at(id)]);
    if (kept[at(id)]) block.kept.add(bytes[at(id)]);
  }
}

void MemoryBound::add_nets() {
  const Graph& graph = problem_.graph;
  std::map<std::pair<int, std::vector<int>>, Bytes> nets;
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.producer == kNone) continue;
    const int from = problem_.blocks.block_of[at(tensor.producer)];
    std::set<int> to;
    for (const OpId op : tensor.consumers) to.insert(problem_.blocks.block_of[at(op)]);
    to.erase(from);
    if (to.empty()) continue;
    nets[{from, {to.begin(), to.end()}}].add(convex([&](std::int64_t samples) {
      return std::max(size(id, samples), size(root_[at(id)], samples));
    }));
  }
  for (const auto& [ends, bytes] : nets) nets_.push_back({ends.first, ends.second, bytes});
}

/// Sums up the blocks of each stage, and what passes its cuts.
void MemoryBound::sum_up(const Strategy& strategy) {
  stages_.assign(strategy.stages.size(), {});
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    stage_of_block_[b] = strategy.stage_of[at(first_op_[b])];
    stages_[at(stage_of_block_[b])].add(blocks_[b]);
  }
  last_net_.assign(stages_.size(), nullptr);
  for (const Net& net : nets_) {
    const int from = stage_of_block_[at(net.from)];
    for (const int block : net.to) {
      const int to = stage_of_block_[at(block)];
      if (to == from || std::exchange(last_net_[at(to)], &net) == &net) continue;
      stages_[at(from)].sent.add(net.bytes);
      stages_[at(to)].received.add(net.bytes);
    }
  }
}

/// Returns a bound on the bytes of a device of `stage` that has `samples` of each micro-batch.
double MemoryBound::most(const Strategy& strategy, std::size_t stage, std::int64_t samples) const {
  const Sums& sums = stages_[stage];
  const auto micro_batches = static_cast<double>(strategy.micro_batches);
  const double received = sums.received.at(samples), sent = sums.sent.at(samples);
  const double messages = received + sent, made = sums.made.at(samples);
  const double kept = sums.kept.at(samples) + messages;
  // Segments hold what crosses from one to the next, which is a part of what is made, or at most
  // what all operators keep if that goes to the host.
  const Recomputation& recompute = strategy.stages[stage].recompute;
  const bool has_segments = recompute && recompute != kWholeStage;
  const double between = has_segments ? made : 0;
  const double held = recompute == kWholeStage ? messages : kept + between;
  const auto others = static_cast<double>(most_in_flight(strategy, stage) - 1);
  // What weight passes need is kept, or a gradient of what is made. They hold what they make until
  // their weight has no other product.
  const bool parted = strategy.schedule == Schedule::kZeroBubble;
  const auto lag =
      parted ? static_cast<double>(weight_lag(in_flight_by_stage(strategy), stage)) : 0;
  const double put_off = parted ? (kept + made) * (1 + lag) + sums.weights : 0;
  const double pass =
      std::max(made + 2 * received, kept + between + made + received + sums.of_update);
  const double transfers = 2 * micro_batches * messages;
  // Where gradients are divided, those that a bucket waits for and those that are summed are apart.
  const bool fills = strategy.stages[stage].state >= StateLevel::kGradients;
  const double unsummed = fills ? 2 * sums.gradients : 0;
  // So are parameters that are gathered and those that a device owns.
  const bool gathers = strategy.stages[stage].state == StateLevel::kParameters;
  const double gathered = gathers ? 2 * sums.gradients : 0;
  // Hosts have all of the state but a window.
  const auto window =
      static_cast<double>(kOffloadWindow * kOffloadPiece * state_bytes(problem_.training));
  const bool in_host = strategy.stages[stage].state_in_host;
  const double elsewhere = in_host ? std::max(0.0, sums.state - window) : 0;
  return sums.resident - elsewhere + unsummed + gathered + sums.inputs.at(samples) * micro_batches +
         held * others + put_off + pass + transfers;
}

/// Returns a bound on the bytes that a host lacks for the state and activations of its devices.
double MemoryBound::most_lacking_of_hosts(const Strategy& strategy) const {
  std::map<int, double> needs;  // by host
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    if (!spec.state_in_host && !spec.recompute.in_host) continue;
    const double state = spec.state_in_host ? stages_[s].state : 0;
    const auto in_flight = static_cast<double>(most_in_flight(strategy, s));
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const double kept = stages_[s].kept.at(spec.shares[i]) + stages_[s].made.at(spec.shares[i]);
      const double activations = spec.recompute.in_host ? kept * in_flight : 0;
      needs[problem_.cluster.devices[at(spec.devices[i])].host] += state + activations;
    }
  }
  double lacking = std::numeric_limits<double>::lowest();
  for (const auto& [host, bytes] : needs) {
    const auto room = static_cast<double>(problem_.cluster.hosts[at(host)].memory_bytes);
    lacking = std::max(lacking, bytes * kRoom - room);
  }
  return lacking;
}

std::int64_t MemoryBound::most_lacking(const Strategy& strategy) {
  if (!strategy.bodies.empty()) return std::numeric_limits<std::int64_t>::max();
  sum_up(strategy);
  double lacking = most_lacking_of_hosts(strategy);
  for (std::size_t s = 0; s < stages_.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    int kind = kNone;
    std::int64_t samples = 0;
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const int own = problem_.cluster.devices[at(spec.devices[i])].kind;
      if (own == kind && spec.shares[i] == samples) continue;  // as the device before
      kind = own;
      samples = spec.shares[i];
      const auto room = static_cast<double>(problem_.cluster.kinds[at(kind)].memory_bytes);
      lacking = std::max(lacking, most(strategy, s, samples) * kRoom - room);
    }
  }
  return static_cast<std::int64_t>(std::ceil(lacking));
}

}  // namespace agpcs
