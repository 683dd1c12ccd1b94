// SPDX-License-Identifier: Apache-2.0
// The ONNX importer, over binary and text models: an error that says something, or a graph that
// holds its invariants, from which a training graph can be made.
#include "frontend/onnx/import_onnx.h"
#include "ir/graph/graph.h"
#include "ir/graph/training_graph.h"
#include "tests/fuzz/fuzz.h"

#include <string>
#include <utility>

namespace agpcs {
namespace {

void expect_message(const Status& status) {
  fuzz::require(status.code() != StatusCode::kInternal, "the input is at fault, not we",
                status.message());
  fuzz::require(!status.message().empty(), "an error says what is wrong");
}

void train(Graph graph) {
  Loss loss;
  Result<Graph> with_loss = attach_loss(std::move(graph), loss);
  if (!with_loss.ok()) return expect_message(with_loss.status());
  const Result<Graph> training = derive_backward(*std::move(with_loss));
  if (!training.ok()) return expect_message(training.status());
  const Status sound = verify_graph(*training);
  fuzz::require(sound.ok(), "a training graph holds its invariants", sound.message());
}

void import(const std::string& bytes, const std::string& file, const ImportOptions& options) {
  Result<Imported> imported = import_onnx_bytes(bytes, file, "", options);
  if (!imported.ok()) return expect_message(imported.status());
  const Status sound = verify_graph(imported->graph);
  fuzz::require(sound.ok(), "an imported graph holds its invariants", sound.message());
  fuzz::require(!print_graph(imported->graph).empty(), "a graph has a text");
  train(std::move(imported->graph));
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(agpcs::fuzz::text_of(data, size));
  agpcs::ImportOptions as_run;
  as_run.read_weights = true;
  as_run.dims = {{"seq", 4}};
  for (const char* file : {"m.onnx", "m.onnxtxt"}) {
    agpcs::import(bytes, file, {});
    agpcs::import(bytes, file, as_run);
  }
  return 0;
}
