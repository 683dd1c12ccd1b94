// SPDX-License-Identifier: Apache-2.0
// CutBuffers: the tensors that a stage receives and sends, for every micro-batch in flight.
#pragma once

#include "ir/graph.h"
#include "runtime/torch_ops.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <map>
#include <unordered_map>
#include <vector>

namespace agpcs {

class CutBuffers {
 public:
  /// Finds the cuts of `rank`'s stage. Errors: a cut tensor that the graph does not have.
  Status prepare(const Graph& graph, const Plan& plan, int rank, at::Device device);

  std::vector<TensorId> incoming() const;
  std::vector<TensorId> outgoing() const;

  /// As in Executor. Errors: a cut or tensor that is not this stage's, or one not computed yet.
  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch);
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch);

  void begin_step();
  /// Adds the received tensors to `values`, as leaves for autograd where gradients return.
  void put_received(int micro_batch, std::unordered_map<TensorId, at::Tensor>& values);
  /// Takes what the stage sends from `values`.
  void keep_sent(int micro_batch, const std::unordered_map<TensorId, at::Tensor>& values);
  /// Appends the sent tensors of `values` that gradients came back for, and those gradients, summed
  /// over consumers.
  void add_roots(int micro_batch, const std::unordered_map<TensorId, at::Tensor>& values,
                 Tensors& roots, Tensors& gradients) const;
  /// Takes the gradients of the received tensors after backward, and frees what it has consumed.
  void end_backward(int micro_batch);

 private:
  // A tensor of a cut at this stage.
  struct End {
    int cut = 0, tensor = 0;
    TensorId id = kNone;
    bool incoming = false, batched = true, gradient = true;
    std::int64_t row_elements = 1;
    std::vector<std::int64_t> dims;  // with this rank's rows
    at::ScalarType type = at::kFloat;
  };
  // One micro-batch; vectors are parallel to ends_.
  struct Flight {
    Tensors activations;     // received, or sent and contiguous
    Tensors leaves;          // received: what the stage computed with
    Tensors sent_gradients;  // of received tensors
    std::vector<std::map<int, at::Tensor>> received_gradients;  // by peer; batched: one, under -1
  };
  int find(int cut, int tensor) const;
  Flight& flight(int micro_batch) { return flights_[static_cast<std::size_t>(micro_batch)]; }
  at::Tensor allocate(const End& end) const;
  Result<Buffer> rows_of(const End& end, const at::Tensor& tensor, const Transfer& transfer) const;

  std::vector<End> ends_;
  std::vector<Flight> flights_;
  at::Device device_ = at::kCPU;
};

}  // namespace agpcs
