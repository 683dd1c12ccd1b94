// SPDX-License-Identifier: Apache-2.0
// Training graphs of the models in samples/models.
#pragma once

#include "frontend/onnx/import_onnx.h"
#include "ir/base/check.h"
#include "ir/graph/training_graph.h"

#include <string>

namespace agpcs::testing {

/// The model `samples/models/<name>.onnx`, ready to be planned. Ends the program when it is not.
inline Graph training_graph_of(const std::string& name) {
  Result<Imported> imported = import_onnx("samples/models/" + name + ".onnx");
  AGPCS_CHECK(imported.ok(), "{}", imported.status().message());
  Loss loss;
  Result<Graph> with_loss = attach_loss(std::move(imported->graph), loss);
  AGPCS_CHECK(with_loss.ok(), "{}", with_loss.status().message());
  Result<Graph> graph = derive_backward(*std::move(with_loss));
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  return *std::move(graph);
}

}  // namespace agpcs::testing
