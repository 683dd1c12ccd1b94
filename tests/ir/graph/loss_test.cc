// SPDX-License-Identifier: Apache-2.0
// Losses over positions and of other kinds: forward graphs in, training graphs or messages out; and
// what users are told of them.
#include "ir/graph/loss_summary.h"
#include "ir/graph/training_graph.h"
#include "tests/support/graph_text.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace agpcs {
namespace {

/// The training graph's text from its labels or target on, or the message of the step that failed.
std::string train(const std::string& graph, Loss loss) {
  auto attached = attach_loss(graph_of(graph), loss);
  if (!attached.ok()) return attached.status().message();
  auto derived = derive_backward(*std::move(attached));
  if (!derived.ok()) return derived.status().message();
  if (const Status status = verify_graph(*derived); !status.ok()) return status.message();
  const std::string text = print_graph(*derived);
  const std::size_t first = text.find("loss/");
  return text.substr(text.rfind('\n', first) + 1);
}

Loss by_shape() {
  Loss loss;
  loss.by_shape = true;
  return loss;
}

/// A model with one output of a shape.
std::string model(const std::string& shape, const std::string& input = "x fp32[n,4]") {
  return "graph model\ninput " + input + "\nparameter w fp32[4]\nop: y = Foo-17(" +
         input.substr(0, input.find(' ')) + ", w) -> fp32" + shape + "\noutputs y\n";
}

std::string kind_of(const std::string& graph, Loss loss = by_shape()) {
  const auto attached = attach_loss(graph_of(graph), loss);
  return attached.ok() ? std::string(name_of(loss.kind)) : attached.status().message();
}

TEST(AttachLoss, TakesALabelForEachPositionWhereClassesAreTheLastAxis) {
  EXPECT_EQ(train(model("[n,8,3]"), {}),
            "constant loss/y/all int64[1] {-1}\n"
            "op: y = Foo-17(x, w) -> fp32[n,8,3]\n"
            "loss/y/flatten: loss/y/flatten = Flatten-17(y) axis=2 -> fp32[8n,3]\n"
            "loss/y/labels: loss/y/labels = Reshape-17(labels, loss/y/all) -> int64[8n]\n"
            "loss/y/softmax_cross_entropy: loss/y/softmax_cross_entropy = "
            "SoftmaxCrossEntropyLoss-17(loss/y/flatten, loss/y/labels) ignore_index=-100 "
            "reduction=\"mean\" -> fp32[]\n"
            "outputs y\n"
            "loss loss/y/softmax_cross_entropy\n");
}

TEST(AttachLoss, TakesALabelForEachPixelWhereClassesAreAxisOne) {
  Loss loss;
  loss.ignore_index = 255;
  loss.label_smoothing = 0.1;
  EXPECT_EQ(train(model("[n,3,6,8]"), loss),
            "loss/y/softmax_cross_entropy: loss/y/softmax_cross_entropy = "
            "SoftmaxCrossEntropyLoss-17(y, labels) ignore_index=255 label_smoothing=0.1 "
            "reduction=\"mean\" -> fp32[]\n"
            "outputs y\n"
            "loss loss/y/softmax_cross_entropy\n");
}

TEST(AttachLoss, FollowsTheClassAxisThatIsSaidOrThatASoftmaxHas) {
  Loss first;
  first.class_axis = 1;
  EXPECT_NE(train(model("[n,8,3]"), first).find("SoftmaxCrossEntropyLoss-17(y, labels)"),
            std::string::npos);
  Loss last;
  last.class_axis = -1;
  EXPECT_NE(train(model("[n,6,8,3]"), last).find("Flatten-17(y) axis=3 -> fp32[48n,3]"),
            std::string::npos);
  const std::string softmax = train(
      "graph model\ninput x fp32[n,4]\nparameter w fp32[4]\n"
      "op: y = Foo-17(x, w) -> fp32[n,8,3]\n"
      "softmax: p = Softmax-17(y) axis=1 -> fp32[n,8,3]\noutputs p\n",
      {});
  EXPECT_NE(softmax.find("SoftmaxCrossEntropyLoss-17(y, labels)"), std::string::npos) << softmax;
}

constexpr const char* kWords =
    "graph words\n"
    "input ids int64[n,8]\n"
    "input types int64[n,8]\n"
    "parameter table fp32[30,4]\n"
    "parameter kinds fp32[2,4]\n"
    "parameter w fp32[4,30]\n"
    "rows: a = Gather-17(table, ids) -> fp32[n,8,4]\n"
    "kind: b = Gather-17(kinds, types) -> fp32[n,8,4]\n"
    "sum: c = Add-17(a, b) -> fp32[n,8,4]\n"
    "head: logits = MatMul-17(c, w) -> fp32[n,8,30]\n"
    "outputs logits\n";

TEST(AttachLoss, MovesTokensToThePositionThatPredictsThem) {
  Loss loss;
  loss.next_token = "auto";
  const std::string text = train(kWords, loss);
  EXPECT_EQ(text.substr(text.find("loss/logits/after_first: ")),
            "loss/logits/after_first: loss/logits/after_first = Slice-17(ids, loss/logits/second, "
            "loss/logits/end, loss/logits/axis) -> int64[n,7]\n"
            "loss/logits/next_token: loss/logits/next_token = Pad-17(loss/logits/after_first, "
            "loss/logits/pads, loss/logits/no_label) -> int64[n,8]\n"
            "loss/logits/flatten: loss/logits/flatten = Flatten-17(logits) axis=2 -> fp32[8n,30]\n"
            "loss/logits/labels: loss/logits/labels = Reshape-17(loss/logits/next_token, "
            "loss/logits/all) -> int64[8n]\n"
            "loss/logits/softmax_cross_entropy: loss/logits/softmax_cross_entropy = "
            "SoftmaxCrossEntropyLoss-17(loss/logits/flatten, loss/logits/labels) "
            "ignore_index=-100 reduction=\"mean\" -> fp32[]\n"
            "outputs logits\n"
            "loss loss/logits/softmax_cross_entropy\n");
  EXPECT_NE(text.find("constant loss/logits/no_label int64[] {-100}\n"), std::string::npos);
  EXPECT_NE(text.find("constant loss/logits/end int64[1] {8}\n"), std::string::npos) << text;
}

TEST(AttachLoss, SaysWhatItChoseSoThatTheSameLossGivesTheSameGraph) {
  Loss loss = by_shape();
  loss.next_token = "auto";
  const auto first = attach_loss(graph_of(kWords), loss);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(loss.next_token, "ids");
  EXPECT_EQ(loss.ignore_index, -100);
  const auto second = attach_loss(graph_of(kWords), loss);
  ASSERT_TRUE(second.ok());
  EXPECT_EQ(print_graph(*first), print_graph(*second));
}

TEST(AttachLoss, RefusesTokensThatItCannotFind) {
  const auto refused = [](const std::string& graph, const std::string& tokens) {
    Loss loss;
    loss.next_token = tokens;
    return train(graph, loss);
  };
  EXPECT_EQ(refused(kWords, "idz"),
            "the model has no input 'idz' of tokens\n"
            "  hint: did you mean 'ids'? inputs: ids, types");
  EXPECT_EQ(refused(model("[n,8,3]"), "auto"),
            "no input of tokens: output 'y' needs integers [n,8]\n  hint: inputs: x");
  EXPECT_EQ(refused(model("[n,8,3]"), "x"),
            "the next token of input 'x', fp32[n,4], cannot be the label: output 'y' needs "
            "integers [n,8]");
  EXPECT_EQ(refused(model("[n,3]"), "x"),
            "loss softmax_cross_entropy needs logits [n,tokens,classes] for the next token, output "
            "'y' is fp32[n,3]");
  EXPECT_EQ(refused("graph two\ninput a int64[n,8]\ninput b int64[n,8]\nparameter w fp32[4]\n"
                    "op: y = Foo-17(a, b, w) -> fp32[n,8,3]\noutputs y\n",
                    "auto"),
            "several inputs may be the tokens: 'a', 'b'\n  hint: name one: --next-token a");
}

TEST(AttachLoss, AppendsBinaryCrossEntropyWithTarget) {
  EXPECT_EQ(train(model("[n,1]"), {LossKind::kBceWithLogits, {}}),
            "loss/y/softplus: loss/y/softplus = Softplus-17(y) -> fp32[n,1]\n"
            "loss/y/chosen: loss/y/chosen = Mul-17(y, target) -> fp32[n,1]\n"
            "loss/y/loss: loss/y/loss = Sub-17(loss/y/softplus, loss/y/chosen) -> fp32[n,1]\n"
            "loss/y/mean: loss/y/mean = ReduceMean-17(loss/y/loss) keepdims=0 -> fp32[]\n"
            "outputs y\n"
            "loss loss/y/mean\n");
}

constexpr const char* kOwn =
    "graph own\n"
    "input x fp32[n,4]\n"
    "parameter w fp32[4,3]\n"
    "fc: y = MatMul-17(x, w) -> fp32[n,3]\n"
    "mean: cost = ReduceMean-17(y) keepdims=0 -> fp32[]\n";

constexpr const char* kScalarHint =
    "\n  hint: let the model reduce it to one number (ReduceMean), or take a loss that is attached "
    "to predictions, such as --loss mse";

TEST(AttachLoss, FindsTheModelsOnlyScalar) {
  const std::string own = std::string(kOwn) + "outputs y, cost\n";
  for (const Loss& loss :
       {Loss{LossKind::kModel, {}}, Loss{LossKind::kModel, {{"cost", 1}}}, by_shape()}) {
    Loss taken = loss;
    const auto graph = attach_loss(graph_of(own), taken);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    EXPECT_EQ(graph->tensor(graph->loss).name, "cost");
    EXPECT_EQ(taken.kind, LossKind::kModel);
  }
  EXPECT_EQ(
      train(model("[n,3]"), {LossKind::kModel, {}}),
      std::string("loss model needs a scalar output, the model has 'y' fp32[n,3]") + kScalarHint);
  EXPECT_EQ(train(model("[n,3]"), {LossKind::kModel, {{"y", 1}}}),
            std::string("loss model needs a scalar, output 'y' is fp32[n,3]") + kScalarHint);
  EXPECT_EQ(train(std::string(kOwn) +
                      "max: most = ReduceMax-17(y) keepdims=0 -> fp32[]\noutputs y, cost, most\n",
                  {LossKind::kModel, {}}),
            "loss model needs one scalar output, the model has 2: 'cost' fp32[], 'most' fp32[]\n"
            "  hint: name one: --loss-output 'cost'");
}

TEST(AttachLoss, ChoosesTheLossByTheShapes) {
  EXPECT_EQ(kind_of(model("[n,3]")), "softmax_cross_entropy");
  EXPECT_EQ(kind_of(model("[n,8,3]")), "softmax_cross_entropy");
  EXPECT_EQ(kind_of(model("[n,3,6,8]", "x fp32[n,3,6,8]")), "mse");
  EXPECT_EQ(kind_of(model("[n,4]")), "softmax_cross_entropy") << "as ever, also with such an input";
  Loss named = by_shape();
  named.outputs = {{"y", 1}};
  EXPECT_EQ(kind_of(std::string(kOwn) + "outputs y, cost\n", named), "softmax_cross_entropy");
  named.outputs = {{"cost", 1}};
  EXPECT_EQ(kind_of(std::string(kOwn) + "outputs y, cost\n", named), "model");
}

TEST(AttachLoss, AdvisesAModelWithOneLogit) {
  EXPECT_EQ(kind_of(model("[n]")),
            "loss softmax_cross_entropy needs logits [n,classes], [n,...,classes] or "
            "[n,classes,...], n the samples, output 'y' is fp32[n]\n"
            "  hint: a logit of yes or no takes --loss bce_with_logits, a quantity takes --loss "
            "mse");
  Loss last = by_shape();
  last.class_axis = -1;
  EXPECT_EQ(kind_of(model("[n,8,1]"), last),
            "loss softmax_cross_entropy needs at least 2 classes, output 'y' is fp32[n,8,1]: of "
            "one class it is always 0, and nothing is learned\n"
            "  hint: a logit of yes or no takes --loss bce_with_logits, a quantity takes --loss "
            "mse");
}

TEST(AttachLoss, RefusesOptionsOfLabelsForALossWithoutLabels) {
  Loss loss{LossKind::kMse, {}};
  loss.ignore_index = 0;
  EXPECT_EQ(train(model("[n,3]"), loss),
            "loss mse has no labels\n"
            "  hint: ignore_index, label_smoothing, class_axis and next_token are of "
            "softmax_cross_entropy");
  Loss smooth;
  smooth.label_smoothing = 1;
  EXPECT_EQ(train(model("[n,3]"), smooth),
            "label_smoothing is 1, it must be from 0 to less than 1");
}

std::string described(const std::string& graph, Loss loss) {
  const auto attached = attach_loss(graph_of(graph), loss);
  return attached.ok() ? describe_loss(*attached, loss) : attached.status().message();
}

TEST(DescribeLoss, SaysWhatIsNotPlain) {
  EXPECT_EQ(described(model("[n,3]"), by_shape()), "");
  EXPECT_EQ(described(model("[n,8,3]"), by_shape()),
            "softmax_cross_entropy of 'y' fp32[n,8,3]; 8 labels a sample; -100 does not count (by "
            "the shapes: --loss names another)");
  EXPECT_EQ(described(model("[n,3,6,8]", "x fp32[n,3,6,8]"), by_shape()),
            "mse of 'y' fp32[n,3,6,8] (by the shapes: --loss names another)");
  Loss loss;
  loss.next_token = "auto";
  loss.label_smoothing = 0.1;
  EXPECT_EQ(described(kWords, loss),
            "softmax_cross_entropy of 'logits' fp32[n,8,30]; 8 labels a sample, the next tokens of "
            "'ids'; -100 does not count; smoothing 0.1");
}

TEST(TokensPerSample, ArePositionsOfLabelsOrOfIndices) {
  const auto tokens = [](const std::string& graph) {
    Loss loss;
    return tokens_per_sample(*attach_loss(graph_of(graph), loss));
  };
  EXPECT_EQ(tokens(kWords), 8);
  EXPECT_EQ(tokens(model("[n,5,3]")), 5);
  EXPECT_EQ(tokens(model("[n,3,6,8]")), 0) << "pixels are no tokens";
  EXPECT_EQ(tokens(model("[n,3]")), 0);
  EXPECT_EQ(tokens("graph bert\ninput ids int64[n,12]\nparameter table fp32[30,4]\n"
                   "rows: a = Gather-17(table, ids) -> fp32[n,12,4]\n"
                   "mean: y = ReduceMean-17(a) axes=[1] keepdims=0 -> fp32[n,4]\noutputs y\n"),
            12);
}

TEST(UnusedOutputsWarning, NamesWhatIsNotTrained) {
  const std::string heads =
      "graph heads\n"
      "input x fp32[n,4]\n"
      "parameter w fp32[4,3]\n"
      "parameter v fp32[4,5]\n"
      "main: logits = MatMul-17(x, w) -> fp32[n,3]\n"
      "side: aux = MatMul-17(x, v) -> fp32[n,5]\n"
      "outputs logits, aux\n";
  Loss loss;
  const auto graph = derive_backward(*attach_loss(graph_of(heads), loss));
  ASSERT_TRUE(graph.ok());
  EXPECT_EQ(unused_outputs_warning({"logits", "aux"}, *graph, loss),
            "warning: output 'aux' is not part of the loss: what only it needs is not trained\n"
            "  hint: the loss takes several outputs with weights: --loss-output 'logits=1' "
            "--loss-output 'aux=0.5'");
  EXPECT_EQ(unused_outputs_warning({"logits", "a", "b", "c", "d", "e", "f"}, *graph, loss),
            "warning: outputs 'a', 'b', 'c', 'd', 'e' and 1 more are not part of the loss: what "
            "only they need is not trained\n"
            "  hint: the loss takes several outputs with weights: --loss-output 'logits=1' "
            "--loss-output 'a=0.5'");
  EXPECT_EQ(unused_outputs_warning({"logits"}, *graph, loss), "");
}

}  // namespace
}  // namespace agpcs
