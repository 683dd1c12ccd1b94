// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan report`: shows a plan and its simulated step as one self-contained HTML page. Its
// words, layout and colours are in report.html, which is filled with figures and charts.
#pragma once

#include "ir/cluster/cluster.h"
#include "tools/plan/report/report_charts.h"
#include "tools/plan/team/team_reasons.h"

#include <span>
#include <string>

namespace agpcs {

struct ReportInput {
  const Cluster& cluster;
  const SimulatedStep& step;
  const SimulatedStep* before = nullptr;  ///< a plan of the same model and cluster, for comparison
  std::span<const EpisodeLog> search;     ///< drawn if something was learned
  const TeamReasons* teams = nullptr;     ///< of a plan with teams
};

/// Returns the page. It has no script and refers to no other file. Equal inputs give equal bytes.
/// It is light or dark as the reader prefers, and light on paper.
std::string html_report(const ReportInput& input);

}  // namespace agpcs
