// SPDX-License-Identifier: Apache-2.0
// The table of splits: a row for each operator of the operator table.
#include "ir/base/check.h"
#include "ir/graph/split/rules.h"

#include <algorithm>
#include <array>
#include <iterator>

namespace agpcs {
namespace {

namespace r = split_rules;

/// Up to two sets of inputs in each of which the operator is linear, together.
using Summands = std::array<InputSet, 2>;
constexpr Summands kNoSummands = {kNoInput, kNoInput};

struct Row {
  std::string_view type;
  void (*rule)(SplitAt&) = nullptr;
  Summands summands = kNoSummands;
  /// The names of its splits, with blanks between ("_" in a name); without a rule: why not.
  std::string_view text;
};

constexpr Summands linear(InputSet set, InputSet other = kNoInput) { return {set, other}; }
constexpr InputSet kSecond = 2, kThird = 4;
constexpr Summands kOfFirst = linear(kFirst);
constexpr Summands kOfEach = linear(kFirst, kSecond);
constexpr Summands kOfTwo = linear(kFirst | kSecond);
constexpr Summands kOfAll = linear(kEvery);
/// The bias is a summand beside the product.
constexpr Summands kProduct = linear(kFirst | kThird, kSecond | kThird);

constexpr Row map(std::string_view type, Summands summands = kNoSummands) {
  return {type, r::elementwise, summands, summands == kNoSummands ? "axes" : "axes sum"};
}
constexpr Row none(std::string_view type, std::string_view why) {
  return {type, nullptr, kNoSummands, why};
}

constexpr std::string_view kNotRun = "the executor does not run it";
constexpr std::string_view kDraws = "its numbers are drawn for the whole tensor";
constexpr std::string_view kRecurrent = "each step needs the whole state of the step before";
constexpr std::string_view kReadsShape = "it reads the extents of the whole tensor";
constexpr std::string_view kCounts = "its result counts elements of the whole tensor";

// clang-format off
// Sorted by name. Columns: type, rule, sets of inputs that may be summands, names of splits.
constexpr Row kRows[] = {
    map("Abs"),
    map("Acos"),
    map("Acosh"),
    map("Add", kOfTwo),
    map("And"),
    {"ArgMax", r::arg_extreme, kNoSummands, "axes"},
    {"ArgMin", r::arg_extreme, kNoSummands, "axes"},
    map("Asin"),
    map("Asinh"),
    map("Atan"),
    map("Atanh"),
    {"Attention", r::attention, kNoSummands, "heads queries"},
    {"AveragePool", r::pool, kOfFirst, "channels axes sum"},
    {"BatchNormalization", r::batch_norm, kNoSummands, "channels axes"},
    none("Bernoulli", kDraws),
    map("BitShift"),
    map("BitwiseAnd"),
    map("BitwiseNot"),
    map("BitwiseOr"),
    map("BitwiseXor"),
    map("Cast", kOfFirst),
    {"CastLike", r::like_first, kOfFirst, "axes sum"},
    map("Ceil"),
    map("Celu"),
    map("Clip"),
    {"Compress", r::compress, kOfFirst, "axes sum"},
    {"Concat", r::concat, kOfAll, "axes bands sum"},
    {"ConstantOfShape", r::constant_of_shape, kNoSummands, "axes"},
    {"Conv", r::conv, kProduct, "channels input_channels groups sum"},
    {"ConvTranspose", r::conv_transpose, kProduct, "channels input_channels groups sum"},
    map("Cos"),
    map("Cosh"),
    {"CumProd", r::cumulative, kNoSummands, "axes"},
    {"CumSum", r::cumulative, kOfFirst, "axes sum"},
    none("DeformConv", kNotRun),
    {"DepthToSpace", r::depth_to_space, kOfFirst, "axes sum"},
    none("DequantizeLinear", kNotRun),
    {"Det", r::determinant, kNoSummands, "axes"},
    map("Div", kOfFirst),
    {"Dropout", r::like_first, kOfFirst, "axes sum"},
    {"Einsum", r::einsum, kNoSummands, "indices sum"},
    map("Elu"),
    map("Equal"),
    map("Erf"),
    map("Exp"),
    {"Expand", r::expand, kOfFirst, "axes sum"},
    none("EyeLike", "a part of the diagonal begins elsewhere"),
    {"Flatten", r::reshape, kOfFirst, "axes sum"},
    map("Floor"),
    none("GRU", kRecurrent),
    {"Gather", r::gather, kOfFirst, "vocabulary axes sum"},
    {"GatherElements", r::gather_elements, kOfFirst, "vocabulary axes sum"},
    {"GatherND", r::gather_nd, kOfFirst, "axes sum"},
    map("Gelu"),
    {"Gemm", r::gemm, kProduct, "columns rows axes sum"},
    {"GlobalAveragePool", r::global_pool, kOfFirst, "channels axes sum"},
    none("GlobalLpPool", kNotRun),
    {"GlobalMaxPool", r::global_pool, kNoSummands, "channels axes"},
    map("Greater"),
    map("GreaterOrEqual"),
    {"GridSample", r::grid_sample, kOfFirst, "channels axes sum"},
    {"GroupNormalization", r::group_norm, kNoSummands, "groups axes"},
    map("HardSigmoid"),
    map("HardSwish"),
    {"Hardmax", r::softmax, kNoSummands, "axes"},
    map("Identity", kOfFirst),
    {"InstanceNormalization", r::instance_norm, kNoSummands, "channels axes"},
    map("IsInf"),
    map("IsNaN"),
    {"LRN", r::local_response_norm, kNoSummands, "axes"},
    none("LSTM", kRecurrent),
    {"LayerNormalization", r::layer_norm, kNoSummands, "axes"},
    map("LeakyRelu"),
    map("Less"),
    map("LessOrEqual"),
    map("Log"),
    {"LogSoftmax", r::softmax, kNoSummands, "axes"},
    {"LpNormalization", r::along_other_axes, kNoSummands, "axes"},
    none("LpPool", kNotRun),
    {"MatMul", r::matmul, kOfEach, "columns rows axes sum"},
    map("Max"),
    {"MaxPool", r::max_pool, kNoSummands, "channels axes"},
    none("MaxUnpool", kCounts),
    map("Mean", kOfAll),
    {"MeanVarianceNormalization", r::mean_variance_norm, kNoSummands, "axes"},
    map("Min"),
    map("Mish"),
    map("Mod"),
    map("Mul", kOfEach),
    none("Multinomial", kNotRun),
    map("Neg", kOfFirst),
    {"NegativeLogLikelihoodLoss", r::negative_log_likelihood, kNoSummands, "vocabulary axes"},
    none("NonMaxSuppression", kNotRun),
    none("NonZero", kCounts),
    map("Not"),
    {"OneHot", r::one_hot, kNoSummands, "vocabulary axes"},
    map("Or"),
    map("PRelu"),
    {"Pad", r::pad, kNoSummands, "axes sum"},
    map("Pow"),
    none("QuantizeLinear", kNotRun),
    {"RMSNormalization", r::layer_norm, kNoSummands, "axes"},
    none("RNN", kRecurrent),
    none("RandomNormal", kNotRun),
    none("RandomNormalLike", kDraws),
    none("RandomUniform", kNotRun),
    none("RandomUniformLike", kDraws),
    none("Range", "it makes few numbers"),
    map("Reciprocal"),
    {"ReduceL1", r::reduction, kNoSummands, "axes"},
    {"ReduceL2", r::reduction, kNoSummands, "axes"},
    {"ReduceLogSum", r::reduction, kNoSummands, "axes"},
    {"ReduceLogSumExp", r::reduction, kNoSummands, "axes"},
    {"ReduceMax", r::reduction, kNoSummands, "axes"},
    {"ReduceMean", r::reduction, kOfFirst, "axes sum"},
    {"ReduceMin", r::reduction, kNoSummands, "axes"},
    {"ReduceProd", r::reduction, kNoSummands, "axes"},
    {"ReduceSum", r::reduction, kOfFirst, "axes sum"},
    {"ReduceSumSquare", r::reduction, kNoSummands, "axes"},
    map("Relu"),
    {"Reshape", r::reshape, kOfFirst, "axes sum"},
    {"Resize", r::resize, kNoSummands, "axes sum"},
    {"ReverseSequence", r::reverse_sequence, kOfFirst, "axes sum"},
    {"RotaryEmbedding", r::rotary, kOfFirst, "heads axes sum"},
    map("Round"),
    {"Scatter", r::scatter_elements, kNoSummands, "axes"},
    {"ScatterElements", r::scatter_elements, kNoSummands, "axes"},
    {"ScatterND", r::scatter_nd, kNoSummands, "axes"},
    map("Selu"),
    none("Shape", kReadsShape),
    map("Shrink"),
    map("Sigmoid"),
    map("Sign"),
    map("Sin"),
    map("Sinh"),
    none("Size", kReadsShape),
    {"Slice", r::slice, kNoSummands, "axes sum"},
    {"Softmax", r::softmax, kNoSummands, "axes"},
    {"SoftmaxCrossEntropyLoss", r::cross_entropy, kNoSummands, "vocabulary axes"},
    map("Softplus"),
    map("Softsign"),
    {"SpaceToDepth", r::space_to_depth, kOfFirst, "axes sum"},
    {"Split", r::split, kOfFirst, "axes bands sum"},
    map("Sqrt"),
    {"Squeeze", r::reshape, kOfFirst, "axes sum"},
    map("Sub", kOfTwo),
    map("Sum", kOfAll),
    map("SwiGLU", linear(kSecond)),
    map("Swish"),
    map("Tan"),
    map("Tanh"),
    none("TensorScatter", kNotRun),
    map("ThresholdedRelu"),
    {"Tile", r::tile, kOfFirst, "axes sum"},
    {"TopK", r::along_other_axes, kNoSummands, "axes"},
    {"Transpose", r::transpose, kOfFirst, "axes sum"},
    {"Trilu", r::triangle, kOfFirst, "axes sum"},
    {"Unsqueeze", r::reshape, kOfFirst, "axes sum"},
    {"Upsample", r::resize, kNoSummands, "axes sum"},
    map("Where", linear(kSecond | kThird)),
    map("Xor"),
};
// clang-format on
static_assert(std::ranges::is_sorted(kRows, {}, &Row::type));

const Row* find_row(std::string_view domain, std::string_view type) {
  if (!domain.empty() && domain != "ai.onnx") return nullptr;
  const Row* row = std::ranges::lower_bound(kRows, type, {}, &Row::type);
  return row != std::end(kRows) && row->type == type ? row : nullptr;
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

}  // namespace

std::vector<OpSplit> splits_of(const Graph& graph, OpId op) {
  const Row* row = find_row(graph.op(op).domain, graph.op(op).type);
  if (row == nullptr || row->rule == nullptr) return {};
  SplitAt at{graph, graph.op(op)};
  row->rule(at);
  for (const InputSet set : row->summands) {
    if (set != kNoInput) at.add_sum(set);
  }
  return std::move(at.found);
}

std::string_view why_undivided(std::string_view domain, std::string_view type) {
  const Row* row = find_row(domain, type);
  if (row == nullptr) return "it is not in the operator table";
  return row->rule == nullptr ? row->text : std::string_view();
}

std::vector<SplitRow> split_table() {
  std::vector<SplitRow> rows;
  for (const Row& row : kRows) {
    if (row.rule == nullptr) {
      rows.push_back({row.type, {}, row.text});
    } else {
      rows.push_back({row.type, words_of(row.text), {}});
    }
  }
  return rows;
}

}  // namespace agpcs
