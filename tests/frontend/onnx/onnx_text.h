// SPDX-License-Identifier: Apache-2.0
// Tiny ONNX models from ONNX's own text syntax; graphs and messages out.
#pragma once

#include "frontend/onnx/import_onnx.h"
#include "frontend/onnx/proto.h"

#include <gtest/gtest.h>
#include <onnx/defs/parser.h>

#include <string>

namespace agpcs::testing {

/// `graph` with the header of a model of that opset (and of com.acme's first).
inline std::string onnx_text(const std::string& graph, int opset = 17) {
  return "<ir_version: 8, opset_import: [\"\": " + std::to_string(opset) + ", \"com.acme\": 1]>\n" +
         graph + "\n";
}

/// The same as a message, for what the text syntax cannot say.
inline onnx::ModelProto onnx_proto(const std::string& graph, int opset = 17) {
  const std::string text = onnx_text(graph, opset);
  onnx::ModelProto proto;
  const auto status = onnx::OnnxParser(text.c_str()).Parse(proto);
  EXPECT_TRUE(status.IsOK()) << status.ErrorMessage();
  return proto;
}

/// The graph's text, or the error's.
inline std::string outcome(const Result<Imported>& imported) {
  return imported.ok() ? print_graph(imported->graph) : imported.status().message();
}

inline std::string import_text(const std::string& graph, int opset = 17,
                               const ImportOptions& options = {}) {
  return outcome(import_onnx_bytes(onnx_text(graph, opset), "m.onnxtxt", "", options));
}

inline std::string import_proto(const onnx::ModelProto& proto, const std::string& folder = "",
                                const ImportOptions& options = {}) {
  return outcome(import_onnx_bytes(proto.SerializeAsString(), "m.onnx", folder, options));
}

/// The warnings of a model that imports.
inline std::string warnings_of(const std::string& graph, int opset = 17,
                               const ImportOptions& options = {}) {
  const auto imported = import_onnx_bytes(onnx_text(graph, opset), "m.onnxtxt", "", options);
  return imported.ok() ? imported->warnings : "not imported: " + imported.status().message();
}

}  // namespace agpcs::testing
