// SPDX-License-Identifier: Apache-2.0
// The table of ONNX operators. A multiply-add counts as two FLOPs; add, multiply, divide and
// compare as one; exp, log, sin, tanh, erf, square roots and powers as four.
#include "ir/base/check.h"
#include "ir/graph/op_table_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>

namespace agpcs {
namespace {

using enum OpClass;
using Basis = BackwardRule::Basis;

constexpr KeepRule kNothing{};
constexpr KeepRule kInput{rules::keep_input, "input"};
constexpr KeepRule kMeanInput{rules::keep_input, "input (nothing since PyTorch 2)"};
constexpr KeepRule kOutput{rules::keep_output, "output"};
constexpr KeepRule kInputAndOutput{rules::keep_input_and_output, "input, output"};
constexpr KeepRule kEveryInput{rules::keep_every_input, "floating inputs"};
constexpr KeepRule kFactors{rules::keep_factors, "each factor that the other's gradient needs"};
constexpr KeepRule kMatrices{
    rules::keep_matrices,
    "each factor that the other's gradient needs; a matrix and its transpose are one"};
constexpr KeepRule kOperands{rules::keep_operands, "each operand that another's gradient needs"};
constexpr KeepRule kDivision{rules::keep_division, "divisor; dividend for the divisor's gradient"};
constexpr KeepRule kPower{rules::keep_power,
                          "base; exponent and output, unless the exponent is one number"};
constexpr KeepRule kExtremes{rules::keep_extremes, "inputs, if more than one"};
constexpr KeepRule kCondition{rules::keep_input, "condition"};
constexpr KeepRule kIndices{rules::keep_second_input, "indices"};
constexpr KeepRule kTopK{rules::keep_top_k, "output indices"};
constexpr KeepRule kGatherElements{rules::keep_gather_elements, "input, indices"};
constexpr KeepRule kMask{rules::keep_mask, "mask, 1 B per element"};
constexpr KeepRule kPoolIndices{rules::keep_pool_indices, "input; indices, 8 B per output element"};
constexpr KeepRule kLpPool{rules::keep_lp_pool, "input, output; powers of the input"};
constexpr KeepRule kBatchNorm{rules::keep_batch_norm, "input; mean and deviation per channel"};
constexpr KeepRule kLayerNorm{rules::keep_layer_norm, "input; mean and deviation per row"};
constexpr KeepRule kRmsNorm{rules::keep_rms_norm, "input; deviation per row"};
constexpr KeepRule kInstanceNorm{rules::keep_instance_norm,
                                 "input; mean and deviation per sample and channel"};
constexpr KeepRule kGroupNorm{rules::keep_group_norm,
                              "input; mean and deviation per sample and group"};
constexpr KeepRule kLrn{rules::keep_lrn, "input; 3 temporaries of its size"};
constexpr KeepRule kCentered{rules::keep_copy, "centered input"};
constexpr KeepRule kInputAndCopy{rules::keep_input_and_copy, "input; a temporary of its size"};
constexpr KeepRule kCrossEntropy{rules::keep_cross_entropy, "labels, log softmax"};
constexpr KeepRule kAttention{
    rules::keep_attention,
    "queries, keys, values, the output and a number for each query; where it outputs scores, the "
    "softmax and, with a soft cap, tanh in place of the output"};
constexpr KeepRule kRotary{rules::keep_rotary, "cosines and sines"};
constexpr KeepRule kSwiglu{rules::keep_swiglu, "inputs; a temporary of the first's size"};
constexpr KeepRule kNll{rules::keep_nll, "input, labels"};

constexpr BackwardRule kPassed{};
constexpr BackwardRule kContraction{Basis::kContraction};
constexpr BackwardRule per_output(double factor) { return {Basis::kOutput, factor}; }
constexpr BackwardRule per_input(double factor) { return {Basis::kInput, factor}; }
constexpr BackwardRule forward_times(double factor) { return {Basis::kForward, factor}; }

/// Returns `factor` FLOPs per element of the input, for operators whose output has another size.
template <int factor>
constexpr FlopsRule input_flops(std::string_view text) {
  return {0, rules::per_input<factor>, text};
}
constexpr FlopsRule kConv{0, rules::conv_flops, "2 x Cin/groups x kernel, + 1 with bias"};
constexpr FlopsRule kConvTranspose{0, rules::conv_transpose_flops,
                                   "2 x inputs x Cout/groups x kernel / outputs, + 1 with bias"};
constexpr FlopsRule kGemm{0, rules::gemm_flops, "2 x K, + 1 with C"};
constexpr FlopsRule kMatMulFlops{0, rules::matmul_flops, "2 x K"};
constexpr FlopsRule kEinsum{0, rules::einsum_flops, "operands x summed extents"};
constexpr FlopsRule kRecurrent{0, rules::recurrent_flops, "2 x steps x (W + R elements) / outputs"};
constexpr FlopsRule kKernel{0, rules::kernel_flops, "kernel"};
constexpr FlopsRule kLpKernel{0, rules::lp_pool_flops, "3 x kernel + 4"};
constexpr FlopsRule kLrnFlops{0, rules::lrn_flops, "2 x size + 7"};
constexpr FlopsRule kBatchNormFlops{0, rules::batch_norm_flops, "8; 2 in evaluation mode"};
constexpr FlopsRule kVariadic{0, rules::variadic_flops, "inputs - 1"};
constexpr FlopsRule kDet{0, rules::det_flops, "2/3 x extent^3"};
constexpr FlopsRule kTopKFlops{0, rules::top_k_flops, "inputs x (1 + log2 k) / outputs"};
constexpr FlopsRule kResize{0, rules::resize_flops,
                            "nearest 0, linear 3, cubic 7 per spatial axis"};
constexpr FlopsRule kGridSample{0, rules::grid_sample_flops,
                                "nearest 1; linear 2 x 2^axes, cubic 2 x 4^axes"};
constexpr FlopsRule kAttentionFlops{
    0, rules::attention_flops,
    "keys x (2 x head sizes of queries and values + 8) / head size of values"};
constexpr FlopsRule kOnePerInput = input_flops<1>("inputs / outputs");
constexpr FlopsRule kTwoPerInput = input_flops<2>("2 x inputs / outputs");
constexpr FlopsRule kSixPerInput = input_flops<6>("6 x inputs / outputs");
constexpr FlopsRule kCrossEntropyFlops{0, rules::cross_entropy_flops,
                                       "8 x inputs / outputs, 9 x with label smoothing"};

constexpr InputSet inputs(std::initializer_list<unsigned> indices) {
  InputSet set = 0;
  for (const unsigned i : indices) set |= InputSet{1} << i;
  return set;
}
constexpr InputSet kTwo = inputs({0, 1});
constexpr InputSet kNorm = inputs({0, 1, 2});

constexpr InputRoles weights(InputSet set) { return {set}; }
constexpr InputRoles computed_weights(InputSet set) { return {set, true}; }
constexpr InputRoles kScaleAndShift = weights(inputs({1, 2}));
constexpr InputRoles kFilters = computed_weights(inputs({1, 2}));
constexpr InputRoles kCells = computed_weights(inputs({1, 2, 3}));
constexpr InputRoles kBatchNormInputs{inputs({1, 2}), false, inputs({3, 4})};
constexpr InputRoles kSameElements{kNoInput, false, kNoInput, true};

/// Makes the row of an operator in which one input decides each output element; a gradient flows to
/// the first input alone.
constexpr OpInfo map(std::string_view type, double forward, double backward, KeepRule keep,
                     InputRoles roles = {}) {
  return {type, kElementwise, kFirst, {forward}, per_output(backward), keep, Traffic::kAll, roles};
}
/// Makes the row of an elementwise operator without a gradient.
constexpr OpInfo test(std::string_view type, double forward) {
  return {type, kElementwise, kNoInput, {forward}, kPassed, kNothing, Traffic::kAll};
}
constexpr OpInfo reduction(std::string_view type, FlopsRule forward, double backward,
                           KeepRule keep) {
  return {type, kReduction, kFirst, forward, per_input(backward), keep, Traffic::kAll};
}
constexpr OpInfo move(std::string_view type, InputSet gradients, Traffic traffic = Traffic::kAll,
                      InputRoles roles = {}) {
  return {type, kDataMovement, gradients, {}, kPassed, kNothing, traffic, roles};
}
constexpr OpInfo view(std::string_view type) {
  return {type, kView, kFirst, {}, kPassed, kNothing, Traffic::kFree, kSameElements};
}
/// Makes the row of an operator that reads the shape of its input alone.
constexpr OpInfo measure(std::string_view type) {
  return {type, kView, kNoInput, {}, kPassed, kNothing, Traffic::kFree};
}
constexpr OpInfo make(std::string_view type, double forward) {
  return {type, kDataMovement, kNoInput, {forward}, kPassed, kNothing, Traffic::kWrites};
}

/// Makes the row of an operator of which the table knows the inputs, but no costs.
constexpr OpInfo without_costs(std::string_view type, InputSet gradients, InputRoles roles = {}) {
  return {type,        kElementwise,  gradients, {1},  per_output(1),
          kEveryInput, Traffic::kAll, roles,     false};
}
constexpr OpInfo kOutsideTable = without_costs("", kEvery);
constexpr OpInfo kMeasured = without_costs("Measured", kEvery);

// clang-format off
// Sorted by name. Columns: type, class, inputs that get a gradient (those that ONNX calls
// differentiable, but for eight: tests/frontend/onnx/differentiable_inputs_test.cc), forward FLOPs
// per output element, backward FLOPs, what is kept, traffic, roles of inputs.
constexpr OpInfo kTable[] = {
    map("Abs", 1, 1, kInput),
    map("Acos", 4, 7, kInput),
    map("Acosh", 4, 7, kInput),
    {"Add", kElementwise, kTwo, {1}, kPassed, kNothing},
    test("And", 1),
    {"ArgMax", kReduction, kNoInput, kOnePerInput},
    {"ArgMin", kReduction, kNoInput, kOnePerInput},
    map("Asin", 4, 7, kInput),
    map("Asinh", 4, 7, kInput),
    map("Atan", 4, 4, kInput),
    map("Atanh", 4, 4, kInput),
    {"Attention", kMatmul, inputs({0, 1, 2, 3, 4, 5}), kAttentionFlops, forward_times(2), kAttention,
     Traffic::kScores},
    {"AveragePool", kPooling, kFirst, kKernel, forward_times(1), kInput},
    {"BatchNormalization", kNormalization, kNorm, kBatchNormFlops, per_input(11), kBatchNorm,
     Traffic::kAll, kBatchNormInputs},
    make("Bernoulli", 3),
    test("BitShift", 1),
    test("BitwiseAnd", 1),
    test("BitwiseNot", 1),
    test("BitwiseOr", 1),
    test("BitwiseXor", 1),
    map("Cast", 1, 1, kNothing, kSameElements),
    map("CastLike", 1, 1, kNothing, kSameElements),
    test("Ceil", 1),
    map("Celu", 8, 8, kInput),
    map("Clip", 2, 2, kInput),
    {"Compress", kEmbedding, kFirst, {}, kPassed, kIndices, Traffic::kSelected},
    {"Concat", kDataMovement, kEvery, {}, kPassed, kNothing},
    make("ConstantOfShape", 0),
    {"Conv", kConvolution, kNorm, kConv, kContraction, kFactors, Traffic::kAll, kFilters},
    {"ConvTranspose", kConvolution, kNorm, kConvTranspose, kContraction, kFactors, Traffic::kAll,
     kFilters},
    map("Cos", 4, 6, kInput),
    map("Cosh", 4, 5, kInput),
    {"CumProd", kReduction, kFirst, {1}, per_input(4), kInputAndOutput},
    {"CumSum", kReduction, kFirst, {1}, per_input(1), kNothing},
    without_costs("DeformConv", kEvery, computed_weights(inputs({1, 3}))),
    move("DepthToSpace", kFirst),
    without_costs("DequantizeLinear", kFirst),
    {"Det", kMatmul, kFirst, kDet, forward_times(2), kInputAndCopy},
    {"Div", kElementwise, kTwo, {1}, per_output(2), kDivision},
    map("Dropout", 3, 2, kMask),
    {"Einsum", kMatmul, kEvery, kEinsum, {Basis::kAllOperands}, kOperands, Traffic::kAll,
     computed_weights(kEvery)},
    map("Elu", 6, 6, kInput),
    test("Equal", 1),
    map("Erf", 4, 7, kInput),
    map("Exp", 4, 1, kOutput),
    {"Expand", kDataMovement, kFirst, {}, per_output(1), kNothing},
    make("EyeLike", 0),
    view("Flatten"),
    test("Floor", 1),
    {"GRU", kMatmul, inputs({0, 1, 2, 3, 5}), kRecurrent, forward_times(2),
     {rules::keep_recurrent<6>, "input, weights; 6 values per output element"}, Traffic::kAll, kCells},
    {"Gather", kEmbedding, kFirst, {}, per_output(1), kIndices, Traffic::kSelected, weights(kFirst)},
    {"GatherElements", kEmbedding, kFirst, {}, per_output(1), kGatherElements, Traffic::kSelected},
    {"GatherND", kEmbedding, kFirst, {}, per_output(1), kIndices, Traffic::kSelected},
    map("Gelu", 8, 14, kInput),
    {"Gemm", kMatmul, kNorm, kGemm, kContraction, kFactors, Traffic::kAll, computed_weights(kNorm)},
    {"GlobalAveragePool", kPooling, kFirst, kOnePerInput, per_input(1), kMeanInput},
    {"GlobalLpPool", kPooling, kFirst, kSixPerInput, per_input(6), kInputAndOutput},
    {"GlobalMaxPool", kPooling, kFirst, kOnePerInput, per_input(2), kInputAndOutput},
    test("Greater", 1),
    test("GreaterOrEqual", 1),
    {"GridSample", kEmbedding, kTwo, kGridSample, forward_times(2.5), kEveryInput},
    {"GroupNormalization", kNormalization, kNorm, {8}, per_input(11), kGroupNorm, Traffic::kAll,
     kScaleAndShift},
    map("HardSigmoid", 4, 3, kInput),
    map("HardSwish", 5, 5, kInput),
    {"Hardmax", kSoftmax, kNoInput, {2}},
    view("Identity"),
    {"InstanceNormalization", kNormalization, kNorm, {8}, per_input(11), kInstanceNorm, Traffic::kAll,
     kScaleAndShift},
    test("IsInf", 1),
    test("IsNaN", 1),
    {"LRN", kNormalization, kFirst, kLrnFlops, forward_times(2), kLrn},
    {"LSTM", kMatmul, inputs({0, 1, 2, 3, 5, 6, 7}), kRecurrent, forward_times(2),
     {rules::keep_recurrent<7>, "input, weights; 7 values per output element"}, Traffic::kAll,
     computed_weights(inputs({1, 2, 3, 7}))},
    {"LayerNormalization", kNormalization, kNorm, {8}, per_input(11), kLayerNorm, Traffic::kAll,
     kScaleAndShift},
    map("LeakyRelu", 2, 2, kInput),
    test("Less", 1),
    test("LessOrEqual", 1),
    map("Log", 4, 1, kInput),
    {"LogSoftmax", kSoftmax, kFirst, {8}, per_input(7), kOutput},
    {"LpNormalization", kNormalization, kFirst, {3}, per_input(6), kInputAndOutput},
    {"LpPool", kPooling, kFirst, kLpKernel, forward_times(1), kLpPool},
    {"MatMul", kMatmul, kTwo, kMatMulFlops, kContraction, kMatrices, Traffic::kAll,
     computed_weights(kTwo)},
    {"Max", kElementwise, kEvery, kVariadic, per_output(1), kExtremes},
    {"MaxPool", kPooling, kFirst, kKernel, per_output(1), kPoolIndices},
    {"MaxUnpool", kPooling, kFirst, {}, kPassed, kIndices},
    {"Mean", kElementwise, kEvery, kVariadic, per_output(1), kNothing},
    {"MeanVarianceNormalization", kNormalization, kFirst, {7}, per_input(11), kCentered},
    {"Min", kElementwise, kEvery, kVariadic, per_output(1), kExtremes},
    map("Mish", 14, 16, kInput),
    map("Mod", 3, 0, kNothing),
    {"Mul", kElementwise, kTwo, {1}, per_output(1), kFactors},
    make("Multinomial", 4),
    map("Neg", 1, 1, kNothing),
    {"NegativeLogLikelihoodLoss", kSoftmax, kFirst, kTwoPerInput, per_input(1), kNll},
    without_costs("NonMaxSuppression", kNoInput),
    {"NonZero", kReduction, kNoInput, kOnePerInput},
    test("Not", 1),
    {"OneHot", kEmbedding, kNoInput, {}, kPassed, kNothing, Traffic::kWrites},
    test("Or", 1),
    {"PRelu", kElementwise, kTwo, {2}, per_output(2), kEveryInput, Traffic::kAll,
     computed_weights(inputs({1}))},
    move("Pad", kFirst),
    {"Pow", kElementwise, kTwo, {4}, per_output(6), kPower},
    without_costs("QuantizeLinear", kFirst),
    {"RMSNormalization", kNormalization, kTwo, {5}, per_input(8), kRmsNorm, Traffic::kAll,
     weights(inputs({1}))},
    {"RNN", kMatmul, inputs({0, 1, 2, 3, 5}), kRecurrent, forward_times(2),
     {rules::keep_recurrent<1>, "input, weights; 1 value per output element"}, Traffic::kAll, kCells},
    make("RandomNormal", 8),
    make("RandomNormalLike", 8),
    make("RandomUniform", 3),
    make("RandomUniformLike", 3),
    make("Range", 1),
    map("Reciprocal", 1, 2, kOutput),
    reduction("ReduceL1", kTwoPerInput, 2, kInput),
    reduction("ReduceL2", kTwoPerInput, 2, kInputAndOutput),
    reduction("ReduceLogSum", kOnePerInput, 1, kNothing),
    reduction("ReduceLogSumExp", kSixPerInput, 6, kInputAndOutput),
    reduction("ReduceMax", kOnePerInput, 2, kInputAndOutput),
    reduction("ReduceMean", kOnePerInput, 1, kMeanInput),
    reduction("ReduceMin", kOnePerInput, 2, kInputAndOutput),
    reduction("ReduceProd", kOnePerInput, 2, kInputAndOutput),
    reduction("ReduceSum", kOnePerInput, 0, kNothing),
    reduction("ReduceSumSquare", kTwoPerInput, 2, kInput),
    map("Relu", 1, 1, kOutput),
    view("Reshape"),
    {"Resize", kDataMovement, kFirst, kResize, forward_times(1), kNothing},
    move("ReverseSequence", kFirst),
    {"RotaryEmbedding", kElementwise, kFirst, {3}, per_output(3), kRotary},
    test("Round", 1),
    {"Scatter", kEmbedding, inputs({0, 2}), {}, kPassed, kIndices},
    {"ScatterElements", kEmbedding, inputs({0, 2}), {}, kPassed, kIndices},
    {"ScatterND", kEmbedding, inputs({0, 2}), {}, kPassed, kIndices},
    map("Selu", 6, 6, kInput),
    measure("Shape"),
    map("Shrink", 3, 2, kInput),
    map("Sigmoid", 6, 3, kOutput),
    test("Sign", 1),
    map("Sin", 4, 5, kInput),
    map("Sinh", 4, 5, kInput),
    measure("Size"),
    move("Slice", kFirst, Traffic::kSelected),
    {"Softmax", kSoftmax, kFirst, {8}, per_input(4), kOutput},
    {"SoftmaxCrossEntropyLoss", kSoftmax, kFirst, kCrossEntropyFlops, per_input(6), kCrossEntropy},
    map("Softplus", 9, 6, kInput),
    map("Softsign", 3, 5, kInputAndCopy),
    move("SpaceToDepth", kFirst),
    move("Split", kFirst),
    map("Sqrt", 4, 2, kOutput),
    view("Squeeze"),
    {"Sub", kElementwise, kTwo, {1}, kPassed, kNothing},
    {"Sum", kElementwise, kEvery, kVariadic, kPassed, kNothing},
    {"SwiGLU", kElementwise, kTwo, {8}, per_output(6), kSwiglu},
    map("Swish", 7, 9, kInput),
    map("Tan", 4, 3, kOutput),
    map("Tanh", 4, 3, kOutput),
    move("TensorScatter", kTwo),
    map("ThresholdedRelu", 1, 1, kInput),
    {"Tile", kDataMovement, kFirst, {}, per_output(1), kNothing},
    {"TopK", kReduction, kFirst, kTopKFlops, per_output(1), kTopK},
    move("Transpose", kFirst, Traffic::kAll, kSameElements),
    move("Trilu", kFirst),
    view("Unsqueeze"),
    {"Upsample", kDataMovement, kFirst, kResize, forward_times(1), kNothing},
    {"Where", kElementwise, inputs({1, 2}), {1}, per_output(1), kCondition},
    test("Xor", 1),
};
// clang-format on
static_assert(std::ranges::is_sorted(kTable, {}, &OpInfo::type));

/// The rows by a hash of their type, each at the first free place from there: they are looked up
/// for every operator of every stage.
class RowPlaces {
 public:
  constexpr RowPlaces() {
    for (std::size_t row = 0; row < std::size(kTable); ++row) {
      std::size_t place = hash_of(kTable[row].type);
      while (rows_[place] != kFree) place = (place + 1) % kPlaces;
      rows_[place] = static_cast<std::uint16_t>(row);
    }
  }
  const OpInfo& of(std::string_view type) const {
    for (std::size_t place = hash_of(type); rows_[place] != kFree; place = (place + 1) % kPlaces) {
      if (kTable[rows_[place]].type == type) return kTable[rows_[place]];
    }
    return kOutsideTable;
  }

 private:
  static constexpr std::size_t kPlaces = 1024;
  static_assert(2 * std::size(kTable) < kPlaces);
  static constexpr std::uint16_t kFree = 0xffff;
  static constexpr std::size_t hash_of(std::string_view type) {
    if (type.empty()) return 0;
    const auto letter = [&](std::size_t i) { return static_cast<unsigned char>(type[i]); };
    return (letter(0) * 7u + letter(type.size() / 2) * 31u + letter(type.size() - 1) * 131u +
            type.size() * 61u) %
           kPlaces;
  }

  std::array<std::uint16_t, kPlaces> rows_ = filled();
  static constexpr std::array<std::uint16_t, kPlaces> filled() {
    std::array<std::uint16_t, kPlaces> free{};
    free.fill(kFree);
    return free;
  }
};
constexpr RowPlaces kRowPlaces;

const OpInfo& row_of(std::string_view domain, std::string_view type) {
  if (domain == "agpcs" && type == kMeasured.type) return kMeasured;
  if (!domain.empty() && domain != "ai.onnx") return kOutsideTable;
  return kRowPlaces.of(type);
}

std::string backward_text(const BackwardRule& rule) {
  const bool per_element = rule.basis == Basis::kOutput || rule.basis == Basis::kInput;
  if (per_element && rule.factor == 0) return "0";
  switch (rule.basis) {
    case Basis::kPassed:
      return "0";
    case Basis::kContraction:
    case Basis::kAllOperands:
      return "forward, per gradient";
    case Basis::kForward:
      return fmt::format("{} x forward", rule.factor);
    case Basis::kOutput:
      return fmt::format("{} per output element and gradient", rule.factor);
    case Basis::kInput:
      return fmt::format("{} per input element", rule.factor);
  }
  return "";
}

std::string traffic_text(Traffic traffic) {
  switch (traffic) {
    case Traffic::kAll:
      return "inputs, outputs";
    case Traffic::kSelected:
      return "2 x output, indices";
    case Traffic::kWrites:
      return "outputs";
    case Traffic::kScores:
      return "inputs, outputs, a number for each query; where it outputs scores, 8 x scores";
    case Traffic::kFree:
      return "none";
  }
  return "";
}

}  // namespace

std::string_view name_of(OpClass op_class) {
  switch (op_class) {
    case kConvolution:
      return "convolution";
    case kMatmul:
      return "matmul";
    case kNormalization:
      return "normalization";
    case kSoftmax:
      return "softmax";
    case kPooling:
      return "pooling";
    case kReduction:
      return "reduction";
    case kElementwise:
      return "elementwise";
    case kEmbedding:
      return "embedding";
    case kDataMovement:
      return "data_movement";
    case kView:
      return "view";
  }
  return "?";
}

const OpInfo* find_op_info(std::string_view domain, std::string_view type) {
  const OpInfo& row = row_of(domain, type);
  return row.has_costs ? &row : nullptr;
}

const OpInfo& op_info_of(const Op& op) { return row_of(op.domain, op.type); }

const InputRoles& input_roles(std::string_view domain, std::string_view type) {
  return row_of(domain, type).roles;
}

bool draws_numbers(const Op& op) {
  return op.type == "Dropout" || op.type == "Bernoulli" || op.type == "Multinomial" ||
         op.type.rfind("Random", 0) == 0;
}

OpClass class_of(const Op& op) { return op_info_of(op).op_class; }

bool is_measured_only(const Op& op) { return &op_info_of(op) == &kMeasured; }

bool passes_gradient(const Op& op, std::size_t input) {
  return has_input(op_info_of(op).gradients, input);
}

bool passes_gradient(std::string_view domain, std::string_view type, std::size_t input) {
  return has_input(row_of(domain, type).gradients, input);
}

std::string print_op_table() {
  std::string text =
      "| operator | class | FLOPs per output element | backward FLOPs | bytes moved | kept |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const OpInfo& row : kTable) {
    if (!row.has_costs) continue;
    const std::string flops =
        row.flops.of != nullptr ? std::string(row.flops.text) : fmt::to_string(row.flops.constant);
    fmt::format_to(std::back_inserter(text), "| {} | {} | {} | {} | {} | {} |\n", row.type,
                   name_of(row.op_class), flops,
                   row.gradients == kNoInput ? "no gradient" : backward_text(row.backward),
                   traffic_text(row.traffic), row.keep.text);
  }
  return text;
}

}  // namespace agpcs
