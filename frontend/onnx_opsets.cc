// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx_opsets.h"

namespace agpcs::frontend {
namespace {

// From ONNX's Changelog.md, opsets 18 to 23. Operators that only gained element types are left out.
constexpr OpsetChange kChanges[] = {
    {"AffineGrid", 20, RuleChange::kUnknown},
    {"Attention", 23, RuleChange::kUnknown},
    {"AveragePool", 19, RuleChange::kNewAttribute, "dilations"},
    {"BitwiseAnd", 18, RuleChange::kBroadcast},
    {"BitwiseNot", 18, RuleChange::kSameAsInput},
    {"BitwiseOr", 18, RuleChange::kBroadcast},
    {"BitwiseXor", 18, RuleChange::kBroadcast},
    {"CenterCropPad", 18, RuleChange::kUnknown},
    {"Col2Im", 18, RuleChange::kUnknown},
    {"DFT", 20, RuleChange::kUnknown},
    {"DeformConv", 19, RuleChange::kUnknown},
    {"DequantizeLinear", 21, RuleChange::kSameAsInput},
    {"Gelu", 20, RuleChange::kSameAsInput},
    {"GridSample", 20, RuleChange::kUnknown},
    {"GroupNormalization", 18, RuleChange::kSameAsInput},
    {"ImageDecoder", 20, RuleChange::kUnknown},
    {"LpPool", 18, RuleChange::kNewAttribute, "dilations ceil_mode"},
    {"Mish", 18, RuleChange::kSameAsInput},
    {"Pad", 18, RuleChange::kNewAttribute, "", 3},
    {"QuantizeLinear", 21, RuleChange::kUnknown},
    {"RMSNormalization", 23, RuleChange::kSameAsInput},
    {"ReduceL1", 18, RuleChange::kAxesInput},
    {"ReduceL2", 18, RuleChange::kAxesInput},
    {"ReduceLogSum", 18, RuleChange::kAxesInput},
    {"ReduceLogSumExp", 18, RuleChange::kAxesInput},
    {"ReduceMax", 18, RuleChange::kAxesInput},
    {"ReduceMean", 18, RuleChange::kAxesInput},
    {"ReduceMin", 18, RuleChange::kAxesInput},
    {"ReduceProd", 18, RuleChange::kAxesInput},
    {"ReduceSumSquare", 18, RuleChange::kAxesInput},
    {"RegexFullMatch", 20, RuleChange::kUnknown},
    {"Resize", 18, RuleChange::kNewAttribute, "axes keep_aspect_ratio_policy"},
    {"RotaryEmbedding", 23, RuleChange::kSameAsInput},
    {"Split", 18, RuleChange::kNewAttribute, "num_outputs"},
    {"StringConcat", 20, RuleChange::kUnknown},
    {"StringSplit", 20, RuleChange::kUnknown},
};

}  // namespace

const OpsetChange* find_opset_change(std::string_view type, int opset) {
  for (const OpsetChange& change : kChanges) {
    if (change.type == type && change.since <= opset) return &change;
  }
  return nullptr;
}

}  // namespace agpcs::frontend
