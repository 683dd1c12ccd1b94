// SPDX-License-Identifier: Apache-2.0
// attach_loss and derive_backward: forward graphs in, training graphs or messages out.
#include "ir/graph/training_graph.h"

#include "tests/support/graph_text.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// The training graph's text, or the message of the step that failed.
std::string train(const std::string& graph, Loss loss = {}) {
  auto attached = attach_loss(graph_of(graph), loss);
  if (!attached.ok()) return attached.status().message();
  auto derived = derive_backward(*std::move(attached));
  if (!derived.ok()) return derived.status().message();
  if (const Status status = verify_graph(*derived); !status.ok()) return status.message();
  return print_graph(*derived);
}

std::string gradients(const Graph& graph) {
  std::string text;
  for (const Tensor& tensor : graph.tensors) {
    if (tensor.needs_gradient) text += (text.empty() ? "" : " ") + tensor.name;
  }
  return text;
}

std::string gradients_of(const std::string& text) {
  const auto graph = derive_backward(graph_of(text));
  return graph.ok() ? gradients(*graph) : graph.status().message();
}

constexpr const char* kLinear =
    "graph linear\n"
    "input x fp32[n,4]\n"
    "parameter w fp32[4,3]\n"
    "fc: logits = MatMul-17(x, w) -> fp32[n,3]\n"
    "outputs logits\n";

TEST(AttachLoss, AppendsCrossEntropyWithLabels) {
  EXPECT_EQ(train(kLinear),
            "graph linear\n"
            "input x fp32[n,4]\n"
            "parameter w fp32[4,3]\n"
            "input labels int64[n]\n"
            "fc: logits = MatMul-17(x, w) -> fp32[n,3]\n"
            "loss/logits/softmax_cross_entropy: loss/logits/softmax_cross_entropy = "
            "SoftmaxCrossEntropyLoss-17(logits, labels) reduction=\"mean\" -> fp32[]\n"
            "outputs logits\n"
            "loss loss/logits/softmax_cross_entropy\n");
}

TEST(AttachLoss, SaysWhichOutputsItTookSoThatTheSameLossGivesTheSameGraph) {
  Loss loss;
  const auto first = attach_loss(graph_of(kLinear), loss);
  ASSERT_TRUE(first.ok());
  ASSERT_EQ(loss.outputs.size(), 1U);
  EXPECT_EQ(loss.outputs[0], (std::pair<std::string, double>("logits", 1)));
  const auto second = attach_loss(graph_of(kLinear), loss);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(print_graph(*first), print_graph(*second));
}

TEST(AttachLoss, RefusesCrossEntropyOfOneClass) {
  const auto refused = [](const std::string& shape) {
    return "loss softmax_cross_entropy needs at least 2 classes, output 'logit' is fp32" + shape +
           ": of one class it is always 0, and nothing is learned\n"
           "  hint: a logit of yes or no takes --loss bce_with_logits, a quantity takes --loss "
           "mse";
  };
  const auto with_output = [](const std::string& shape) {
    return "graph binary\ninput x fp32[n,4]\nparameter w fp32[4,1]\nfc: logit = Foo-17(x, w) -> "
           "fp32" +
           shape + "\noutputs logit\n";
  };
  EXPECT_EQ(train(with_output("[n,1]")), refused("[n,1]"));
  EXPECT_EQ(train(with_output("[n,1,1,1]")), refused("[n,1,1,1]"));
  EXPECT_EQ(train(with_output("[n,1]"), {LossKind::kMse, {}}).substr(0, 12), "graph binary");
}

constexpr const char* kTwoHeads =
    "graph heads\n"
    "input x fp32[n,4]\n"
    "parameter w fp32[4,3]\n"
    "parameter v fp32[4,3]\n"
    "main: logits = MatMul-17(x, w) -> fp32[n,3]\n"
    "side: aux = MatMul-17(x, v) -> fp32[n,3]\n"
    "outputs logits, aux\n";

TEST(AttachLoss, GivesAuxiliaryHeadsOfTheSameShapeFourTenths) {
  Loss loss;
  const auto graph = attach_loss(graph_of(kTwoHeads), loss);
  ASSERT_TRUE(graph.ok());
  const std::string text = print_graph(*graph);
  EXPECT_EQ(text.substr(text.find("loss/logits/softmax")),
            "loss/logits/softmax_cross_entropy: loss/logits/softmax_cross_entropy = "
            "SoftmaxCrossEntropyLoss-17(logits, labels) reduction=\"mean\" -> fp32[]\n"
            "loss/aux/softmax_cross_entropy: loss/aux/softmax_cross_entropy = "
            "SoftmaxCrossEntropyLoss-17(aux, labels) reduction=\"mean\" -> fp32[]\n"
            "loss/aux/weighted: loss/aux/weighted = Mul-17(loss/aux/softmax_cross_entropy, "
            "loss/aux/weight) -> fp32[]\n"
            "loss/sum: loss/sum = Add-17(loss/logits/softmax_cross_entropy, loss/aux/weighted) -> "
            "fp32[]\n"
            "outputs logits, aux\n"
            "loss loss/sum\n");
  EXPECT_NE(text.find("constant loss/aux/weight fp32[] {0.4}\n"), std::string::npos);
  EXPECT_EQ(loss.outputs[1], (std::pair<std::string, double>("aux", 0.4)));
}

TEST(AttachLoss, AddsLabelsOfTheirOwnForHeadsWithOtherClasses) {
  const std::string text = train(
      "graph heads\n"
      "input x fp32[n,4]\n"
      "parameter w fp32[4,3]\n"
      "parameter v fp32[4,5]\n"
      "main: kind = MatMul-17(x, w) -> fp32[n,3]\n"
      "side: color = MatMul-17(x, v) -> fp32[n,5]\n"
      "outputs kind, color\n",
      {LossKind::kSoftmaxCrossEntropy, {{"kind", 1}, {"color", 2}}});
  EXPECT_NE(text.find("SoftmaxCrossEntropyLoss-17(kind, labels)"), std::string::npos) << text;
  EXPECT_NE(text.find("SoftmaxCrossEntropyLoss-17(color, labels_color)"), std::string::npos);
}

TEST(AttachLoss, TakesTheInputOfASoftmaxAndFlattensTrailingOnes) {
  EXPECT_EQ(train("graph squeeze\n"
                  "input x fp32[n,3,1,1]\n"
                  "parameter w fp32[5,3,1,1]\n"
                  "conv: y = Conv-9(x, w) -> fp32[n,5,1,1]\n"
                  "softmax: prob = Softmax-9(y) -> fp32[n,5,1,1]\n"
                  "outputs prob\n"),
            "graph squeeze\n"
            "input x fp32[n,3,1,1]\n"
            "parameter w fp32[5,3,1,1]\n"
            "input labels int64[n]\n"
            "conv: y = Conv-9(x, w) -> fp32[n,5,1,1]\n"
            "loss/prob/flatten: loss/prob/flatten = Flatten-13(y) axis=1 -> fp32[n,5]\n"
            "loss/prob/softmax_cross_entropy: loss/prob/softmax_cross_entropy = "
            "SoftmaxCrossEntropyLoss-13(loss/prob/flatten, labels) reduction=\"mean\" -> fp32[]\n"
            "outputs \n"
            "loss loss/prob/softmax_cross_entropy\n");
}

TEST(AttachLoss, KeepsASoftmaxOverAnotherAxis) {
  const std::string text = train(
      "graph odd\n"
      "input x fp32[n,4]\n"
      "parameter w fp32[4,3]\n"
      "fc: y = MatMul-17(x, w) -> fp32[n,3]\n"
      "softmax: prob = Softmax-17(y) axis=0 -> fp32[n,3]\n"
      "outputs prob\n");
  EXPECT_NE(text.find("SoftmaxCrossEntropyLoss-17(prob, labels)"), std::string::npos) << text;
}

TEST(AttachLoss, AppendsMeanSquareWithTarget) {
  const std::string text = train(kLinear, {LossKind::kMse, {}});
  EXPECT_EQ(text.substr(text.find("input target")),
            "input target fp32[n,3]\n"
            "fc: logits = MatMul-17(x, w) -> fp32[n,3]\n"
            "loss/logits/error: loss/logits/error = Sub-17(logits, target) -> fp32[n,3]\n"
            "loss/logits/square: loss/logits/square = Mul-17(loss/logits/error, "
            "loss/logits/error) -> fp32[n,3]\n"
            "loss/logits/mean: loss/logits/mean = ReduceMean-17(loss/logits/square) keepdims=0 -> "
            "fp32[]\n"
            "outputs logits\n"
            "loss loss/logits/mean\n");
}

TEST(AttachLoss, ComputesTheLossOfHalfPrecisionOutputsInFp32) {
  const std::string text = train(
      "graph half\n"
      "input x fp16[n,4]\n"
      "parameter w fp16[4,3]\n"
      "fc: y = MatMul-17(x, w) -> fp16[n,3]\n"
      "outputs y\n");
  EXPECT_NE(text.find("Cast-17(y) to=1 -> fp32[n,3]"), std::string::npos) << text;
}

TEST(AttachLoss, TakesANamedScalarAsItIs) {
  const std::string text = train(
      "graph own\n"
      "input x fp32[n,4]\n"
      "parameter w fp32[4,3]\n"
      "fc: y = MatMul-17(x, w) -> fp32[n,3]\n"
      "mean: loss = ReduceMean-17(y) keepdims=0 -> fp32[]\n"
      "outputs y, loss\n",
      {LossKind::kOutput, {{"loss", 1}}});
  EXPECT_EQ(text.substr(text.find("outputs")), "outputs y, loss\nloss loss\n");
}

TEST(AttachLoss, DoesNotReuseANameOfTheModel) {
  const std::string text = train(
      "graph names\n"
      "input labels fp32[n,4]\n"
      "parameter w fp32[4,3]\n"
      "fc: y = MatMul-17(labels, w) -> fp32[n,3]\n"
      "outputs y\n");
  EXPECT_NE(text.find("input labels_2 int64[n]"), std::string::npos) << text;
}

TEST(AttachLoss, RefusesWhatItCannotUse) {
  EXPECT_EQ(train(kLinear, {LossKind::kMse, {{"logit", 1}}}),
            "the model has no output 'logit' for the loss\n"
            "  hint: did you mean 'logits'? outputs: logits");
  EXPECT_EQ(train(kLinear, {LossKind::kOutput, {}}),
            "loss output needs the name of a scalar output\n"
            "  hint: outputs: logits");
  EXPECT_EQ(train(kLinear, {LossKind::kOutput, {{"logits", 1}}}),
            "loss output needs a scalar, output 'logits' is fp32[n,3]\n"
            "  hint: let the model reduce it to one number (ReduceMean), or take a loss that is "
            "attached to predictions, such as --loss mse");
  EXPECT_EQ(train(kLinear, {LossKind::kMse, {{"logits", 0}}}),
            "weight of loss output 'logits' is 0, it must be positive");
  EXPECT_EQ(train(kLinear, {LossKind::kMse, {{"logits", 1}, {"logits", 1}}}),
            "loss output 'logits' is named twice");
  EXPECT_EQ(train("graph tokens\n"
                  "input x fp32[n,8,4]\n"
                  "parameter w fp32[4,3]\n"
                  "fc: y = MatMul-17(x, w) -> fp32[8,3]\n"
                  "outputs y\n"),
            "loss softmax_cross_entropy needs logits [n,classes], [n,...,classes] or "
            "[n,classes,...], n the samples, output 'y' is fp32[8,3]");
  EXPECT_EQ(train("graph whole\n"
                  "input x fp32[n,4]\n"
                  "best: y = ArgMax-17(x) -> int64[n,1]\n"
                  "outputs y\n"),
            "loss softmax_cross_entropy needs a floating output, output 'y' is int64[n,1]");
  EXPECT_EQ(train("graph silent\ninput x fp32[n,4]\n"),
            "model 'silent' has no output to attach a loss to");
}

TEST(DeriveBackward, MarksTensorsBetweenParametersAndTheLoss) {
  EXPECT_EQ(gradients_of("graph chain\n"
                         "input x fp32[n,4]\n"
                         "parameter w fp32[4,4]\n"
                         "parameter v fp32[4,1]\n"
                         "pre: a = Relu-17(x) -> fp32[n,4]\n"
                         "mm: b = MatMul-17(a, w) -> fp32[n,4]\n"
                         "act: c = Relu-17(b) -> fp32[n,4]\n"
                         "out: d = MatMul-17(c, v) -> fp32[n,1]\n"
                         "mean: l = ReduceMean-17(d) keepdims=0 -> fp32[]\n"
                         "loss l\n"),
            "w v b c d l");
}

TEST(DeriveBackward, StopsGradientsAtIntegersAndAtInputsThatTakeNone) {
  EXPECT_EQ(gradients_of("graph gates\n"
                         "input ids int64[n]\n"
                         "parameter table fp32[10,4]\n"
                         "parameter w fp32[4,4]\n"
                         "rows: a = Gather-17(table, ids) -> fp32[n,4]\n"
                         "mm: b = MatMul-17(a, w) -> fp32[n,4]\n"
                         "gate: g = Greater-17(b, a) -> bool[n,4]\n"
                         "keep: c = Where-17(g, a, b) -> fp32[n,4]\n"
                         "mean: l = ReduceMean-17(c) keepdims=0 -> fp32[]\n"
                         "loss l\n"),
            "table w a b c l");
}

TEST(DeriveBackward, LeavesRunningStatisticsWithoutGradient) {
  EXPECT_EQ(gradients_of("graph norm\n"
                         "input x fp32[n,4]\n"
                         "parameter s fp32[4]\n"
                         "parameter b fp32[4]\n"
                         "state m fp32[4]\n"
                         "state v fp32[4]\n"
                         "bn: y, m2, v2 = BatchNormalization-17(x, s, b, m, v) training_mode=1 -> "
                         "fp32[n,4] fp32[4] fp32[4]\n"
                         "mean: l = ReduceMean-17(y) keepdims=0 -> fp32[]\n"
                         "loss l\n"),
            "s b y l");
}

TEST(DeriveBackward, DropsWhatTheLossDoesNotDependOn) {
  Loss loss{LossKind::kSoftmaxCrossEntropy, {{"logits", 1}}};
  auto attached = attach_loss(graph_of(kTwoHeads), loss);
  ASSERT_TRUE(attached.ok());
  std::vector<std::string> dropped;
  const auto graph = derive_backward(*std::move(attached), &dropped);
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(dropped, std::vector<std::string>{"side"});
  EXPECT_EQ(print_graph(*graph).find("aux"), std::string::npos) << print_graph(*graph);
  EXPECT_EQ(graph->parameter_elements(), 12);
  EXPECT_TRUE(verify_graph(*graph).ok());
}

/// A mask that is made of constants, and read in two ways.
constexpr const char* kMasked =
    "graph masked\n"
    "input x fp32[n,4]\n"
    "parameter w fp32[4,4]\n"
    "constant one fp32[] {1}\n"
    "constant axes int64[1] {0}\n"
    "constant rows int64[2] {1,4}\n"
    "constant places fp32[4] {0,1,2,3}\n"
    "scale: s = Mul-14(places, one) -> fp32[4]\n"
    "turn: c = Cos-7(s) -> fp32[4]\n"
    "row: r = Unsqueeze-13(c, axes) -> fp32[1,4]\n"
    "column: k = Unsqueeze-13(c, axes) -> fp32[1,4]\n"
    "spread: e = Expand-13(c, rows) -> fp32[n,4]\n"
    "first: a = Mul-14(x, r) -> fp32[n,4]\n"
    "mm: b = MatMul-13(a, w) -> fp32[n,4]\n"
    "second: d = Mul-14(b, k) -> fp32[n,4]\n"
    "third: f = Add-14(d, e) -> fp32[n,4]\n"
    "noise: z = RandomNormalLike-1(c) -> fp32[4]\n"
    "fourth: g = Add-14(f, z) -> fp32[n,4]\n"
    "mean: l = ReduceMean-17(g) keepdims=0 -> fp32[]\n"
    "loss l\n";

TEST(DeriveBackward, PutsWhatIsTheSameInEachStepInThePrologue) {
  const auto graph = derive_backward(graph_of(kMasked));
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const std::string printed = print_graph(*graph);
  // Views with one reader remain, and so does what draws numbers.
  EXPECT_EQ(printed.substr(printed.find("prologue")),
            "prologue scale: s = Mul-14(places, one) -> fp32[4]\n"
            "prologue turn: c = Cos-7(s) -> fp32[4]\n"
            "prologue spread: e = Expand-13(c, rows) -> fp32[n,4]\n"
            "row: r = Unsqueeze-13(c, axes) -> fp32[1,4]\n"
            "column: k = Unsqueeze-13(c, axes) -> fp32[1,4]\n"
            "first: a = Mul-14(x, r) -> fp32[n,4]\n"
            "mm: b = MatMul-13(a, w) -> fp32[n,4]\n"
            "second: d = Mul-14(b, k) -> fp32[n,4]\n"
            "third: f = Add-14(d, e) -> fp32[n,4]\n"
            "noise: z = RandomNormalLike-1(c) -> fp32[4]\n"
            "fourth: g = Add-14(f, z) -> fp32[n,4]\n"
            "mean: l = ReduceMean-17(g) keepdims=0 -> fp32[]\n"
            "outputs \n"
            "loss l\n");
  EXPECT_NE(printed.find("prepared c fp32[4]\n"), std::string::npos) << printed;
  EXPECT_NE(printed.find("prepared e fp32[n,4]\n"), std::string::npos) << printed;
  EXPECT_TRUE(verify_graph(*graph).ok()) << verify_graph(*graph).message();
}

TEST(DeriveBackward, LeavesWhatReadsFrozenWeightsInTheSteps) {
  const Graph frozen = [] {
    Graph graph = graph_of(
        "graph frozen\n"
        "input x fp32[n,4]\n"
        "parameter w fp32[4]\n"
        "constant table fp32[4,4]\n"
        "cast: t = Cast-13(table) to=1 -> fp32[4,4]\n"
        "mm: a = MatMul-13(x, t) -> fp32[n,4]\n"
        "scale: b = Mul-14(a, w) -> fp32[n,4]\n"
        "mean: l = ReduceMean-17(b) keepdims=0 -> fp32[]\n"
        "loss l\n");
    graph.tensor(graph.find_tensor("table")).frozen = true;
    return graph;
  }();
  const auto graph = derive_backward(frozen);
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  EXPECT_TRUE(graph->prologue.empty()) << print_graph(*graph);
}

TEST(DeriveBackward, RefusesATensorWithoutElements) {
  EXPECT_EQ(gradients_of("graph empty\n"
                         "input x fp32[n,4]\n"
                         "parameter w fp32[4]\n"
                         "cut: h = Slice-17(x) -> fp32[n,0]\n"
                         "add: y = Add-17(h, w) -> fp32[n,4]\n"
                         "mean: l = ReduceMean-17(y) keepdims=0 -> fp32[]\n"
                         "loss l\n"),
            "node 'cut' (Slice): its output 'h' is fp32[n,0], which has no element");
  // What the loss does not depend on is not computed.
  EXPECT_EQ(gradients_of("graph empty\n"
                         "input x fp32[n,4]\n"
                         "parameter w fp32[4]\n"
                         "cut: h = Slice-17(x) -> fp32[n,0]\n"
                         "mul: y = Mul-17(x, w) -> fp32[n,4]\n"
                         "mean: l = ReduceMean-17(y) keepdims=0 -> fp32[]\n"
                         "outputs h\n"
                         "loss l\n"),
            "w y l");
}

TEST(DeriveBackward, NamesAParameterThatNoGradientReaches) {
  EXPECT_EQ(gradients_of("graph stuck\n"
                         "input x fp32[n,4]\n"
                         "parameter w fp32[4]\n"
                         "parameter v fp32[4]\n"
                         "neg: u = Neg-17(v) -> fp32[4]\n"
                         "test: t = Greater-17(x, u) -> bool[n,4]\n"
                         "pick: y = Where-17(t, x, w) -> fp32[n,4]\n"
                         "mean: l = ReduceMean-17(y) keepdims=0 -> fp32[]\n"
                         "loss l\n"),
            "no gradient reaches parameter 'v': operator 'test' (Greater) does not pass one back\n"
            "  hint: freeze it, if it is not to be trained: --freeze 'v'");
}

TEST(DeriveBackward, RefusesALossWithNothingToTrain) {
  EXPECT_EQ(gradients_of("graph fixed\n"
                         "input x fp32[n,4]\n"
                         "mean: l = ReduceMean-17(x) keepdims=0 -> fp32[]\n"
                         "loss l\n"),
            "loss 'l' depends on no parameter that a gradient could flow to, there is nothing to "
            "train");
}

}  // namespace
}  // namespace agpcs
