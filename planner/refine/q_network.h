// SPDX-License-Identifier: Apache-2.0
// QNetwork: the value of a move, Q(s, a), from its features (planner/learn/dqn_trainer.h trains
// it).
#pragma once

#include "planner/policy/perceptron.h"
#include "planner/refine/search_point.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// A network on kFeatureCount features.
struct QNetwork : Perceptron {
  std::string made_by;  ///< the command that trained it
};

/// Prints the policy file: "agpcs-policy 1", `made-by`, the numbers of features and units, then one
/// line a row, each number the shortest that reads back as the same float (docs/design/policy.md).
std::string print_policy(const QNetwork& network);
/// Parses a policy file. Errors name file and line: another version, another number of features, a
/// line that is not a row.
Result<QNetwork> parse_policy(std::string_view text, std::string_view file);

/// Returns the policy that ships with AGPCS (planner/refine/default.policy, part of the program).
const QNetwork& shipped_policy();

}  // namespace agpcs
