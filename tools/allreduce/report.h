// SPDX-License-Identifier: Apache-2.0
// What agpcs-allreduce prints: one schedule, or all methods side by side, for people or as JSON.
#pragma once

#include "tools/allreduce_input.h"
#include "tools/allreduce_result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// What is reported of: all outlive the report.
struct AllreduceReport {
  const AllreduceInput& input;
  const RoundsBound& bound;
  bool barrier = true;
  std::int64_t bytes = 0;  ///< the message of `seconds` and of the links' use in time
  bool interrupted = false;
};

std::string allreduce_text(const AllreduceReport& report, const AllreduceResult& result);
std::string allreduce_json(const AllreduceReport& report, const AllreduceResult& result);

/// A method of `--compare`: what it made, or why it made nothing.
struct ComparedMethod {
  std::string name;
  std::optional<AllreduceResult> result;
  std::string error;
};
std::string comparison_text(const AllreduceReport& report,
                            const std::vector<ComparedMethod>& methods);
std::string comparison_json(const AllreduceReport& report,
                            const std::vector<ComparedMethod>& methods);

}  // namespace agpcs
