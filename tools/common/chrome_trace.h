// SPDX-License-Identifier: Apache-2.0
// Steps as Chrome traces, for Perfetto.
#pragma once

#include "cost_model/explain/step_report.h"
#include "cost_model/step/simulator.h"
#include "ir/cluster/cluster.h"

#include <agpcs/plan.h>

#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// Prints the timeline as Chrome trace-event JSON, for Perfetto: one process for each rank, with
/// its device's name; one thread for each stream; an arrow from each send to the receive it feeds.
/// Needs: an estimate with its timeline.
std::string chrome_trace(const Plan& plan, const Estimate& estimate);

/// One of several steps that a trace shows side by side. Of the estimate, only the timeline and the
/// devices' ranks and names are used.
struct LabelledStep {
  std::string label;  ///< "measured"
  const Estimate* step = nullptr;
};
/// Prints several steps in one trace, with a process for each rank and step; those of one rank are
/// next to each other. `about` goes to the trace's "otherData".
std::string chrome_trace(const Plan& plan, const std::vector<LabelledStep>& steps,
                         const std::vector<std::pair<std::string, std::string>>& about);

/// Prints `chrome_trace` with counters: the memory in use on each rank, and the load of each link
/// that carries anything, in percent of its bandwidth.
std::string chrome_trace(const Plan& plan, const Cluster& cluster, const Estimate& estimate,
                         const StepAnalysis& report);

}  // namespace agpcs
