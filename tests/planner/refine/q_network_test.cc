// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/q_network.h"

#include "ir/base/rng.h"
#include "planner/refine/features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace agpcs {
namespace {

using testing::HasSubstr;

QNetwork random_network(int units, std::uint64_t seed) {
  Rng rng(seed);
  const auto numbers = [&rng](std::size_t count) {
    std::vector<float> result(count);
    for (float& value : result) value = static_cast<float>(2 * rng.uniform() - 1);
    return result;
  };
  QNetwork network;
  network.mean = numbers(kFeatureCount);
  network.scale = numbers(kFeatureCount);
  network.hidden = numbers(static_cast<std::size_t>(units) * kFeatureCount);
  network.bias = numbers(static_cast<std::size_t>(units));
  network.output = numbers(static_cast<std::size_t>(units));
  network.output_bias = 0.1f;
  network.made_by = "a test";
  return network;
}

Features random_features(Rng& rng) {
  Features features{};
  for (float& value : features) {
    if (rng.below(2) == 0) value = static_cast<float>(4 * rng.uniform() - 2);
  }
  return features;
}

/// The text with the first `from` replaced by `to`.
std::string with(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

std::string error_of(const std::string& text) {
  return parse_policy(text, "my.policy").status().message();
}

TEST(QNetwork, ValueIsThePerceptronOfItsFormula) {
  const QNetwork network = random_network(13, 1);
  Rng rng(2);
  for (int i = 0; i < 20; ++i) {
    const Features features = random_features(rng);
    double expected = network.output_bias;
    for (std::size_t u = 0; u < network.bias.size(); ++u) {
      double sum = network.bias[u];
      for (std::size_t f = 0; f < features.size(); ++f) {
        sum += (features[f] - network.mean[f]) * network.scale[f] *
               network.hidden[u * kFeatureCount + f];
      }
      expected += std::max(0.0, sum) * network.output[u];
    }
    EXPECT_NEAR(network.value(features), expected, 1e-5);
  }
}

TEST(QNetwork, PrintedPolicyReadsBackAsTheSameNetwork) {
  const QNetwork network = random_network(64, 3);
  const std::string text = print_policy(network);
  const Result<QNetwork> read = parse_policy(text, "my.policy");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->mean, network.mean);
  EXPECT_EQ(read->scale, network.scale);
  EXPECT_EQ(read->hidden, network.hidden);
  EXPECT_EQ(read->bias, network.bias);
  EXPECT_EQ(read->output, network.output);
  EXPECT_EQ(read->output_bias, network.output_bias);
  EXPECT_EQ(read->made_by, "a test");
  EXPECT_EQ(print_policy(*read), text);
}

TEST(QNetwork, WrongPoliciesAreRefusedWithFileAndLine) {
  const std::string text = print_policy(random_network(2, 4));
  EXPECT_THAT(error_of("graph x\n"), HasSubstr("my.policy:1:1: error: 'graph' where 'agpcs-policy' "
                                               "is expected"));
  EXPECT_THAT(
      error_of(with(text, "agpcs-policy 1", "agpcs-policy 2")),
      HasSubstr("my.policy:1:1: error: version 2 of the policy format, this AGPCS reads 1"));
  EXPECT_THAT(error_of(with(text, "features 48", "features 40")),
              HasSubstr("my.policy:3:1: error: the policy judges moves by 40 features, this AGPCS "
                        "describes them by 48"));
  EXPECT_THAT(error_of(with(text, "units 2", "units 0")),
              HasSubstr("my.policy:4:1: error: '0' is no number from 1 to 4096"));
  EXPECT_THAT(error_of(with(text, "\nbias ", "\nbias 0.5 ")),
              HasSubstr("my.policy:9:1: error: 'bias' has 3 numbers where 2 are expected"));
  EXPECT_THAT(error_of(with(text, "\nbias ", "\nbias nan ")),
              HasSubstr("my.policy:9:1: error: 'nan' is no number (number 1 of 'bias')"));
  EXPECT_THAT(error_of(with(text, "units 2", "units 3")),
              HasSubstr("my.policy:9:1: error: 'bias' where 'hidden' is expected"));
  EXPECT_THAT(error_of(text + "bias 1\n"), HasSubstr("my.policy:12:1: error: more lines"));
  EXPECT_THAT(error_of(text.substr(0, text.find("output-bias"))),
              HasSubstr("my.policy:11:1: error: the policy ends where 'output-bias' is expected"));
  EXPECT_THAT(error_of(text.substr(0, text.size() - 1)), HasSubstr("its last line does not end"));
  EXPECT_THAT(error_of(""), HasSubstr("my.policy:1:1: error: the policy ends"));
}

TEST(QNetwork, ThePolicyThatShipsJudges) {
  const QNetwork& policy = shipped_policy();
  EXPECT_FALSE(policy.made_by.empty());
  EXPECT_TRUE(std::isfinite(policy.value(Features{})));
}

// It is written by hand, column by column.
TEST(QNetwork, ThePolicyThatShipsIsMinusTheChangeOfTheRoughStep) {
  for (int f = 0; f < kFeatureCount; ++f) {
    Features features{};
    features[static_cast<std::size_t>(f)] = 0.25;
    const double expected = f == static_cast<int>(Feature::kRoughChange) ? -0.25 : 0;
    EXPECT_EQ(shipped_policy().value(features), expected) << "feature " << f;
  }
}

}  // namespace
}  // namespace agpcs
