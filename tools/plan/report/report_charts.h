// SPDX-License-Identifier: Apache-2.0
// Draws the charts of `agpcs-plan report`: values in, SVG elements out. In charts of large clusters
// a row stands for several devices.
#pragma once

#include "cost_model/explain/step_report.h"
#include "planner/refine/dqn.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace agpcs {

/// The layout of charts, in pixels: width, the column of labels, the height of a row and of the
/// axis below.
inline constexpr double kChartWidth = 1000, kLabelWidth = 170, kRowHeight = 22, kAxisHeight = 24;

/// A plan and its simulated step.
struct SimulatedStep {
  Plan plan;
  Estimate estimate;  ///< with timeline
  StepAnalysis report;
};
/// Simulates a plan. Needs: the plan verifies against graph and cluster.
Result<SimulatedStep> simulated_step(Plan plan, const Graph& graph, const Cluster& cluster);

/// Devices that share a row of a chart.
struct ChartRow {
  std::string name;
  std::vector<DeviceId> devices;  ///< adjacent ones
};
/// Returns all devices in at most `most` rows. A row is a device, else a host, else several hosts.
/// Needs: most > 0.
std::vector<ChartRow> chart_rows(const Cluster& cluster, std::size_t most);

/// Shows what each device does in a step: computing, exposed communication, idle. A row shows the
/// mean of its devices. With `before` it has two bars side by side.
std::string utilization_chart(const Cluster& cluster, const SimulatedStep* before,
                              const SimulatedStep& after);
/// Shows when each device computes and communicates, for at most 32 ranks, evenly chosen. The axis
/// ends at `seconds`. Pieces shorter than a column of pixels are drawn in proportion.
std::string timeline_chart(const SimulatedStep& step, double seconds);
/// Shows the peak memory against the capacity, for the fullest device of each row.
std::string memory_chart(const Cluster& cluster, const SimulatedStep& step);
/// Shows the most loaded links: the mean over the step. Empty if nothing is sent.
std::string link_chart(const Cluster& cluster, const SimulatedStep& step);
/// Tells whether some episode of a search explored or changed weights; other episodes only search.
bool has_learned(std::span<const EpisodeLog> log);
/// Shows best cost, reward, loss and epsilon over episodes. Needs: at least one episode.
std::string learning_chart(std::span<const EpisodeLog> log);

/// Returns "34%", "0.4%", "<0.1%", "0%".
std::string percent_text(double part);

}  // namespace agpcs
