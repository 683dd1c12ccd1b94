// SPDX-License-Identifier: Apache-2.0
// QNetwork: the value of a move, Q(s, a), from its features (dqn_trainer.h trains it).
#pragma once

#include "planner/perceptron.h"
#include "planner/search_point.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Of kFeatureCount features.
struct QNetwork : Perceptron {
  std::string made_by;  ///< the command that trained it
};

/// The policy file: "agpcs-policy 1", `made-by`, the numbers of features and units, then one line a
/// row, each number the shortest that reads back as the same float (docs/policy.md).
std::string print_policy(const QNetwork& network);
/// Errors: another version, another number of features, a line that is no row: with file and line.
Result<QNetwork> parse_policy(std::string_view text, std::string_view file);

/// The policy that ships with AGPCS (planner/default.policy, part of the program).
const QNetwork& shipped_policy();

}  // namespace agpcs
