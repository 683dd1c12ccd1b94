// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/cuts.h"

#include "ir/plan/body/body.h"
#include "ir/plan/rounds/rank_stages.h"

#include <fmt/format.h>

#include <set>
#include <string>

namespace agpcs {
namespace {

std::unordered_map<std::string, TensorId> ids_by_name(const Graph& graph) {
  std::unordered_map<std::string, TensorId> ids;
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    ids.emplace(graph.tensors[t].name, static_cast<TensorId>(t));
  }
  return ids;
}

std::int64_t samples_of(const PlanStage& stage, int rank, bool smaller) {
  const int replica = replica_of(stage, rank);
  return replica < 0 ? 0 : stage.samples_of(static_cast<std::size_t>(replica), smaller);
}

}  // namespace

Status CutBuffers::prepare(const Graph& graph, const Plan& plan, int stage, int rank,
                           at::Device device) {
  device_ = device;
  const PlanStage& own = plan.stages[static_cast<std::size_t>(stage)];
  smaller_from_ = static_cast<int>(plan.smaller_from());
  samples_ = samples_of(own, rank, false);
  smaller_samples_ = samples_of(own, rank, true);
  const auto ids = ids_by_name(graph);
  for (std::size_t c = 0; c < plan.cuts.size(); ++c) {
    const Cut& cut = plan.cuts[c];
    if (cut.from != stage && cut.to != stage) continue;
    for (std::size_t t = 0; t < cut.tensors.size(); ++t) {
      const CutTensor& tensor = cut.tensors[t];
      const auto id = ids.find(tensor.name);
      if (id == ids.end()) {
        return invalid_input(fmt::format("cut {} has tensor '{}', which the model does not have",
                                         cut.name, tensor.name));
      }
      End end{static_cast<int>(c),       static_cast<int>(t),       id->second,
              is_local(plan, cut),       cut.to == stage,           tensor.batched,
              tensor.gradient,           tensor.elements_per_row(), tensor.dims,
              computed_type(tensor.type)};
      if (tensor.batched) end.dims.insert(end.dims.begin(), samples_);
      ends_.push_back(std::move(end));
    }
  }
  flights_.resize(static_cast<std::size_t>(plan.micro_batches));
  begin_step();
  return {};
}

std::vector<TensorId> CutBuffers::incoming() const {
  std::vector<TensorId> ids;
  for (const End& end : ends_) {
    if (end.incoming) ids.push_back(end.id);
  }
  return ids;
}

std::vector<TensorId> CutBuffers::outgoing() const {
  std::vector<TensorId> ids;
  for (const End& end : ends_) {
    if (!end.incoming) ids.push_back(end.id);
  }
  return ids;
}

int CutBuffers::find(int cut, int tensor) const {
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (ends_[e].cut == cut && ends_[e].tensor == tensor) return static_cast<int>(e);
  }
  return kNone;
}

at::Tensor CutBuffers::allocate(const End& end, int micro_batch) const {
  std::vector<std::int64_t> dims = end.dims;
  if (end.batched) dims.front() = micro_batch < smaller_from_ ? samples_ : smaller_samples_;
  return at::zeros(dims, at::TensorOptions().dtype(end.type).device(device_));
}

Result<Buffer> CutBuffers::rows_of(const End& end, const at::Tensor& tensor,
                                   const Transfer& transfer) const {
  const auto row_bytes =
      static_cast<std::size_t>(end.row_elements) * static_cast<std::size_t>(tensor.element_size());
  const auto first = static_cast<std::size_t>(transfer.first_row);
  const auto rows = static_cast<std::size_t>(transfer.rows);
  if ((first + rows) * row_bytes > tensor.nbytes()) {
    return internal_error(fmt::format("rows {} to {} of a tensor with {} bytes, {} bytes a row",
                                      first, first + rows, tensor.nbytes(), row_bytes));
  }
  return Buffer{static_cast<char*>(tensor.data_ptr()) + first * row_bytes, rows * row_bytes,
                dtype_of(tensor.scalar_type()), tensor.is_cuda()};
}

Result<Buffer> CutBuffers::activation(int cut, const Transfer& transfer, int micro_batch) {
  const int e = find(cut, transfer.tensor);
  if (e == kNone) return internal_error(fmt::format("cut {} is not of this stage", cut));
  const auto index = static_cast<std::size_t>(e);
  at::Tensor& tensor = flight(micro_batch).activations[index];
  if (!tensor.defined() && ends_[index].incoming) tensor = allocate(ends_[index], micro_batch);
  if (!tensor.defined()) {
    return internal_error(
        fmt::format("cut {} of micro-batch {} was asked for before its forward", cut, micro_batch));
  }
  return rows_of(ends_[index], tensor, transfer);
}

Result<Buffer> CutBuffers::gradient(int cut, const Transfer& transfer, int micro_batch) {
  const int e = find(cut, transfer.tensor);
  if (e == kNone) return internal_error(fmt::format("cut {} is not of this stage", cut));
  const auto index = static_cast<std::size_t>(e);
  const End& end = ends_[index];
  Flight& f = flight(micro_batch);
  if (end.incoming) {
    if (f.sent_gradients[index].defined()) return rows_of(end, f.sent_gradients[index], transfer);
    return internal_error(
        fmt::format("the gradient of cut {}, micro-batch {}, was asked for before its backward",
                    cut, micro_batch));
  }
  at::Tensor& received = f.received_gradients[index][end.batched ? kNone : transfer.peer];
  if (!received.defined()) received = allocate(end, micro_batch);
  return rows_of(end, received, transfer);
}

void CutBuffers::begin_step() {
  for (Flight& f : flights_) {
    f = Flight{Tensors(ends_.size()), Tensors(ends_.size()), Tensors(ends_.size()), {}};
    f.received_gradients.resize(ends_.size());
  }
}

void CutBuffers::put_received(int micro_batch, std::unordered_map<TensorId, at::Tensor>& values) {
  Flight& f = flight(micro_batch);
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (!ends_[e].incoming) continue;
    if (!f.activations[e].defined()) f.activations[e] = allocate(ends_[e], micro_batch);
    f.leaves[e] = f.activations[e].detach();
    if (ends_[e].gradient) f.leaves[e].set_requires_grad(true);
    values[ends_[e].id] = f.leaves[e];
  }
}

void CutBuffers::keep_sent(int micro_batch,
                           const std::unordered_map<TensorId, at::Tensor>& values) {
  Flight& f = flight(micro_batch);
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (!ends_[e].incoming) f.activations[e] = values.at(ends_[e].id).detach().contiguous();
  }
}

std::unordered_map<TensorId, at::Tensor> CutBuffers::received_gradients(int micro_batch) const {
  const Flight& f = flights_[static_cast<std::size_t>(micro_batch)];
  std::unordered_map<TensorId, at::Tensor> sums;
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (ends_[e].incoming || !ends_[e].gradient) continue;
    for (const auto& [peer, gradient] : f.received_gradients[e]) {
      at::Tensor& sum = sums[ends_[e].id];
      sum = sum.defined() ? sum + gradient : gradient;
    }
  }
  return sums;
}

void CutBuffers::end_backward(int micro_batch) {
  Flight& f = flight(micro_batch);
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (!ends_[e].incoming) {
      f.received_gradients[e].clear();
      if (ends_[e].local) f.activations[e].reset();
      continue;
    }
    if (ends_[e].gradient) {
      const at::Tensor& gradient = f.leaves[e].grad();
      f.sent_gradients[e] =
          gradient.defined() ? gradient.contiguous() : allocate(ends_[e], micro_batch);
    }
    f.activations[e].reset();
    f.leaves[e].reset();
  }
}

void CutBuffers::take(int cut, int micro_batch, const CutBuffers& maker) {
  const Flight& made = maker.flights_[static_cast<std::size_t>(micro_batch)];
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (ends_[e].cut != cut) continue;
    const int other = maker.find(cut, ends_[e].tensor);
    flight(micro_batch).activations[e] = made.activations[static_cast<std::size_t>(other)];
  }
}

void CutBuffers::take_gradients(int cut, int micro_batch, CutBuffers& reader) {
  Flight& read = reader.flight(micro_batch);
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (ends_[e].cut != cut || !ends_[e].gradient) continue;
    const auto other = static_cast<std::size_t>(reader.find(cut, ends_[e].tensor));
    flight(micro_batch).received_gradients[e][kNone] = std::move(read.sent_gradients[other]);
    read.sent_gradients[other].reset();
  }
}

void CutBuffers::sent(const InstructionId& send) {
  Flight& f = flight(send.micro_batch);
  for (std::size_t e = 0; e < ends_.size(); ++e) {
    if (ends_[e].cut != send.object) continue;
    (send.opcode == Opcode::kSend ? f.activations : f.sent_gradients)[e].reset();
  }
}

}  // namespace agpcs
