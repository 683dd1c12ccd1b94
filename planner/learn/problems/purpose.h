// SPDX-License-Identifier: Apache-2.0
// Purpose: the problems for which a model family, a cluster shape or a device kind is generated.
#pragma once

#include <span>
#include <vector>

namespace agpcs {

/// Problems of a purpose hold out what is for later purposes (docs/design/policy.md). They may have
/// devices of earlier purposes beside their own.
enum class Purpose {
  kTraining,       ///< what the training generator draws where nobody says what
  kTightTraining,  ///< what it draws where it is asked for tight problems; devices of kTraining
  kRegression,     ///< the 40 problems on which refiners were compared first
  kSixty,          ///< the 60 problems that judged refiners next; of regression now
  kRoom,           ///< the problems with room that judge refiners
};

/// Returns the entries of a table (of families, of shapes) that are for `purpose`.
template <typename Entry>
std::vector<Entry> entries_for(std::span<const Entry> table, Purpose purpose) {
  std::vector<Entry> entries;
  for (const Entry& entry : table) {
    if (entry.purpose == purpose) entries.push_back(entry);
  }
  return entries;
}

}  // namespace agpcs
