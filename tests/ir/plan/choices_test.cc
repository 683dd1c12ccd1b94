// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/choices.h"

#include "ir/base/all_values.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace agpcs {
namespace {

template <typename Table>
void expect_names_are_read(const Table& table) {
  std::set<std::string> names;
  for (const auto& entry : table) {
    EXPECT_EQ(name_of(entry.value), entry.name);
    EXPECT_EQ(value_named(table, entry.name), entry.value) << entry.name;
    EXPECT_TRUE(names.insert(std::string(entry.name)).second) << entry.name;
    EXPECT_FALSE(entry.help.empty()) << entry.name;
  }
  EXPECT_FALSE(value_named(table, "").has_value());
  EXPECT_FALSE(value_named(table, "fp8").has_value());
}

TEST(Choices, EachNameIsReadAsTheValueThatPrintsIt) {
  expect_names_are_read(kPrecisions);
  expect_names_are_read(kLosses);
  expect_names_are_read(kOptimizers);
  for (const DType type : kDTypes) EXPECT_EQ(dtype_named(name_of(type)), type);
  for (const Schedule schedule : kSchedules) EXPECT_EQ(schedule_named(name_of(schedule)), schedule);
}

TEST(Choices, HelpHasEachNameWithWhatItIs) {
  EXPECT_EQ(
      help_of(kLosses),
      "softmax_cross_entropy: logits against the label of a class, for each sample or position; "
      "mse: the mean of squared errors, against a target of the output's shape; "
      "bce_with_logits: logits against yes or no (1 or 0), a target of the output's shape; "
      "model: a scalar that the model computes itself; output: the same, named by "
      "--loss-output");
}

TEST(Choices, OnlyFp16AndBf16AreWireTypes) {
  for (const DType type : kDTypes) {
    const bool wire = type == DType::kFp16 || type == DType::kBf16;
    EXPECT_EQ(is_wire_type(type), wire) << name_of(type);
    EXPECT_EQ(one_named(kWireTypes, name_of(type)).has_value(), wire) << name_of(type);
  }
  EXPECT_FALSE(is_wire_type(std::nullopt));
}

TEST(Choices, MomentumMakesAnotherVariantOfSgdAlone) {
  Optimizer optimizer;
  EXPECT_EQ(variant_of(optimizer).name, "sgd");
  EXPECT_EQ(variant_of(optimizer).state_tensors, 0);
  optimizer.momentum = 0.9;
  EXPECT_EQ(variant_of(optimizer).name, "sgd momentum");
  EXPECT_EQ(variant_of(optimizer).state_tensors, 1);
  optimizer.kind = OptimizerKind::kAdam;
  EXPECT_EQ(variant_of(optimizer).name, "adam");
  EXPECT_EQ(variant_of(optimizer).state_tensors, 2);
}

}  // namespace
}  // namespace agpcs
