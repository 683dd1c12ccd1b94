// SPDX-License-Identifier: Apache-2.0
// Prints what the operator table says a forward pass keeps for the backward pass, and what autograd
// saves when the LibTorch executor computes the same graph: `kept_figures model.onnx samples`.
//
// A line for each operator that keeps something: "op NAME TYPE TABLE SAVED", in bytes. What several
// operators keep counts for the first one. Parameters, running statistics and constants do not
// count. Then the sums, and the bytes that the executor has allocated more after its forward pass
// than before it.
#include "frontend/onnx/import_onnx.h"
#include "ir/graph/training_graph.h"
#include "runtime/torch/data/data.h"
#include "runtime/torch/ops/ops.h"
#include "runtime/torch/stage.h"
#include "tests/system/executor/kept_bytes.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/engine.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

// What autograd saves: every storage once, and for the operator that is computed at the time.
class Saved {
 public:
  static Saved& of_this_process() {
    static Saved saved;
    return saved;
  }
  void stands(const at::Tensor& tensor) { seen_.insert(tensor.storage().unsafeGetStorageImpl()); }
  void begin(OpId op) { op_ = op; }
  void add(const at::Tensor& tensor) {
    const c10::Storage& storage = tensor.storage();
    if (op_ == kNone || !seen_.insert(storage.unsafeGetStorageImpl()).second) return;
    held_.push_back(storage);  // so that no other storage takes its place
    bytes_[op_] += static_cast<std::int64_t>(storage.nbytes());
  }
  std::int64_t bytes(OpId op) const {
    const auto at = bytes_.find(op);
    return at == bytes_.end() ? 0 : at->second;
  }

 private:
  OpId op_ = kNone;
  std::unordered_set<const void*> seen_;
  std::vector<c10::Storage> held_;
  std::unordered_map<OpId, std::int64_t> bytes_;
};

class Hook : public torch::autograd::SavedVariableHooks {
 public:
  void call_pack_hook(const at::Tensor& tensor) override {
    tensor_ = tensor.detach();
    Saved::of_this_process().add(tensor);
  }
  at::Tensor call_unpack_hook() override { return tensor_; }

 private:
  at::Tensor tensor_;
};

// Autograd asks its engine for hooks of what it saves.
class HookingEngine : public torch::autograd::Engine {
 public:
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return std::make_unique<Hook>();
  }
  static torch::autograd::Engine& of_this_process() {
    static HookingEngine engine;
    return engine;
  }
};

// Computes the graph's operators by the executor's kernels, and has every saved tensor noted.
class Pass {
 public:
  Pass(const Graph& graph, std::int64_t samples)
      : graph_(graph), samples_(samples), data_(make_synthetic_data(graph, 1)) {}

  void run() {
    for (OpId id = 0; id < static_cast<OpId>(graph_.ops.size()); ++id) run(id);
  }

 private:
  at::Tensor first_value(TensorId id) {
    const Tensor& tensor = graph_.tensor(id);
    if (tensor.kind == TensorKind::kConstant) return constant_tensor(tensor, samples_).value();
    at::Tensor value = at::empty(dims_at(tensor.shape, samples_), stored_type(tensor.type));
    if (tensor.kind == TensorKind::kInput) {
      const Status filled = data_->fill(id, 0, samples_, value.data_ptr());
      AGPCS_CHECK(filled.ok(), "{}", filled.message());
      return value.to(computed_type(tensor.type));
    }
    value = value.to(computed_type(tensor.type)).uniform_(0.01, 0.02);
    return value.requires_grad_(tensor.kind == TensorKind::kParameter);
  }

  at::Tensor value(TensorId id) {
    const auto known = values_.find(id);
    if (known != values_.end()) return known->second;
    at::Tensor value = first_value(id);
    if (graph_.tensor(id).kind != TensorKind::kInput) Saved::of_this_process().stands(value);
    return values_.emplace(id, std::move(value)).first->second;
  }

  void run(OpId id) {
    const Op& op = graph_.op(id);
    const Kernel kernel = find_kernel(op.domain, op.type);
    AGPCS_CHECK(kernel != nullptr, "node '{}': the executor does not run {}", op.name, op.type);
    Tensors host(op.inputs.size());
    OpCall call{op, Tensors(op.inputs.size()), &host, {1, 0, samples_, kNone}};
    for (std::size_t i = 0; i < op.inputs.size(); ++i) {
      if (op.inputs[i] == kNone) continue;
      call.in[i] = value(op.inputs[i]);
      const Tensor& tensor = graph_.tensor(op.inputs[i]);
      if (tensor.kind == TensorKind::kConstant) host[i] = call.in[i];
      if (i == 0 && !tensor.shape.empty() && tensor.shape[0].per_sample != 0) {
        call.random.batch_axis = 0;
      }
    }
    Saved::of_this_process().begin(id);
    const Tensors outputs = kernel(call);
    Saved::of_this_process().begin(kNone);
    for (std::size_t i = 0; i < op.outputs.size() && i < outputs.size(); ++i) {
      if (op.outputs[i] != kNone) values_[op.outputs[i]] = outputs[i];
    }
  }

  const Graph& graph_;
  std::int64_t samples_;
  std::unique_ptr<DataSource> data_;
  std::unordered_map<TensorId, at::Tensor> values_;
};

Result<Graph> read(const std::string& path) {
  ImportOptions options;
  options.inference_graph = true;
  options.read_weights = true;  // constants have values
  AGPCS_TRY(Imported imported, import_onnx(path, options));
  Loss loss;
  AGPCS_TRY(Graph graph, attach_loss(std::move(imported.graph), loss));
  return derive_backward(std::move(graph));
}

void print_figures(const Graph& graph, std::int64_t samples) {
  const std::int64_t live = testing::kept_by_executor(graph, samples);
  torch::autograd::set_default_engine_stub(HookingEngine::of_this_process);
  Pass(graph, samples).run();
  testing::KeptByTable kept(graph, samples);
  std::int64_t table = 0, saved = 0;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const std::int64_t by_table = kept.bytes(id);
    const std::int64_t by_autograd = Saved::of_this_process().bytes(id);
    if (by_table > 0 || by_autograd > 0) {
      fmt::print("op {} {} {} {}\n", graph.op(id).name, graph.op(id).type, by_table, by_autograd);
    }
    table += by_table;
    saved += by_autograd;
  }
  fmt::print("table {}\nsaved {}\nlive {}\n", table, saved, live);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: kept_figures model.onnx samples\n");
    return 2;
  }
  const auto graph = agpcs::read(argv[1]);
  if (!graph.ok()) {
    fmt::print(stderr, "{}\n", graph.status().message());
    return agpcs::exit_code(graph.status().code());
  }
  try {
    agpcs::print_figures(*graph, std::stoll(argv[2]));
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}: error: {}\n", argv[1], agpcs::brief(error));
    return 1;
  }
  return 0;
}
