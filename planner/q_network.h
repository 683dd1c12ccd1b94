// SPDX-License-Identifier: Apache-2.0
// QNetwork: the value of a move, Q(s, a), from its features. A perceptron with one hidden layer, in
// plain double arithmetic, so that a policy chooses the same moves on every machine; LibTorch
// trains it (dqn_trainer.h).
#pragma once

#include "planner/search_point.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Q = output . max(0, hidden x (features - mean) x scale + bias) + output_bias.
struct QNetwork {
  std::vector<float> mean, scale;  ///< [kFeatureCount], of the features it was trained on
  std::vector<float> hidden;       ///< [units x kFeatureCount], row-major
  std::vector<float> bias;         ///< [units]
  std::vector<float> output;       ///< [units]
  float output_bias = 0;
  std::string made_by;  ///< the command that trained it

  int units() const { return static_cast<int>(bias.size()); }
  double value(const Features& features) const;
};

/// The policy file: "agpcs-policy 1", `made-by`, the numbers of features and units, then one line a
/// row, each number the shortest that reads back as the same float (docs/policy.md).
std::string print_policy(const QNetwork& network);
/// Errors: another version, another number of features, a line that is no row: with file and line.
Result<QNetwork> parse_policy(std::string_view text, std::string_view file);

/// The policy that ships with AGPCS (planner/default.policy, part of the program).
const QNetwork& shipped_policy();

}  // namespace agpcs
