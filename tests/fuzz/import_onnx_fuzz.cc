// SPDX-License-Identifier: Apache-2.0
// The ONNX importer, over binary and text models: an error that says something, or a graph that
// holds its invariants, from which a training graph with any loss can be made.
#include "frontend/onnx/import_onnx.h"
#include "ir/graph/graph.h"
#include "ir/graph/loss_summary.h"
#include "ir/graph/op_table.h"
#include "ir/graph/training_graph.h"
#include "ir/plan/choices.h"
#include "tests/fuzz/fuzz.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

void expect_message(const Status& status) {
  fuzz::require(status.code() != StatusCode::kInternal, "the input is at fault, not we",
                status.message());
  fuzz::require(!status.message().empty(), "an error says what is wrong");
}

/// Returns the losses that are attached to a model: the one that the shapes of its outputs choose,
/// and every kind by its name.
std::vector<Loss> losses_of(const Graph& graph) {
  std::vector<Loss> losses(1);
  losses[0].by_shape = true;
  for (const LossEntry& entry : kLosses) {
    Loss loss;
    loss.kind = entry.value;
    if (entry.value == LossKind::kOutput && !graph.outputs.empty()) {
      loss.outputs = {{graph.tensor(graph.outputs[0]).name, 1}};
    }
    losses.push_back(loss);
  }
  losses[1].label_smoothing = 0.1;
  losses[1].class_axis = -1;
  losses[1].ignore_index = 3;
  Loss next_token;
  next_token.next_token = "auto";
  losses.push_back(next_token);
  return losses;
}

void expect_costs(const Graph& graph) {
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    const OpCost cost = op_cost(graph, op, 3, Precision::kFp16);
    for (const double figure :
         {cost.forward_flops, cost.backward_flops, cost.forward_bytes, cost.backward_bytes}) {
      fuzz::require(std::isfinite(figure) && figure >= 0, "costs are numbers", graph.op(op).name);
    }
    const Kept kept = kept_for_backward(graph, op, 3, Precision::kFp16);
    fuzz::require(kept.extra_bytes >= 0, "kept bytes are a number", graph.op(op).name);
  }
}

void train(const Graph& graph, Loss loss) {
  Result<Graph> with_loss = attach_loss(graph, loss);
  if (!with_loss.ok()) return expect_message(with_loss.status());
  const std::string text = print_graph(*with_loss);
  const Result<Graph> again = attach_loss(graph, loss);
  fuzz::require(again.ok() && print_graph(*again) == text, "a chosen loss is attached alike");
  const Result<Graph> training = derive_backward(*std::move(with_loss));
  if (!training.ok()) return expect_message(training.status());
  const Status sound = verify_graph(*training);
  fuzz::require(sound.ok(), "a training graph holds its invariants", sound.message());
  describe_loss(*training, loss);
  fuzz::require(tokens_per_sample(*training) >= 0, "there is a number of tokens");
  expect_costs(*training);
}

void import(const std::string& bytes, const std::string& file, const ImportOptions& options) {
  const Result<Imported> imported = import_onnx_bytes(bytes, file, "", options);
  if (!imported.ok()) return expect_message(imported.status());
  const Status sound = verify_graph(imported->graph);
  fuzz::require(sound.ok(), "an imported graph holds its invariants", sound.message());
  fuzz::require(!print_graph(imported->graph).empty(), "a graph has a text");
  precision_of(imported->graph);
  for (const Loss& loss : losses_of(imported->graph)) train(imported->graph, loss);
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(agpcs::fuzz::text_of(data, size));
  agpcs::ImportOptions as_run;
  as_run.read_weights = true;
  as_run.dims = {{"seq", 4}};
  agpcs::ImportOptions as_decided;
  as_decided.inference_graph = true;
  as_decided.freeze = {"*bias*", "w"};
  as_decided.train = {"*"};
  for (const char* file : {"m.onnx", "m.onnxtxt"}) {
    for (const auto& options : {agpcs::ImportOptions(), as_run, as_decided}) {
      agpcs::import(bytes, file, options);
    }
  }
  return 0;
}
