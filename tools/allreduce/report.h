// SPDX-License-Identifier: Apache-2.0
// Prints the results of agpcs-allreduce: one schedule, or all methods side by side, for people or
// as JSON.
#pragma once

#include "tools/allreduce/input.h"
#include "tools/allreduce/result.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// The inputs of a report. All of them must outlive it.
struct AllreduceReport {
  const AllreduceInput& input;
  const RoundsBound& bound;
  bool barrier = true;
  std::int64_t bytes = 0;  ///< message size for `seconds` and for the links' use in time
  bool interrupted = false;
};

std::string allreduce_text(const AllreduceReport& report, const AllreduceResult& result);
std::string allreduce_json(const AllreduceReport& report, const AllreduceResult& result);

/// A method of `--compare`, with its result or its error.
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
