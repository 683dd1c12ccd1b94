// SPDX-License-Identifier: Apache-2.0
// CutBuffers: the tensors that a stage receives and sends, for every micro-batch in flight.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/torch/ops/ops.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <map>
#include <unordered_map>
#include <vector>

namespace agpcs {

class CutBuffers {
 public:
  /// Finds the cuts of stage `stage`, one of `rank`'s. Errors: the graph does not have a cut
  /// tensor.
  Status prepare(const Graph& graph, const Plan& plan, int stage, int rank, at::Device device);

  std::vector<TensorId> incoming() const;
  std::vector<TensorId> outgoing() const;

  /// Return what the functions of Executor with these names return. Errors: a cut or tensor does
  /// not belong to this stage, or is not computed yet.
  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch);
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch);

  void begin_step();
  /// Adds the received tensors to `values`, as leaves for autograd if gradients return.
  void put_received(int micro_batch, std::unordered_map<TensorId, at::Tensor>& values);
  /// Takes what the stage sends from `values`.
  void keep_sent(int micro_batch, const std::unordered_map<TensorId, at::Tensor>& values);
  /// Returns the gradients that came back for sent tensors, summed over consumers.
  std::unordered_map<TensorId, at::Tensor> received_gradients(int micro_batch) const;
  /// Takes the gradients of the received tensors after a backward pass, and frees what the pass
  /// has used.
  void end_backward(int micro_batch);
  /// Of a local cut (`is_local`), takes the tensors that the stage of `maker` has made,
  /// before the forward pass that reads them: both stages have them then, in one memory.
  void take(int cut, int micro_batch, const CutBuffers& maker);
  /// Takes their gradients from the stage of `reader`, after its backward pass.
  void take_gradients(int cut, int micro_batch, CutBuffers& reader);
  /// Frees what the message has carried.
  void sent(const InstructionId& send);

 private:
  // A tensor of a cut at this stage.
  struct End {
    int cut = 0, tensor = 0;
    TensorId id = kNone;
    bool local = false;  // no message carries it
    bool incoming = false, batched = true, gradient = true;
    std::int64_t row_elements = 1;
    std::vector<std::int64_t> dims;  // with this rank's number of rows
    at::ScalarType type = at::kFloat;
  };
  // One micro-batch in flight; vectors are parallel to ends_.
  struct Flight {
    Tensors activations;     // received tensors, or sent ones made contiguous
    Tensors leaves;          // received tensors as the stage computed with them
    Tensors sent_gradients;  // for received tensors
    // By end, then peer; a batched end has one entry, under -1, and so has a local one.
    std::vector<std::map<int, at::Tensor>> received_gradients;
  };
  int find(int cut, int tensor) const;
  Flight& flight(int micro_batch) { return flights_[static_cast<std::size_t>(micro_batch)]; }
  at::Tensor allocate(const End& end, int micro_batch) const;
  Result<Buffer> rows_of(const End& end, const at::Tensor& tensor, const Transfer& transfer) const;

  std::vector<End> ends_;
  std::vector<Flight> flights_;
  at::Device device_ = at::kCPU;
  int smaller_from_ = 0;                            // `Plan::smaller_from`
  std::int64_t samples_ = 0, smaller_samples_ = 0;  // this rank's, of either size
};

}  // namespace agpcs
