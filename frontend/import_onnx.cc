// SPDX-License-Identifier: Apache-2.0
#include "frontend/import_onnx.h"

#include "frontend/onnx_build.h"
#include "frontend/onnx_dims.h"
#include "frontend/onnx_exported.h"
#include "frontend/onnx_model.h"
#include "frontend/onnx_probe.h"
#include "frontend/onnx_roles.h"
#include "ir/diagnostics.h"
#include "ir/read_file.h"

#include <fmt/format.h>

#include <exception>
#include <filesystem>
#include <utility>

namespace agpcs {
namespace {

Result<Imported> import_steps(const onnx::ModelProto& proto, const std::string& file,
                              const std::string& folder, const ImportOptions& options) {
  using namespace frontend;
  Diagnostics diag(file);
  AGPCS_TRY(const Model model, check_structure(proto, diag));
  AGPCS_TRY(const DimBindings dims, bind_dims(model, options, diag));
  AGPCS_TRY(const Roles roles, find_roles(model, options.freeze, diag));
  AGPCS_TRY(const ProbeResult probed, probe(model, dims, roles, diag));
  AGPCS_TRY(Graph graph, build_graph(model, dims, roles, probed, options, folder, diag));
  graph.title = title_of(file);
  AGPCS_RETURN_IF_ERROR(verify_graph(graph));
  warn_of_export(model, roles, diag);
  return Imported{std::move(graph), diag.warnings()};
}

/// Frees the file's bytes before the model is worked on: a model with weights may be large.
Result<Imported> import_owned(std::string bytes, const std::string& file, const std::string& folder,
                              const ImportOptions& options) {
  try {
    AGPCS_TRY(const onnx::ModelProto proto, frontend::decode_model(bytes, file));
    std::string().swap(bytes);
    return import_steps(proto, file, folder, options);
  } catch (const std::exception& e) {  // ONNX's library and protobuf throw
    return invalid_input(fmt::format("{}: error: ONNX's library refuses it: {}", file, e.what()));
  }
}

}  // namespace

std::string title_of(const std::string& file) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  const bool nameless = file == "-" || (exists(status) && !is_regular_file(status));
  const std::string stem = nameless ? "" : std::filesystem::path(file).stem().string();
  std::string title;
  for (const char c : stem) {
    const auto byte = static_cast<unsigned char>(c);
    const bool follows = (byte & 0xc0U) == 0x80;  // in a character of UTF-8: one '_' for all of it
    if (byte > ' ' && byte < 0x7f) {
      title += c;
    } else if (!follows || title.empty() || title.back() != '_') {
      title += '_';
    }
  }
  return title.empty() ? "model" : title;
}

Result<Imported> import_onnx_bytes(const std::string& bytes, const std::string& file,
                                   const std::string& folder, const ImportOptions& options) {
  return import_owned(bytes, file, folder, options);
}

Result<Imported> import_onnx(const std::string& path, const ImportOptions& options) {
  AGPCS_TRY(std::string bytes, read_file(path, frontend::model_input(path)));
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return import_owned(std::move(bytes), path, parent.empty() ? "." : parent.string(), options);
}

}  // namespace agpcs
