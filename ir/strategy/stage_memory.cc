// SPDX-License-Identifier: Apache-2.0
// Tensors are counted by the storage they share (`storage_of`), so a Reshape costs no memory.
#include "ir/strategy/stage_memory.h"

#include "ir/base/at.h"
#include "ir/graph/op_table.h"
#include "ir/plan/choices.h"
#include "ir/strategy/segments.h"
#include "ir/strategy/weight_pass.h"
#include "ir/team/member_graph.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kFp32Bytes = 4;
/// The most numbers of samples whose sizes are remembered.
constexpr std::size_t kMostSizes = 64;

/// Returns what holds the storage of a tensor. Forms of one tensor on a member of a team share it
/// if no exchange makes the one of the other.
TensorId shared_storage(const Graph& graph, TensorId id) {
  for (;;) {
    id = storage_of(graph, id);
    const OpId producer = graph.tensor(id).producer;
    if (producer == kNone || !is_exchange(graph.op(producer))) return id;
    if (graph.op(producer).type != name_of(TeamExchange::kNothing)) return id;
    id = graph.op(producer).inputs[0];
  }
}

/// Returns whether the gradient of an exchange's output is that of its input.
bool shares_gradient(const Op& exchange) {
  return exchange.string_attribute(kGradientExchange, "") == name_of(TeamExchange::kNothing);
}

}  // namespace

StageMemoryModel::StageMemoryModel(const Graph& graph, const Training& training)
    : graph_(graph),
      training_(training),
      tensors_(graph.tensors.size()),
      ops_(graph.ops.size() + 1) {
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    tensors_[at(id)].root = shared_storage(graph, id);
  }
  optimizer_slots_ = variant_of(training.optimizer).state_tensors;
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    const std::vector<TensorId>& inputs = graph.op(op).inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i] == kNone) continue;
      const Tensor& tensor = graph.tensor(inputs[i]);
      inputs_.push_back(tensors_[at(inputs[i])].root);
      if (tensor.kind != TensorKind::kActivation) residents_.push_back(inputs[i]);
      if (tensor.needs_gradient && passes_gradient(graph.op(op), i)) {
        gradients_.push_back({inputs[i], holder_of(inputs[i]),
                              tensor.kind == TensorKind::kParameter,
                              put_off_input(graph, op) == static_cast<int>(i), view_made_by(op)});
      }
    }
    for (const TensorId id : graph.op(op).outputs) {
      if (id != kNone) outputs_.push_back(id);
    }
    OfOp& next = ops_[at(op) + 1];
    next.residents = residents_.size();
    next.inputs = inputs_.size();
    next.outputs = outputs_.size();
    next.gradients = gradients_.size();
  }
}

TensorId StageMemoryModel::holder_of(TensorId id) const {
  for (TensorId holder = id;; id = graph_.op(graph_.tensor(id).producer).inputs[0]) {
    const Tensor& tensor = graph_.tensor(id);
    if (tensor.kind == TensorKind::kParameter) return holder;
    holder = id;
    const bool exchanged = tensor.producer != kNone && is_exchange(graph_.op(tensor.producer));
    const bool shared =
        exchanged ? shares_gradient(graph_.op(tensor.producer)) : tensors_[at(id)].root != id;
    if (!shared) return holder;
  }
}

/// Returns the first of the views of a parameter from which `op` makes one; kNone: it makes none.
TensorId StageMemoryModel::view_made_by(OpId op) const {
  const TensorId made = graph_.op(op).outputs[0];
  if (made == kNone) return kNone;
  const TensorId root = tensors_[at(made)].root;
  return graph_.tensor(root).kind == TensorKind::kParameter ? holder_of(made) : kNone;
}

std::int64_t StageMemory::host_in_flight() const {
  return std::accumulate(to_host.begin(), to_host.end(), std::int64_t{0});
}

StageMemory StageMemoryModel::of(const StageParts& parts, std::int64_t samples) {
  parts_ = &parts;
  sizes_ = &sizes_for(samples);
  samples_ = samples;
  memory_ = {};
  count_resident();
  count_cuts();
  find_kept();
  count_moved();
  memory_.forward_peak = forward_peak();
  memory_.in_flight = held_bytes() - memory_.host_in_flight();
  if (parts.parts_backward) {
    find_put_off();
    memory_.weight_peak = weight_peak();
    memory_.input_peak = backward_peak(memory_.in_flight);
  } else {
    memory_.backward_peak = backward_peak(memory_.in_flight);
  }
  for (const TensorId id : received_) {
    if (tensors_[at(id)].first_keeper == kNone) memory_.received_and_free += bytes(id);
  }
  forget();
  return memory_;
}

std::map<TensorId, std::size_t> StageMemoryModel::moved(const StageParts& parts,
                                                        std::int64_t samples) {
  parts_ = &parts;
  sizes_ = &sizes_for(samples);
  samples_ = samples;
  memory_ = {};
  count_cuts();
  find_kept();
  std::map<TensorId, std::size_t> moved;
  for (const TensorId id : kept_) {
    const OfTensor& tensor = tensors_[at(id)];
    if (goes_to_host(tensor)) moved.emplace(id, tensor.segment);
  }
  forget();
  return moved;
}

StageMemoryModel::Sizes& StageMemoryModel::sizes_for(std::int64_t samples) {
  const auto known = known_.find(samples);
  if (known != known_.end()) return known->second;
  if (known_.size() == kMostSizes) known_.clear();
  Sizes& sizes = known_[samples];
  sizes.bytes.reserve(graph_.tensors.size());
  for (TensorId id = 0; id < static_cast<TensorId>(graph_.tensors.size()); ++id) {
    const Tensor& t = graph_.tensor(id);
    const auto width = static_cast<std::int64_t>(element_bytes(t.type, training_.precision));
    sizes.bytes.push_back(graph_.is_fused_away(id) ? 0 : elements_at(t.shape, samples) * width);
  }
  sizes.kept.resize(graph_.ops.size());
  return sizes;
}

const StageMemoryModel::OpKept& StageMemoryModel::kept_by(OpId op) {
  OpKept& kept = sizes_->kept[at(op)];
  if (kept.known) return kept;
  if (is_exchange(graph_.op(op))) {  // it keeps nothing
    kept.known = true;
    return kept;
  }
  const Kept of_op = kept_for_backward(graph_, op, samples_, training_.precision);
  kept.known = true;
  kept.extra = of_op.extra_bytes;
  for (const TensorId id : of_op.tensors) {
    const TensorId root = tensors_[at(id)].root;
    if (graph_.tensor(root).kind == TensorKind::kActivation) kept.roots.push_back(root);
  }
  return kept;
}

void StageMemoryModel::count_resident() {
  for (const OpId op : parts_->ops) {
    for_each(op, &OfOp::residents, residents_, [&](TensorId id) {
      if (!std::exchange(tensors_[at(id)].seen, true)) count_resident(id);
    });
  }
  for (const OpId op : parts_->ops) {
    for_each(op, &OfOp::residents, residents_, [&](TensorId id) { tensors_[at(id)].seen = false; });
  }
  memory_.gradients = parts_->gradients + parts_->held.summing;
  memory_.ahead = parts_->held.ahead;
}

void StageMemoryModel::count_resident(TensorId id) {
  const Tensor& t = graph_.tensor(id);
  switch (t.kind) {
    case TensorKind::kParameter: {
      const std::int64_t full = elements_at(t.shape, samples_) * kFp32Bytes;
      memory_.optimizer += full * optimizer_slots_;
      if (bytes(id) < full) memory_.optimizer += full;
      memory_.parameters += bytes(id);
      return;
    }
    case TensorKind::kState:
    case TensorKind::kConstant:
    case TensorKind::kPrepared:
      memory_.parameters += bytes(id);
      return;
    case TensorKind::kInput:
      memory_.inputs += bytes(id) * parts_->micro_batches;
      return;
    case TensorKind::kActivation:
      return;
  }
}

void StageMemoryModel::count_cuts() {
  for (const StageParts::Crossing& crossing : parts_->received) {
    const std::int64_t size = bytes(crossing.tensor);
    OfTensor& root = tensors_[at(tensors_[at(crossing.tensor)].root)];
    if (crossing.local) {
      root.lent = true;
      continue;
    }
    if (!root.received) received_.push_back(tensors_[at(crossing.tensor)].root);
    root.received = true;
    memory_.received += size;
    if (crossing.gradient) memory_.gradients_sent += size;
  }
  // Of a tensor that came by a message, too (as a view of itself), the stage has memory of its own.
  for (const TensorId root : received_) tensors_[at(root)].lent = false;
  for (const StageParts::Crossing& crossing : parts_->sent) {
    const std::int64_t size = bytes(crossing.tensor);
    OfTensor& root = tensors_[at(tensors_[at(crossing.tensor)].root)];
    if (!root.sent) sent_.push_back(tensors_[at(crossing.tensor)].root);
    root.sent = true;
    if (!crossing.local) memory_.sent += size;
    if (!crossing.gradient) continue;
    (crossing.local ? memory_.gradients_kept : memory_.gradients_received) += size;
    tensors_[at(holder_of(crossing.tensor))].gradient_comes = true;
  }
}

void StageMemoryModel::find_kept() {
  std::size_t first = 0;
  segment_ = 0;
  for (const std::size_t end : parts_->segment_ends) {
    parts_->again ? keep_inputs_of_segment(first, end) : keep_of_operators(first, end);
    first = end;
    ++segment_;
  }
  keep_of_operators(first, parts_->ops.size());
  for (const OpId op : parts_->ops) {
    for_each(op, &OfOp::inputs, inputs_,
             [&](TensorId root) { tensors_[at(root)].last_reader = op; });
    for_each(op, &OfOp::outputs, outputs_, [&](TensorId id) {
      OpId& last = tensors_[at(tensors_[at(id)].root)].last_reader;
      if (last == kNone) last = op;
    });
  }
}

/// Returns what a micro-batch holds between its passes: what is kept, and what is sent.
std::int64_t StageMemoryModel::held_bytes() const {
  std::int64_t sum = 0;
  for (const TensorId id : kept_) sum += bytes(id);
  for (const OpId op : parts_->ops) sum += ops_[at(op)].extra;
  for (const TensorId id : sent_) {
    if (tensors_[at(id)].first_keeper == kNone && !tensors_[at(id)].lent) sum += bytes(id);
  }
  return sum;
}

/// Finds what weight passes need that an input pass must not free: the other factor of each product
/// and the gradient of what that makes. A weight pass goes back through the products, and frees
/// these. The gradient of a weight goes into its bucket at once or, where a parameter has several
/// products, when those of all are made and summed.
void StageMemoryModel::find_put_off() {
  for (const OpId op : parts_->ops) {
    for_each(op, &OfOp::gradients, gradients_, [&](const Gradient& to) {
      if (!to.in_weight_pass) return;
      const TensorId parameter = tensors_[at(to.id)].root,
                     factor = tensors_[at(graph_.op(op).inputs[0])].root,
                     made = tensors_[at(graph_.op(op).outputs[0])].root;
      const bool alone = needs_first(parameter, op);
      OfOp& last_made = ops_[at(tensors_[at(parameter)].first_product)];
      last_made.freed += bytes(to.id);
      if (alone) {
        put_off_.push_back(parameter);
      } else {
        last_made.passing = bytes(to.id);
      }
      if (graph_.tensor(factor).kind == TensorKind::kActivation && needs_first(factor, op)) {
        put_off(factor, op);
      }
      tensors_[at(made)].gradient_put_off = true;
      put_off(made, op);
    });
  }
}

/// Returns whether no operator before `op` needs `root` in its weight pass, and notes that `op`
/// does.
bool StageMemoryModel::needs_first(TensorId root, OpId op) {
  OpId& first = tensors_[at(root)].first_product;
  if (first != kNone) return false;
  first = op;
  return true;
}

/// Notes that what has the size of `root` is held until the weight pass of `op`.
void StageMemoryModel::put_off(TensorId root, OpId op) {
  memory_.put_off += bytes(root);
  ops_[at(op)].freed += bytes(root);
  put_off_.push_back(root);
}

std::int64_t StageMemoryModel::weight_peak() {
  std::int64_t live = memory_.put_off, peak = live;
  for (auto op = parts_->ops.rbegin(); op != parts_->ops.rend(); ++op) {
    for_each(*op, &OfOp::gradients, gradients_, [&](const Gradient& to) {
      if (to.in_weight_pass) live += bytes(to.id);
    });
    peak = std::max(peak, live + std::exchange(ops_[at(*op)].passing, 0));
    live -= take_freed(*op);
  }
  return peak;
}

std::int64_t StageMemoryModel::forward_peak() {
  HeldWalk held(parts_->held.at_forward, parts_->held.forward);
  std::int64_t live = 0, peak = 0;
  std::size_t segment = 0, place = 0;
  for (const TensorId id : received_) {
    if (tensors_[at(id)].first_keeper != kNone) live += bytes(id);
  }
  for (const OpId op : parts_->ops) {
    if (goes_to_host(segment) && place++ == parts_->segment_ends[segment]) ++segment;
    live += ops_[at(op)].extra;
    if (goes_to_host(segment)) ops_[at(gone_after(segment))].freed += ops_[at(op)].extra;
    for_each(op, &OfOp::outputs, outputs_, [&](TensorId id) {
      const OfTensor& tensor = tensors_[at(id)];
      if (tensor.root != id) return;
      live += bytes(id);
      if (tensor.sent) return;
      if (tensor.first_keeper == kNone) {
        ops_[at(tensor.last_reader)].freed += bytes(id);
      } else if (goes_to_host(tensor)) {
        ops_[at(std::max(tensor.last_reader, gone_after(tensor.segment)))].freed += bytes(id);
      }
    });
    peak = std::max(peak, live + held.begin(op));
    live -= take_freed(op);
    held.end(op);
  }
  return std::max(peak, live + held.held());
}

/// Returns whether the weight pass makes a gradient: that of a product's weight, or that of what a
/// view is made of, where all that read the view are such products.
bool StageMemoryModel::is_put_off(const Gradient& to) const {
  return to.in_weight_pass || (to.of_view != kNone && !tensors_[at(to.of_view)].has_gradient);
}

/// Adds the gradients that the backward pass of `op` makes for activations to `live`. Returns the
/// bytes of its gradients of parameters, which go into their buckets at once.
std::int64_t StageMemoryModel::make_gradients(OpId op, std::int64_t& live) {
  std::int64_t passing = 0;
  for_each(op, &OfOp::gradients, gradients_, [&](const Gradient& to) {
    if (parts_->parts_backward && is_put_off(to)) return;
    if (to.of_parameter) {
      passing += bytes(to.id);
      return;
    }
    OfTensor& tensor = tensors_[at(to.holder)];
    if (tensor.sent || tensor.gradient_comes || tensor.has_gradient) return;
    tensor.has_gradient = true;
    tensor.gradient = bytes(to.id);
    with_gradient_.push_back(to.holder);
    live += tensor.gradient;
  });
  return passing;
}

/// Computes the forward pass of the segment parts_->ops[first, end) again, with what its operators
/// keep: adds that to `live`. Returns the peak. What the stage sends is held already.
std::int64_t StageMemoryModel::repeat(std::size_t first, std::size_t end, std::int64_t& live) {
  for (std::size_t i = first; i < end; ++i) {
    const OpId op = parts_->ops[i];
    for (const TensorId root : kept_by(op).roots) {
      OpId& keeper = tensors_[at(root)].repeated;
      if (keeper == kNone && is_made_by(root, first, end)) keeper = op;
    }
  }
  std::int64_t peak = live;
  for (std::size_t i = first; i < end; ++i) {
    const OpId op = parts_->ops[i];
    live += kept_by(op).extra;
    ops_[at(op)].freed += kept_by(op).extra;
    for_each(op, &OfOp::outputs, outputs_, [&](TensorId id) {
      OfTensor& tensor = tensors_[at(id)];
      if (tensor.root != id || tensor.sent) return;
      live += bytes(id);
      if (tensor.repeated != kNone) {
        ops_[at(tensor.repeated)].freed += bytes(id);
      } else {
        ops_[at(std::min(tensor.last_reader, parts_->ops[end - 1]))].passing += bytes(id);
      }
    });
    peak = std::max(peak, live);
    live -= std::exchange(ops_[at(op)].passing, 0);
  }
  for (std::size_t i = first; i < end; ++i) {
    for (const TensorId root : kept_by(parts_->ops[i]).roots) tensors_[at(root)].repeated = kNone;
  }
  return peak;
}

std::int64_t StageMemoryModel::backward_peak(std::int64_t kept) {
  HeldWalk held(parts_->held.at_backward, parts_->held.backward);
  for (const OpId op : parts_->ops) ops_[at(op)].freed = ops_[at(op)].extra;
  for (const TensorId id : kept_) {
    const OfTensor& tensor = tensors_[at(id)];
    if (!tensor.sent && tensor.first_product == kNone)
      ops_[at(tensor.first_keeper)].freed += bytes(id);
  }
  std::size_t in_host = memory_.to_host.size();  // segments whose part has not begun to come
  std::int64_t live = kept + (in_host > 0 ? memory_.to_host[--in_host] : 0);
  std::int64_t peak = live + held.held();
  const auto repeated = [&](std::size_t first, std::size_t end) {
    if (in_host > 0) live += memory_.to_host[--in_host];
    if (!parts_->again) return;
    const std::int64_t beside = held.begin(parts_->ops[end - 1]);
    peak = std::max(peak, repeat(first, end, live) + beside);
  };
  walk_back(parts_->ops.size(), parts_->segment_ends, repeated, [&](std::size_t i) {
    const OpId op = parts_->ops[i];
    const std::int64_t passing = make_gradients(op, live);
    peak = std::max(peak, live + passing + held.begin(op));
    for_each(op, &OfOp::outputs, outputs_, [&](TensorId id) {
      OfTensor& tensor = tensors_[at(id)];
      if (tensor.sent && tensor.gradient_put_off) live += bytes(id);  // longer than its message
      const bool freed = std::exchange(tensor.has_gradient, false) && !tensor.gradient_put_off;
      if (freed) live -= tensor.gradient;
    });
    live -= take_freed(op);
    held.end(op);
  });
  return peak;
}

std::int64_t StageMemoryModel::take_freed(OpId op) { return std::exchange(ops_[at(op)].freed, 0); }

/// Resets all state of this stage.
void StageMemoryModel::forget() {
  for (const TensorId id : kept_) tensors_[at(id)].first_keeper = kNone;
  for (const TensorId id : received_) tensors_[at(id)].received = false;
  for (const TensorId id : sent_) tensors_[at(id)].sent = false;
  for (const StageParts::Crossing& crossing : parts_->received) {
    tensors_[at(tensors_[at(crossing.tensor)].root)].lent = false;
  }
  for (const StageParts::Crossing& crossing : parts_->sent) {
    tensors_[at(holder_of(crossing.tensor))].gradient_comes = false;
  }
  for (const TensorId id : with_gradient_) tensors_[at(id)].has_gradient = false;
  for (const OpId op : parts_->ops) {
    ops_[at(op)].extra = 0;
    const auto forget_reader = [&](TensorId root) { tensors_[at(root)].last_reader = kNone; };
    for_each(op, &OfOp::inputs, inputs_, forget_reader);
    for_each(op, &OfOp::outputs, outputs_,
             [&](TensorId id) { forget_reader(tensors_[at(id)].root); });
  }
  for (const TensorId id : put_off_) {
    tensors_[at(id)].first_product = kNone;
    tensors_[at(id)].gradient_put_off = false;
  }
  put_off_.clear();
  kept_.clear();
  received_.clear();
  sent_.clear();
  with_gradient_.clear();
}

}  // namespace agpcs
