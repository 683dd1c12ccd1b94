// SPDX-License-Identifier: Apache-2.0
// What changed in opsets 18 to 23 as far as shapes go.
#pragma once

#include <cstdint>
#include <string_view>

namespace agpcs::frontend {

/// How an operator's shape rule differs from opset 17's.
enum class RuleChange : std::uint8_t {
  kNone,          ///< new element types or attributes without a say in shapes
  kAxesInput,     ///< Reduce*: attribute `axes` became input 1
  kNewAttribute,  ///< the old rule holds where none of `attributes` is used
  kSameAsInput,   ///< new operator, output like input 0
  kBroadcast,     ///< new operator, output broadcasts inputs 0 and 1
  kUnknown,       ///< new operator or a rule that is not known here
};

struct OpsetChange {
  std::string_view type;
  int since = 0;  ///< first opset with the change
  RuleChange change = RuleChange::kNone;
  std::string_view attributes = {};  ///< kNewAttribute: names, separated by spaces
  int inputs = 99;                   ///< kNewAttribute: most inputs that the old rule knows
};

/// The newest change at or before `opset` that touches shapes; nullptr: none since opset 17.
const OpsetChange* find_opset_change(std::string_view type, int opset);

}  // namespace agpcs::frontend
