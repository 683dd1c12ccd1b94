// SPDX-License-Identifier: Apache-2.0
// The charts of `agpcs-plan report`: values in, SVG elements out. Large clusters have one row for
// several devices.
#pragma once

#include "cost_model/step_report.h"
#include "planner/dqn.h"

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace agpcs {

/// A plan and its simulated step.
struct SimulatedStep {
  Plan plan;
  Estimate estimate;  ///< with timeline
  StepAnalysis report;
};
/// Needs: a plan that verifies against graph and cluster.
Result<SimulatedStep> simulated_step(Plan plan, const Graph& graph, const Cluster& cluster);

/// Devices that share a row of a chart.
struct ChartRow {
  std::string name;
  std::vector<DeviceId> devices;  ///< next to each other
};
/// All devices in at most `most` rows: a row a device, or else a host, or else several hosts.
/// Needs: most > 0.
std::vector<ChartRow> chart_rows(const Cluster& cluster, std::size_t most);

/// What each device does in a step: computing, exposed communication, idle; a row's mean. With
/// `before` two bars side by side.
std::string utilization_chart(const Cluster& cluster, const SimulatedStep* before,
                              const SimulatedStep& after);
/// When each device computes and communicates; at most 32 ranks, evenly chosen. The axis ends at
/// `seconds`. What is shorter than a column of pixels is drawn in proportion.
std::string timeline_chart(const SimulatedStep& step, double seconds);
/// Peak memory against capacity, of a row's fullest device.
std::string memory_chart(const Cluster& cluster, const SimulatedStep& step);
/// The most loaded links: mean over the step. Empty where nothing is sent.
std::string link_chart(const Cluster& cluster, const SimulatedStep& step);
/// Whether some episode of a search explored or changed weights: the others only search.
bool has_learned(std::span<const EpisodeLog> log);
/// Best cost, reward, loss and epsilon over episodes. Needs: an episode.
std::string learning_chart(std::span<const EpisodeLog> log);

/// "34%", "0.4%", "<0.1%", "0%".
std::string percent_text(double part);

}  // namespace agpcs
