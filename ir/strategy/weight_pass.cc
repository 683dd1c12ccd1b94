// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/weight_pass.h"

#include "ir/graph/op_table.h"

namespace agpcs {

int put_off_input(const Graph& graph, OpId op) {
  constexpr int kWeight = 1;
  const Op& of = graph.op(op);
  if ((!of.domain.empty() && of.domain != "ai.onnx") || of.fused != kNone) return kNone;
  const bool product = of.type == "MatMul" || of.type == "Gemm";
  if (!product && of.type != "Conv") return kNone;
  const TensorId id = of.inputs[kWeight];
  const Tensor& weight = graph.tensor(id);
  if (!weight.needs_gradient || (product && weight.shape.size() != 2)) return kNone;
  return graph.tensor(storage_of(graph, id)).kind == TensorKind::kParameter ? kWeight : kNone;
}

double weight_part(const Graph& graph, OpId op) {
  if (put_off_input(graph, op) == kNone) return 0;
  return graph.tensor(graph.op(op).inputs[0]).needs_gradient ? 0.5 : 1;
}

}  // namespace agpcs
