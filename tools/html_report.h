// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan report`: a plan and its simulated step as one HTML page that needs nothing else.
#pragma once

#include "ir/cluster.h"
#include "tools/report_charts.h"

#include <span>
#include <string>

namespace agpcs {

struct ReportInput {
  const Cluster& cluster;
  const SimulatedStep& step;
  const SimulatedStep* before = nullptr;  ///< a plan of the same model and cluster to compare with
  std::span<const EpisodeLog> search;     ///< drawn where something was learned
};

/// No script, no reference to another file; the same bytes for the same input. Light or dark as the
/// reader prefers, light on paper.
std::string html_report(const ReportInput& input);

}  // namespace agpcs
