// SPDX-License-Identifier: Apache-2.0
#include "tests/frontend/cluster/two_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

TEST(TrainingSection, IsRead) {
  const Result<ClusterFile> file =
      parse_cluster(two_hosts_with("{batch: 64}",
                                   "{batch: 96, attention: fused, loss: {kind: mse, outputs: {y: "
                                   "1, aux: 0.4}}, optimizer: {kind: "
                                   "adam, weight_decay: 1e-2, betas: [0.8, 0.99], epsilon: 1e-6}}"),
                    "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Training& training = file->training;
  EXPECT_EQ(training.batch, 96);
  EXPECT_EQ(training.attention, AttentionForm::kFused);
  EXPECT_EQ(training.loss.kind, LossKind::kMse);
  ASSERT_EQ(training.loss.outputs.size(), 2u);
  EXPECT_EQ(training.loss.outputs[1], (std::pair<std::string, double>("aux", 0.4)));
  EXPECT_EQ(training.optimizer.kind, OptimizerKind::kAdam);
  EXPECT_EQ(training.optimizer.learning_rate, 0.001);
  EXPECT_EQ(training.optimizer.weight_decay, 0.01);
  EXPECT_EQ(training.optimizer.beta1, 0.8);
  EXPECT_EQ(training.optimizer.beta2, 0.99);
  EXPECT_EQ(training.optimizer.epsilon, 1e-6);
}

TEST(TrainingSection, ReadsWhatALossSaysOfItsLabels) {
  const Result<ClusterFile> file = parse_cluster(
      two_hosts_with("{batch: 64}",
                     "{batch: 96, loss: {ignore_index: -1, label_smoothing: 0.1, class_axis: -1, "
                     "next_token: auto}}"),
      "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Loss& loss = file->training.loss;
  EXPECT_TRUE(loss.by_shape);
  EXPECT_EQ(loss.ignore_index, -1);
  EXPECT_EQ(loss.label_smoothing, 0.1);
  EXPECT_EQ(loss.class_axis, -1);
  EXPECT_EQ(loss.next_token, "auto");
}

TEST(TrainingSection, HasTheDefaultsOfPyTorchForEachOptimizer) {
  const auto optimizer = [](const std::string& text) {
    const Result<ClusterFile> file =
        parse_cluster(two_hosts_with("{batch: 64}", "{optimizer: " + text + "}"), "c.yaml");
    EXPECT_TRUE(file.ok()) << file.status().message();
    return file->training.optimizer;
  };
  for (const Optimizer& adamw : {optimizer("adamw"), optimizer("{kind: adamw}")}) {
    EXPECT_EQ(adamw.kind, OptimizerKind::kAdamW);
    EXPECT_EQ(adamw.learning_rate, 0.001);
    EXPECT_EQ(adamw.weight_decay, 0.01);
  }
  EXPECT_EQ(optimizer("adam").weight_decay, 0);
  EXPECT_FALSE(optimizer("{momentum: 0.9}").nesterov);
  EXPECT_TRUE(optimizer("{momentum: 0.9, nesterov: true}").nesterov);
}

TEST(BadTrainingSection, ALossIsNotInTheTableOrHasNoLabels) {
  EXPECT_EQ(error_of(two_hosts_with("{batch: 64}", "{batch: 64, loss: bce}")),
            "c.yaml:13:29: error: unknown loss 'bce'\n"
            "    training: {batch: 64, loss: bce}\n"
            "                                ^~~\n"
            "  hint: losses: softmax_cross_entropy, mse, bce_with_logits, model, output");
  EXPECT_THAT(error_of(two_hosts_with("{batch: 64}",
                                      "{batch: 64, loss: {kind: mse, "
                                      "ignore_index: 0}}")),
              HasSubstr("error: loss 'mse' has no labels\n"));
  EXPECT_THAT(error_of(two_hosts_with("{batch: 64}", "{batch: 64, loss: {label_smoothing: 1}}")),
              HasSubstr("error: 'label_smoothing' of loss must be less than 1, is '1'\n"));
  EXPECT_THAT(error_of(two_hosts_with("{batch: 64}", "{batch: 64, loss: {class_axis: 0}}")),
              HasSubstr("error: axis 0 has the samples, not classes\n"));
}

TEST(BadTrainingSection, FiguresAreChecked) {
  const auto with = [](const std::string& training) {
    return error_of(two_hosts_with("{batch: 64}", training));
  };
  EXPECT_THAT(with("{batch: 0}"), HasSubstr("must be a whole number from 1 to"));
  EXPECT_THAT(with("{batch: 6.5}"), HasSubstr("is '6.5'"));
  EXPECT_THAT(with("{precision: fp23}"), HasSubstr("did you mean 'fp32'? precisions: "));
  EXPECT_THAT(with("{loss: mes}"), HasSubstr("did you mean 'mse'? losses: "));
  EXPECT_THAT(with("{loss: output}"), HasSubstr("needs the name of one scalar output"));
  EXPECT_THAT(with("{optimizer: {kind: sdg}}"), HasSubstr("did you mean 'sgd'? optimizers: "));
  EXPECT_THAT(with("{optimizer: {kind: adam, momentum: 0.9}}"),
              HasSubstr("optimizer 'adam' has no 'momentum'"));
  EXPECT_THAT(with("{optimizer: {momentum: 1}}"), HasSubstr("must be less than 1, is '1'"));
  EXPECT_THAT(with("{optimizer: {kind: adam, betas: [0.9]}}"), HasSubstr("must be two numbers"));
  EXPECT_THAT(with("{optimizer: {kind: sgd, nesterov: true}}"),
              HasSubstr("'nesterov' needs a momentum above 0"));
  EXPECT_THAT(with("{optimizer: {momentum: 0.9, nesterov: 1}}"),
              HasSubstr("must be true or false, is '1'"));
  EXPECT_THAT(with("{optimizer: {kind: adamw, momentum: 0.9}}"),
              HasSubstr("adamw takes betas and epsilon"));
  EXPECT_THAT(with("{optimizer: {learning_rate: fast}}"), HasSubstr("must be a number, is 'fast'"));
}

}  // namespace
}  // namespace agpcs
