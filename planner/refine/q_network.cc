// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/q_network.h"

#include "ir/base/check.h"
#include "planner/policy/policy_text.h"
#include "planner/refine/default_policy.h"

#include <fmt/format.h>

#include <utility>

namespace agpcs {
namespace {

constexpr int kVersion = 1;
static_assert(kFeatureCount <= static_cast<int>(kMostFeatures));

}  // namespace

std::string print_policy(const QNetwork& network) {
  return fmt::format("agpcs-policy {}\nmade-by {}\n", kVersion, network.made_by) +
         print_perceptron(network);
}

Result<QNetwork> parse_policy(std::string_view text, std::string_view file) {
  PolicyReader reader(text, file);
  QNetwork network;
  if (reader.read_head("agpcs-policy", kVersion, network.made_by) &&
      reader.read_perceptron(kFeatureCount, "moves", network)) {
    reader.read_end("output-bias");
  }
  AGPCS_RETURN_IF_ERROR(reader.status());
  return network;
}

const QNetwork& shipped_policy() {
  static const QNetwork kPolicy = [] {
    Result<QNetwork> policy = parse_policy(default_policy_text(), "default.policy");
    AGPCS_CHECK(policy.ok(), "the shipped policy is wrong: {}", policy.status().message());
    return std::move(*policy);
  }();
  return kPolicy;
}

}  // namespace agpcs
