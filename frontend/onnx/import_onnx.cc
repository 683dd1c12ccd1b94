// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/import_onnx.h"

#include "frontend/onnx/build.h"
#include "frontend/onnx/dims.h"
#include "frontend/onnx/exported.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/rewrite/control_flow.h"
#include "frontend/onnx/rewrite/functions.h"
#include "frontend/onnx/rewrite/sequences.h"
#include "frontend/onnx/roles.h"
#include "frontend/onnx/shapes/probe.h"
#include "frontend/onnx/tensor.h"
#include "ir/base/diagnostics.h"
#include "ir/base/read_file.h"
#include "ir/graph/fuse/fuse.h"
#include "ir/graph/split/mixed_samples.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using frontend::DimBindings;
using frontend::Model;
using frontend::probe;
using frontend::ProbeResult;
using frontend::Roles;

/// Tells whether the model takes another extent than the batch's for the open axis `name`.
bool takes_another(const Model& model, DimBindings dims, const Roles& roles,
                   const std::string& name, const std::string& folder, Diagnostics diag) {
  constexpr std::int64_t kOther = 41;  // no probe, and an unlikely extent
  dims.equal.erase(name);
  dims.values[name] = kOther;
  return probe(model, dims, roles, folder, diag).ok();
}

/// Probes with axes 0 that nobody bound as the batch. Each of them is the batch if the model fits
/// then, and does not if the axis has another extent. An axis without a name in the file is the
/// batch if the model fits.
Result<ProbeResult> probe_open(const Model& model, DimBindings& dims, const Roles& roles,
                               const std::string& folder, Diagnostics& diag) {
  Diagnostics attempt = diag;
  dims.equal.insert(dims.open.begin(), dims.open.end());
  Result<ProbeResult> result = probe(model, dims, roles, folder, attempt);
  const auto is_certain = [&](const std::string& name) {
    return frontend::is_given_name(name) || !takes_another(model, dims, roles, name, folder, diag);
  };
  if (result.ok()) std::erase_if(dims.open, is_certain);
  if (result.ok() && dims.open.empty()) {
    diag = std::move(attempt);
    return result;
  }
  frontend::report_open(model, dims, diag);
  return diag.status();
}

Result<ProbeResult> probe_any(const Model& model, DimBindings& dims, const Roles& roles,
                              const std::string& folder, Diagnostics& diag) {
  return dims.open.empty() ? probe(model, dims, roles, folder, diag)
                           : probe_open(model, dims, roles, folder, diag);
}

std::vector<std::string_view> types_to_fuse(const ImportOptions& options) {
  if (options.fuse) return {options.fuse->begin(), options.fuse->end()};
  return options.as_written ? std::vector<std::string_view>() : fusible_types();
}

/// Warns of the first operator at which samples of a batch meet.
void warn_of_mixed_samples(const Graph& graph, Diagnostics& diag) {
  const std::vector<MixedSamples> mixed = mixed_samples(graph);
  if (mixed.empty()) return;
  const std::string more =
      mixed.size() == 1 ? "" : fmt::format("; {} more behind it", mixed.size() - 1);
  diag.warning_at(
      fmt::format("operator '{}'", graph.op(mixed[0].op).name),
      fmt::format("samples of a batch meet here: {}{}", mixed[0].how, more),
      "a replica has its own samples of a micro-batch only: a plan trains the same model "
      "with one replica and one micro-batch alone, else one of smaller batches");
}

Result<Imported> import_steps(const onnx::ModelProto& proto, const std::string& file,
                              const std::string& folder, const ImportOptions& options) {
  using namespace frontend;
  Diagnostics diag(file);
  AGPCS_TRY(const Model model, check_structure(proto, diag));
  AGPCS_TRY(const Roles roles, find_roles(model, {options.freeze, options.train}, diag));
  AGPCS_RETURN_IF_ERROR(check_export(model, roles, options.inference_graph, diag));
  AGPCS_TRY(DimBindings dims, bind_dims(model, options, diag));
  AGPCS_TRY(const ProbeResult probed, probe_any(model, dims, roles, folder, diag));
  AGPCS_TRY(Graph graph, build_graph(model, dims, roles, probed, options, folder, diag));
  fuse_operators(graph, types_to_fuse(options));
  graph.title = title_of(file);
  AGPCS_RETURN_IF_ERROR(verify_graph(graph));
  warn_of_export(model, roles, diag);
  warn_of_mixed_samples(graph, diag);
  return Imported{std::move(graph), diag.warnings()};
}

/// Imports a model, and frees the file's bytes early: a model with weights may be large.
Result<Imported> import_owned(std::string bytes, const std::string& file, const std::string& folder,
                              const ImportOptions& options) {
  try {
    AGPCS_TRY(onnx::ModelProto proto, frontend::decode_model(bytes, file));
    std::string().swap(bytes);
    AGPCS_RETURN_IF_ERROR(frontend::inline_functions(proto, file));
    AGPCS_RETURN_IF_ERROR(frontend::inline_control_flow(proto, file, options));
    frontend::replace_sequences(proto);
    frontend::name_axes(proto);
    return import_steps(proto, file, folder, options);
  } catch (const std::exception& e) {  // ONNX's library and protobuf throw
    return invalid_input(fmt::format("{}: error: ONNX's library refuses it: {}", file, e.what()));
  }
}

/// Counts elements of floating tensors, and tells which type most of them have.
class PrecisionCount {
 public:
  void add(DType type, std::int64_t elements) {
    if (type == DType::kBf16) bf16_ += elements;
    if (type == DType::kFp16) fp16_ += elements;
    if (type == DType::kFp32 || type == DType::kFp64) fp32_ += elements;
  }
  Precision commonest() const {
    if (bf16_ > fp16_ && bf16_ > fp32_) return Precision::kBf16;
    return fp16_ > fp32_ ? Precision::kFp16 : Precision::kFp32;
  }

 private:
  std::int64_t bf16_ = 0, fp16_ = 0, fp32_ = 0;
};

}  // namespace

Precision precision_of(const Graph& graph) {
  PrecisionCount count;
  for (const TensorId id : graph.parameters()) {
    count.add(graph.tensor(id).type, elements_at(graph.tensor(id).shape, 1));
  }
  return count.commonest();
}

Precision precision_of_file(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) return Precision::kFp32;
  const Result<std::string> bytes = read_file(path, frontend::model_input(path));
  if (!bytes.ok()) return Precision::kFp32;
  try {
    const Result<onnx::ModelProto> proto = frontend::decode_model(*bytes, path);
    if (!proto.ok()) return Precision::kFp32;
    PrecisionCount count;
    for (const onnx::TensorProto& tensor : proto->graph().initializer()) {
      const auto type = frontend::dtype_of(tensor.data_type());
      const auto elements = frontend::element_count({tensor.dims().begin(), tensor.dims().end()});
      if (type && elements) count.add(*type, *elements);
    }
    return count.commonest();
  } catch (const std::exception&) {  // ONNX's library and protobuf throw; the import reports it
    return Precision::kFp32;
  }
}

std::string title_of(const std::string& file) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(file, error);
  const bool nameless = file == "-" || (exists(status) && !is_regular_file(status));
  const std::string stem = nameless ? "" : std::filesystem::path(file).stem().string();
  std::string title;
  for (const char c : stem) {
    const auto byte = static_cast<unsigned char>(c);
    // A continuation byte of UTF-8: each character gets only one '_'.
    const bool follows = (byte & 0xc0U) == 0x80;
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
