// SPDX-License-Identifier: Apache-2.0
// Prints what AGPCS knows of a model as a training graph, one figure a line, then what each
// operator keeps: `graph_figures model.onnx samples [--ops]`. With --forward instead of --ops: the
// multiply-adds of the forward graph and the names of its parameters, for any model that imports.
#include "frontend/onnx/import_onnx.h"
#include "ir/graph/op_table.h"
#include "ir/graph/training_graph.h"

#include <fmt/format.h>

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

namespace agpcs {
namespace {

constexpr Precision kPrecision = Precision::kFp32;

Result<Graph> read(const std::string& path) {
  AGPCS_TRY(Imported imported, import_onnx(path));
  Loss loss;
  AGPCS_TRY(Graph graph, attach_loss(std::move(imported.graph), loss));
  return derive_backward(std::move(graph));
}

std::int64_t tensor_bytes(const Graph& graph, TensorId id, std::int64_t samples) {
  const Tensor& tensor = graph.tensor(id);
  return elements_at(tensor.shape, samples) *
         static_cast<std::int64_t>(element_bytes(tensor.type, kPrecision));
}

void print_figures(const Graph& graph, std::int64_t samples, bool print_ops) {
  std::set<TensorId> kept_before;
  OpCost total;
  std::int64_t kept_bytes = 0;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const OpCost cost = op_cost(graph, id, samples, kPrecision);
    const Kept kept = kept_for_backward(graph, id, samples, kPrecision);
    std::int64_t bytes = kept.extra_bytes;
    for (const TensorId tensor : kept.tensors) {
      if (kept_before.insert(tensor).second) bytes += tensor_bytes(graph, tensor, samples);
    }
    kept_bytes += bytes;
    total.forward_flops += cost.forward_flops;
    total.backward_flops += cost.backward_flops;
    if (print_ops && bytes > 0)
      fmt::print("  {} {} {}\n", graph.op(id).name, graph.op(id).type, bytes);
  }
  fmt::print("parameters {}\nforward_flops {}\nbackward_flops {}\nkept_bytes {}\n",
             graph.parameter_elements(), total.forward_flops, total.backward_flops, kept_bytes);
}

/// Prints what needs no loss. A file that was optimized for inference is taken as it is.
Status print_forward(const std::string& path, std::int64_t samples) {
  ImportOptions options;
  options.inference_graph = true;
  AGPCS_TRY(const Imported imported, import_onnx(path, options));
  const Graph& graph = imported.graph;
  double products = 0;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const OpClass of = class_of(graph.op(id));
    if (of != OpClass::kConvolution && of != OpClass::kMatmul) continue;
    products += op_cost(graph, id, samples, kPrecision).forward_flops / 2;
  }
  fmt::print("operators {}\nmultiply_adds {:.0f}\n", graph.ops.size(), products);
  for (const TensorId id : graph.parameters()) {
    fmt::print("parameter {} {}\n", graph.tensor(id).name, elements_at(graph.tensor(id).shape, 1));
  }
  return {};
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: graph_figures model.onnx samples [--ops | --forward]\n");
    return 2;
  }
  if (argc > 3 && std::string_view(argv[3]) == "--forward") {
    const agpcs::Status status = agpcs::print_forward(argv[1], std::stoll(argv[2]));
    if (!status.ok()) fmt::print(stderr, "{}\n", status.message());
    return agpcs::exit_code(status.code());
  }
  const auto graph = agpcs::read(argv[1]);
  if (!graph.ok()) {
    fmt::print(stderr, "{}\n", graph.status().message());
    return agpcs::exit_code(graph.status().code());
  }
  agpcs::print_figures(*graph, std::stoll(argv[2]), argc > 3);
  return 0;
}
