// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/exported.h"

#include "frontend/onnx/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_set>
#include <vector>

namespace agpcs::frontend {
namespace {

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// Returns the name without the digits at its end.
std::string_view stem_of(std::string_view name) {
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return name;
}

/// Operators of ATen whose results keep their names after constant folding. Names that a parameter
/// might well have are left out.
constexpr std::string_view kResults[] = {"abs",
                                         "add",
                                         "addmm",
                                         "alias",
                                         "arange",
                                         "bmm",
                                         "broadcast",
                                         "broadcast_to",
                                         "cat",
                                         "ceil",
                                         "clamp",
                                         "clone",
                                         "contiguous",
                                         "cos",
                                         "cumsum",
                                         "detach",
                                         "div",
                                         "einsum",
                                         "embedding",
                                         "exp",
                                         "expand",
                                         "expand_as",
                                         "eye",
                                         "flatten",
                                         "flip",
                                         "floor",
                                         "full",
                                         "full_like",
                                         "gather",
                                         "getitem",
                                         "index",
                                         "index_select",
                                         "lift_fresh",
                                         "lift_fresh_copy",
                                         "linspace",
                                         "log",
                                         "logical_or",
                                         "logical_not",
                                         "masked_fill",
                                         "matmul",
                                         "max",
                                         "mean",
                                         "min",
                                         "mm",
                                         "movedim",
                                         "mul",
                                         "neg",
                                         "new_full",
                                         "new_ones",
                                         "new_zeros",
                                         "ones",
                                         "ones_like",
                                         "outer",
                                         "permute",
                                         "pow",
                                         "prod",
                                         "reciprocal",
                                         "repeat",
                                         "reshape",
                                         "roll",
                                         "round",
                                         "rsqrt",
                                         "rsub",
                                         "scalar_tensor",
                                         "select",
                                         "sigmoid",
                                         "sin",
                                         "slice",
                                         "slice_scatter",
                                         "softmax",
                                         "split",
                                         "sqrt",
                                         "squeeze",
                                         "stack",
                                         "sub",
                                         "sum",
                                         "t",
                                         "tanh",
                                         "tile",
                                         "to",
                                         "transpose",
                                         "tril",
                                         "triu",
                                         "type_as",
                                         "unflatten",
                                         "unfold",
                                         "unsqueeze",
                                         "view",
                                         "where",
                                         "zeros",
                                         "zeros_like",
                                         "_to_copy",
                                         "_unsafe_view"};

/// Tells whether the name is that of one of several results. A normalization has several results, a
/// convolution only one.
bool is_one_of_several(std::string_view name) {
  const std::string_view stem = stem_of(name);
  return name == "getitem" || stem == "getitem_";
}

/// Returns "'a', 'b', ... and 12 more".
std::string listed(const std::vector<std::string_view>& names) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
}

/// Returns the line that exports a model for training.
std::string remedy(const ExportNames& names) {
  if (!names.dynamo()) {
    return "torch.onnx.export(..., training=torch.onnx.TrainingMode.TRAINING, "
           "do_constant_folding=False)";
  }
  return "torch.onnx.export(..., dynamo=True, optimize=False)";
}

/// The operators into which batch normalization was folded.
struct FoldedNorms {
  std::vector<int> nodes;
  std::vector<std::string> modules;  ///< the normalizations, where the file says them
};

FoldedNorms find_folded_norms(const Model& model, const ExportNames& names) {
  FoldedNorms found;
  for (const int index : model.order) {
    const onnx::NodeProto& node = model.node(index);
    const NodeOrigin origin = origin_of(node);
    const bool by_rule = starts_with(origin.rule, "FuseBatchNorm");
    if (!by_rule && !names.has_folded_norm(node)) continue;
    found.nodes.push_back(index);
    if (by_rule && !origin.module.empty()) found.modules.push_back(origin.module);
  }
  return found;
}

/// Returns "batch normalization (bn1, bn2) was folded into 2 operators", or "" if none was.
std::string folded_text(const Model& model, const FoldedNorms& folded) {
  if (folded.nodes.empty()) return "";
  const std::vector<std::string_view> modules(folded.modules.begin(), folded.modules.end());
  const std::size_t count = folded.nodes.size();
  const std::string where = modules.empty()
                                ? label_of(model, folded.nodes.front()) + (count > 1 ? ", ..." : "")
                                : listed(modules);
  return fmt::format("batch normalization was folded into {} operator{} ({})", count,
                     count == 1 ? "" : "s", where);
}

/// Returns "parameter 'cls_token' became constant 'expand'", or "" if none was lost.
std::string lost_text(const Model& model, const Roles& roles) {
  if (roles.lost.empty()) return "";
  constexpr std::size_t kMost = 4;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMost, roles.lost.size()); ++i) {
    const std::vector<std::string> from = model.origins.folded_parameters(roles.lost[i]);
    const bool twice = model.initializers.count(from.front()) != 0;
    text += fmt::format("{}{}", i == 0 ? "" : ", ",
                        listed(std::vector<std::string_view>(from.begin(), from.end())));
    text += fmt::format(" {} constant '{}'", twice ? "was copied into" : "became", roles.lost[i]);
  }
  const std::size_t more = roles.lost.size() - std::min(kMost, roles.lost.size());
  return (roles.lost.size() == 1 ? "parameter " : "parameters: ") + text +
         (more > 0 ? fmt::format(" and {} more", more) : "");
}

void warn_of_renamed(const Roles& roles, const ExportNames& names, Diagnostics& diag) {
  if (roles.renamed.empty()) return;
  const bool one = roles.renamed.size() == 1;
  diag.warning(
      {},
      fmt::format("the exporter transposed {} weight{} ({}): {} trained under {}, not under "
                  "{} of the module's parameter{}",
                  roles.renamed.size(), one ? "" : "s", listed(roles.renamed),
                  one ? "it is" : "they are", one ? "this name" : "these names",
                  one ? "that" : "those", one ? "" : "s"),
      "to keep the names, export with " + remedy(names));
}

/// A parameter that the file does not have, because its module reads another one instead.
struct Shared {
  std::string parameter;
  std::string_view read;
  bool vector = false;  ///< the one that is read has one axis at most
};

/// Returns parameters that PyTorch's exporter stored as others: it stores tensors of equal values
/// once. Those may be tied, share memory in the module, or be equal before training only, as scales
/// that are all 1; the file does not tell.
std::vector<Shared> shared_parameters(const Model& model) {
  const ExportNames names(model);
  std::vector<Shared> shared;
  std::unordered_set<std::string> seen;
  for (const int index : model.order) {
    const onnx::NodeProto& node = model.node(index);
    const NodeOrigin origin = origin_of(node);
    // A folded normalization has the module of the normalization, and the operator's parameters.
    if (!origin.known || origin.module.empty() || names.has_folded_norm(node)) continue;
    for (const std::string& input : node.input()) {
      const auto stored = model.initializers.find(input);
      if (stored == model.initializers.end()) continue;
      if (model.origins.owner(input) != Owner::kParameter) continue;
      const std::string own = origin.module + "." + input.substr(input.rfind('.') + 1);
      const bool missing = model.origins.owner(own) == Owner::kParameter &&
                           model.initializers.count(own) == 0 && !model.origins.is_source(own);
      if (!missing || !seen.insert(own).second) continue;
      shared.push_back({own, stored->first, stored->second->dims_size() <= 1});
    }
  }
  return shared;
}

std::string shared_text(const std::vector<Shared>& shared, bool vectors) {
  constexpr std::size_t kNamed = 3;
  std::string text;
  std::size_t count = 0;
  for (const Shared& one : shared) {
    if (one.vector != vectors) continue;
    if (++count <= kNamed) {
      text += fmt::format("{}'{}' as '{}'", text.empty() ? "" : ", ", one.parameter, one.read);
    }
  }
  if (count == 0) return "";
  if (count > kNamed) text += fmt::format(" and {} more", count - kNamed);
  return fmt::format("{} parameter{} of equal values {} stored once ({})", count,
                     count == 1 ? "" : "s", count == 1 ? "was" : "were", text);
}

/// Scales and shifts are hardly ever tied, so for them this is an error; matrices and tables are.
/// An exporter that did not optimize the model stores once only what is tied.
void warn_of_tied(const Model& model, Diagnostics& diag) {
  if (!model.origins.optimized()) return;
  const std::string text = shared_text(shared_parameters(model), false);
  if (text.empty()) return;
  diag.warning({},
               text + ": they are trained as one weight, which is right if the module ties them",
               "if it does not, export with " + remedy(ExportNames(model)));
}

void warn_of_doubtful(const Roles& roles, Diagnostics& diag) {
  const std::vector<std::string_view>& names = roles.doubtful;
  if (names.empty()) return;
  const std::string which =
      names.size() == 1 ? fmt::format("weight {} has a name", listed(names))
                        : fmt::format("{} weights ({}) have names", names.size(), listed(names));
  diag.warning({},
               fmt::format("{} that an exporter gives to what it computed; {} trained all the same",
                           which, names.size() == 1 ? "it is" : "they are"),
               fmt::format("freeze what is a constant of the model: --freeze '{}'", names.front()));
}

void warn_of_scalars(const Roles& roles, Diagnostics& diag) {
  const std::vector<std::string_view>& names = roles.scalars;
  if (names.empty()) return;
  const std::string which =
      names.size() == 1
          ? fmt::format("initializer '{}' is a scalar and is", names[0])
          : fmt::format("{} initializers ('{}', ...) are scalars and are", names.size(), names[0]);
  diag.warning({}, which + " not trained", "a trained scalar has shape [1]");
}

}  // namespace

ExportNames::ExportNames(const Model& model) : dynamo_(model.origins.dynamo()) {
  const auto is_value = [](std::string_view name) {
    return stem_of(name) == "val_" && name != "val_";
  };
  for (const onnx::TensorProto& tensor : model.graph().initializer()) {
    dynamo_ |= is_value(tensor.name());
    modules_ |= tensor.name().find('.') != std::string::npos;
  }
  for (const onnx::NodeProto& node : model.graph().node()) {
    dynamo_ |= starts_with(node.name(), "node_") ||
               std::any_of(node.output().begin(), node.output().end(), is_value);
  }
}

bool ExportNames::is_numbered(std::string_view name) const {
  const std::string_view stem = stem_of(name);
  if (stem.size() == name.size()) return false;
  return (stem.empty() && modules_) || stem == "val_" || stem == "const_fold_opt__" ||
         (starts_with(stem, "onnx::") && ends_with(stem, "_")) ||
         (starts_with(stem, "/") && ends_with(stem, "_output_")) ||
         ends_with(stem, "lifted_tensor_") || ends_with(stem, "_tensor_constant");
}

bool ExportNames::is_result(std::string_view name) const {
  std::string_view stem = stem_of(name);
  const bool numbered = stem.size() < name.size() && ends_with(stem, "_");
  if (numbered) stem.remove_suffix(1);
  if (!numbered && (stem.size() < name.size() || !dynamo_)) return false;
  return std::find(std::begin(kResults), std::end(kResults), stem) != std::end(kResults);
}

/// Tells whether PyTorch's TorchScript exporter computed these filters: "onnx::Conv_497", or "497"
/// in older versions. It computes them from a batch normalization behind the convolution.
bool ExportNames::are_computed_filters(std::string_view name) const {
  const std::string_view stem = stem_of(name);
  return stem.size() < name.size() &&
         ((stem.empty() && modules_) || stem == "onnx::Conv_" || stem == "onnx::ConvTranspose_");
}

/// PyTorch's newer exporter gives the remaining operator the name of the normalization's output. If
/// the operator had no bias, it gets one that is named after the filters.
bool ExportNames::has_folded_norm(const onnx::NodeProto& node) const {
  const std::string& type = node.op_type();
  const bool convolution = type == "Conv" || type == "ConvTranspose";
  if (!domain_of(node).empty() || (!convolution && type != "Gemm")) return false;
  if (node.input_size() < 2 || node.output_size() < 1) return false;
  if (convolution && are_computed_filters(node.input(1))) return true;
  if (!dynamo_) return false;
  return is_one_of_several(node.output(0)) ||
         (node.input_size() > 2 && node.input(2) == node.input(1) + "_bias");
}

std::string symbolic_batch_hint(const Model& model, std::int64_t batch) {
  const ExportNames names(model);
  const bool torch = model.proto->producer_name() == "pytorch" || names.dynamo();
  if (!torch) return "export it with a symbolic axis 0 of the inputs";
  std::string axes;
  const auto add = [&](const onnx::ValueInfoProto& value) {
    const onnx::TensorShapeProto& shape = value.type().tensor_type().shape();
    if (shape.dim_size() == 0 || shape.dim(0).dim_value() != batch) return;
    axes += fmt::format("{}\"{}\": {{0: \"batch\"}}", axes.empty() ? "" : ", ", value.name());
  };
  for (const onnx::ValueInfoProto* input : model.inputs) add(*input);
  if (!names.dynamo()) {
    for (const onnx::ValueInfoProto& output : model.graph().output()) add(output);
  }
  return fmt::format("export it for any batch: torch.onnx.export(..., {}={{{}}})",
                     names.dynamo() ? "dynamic_shapes" : "dynamic_axes", axes);
}

Status check_export(const Model& model, const Roles& roles, bool accepted, Diagnostics& diag) {
  const ExportNames names(model);
  for (const std::string& text :
       {folded_text(model, find_folded_norms(model, names)), lost_text(model, roles),
        shared_text(shared_parameters(model), true)}) {
    if (text.empty()) continue;
    if (accepted) {
      diag.warning({}, "the file was optimized for inference, and is planned as it is: " + text);
    } else {
      diag.error(
          {}, "the file was optimized for inference: " + text + ", which cannot be trained",
          fmt::format("export with {}; --inference-graph plans the file as it is", remedy(names)));
    }
  }
  return diag.status();
}

void warn_of_export(const Model& model, const Roles& roles, Diagnostics& diag) {
  warn_of_renamed(roles, ExportNames(model), diag);
  warn_of_tied(model, diag);
  warn_of_doubtful(roles, diag);
  warn_of_scalars(roles, diag);
}

}  // namespace agpcs::frontend
