// SPDX-License-Identifier: Apache-2.0
// agpcs-plan export: what other programs run of a plan.
#pragma once

#include "tools/common/common.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Returns the words of --format.
std::vector<std::string> export_formats();

struct ExportOptions {
  std::string format;  ///< one of `export_formats`
  std::string flow, bucket;
  std::string model, cluster;  ///< paths, for the formats that need them
  int channels = -1;
  std::string output = "-";
};

/// Writes `plan` in a format. Warns of what the format does not say. Errors: the plan has no words
/// in the format; a file that the format needs is not given, or wrong.
Status export_plan(const ExportOptions& options, const Plan& plan, Console console);

}  // namespace agpcs
