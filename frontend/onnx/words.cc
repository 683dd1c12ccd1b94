// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/words.h"

#include "ir/base/diagnostics.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs::frontend {
namespace {

struct WordAttribute {
  std::string_view types;  ///< operators, separated by spaces
  std::string_view name;
  std::string_view words;  ///< words of all opsets, separated by spaces
};

// From ONNX's Operators.md and Changelog.md, opsets 1 to 28.
constexpr WordAttribute kAttributes[] = {
    {"AveragePool Conv ConvTranspose LpPool MaxPool", "auto_pad",
     "NOTSET SAME_UPPER SAME_LOWER VALID"},
    {"Pad", "mode", "constant reflect edge wrap"},
    {"Resize", "mode", "nearest linear cubic"},
    {"Resize", "coordinate_transformation_mode",
     "half_pixel half_pixel_symmetric pytorch_half_pixel align_corners asymmetric "
     "tf_half_pixel_for_nn tf_crop_and_resize"},
    {"Resize", "nearest_mode", "round_prefer_floor round_prefer_ceil floor ceil"},
    {"Resize", "keep_aspect_ratio_policy", "stretch not_larger not_smaller"},
    {"Upsample", "mode", "nearest linear bilinear"},
    {"GridSample", "mode", "bilinear linear nearest bicubic cubic"},
    {"GridSample", "padding_mode", "zeros border reflection"},
    {"GRU LSTM RNN", "direction", "forward reverse bidirectional"},
    {"BitShift", "direction", "LEFT RIGHT"},
    {"DepthToSpace SpaceToDepth", "mode", "DCR CRD"},
    {"Gelu", "approximate", "none tanh"},
    {"NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss", "reduction", "none sum mean"},
    {"ScatterElements ScatterND", "reduction", "none add mul max min"},
    {"RoiAlign", "mode", "avg max"},
    {"TensorScatter", "mode", "linear circular"},
    {"RoiAlign", "coordinate_transformation_mode", "half_pixel output_half_pixel"},
};
constexpr WordAttribute kActivations = {
    "GRU LSTM RNN", "activations",
    "Relu Tanh Sigmoid Affine LeakyRelu ThresholdedRelu ScaledTanh HardSigmoid Elu Softsign "
    "Softplus"};

std::vector<std::string> split(std::string_view words) {
  std::istringstream stream{std::string(words)};
  std::vector<std::string> list;
  for (std::string word; stream >> word;) list.push_back(word);
  return list;
}

bool has(std::string_view words, std::string_view word) {
  const std::vector<std::string> list = split(words);
  return std::find(list.begin(), list.end(), word) != list.end();
}

/// Returns the text in lower case: names of activations ignore case.
std::string lower(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

Status refuse(const onnx::NodeProto& node, const WordAttribute& attribute,
              const std::string& word) {
  return invalid_input(fmt::format("{} of {} is '{}'\n  hint: {}", attribute.name, node.op_type(),
                                   word, did_you_mean(word, split(attribute.words), "words")));
}

Status check_activations(const onnx::NodeProto& node, const onnx::AttributeProto& given) {
  for (const std::string& word : given.strings()) {
    if (!has(lower(std::string(kActivations.words)), lower(word))) {
      return refuse(node, kActivations, word);
    }
  }
  return {};
}

}  // namespace

Status check_words(const onnx::NodeProto& node) {
  for (const onnx::AttributeProto& given : node.attribute()) {
    for (const WordAttribute& attribute : kAttributes) {
      if (given.name() != attribute.name || !has(attribute.types, node.op_type())) continue;
      if (!has(attribute.words, given.s())) return refuse(node, attribute, given.s());
    }
    if (given.name() == kActivations.name && has(kActivations.types, node.op_type())) {
      AGPCS_RETURN_IF_ERROR(check_activations(node, given));
    }
  }
  return {};
}

}  // namespace agpcs::frontend
