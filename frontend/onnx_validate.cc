// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_validate.h"

#include "frontend/onnx_attributes.h"
#include "frontend/onnx_tensor.h"

#include <agpcs/types.h>

#include <fmt/format.h>

#include <algorithm>

namespace agpcs::frontend {
namespace {

std::string check_convolution(const onnx::NodeProto& node, const Dense& x, const Dense& w) {
  const std::int64_t group = int_of(node, "group", 1);
  if (x.dims.size() < 2 || w.dims.size() != x.dims.size()) {
    return fmt::format("the input has rank {}, the filters have rank {}", x.dims.size(),
                       w.dims.size());
  }
  const bool transposed = node.op_type() == "ConvTranspose";
  const std::int64_t wanted = transposed ? w.dims[0] : w.dims[1] * group;
  if (x.dims[1] == wanted) return "";
  return fmt::format("the input has {} channels, the filters take {}", x.dims[1], wanted);
}

std::string check_gemm(const onnx::NodeProto& node, const Dense& a, const Dense& b) {
  if (a.dims.size() != 2 || b.dims.size() != 2) return "";  // ONNX's rule says so
  const std::int64_t left = a.dims[int_of(node, "transA", 0) != 0 ? 0 : 1];
  const std::int64_t right = b.dims[int_of(node, "transB", 0) != 0 ? 1 : 0];
  if (left == right) return "";
  return fmt::format("the inner extents are {} and {}", left, right);
}

/// Initial states of a recurrent operator have the batch of the sequence.
std::string check_states(const onnx::NodeProto& node, const std::vector<const Dense*>& inputs) {
  constexpr std::size_t kFirstState = 5;
  const std::size_t axis = int_of(node, "layout", 0) == 0 ? 1 : 0;
  for (std::size_t i = kFirstState; i < std::min<std::size_t>(inputs.size(), kFirstState + 2);
       ++i) {
    if (inputs[i] == nullptr || inputs[i]->dims.size() != 3 || inputs[0]->dims.size() != 3)
      continue;
    if (inputs[i]->dims[axis] == inputs[0]->dims[axis]) continue;
    return fmt::format("the sequence has a batch of {}, '{}' has {}", inputs[0]->dims[axis],
                       node.input(static_cast<int>(i)), inputs[i]->dims[axis]);
  }
  return "";
}

}  // namespace

std::string check_fit(const onnx::NodeProto& node, const std::vector<const Dense*>& inputs,
                      const std::vector<InferredOutput>& outputs) {
  if (inputs.size() < 2 || inputs[0] == nullptr || inputs[1] == nullptr) return "";
  const std::string& type = node.op_type();
  if (type == "Conv" || type == "ConvTranspose") {
    return check_convolution(node, *inputs[0], *inputs[1]);
  }
  if (type == "Gemm") return check_gemm(node, *inputs[0], *inputs[1]);
  if (type == "LSTM" || type == "GRU" || type == "RNN") return check_states(node, inputs);
  if (type == "Reshape" && !outputs.empty() && outputs[0].dims) {
    const auto before = element_count(inputs[0]->dims);
    const auto after = element_count(*outputs[0].dims);
    if (before && after && *before != *after) {
      return fmt::format("{} elements do not become {}", *before, *after);
    }
  }
  return "";
}

std::string probed_text(const Probed& value, std::size_t probe) {
  const std::optional<DType> type = dtype_of(value.type());
  std::string text = type ? std::string(name_of(*type)) : onnx_type_name(value.type());
  text += '[';
  const std::optional<Shape> shape = fit_shape(value);
  for (std::size_t i = 0; shape && i < shape->size(); ++i) {
    const Extent& e = (*shape)[i];
    text += i == 0 ? "" : ",";
    if (e.per_sample != 0) text += e.per_sample == 1 ? "n" : fmt::format("{}n", e.per_sample);
    if (e.per_sample != 0 && e.fixed > 0) text += '+';
    if (e.per_sample == 0 || e.fixed != 0) text += fmt::to_string(e.fixed);
  }
  text += ']';
  constexpr std::size_t kFew = 8;
  const Dense& at = value[probe];
  if (at.known && !at.floating() && at.ints.size() <= kFew) {
    text += fmt::format(" {{{}}}", fmt::join(at.ints, ","));
  }
  return text;
}

}  // namespace agpcs::frontend
