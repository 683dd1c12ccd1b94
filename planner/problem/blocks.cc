// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/blocks.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/base/disjoint_sets.h"
#include "ir/graph/modules.h"
#include "ir/graph/op_table.h"
#include "ir/strategy/strategy.h"
#include "planner/problem/join_neighbours.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <queue>
#include <string>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

using OpSets = DisjointSets<OpId>;
using Neighbours = std::vector<std::vector<int>>;  // ascending, each once

void make_unique(Neighbours& lists) {
  for (std::vector<int>& list : lists) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
}

/// Returns the edges between sets, by the sets' names.
Neighbours successors_of_sets(const Graph& graph, OpSets& sets) {
  Neighbours next(graph.ops.size());
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.producer == kNone) continue;
    const int from = sets.find(tensor.producer);
    for (const OpId consumer : tensor.consumers) {
      if (const int to = sets.find(consumer); to != from) next[at(from)].push_back(to);
    }
  }
  make_unique(next);
  return next;
}

/// Finds strongly connected components with Tarjan's algorithm and joins each. It keeps its own
/// stack, because graphs may be deep.
class CycleJoiner {
 public:
  CycleJoiner(const Neighbours& next, OpSets& sets)
      : next_(next), sets_(sets), index_(next.size(), -1), low_(next.size()), open_(next.size()) {}

  void run() {
    for (int id = 0; id < static_cast<int>(next_.size()); ++id) {
      if (index_[at(id)] < 0) visit(id);
    }
  }

 private:
  void enter(int id) {
    index_[at(id)] = low_[at(id)] = counter_++;
    component_.push_back(id);
    open_[at(id)] = true;
    calls_.emplace_back(id, 0);
  }

  void visit(int root) {
    enter(root);
    while (!calls_.empty()) {
      auto& [id, position] = calls_.back();
      if (position < next_[at(id)].size()) {
        const int to = next_[at(id)][position++];
        if (index_[at(to)] < 0) {
          enter(to);
        } else if (open_[at(to)]) {
          low_[at(id)] = std::min(low_[at(id)], index_[at(to)]);
        }
        continue;
      }
      leave(id);
    }
  }

  void leave(int id) {
    calls_.pop_back();
    if (!calls_.empty()) {
      int& low = low_[at(calls_.back().first)];
      low = std::min(low, low_[at(id)]);
    }
    if (low_[at(id)] != index_[at(id)]) return;
    for (int member = -1; member != id;) {
      member = component_.back();
      component_.pop_back();
      open_[at(member)] = false;
      sets_.join(id, member);
    }
  }

  const Neighbours& next_;
  OpSets& sets_;
  std::vector<int> index_, low_;
  std::vector<bool> open_;
  std::vector<int> component_;
  std::vector<std::pair<int, std::size_t>> calls_;
  int counter_ = 0;
};

template <typename Name>
void join_of_one_name(const Graph& graph, const Name& name_of, OpSets& sets) {
  std::map<std::string_view, OpId> first_of;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const std::string_view name = name_of(id);
    if (!name.empty()) sets.join(first_of.emplace(name, id).first->second, id);
  }
}

void join_what_must_stay_together(const Graph& graph, OpSets& sets) {
  for (const FusedAttention& fused : graph.fused) {
    for (const OpId op : fused.ops) sets.join(fused.ops.front(), op);
  }
  join_of_one_name(
      graph, [&](OpId id) { return std::string_view(graph.op(id).origin); }, sets);
  const std::vector<bool> crosses = can_cross(graph);
  for (std::size_t id = 0; id < graph.tensors.size(); ++id) {
    const Tensor& tensor = graph.tensors[id];
    if (tensor.kind == TensorKind::kState) {
      for (const OpId consumer : tensor.consumers) sets.join(tensor.consumers.front(), consumer);
    } else if (tensor.producer != kNone && !crosses[id]) {
      for (const OpId consumer : tensor.consumers) sets.join(tensor.producer, consumer);
    }
  }
}

/// Returns the operators that read the outputs of an operator, ascending and each once; none if a
/// gradient comes to one of these.
std::vector<OpId> readers_without_gradient(const Graph& graph, const Op& op) {
  std::vector<OpId> readers;
  for (const TensorId output : op.outputs) {
    if (output == kNone) continue;
    const Tensor& tensor = graph.tensor(output);
    if (tensor.needs_gradient) return {};
    readers.insert(readers.end(), tensor.consumers.begin(), tensor.consumers.end());
  }
  std::sort(readers.begin(), readers.end());
  readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
  return readers;
}

/// Finds the operators that read inputs of the graph, constants and what is prepared alone, or what
/// such operators make: every stage has what they read.
std::vector<bool> ops_of_inputs(const Graph& graph) {
  std::vector<bool> found(graph.ops.size());
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const std::vector<TensorId>& inputs = graph.op(id).inputs;
    found[at(id)] = std::all_of(inputs.begin(), inputs.end(), [&](TensorId input) {
      if (input == kNone) return true;
      const Tensor& tensor = graph.tensor(input);
      return tensor.producer != kNone
                 ? found[at(tensor.producer)]
                 : tensor.kind == TensorKind::kInput || tensor.kind == TensorKind::kConstant ||
                       tensor.kind == TensorKind::kPrepared;
    });
  }
  return found;
}

/// Returns the operator that makes the tensor of which a view is one, or kNone: a view of an input.
OpId viewed_by(const Graph& graph, const Op& view) {
  for (const TensorId input : view.inputs) {
    if (input != kNone && graph.tensor(input).producer != kNone)
      return graph.tensor(input).producer;
  }
  return kNone;
}

bool has_several_readers(const Graph& graph, OpId op) {
  const std::vector<TensorId>& outputs = graph.op(op).outputs;
  return std::any_of(outputs.begin(), outputs.end(), [&](TensorId output) {
    return output != kNone && graph.tensor(output).consumers.size() > 1;
  });
}

/// Joins operators that cost no cut anything with one neighbour. One that moves inputs about goes
/// with its only reader. A view without gradient of a tensor that others read, too, goes with its
/// first reader: that tensor then crosses a cut once for all of its views. Other views go with
/// their producer.
void join_views_and_preparations(const Graph& graph, OpSets& sets) {
  const std::vector<bool> of_inputs = ops_of_inputs(graph);
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const Op& op = graph.op(id);
    const OpClass kind = class_of(op);
    if (kind != OpClass::kView && kind != OpClass::kDataMovement) continue;
    const std::vector<OpId> readers = readers_without_gradient(graph, op);
    const OpId source = kind == OpClass::kView ? viewed_by(graph, op) : kNone;
    const bool one_of_several = source != kNone && has_several_readers(graph, source);
    if ((of_inputs[at(id)] && readers.size() == 1) || (one_of_several && !readers.empty())) {
      sets.join(id, readers.front());
    } else if (source != kNone) {
      sets.join(source, id);
    }
  }
}

/// Makes blocks from sets: numbers them in topological order, and adds weights and edges.
class BlockMaker {
 public:
  BlockMaker(const Graph& graph, std::int64_t samples, Precision precision)
      : graph_(graph), samples_(samples), precision_(precision) {
    flops_.reserve(graph.ops.size());
    for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
      const OpCost cost = op_cost(graph, id, samples, precision);
      flops_.push_back(cost.forward_flops + cost.backward_flops);
    }
  }

  BlockGraph make(OpSets& sets) const {
    const std::vector<int> order = topological_order(sets);
    std::vector<int> number(graph_.ops.size(), -1);
    for (std::size_t i = 0; i < order.size(); ++i) number[at(order[i])] = static_cast<int>(i);
    BlockGraph result;
    result.samples = samples_;
    result.blocks.resize(order.size());
    for (OpId id = 0; id < static_cast<OpId>(graph_.ops.size()); ++id) {
      const int block = number[at(sets.find(id))];
      result.block_of.push_back(block);
      result.blocks[at(block)].ops.push_back(id);
      result.blocks[at(block)].flops += flops_[at(id)];
    }
    add_edges(result);
    return result;
  }

 private:
  std::vector<int> topological_order(OpSets& sets) const {
    const Neighbours next = successors_of_sets(graph_, sets);
    std::vector<int> waits(graph_.ops.size());
    for (const std::vector<int>& list : next) {
      for (const int to : list) ++waits[at(to)];
    }
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    std::size_t count = 0;
    for (OpId id = 0; id < static_cast<OpId>(graph_.ops.size()); ++id) {
      if (sets.find(id) != id) continue;
      ++count;
      if (waits[at(id)] == 0) ready.push(id);
    }
    std::vector<int> order;
    while (!ready.empty()) {
      const int set = ready.top();
      ready.pop();
      order.push_back(set);
      for (const int to : next[at(set)]) {
        if (--waits[at(to)] == 0) ready.push(to);
      }
    }
    AGPCS_CHECK(order.size() == count, "blocks: {} of {} are on a cycle", count - order.size(),
                count);
    return order;
  }

  void add_edges(BlockGraph& result) const {
    std::map<std::pair<int, int>, double> bytes_of;
    std::vector<double> change(at(result.size()) + 2);
    for (const Tensor& tensor : graph_.tensors) {
      if (tensor.producer == kNone) continue;
      const double bytes = static_cast<double>(elements_at(tensor.shape, samples_)) *
                           static_cast<double>(element_bytes(tensor.type, precision_));
      const int from = result.block_of[at(tensor.producer)];
      int last = from;
      std::vector<int> targets;
      for (const OpId consumer : tensor.consumers) {
        targets.push_back(result.block_of[at(consumer)]);
        last = std::max(last, targets.back());
      }
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      for (const int to : targets) {
        if (to != from) bytes_of[{from, to}] += bytes;
      }
      change[at(from) + 1] += bytes;
      change[at(last) + 1] -= bytes;
    }
    for (const auto& [ends, bytes] : bytes_of) {
      result.edges.push_back({ends.first, ends.second, bytes});
    }
    change.pop_back();
    std::partial_sum(change.begin(), change.end(), std::back_inserter(result.cut_bytes));
  }

  const Graph& graph_;
  std::int64_t samples_;
  Precision precision_;
  std::vector<double> flops_;
};

/// Joins light neighbours on chains, in topological order. Returns whether it joined any.
bool join_chains(const BlockGraph& graph, double most_flops, OpSets& sets) {
  const std::size_t count = graph.blocks.size();
  std::vector<int> in(count), out(count), next(count, -1);
  std::vector<double> in_bytes(count), out_bytes(count);
  for (const BlockEdge& edge : graph.edges) {
    ++out[at(edge.from)];
    ++in[at(edge.to)];
    next[at(edge.from)] = edge.to;
    out_bytes[at(edge.from)] += edge.bytes;
    in_bytes[at(edge.to)] += edge.bytes;
  }
  bool any = false;
  std::vector<double> flops(count), before(count);  // of the joined block that ends at this block
  for (std::size_t i = 0; i < count; ++i) {
    flops[i] = graph.blocks[i].flops;
    before[i] = in[i] > 0 ? in_bytes[i] : std::numeric_limits<double>::infinity();
  }
  for (std::size_t i = 0; i < count; ++i) {
    const int to = next[i];
    if (out[i] != 1 || in[at(to)] != 1 || flops[i] + flops[at(to)] > most_flops) continue;
    const bool other_cut =
        before[i] <= out_bytes[i] || (out[at(to)] > 0 && out_bytes[at(to)] <= out_bytes[i]);
    if (!other_cut) continue;
    sets.join(graph.blocks[i].ops.front(), graph.blocks[at(to)].ops.front());
    flops[at(to)] += flops[i];
    before[at(to)] = before[i];
    any = true;
  }
  return any;
}

std::vector<double> parameter_bytes(const Graph& graph, const BlockGraph& blocks) {
  std::vector<double> bytes(blocks.blocks.size());
  for (const TensorId id : graph.parameters()) {
    const Tensor& tensor = graph.tensor(id);
    if (tensor.consumers.empty()) continue;
    bytes[at(blocks.block_of[at(tensor.consumers.front())])] +=
        static_cast<double>(elements_at(tensor.shape, 1));
  }
  return bytes;
}

/// Joins neighbours, the lightest first, until at most `options.most_blocks` are left.
BlockGraph coarsen(const Graph& graph, const BlockMaker& maker, BlockGraph blocks, double flops,
                   const BlockOptions& options, OpSets& sets) {
  const std::vector<int> first_window = windows_of(blocks, options.least_blocks_per_chain);
  std::vector<int> window_of_op;
  for (const int block : blocks.block_of) window_of_op.push_back(first_window[at(block)]);
  int part = 8;  // blocks may weigh 1 / part of the most that they may weigh in the end
  while (blocks.size() > options.most_blocks) {
    JoinLimits limits;
    limits.parameter_bytes = parameter_bytes(graph, blocks);
    const double parameters =
        std::accumulate(limits.parameter_bytes.begin(), limits.parameter_bytes.end(), 0.0);
    const double share = 1.0 / (part * options.least_blocks_per_chain);
    limits.most_flops = flops * share;
    limits.most_parameters = parameters * share;
    for (const Block& block : blocks.blocks) {
      limits.window.push_back(window_of_op[at(block.ops.front())]);
    }
    const std::vector<int> partner =
        pairs_to_join(blocks, limits, blocks.size() - options.most_blocks);
    bool any = false;
    for (int i = 0; i < blocks.size(); ++i) {
      if (partner[at(i)] < i) continue;
      sets.join(blocks.blocks[at(i)].ops.front(), blocks.blocks[at(partner[at(i)])].ops.front());
      any = true;
    }
    if (any) blocks = maker.make(sets);
    if (!any && part == 1) break;
    if (!any) part /= 2;
  }
  return blocks;
}

}  // namespace

BlockGraph make_blocks(const Graph& graph, std::int64_t samples, Precision precision,
                       const BlockOptions& options) {
  OpSets sets(graph.ops.size());
  join_what_must_stay_together(graph, sets);
  if (!options.cut_modules) {
    const std::vector<std::string_view> modules = whole_modules(graph);
    join_of_one_name(
        graph, [&](OpId id) { return modules[at(id)]; }, sets);
  }
  join_views_and_preparations(graph, sets);
  CycleJoiner(successors_of_sets(graph, sets), sets).run();
  const BlockMaker maker(graph, samples, precision);
  BlockGraph blocks = maker.make(sets);
  const double total =
      std::accumulate(blocks.blocks.begin(), blocks.blocks.end(), 0.0,
                      [](double sum, const Block& block) { return sum + block.flops; });
  if (join_chains(blocks, total / options.least_blocks_per_chain, sets)) blocks = maker.make(sets);
  return coarsen(graph, maker, std::move(blocks), total, options, sets);
}

std::vector<int> stage_of_ops(const BlockGraph& blocks, const std::vector<int>& stage_of_block) {
  std::vector<int> stages(blocks.block_of.size());
  std::ranges::transform(blocks.block_of, stages.begin(),
                         [&](int block) { return stage_of_block[at(block)]; });
  return stages;
}

std::string print_blocks(const BlockGraph& blocks, const Graph& graph) {
  std::string text;
  const auto out = std::back_inserter(text);
  for (int i = 0; i < blocks.size(); ++i) {
    fmt::format_to(out, "block {} flops={}:", i, blocks.blocks[at(i)].flops);
    for (const OpId op : blocks.blocks[at(i)].ops) text += " " + graph.op(op).name;
    text += '\n';
  }
  for (const BlockEdge& edge : blocks.edges) {
    fmt::format_to(out, "edge {} {} bytes={}\n", edge.from, edge.to, edge.bytes);
  }
  return text;
}

}  // namespace agpcs
