// SPDX-License-Identifier: Apache-2.0
// The parts of `calibrate`. Internal to cost_model/fit/calibrate*.cc.
#pragma once

#include "cost_model/fit/calibrate.h"
#include "cost_model/fit/robust_fit.h"
#include "ir/cluster/cluster.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// The fits made so far.
struct FitLog {
  std::vector<FitReport> reports;
  std::vector<std::string> files;  ///< the profile of each report
  /// Adds a report of how well `fit` explains its observations.
  void add(const std::string& file, std::string what, const std::vector<Observation>& observations,
           const RobustFit& fit);
};

const Profile& profile_of(const Cluster& cluster, const ProfileRef& ref);

/// Fits latency and bandwidth of every link that refers to a profile.
///
/// Each path of a profile gets a latency and a bandwidth by alpha-beta: the bandwidth that long
/// messages reach, and the latency of short ones. A path's latency is the sum over its links. The
/// paths together determine the links' latencies as far as they differ; links that no path tells
/// apart share their sum evenly. A link is at least as fast as every path over it, so its bandwidth
/// is the largest of theirs.
Status calibrate_links(Cluster& cluster, FitLog& log);

/// Fits overhead and stretch of every all-reduce algorithm: measured = latency of its steps over
/// the links as calibrated + steps x step_overhead + stretch x time of the bytes. An algorithm
/// without measurements takes the figures of the first algorithm that has some, because all send
/// their messages by the same transport. Groups with a device that the cluster does not have are
/// left out.
Status calibrate_collectives(Cluster& cluster, FitLog& log);

}  // namespace agpcs
