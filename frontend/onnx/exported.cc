// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_exported.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

namespace agpcs::frontend {
namespace {

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

/// Without the digits at its end.
std::string_view stem_of(std::string_view name) {
  while (!name.empty() && name.back() >= '0' && name.back() <= '9') name.remove_suffix(1);
  return name;
}

/// Operators of ATen whose results constant folding leaves under their names; such that a
/// parameter would hardly be called like.
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

/// A name of one of several results, as a normalization has them and a convolution has not.
bool is_one_of_several(std::string_view name) {
  const std::string_view stem = stem_of(name);
  return name == "getitem" || stem == "getitem_";
}

void warn_of_folded_norm(const Model& model, Diagnostics& diag) {
  const ExportNames names(model);
  std::vector<int> folded;
  for (const int index : model.order) {
    if (names.has_folded_norm(model.node(index))) folded.push_back(index);
  }
  if (folded.empty()) return;
  diag.warning({},
               fmt::format("the exporter seems to have folded batch normalization into {} "
                           "operator{} ({}{}): the model is trained without it",
                           folded.size(), folded.size() == 1 ? "" : "s",
                           label_of(model, folded.front()), folded.size() == 1 ? "" : ", ..."),
               names.dynamo()
                   ? "export with optimize=False: torch.onnx.export(..., dynamo=True, "
                     "optimize=False)"
                   : "export in training mode: torch.onnx.export(..., "
                     "training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)");
}

/// "'a', 'b', ... and 12 more".
std::string listed(const std::vector<std::string_view>& names) {
  constexpr std::size_t kMost = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) {
    text += fmt::format("{}'{}'", i == 0 ? "" : ", ", names[i]);
  }
  if (names.size() > kMost) text += fmt::format(" and {} more", names.size() - kMost);
  return text;
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

ExportNames::ExportNames(const Model& model) {
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

/// "onnx::Conv_497", or "497" of older versions: filters that PyTorch's TorchScript exporter
/// computed. What it computes them from is a batch normalization behind the convolution.
bool ExportNames::are_computed_filters(std::string_view name) const {
  const std::string_view stem = stem_of(name);
  return stem.size() < name.size() &&
         ((stem.empty() && modules_) || stem == "onnx::Conv_" || stem == "onnx::ConvTranspose_");
}

/// PyTorch's newer exporter gives the operator that is left the output of the normalization, and
/// a bias, where there was none, after the filters.
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

void warn_of_export(const Model& model, const Roles& roles, Diagnostics& diag) {
  warn_of_folded_norm(model, diag);
  warn_of_doubtful(roles, diag);
  warn_of_scalars(roles, diag);
}

}  // namespace agpcs::frontend
