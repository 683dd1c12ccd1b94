// SPDX-License-Identifier: Apache-2.0
// The parts of `calibrate`. Internal to cost_model/calibrate*.cc.
#pragma once

#include "cost_model/calibrate.h"
#include "cost_model/robust_fit.h"
#include "ir/cluster.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// What was fitted so far.
struct FitLog {
  std::vector<FitReport> reports;
  std::vector<std::string> files;  ///< the profile of each
  /// Adds how well `fit` explains its observations.
  void add(const std::string& file, std::string what, const std::vector<Observation>& observations,
           const RobustFit& fit);
};

const Profile& profile_of(const Cluster& cluster, const ProfileRef& ref);

/// Latency and bandwidth of every link that refers to a profile.
///
/// Each path of a profile gets a latency and a bandwidth by alpha-beta: the bandwidth that long
/// messages reach, the latency of short ones. A path's latency is the sum
/// over its links, which tells the links' latencies, or as much of them as paths that differ can
/// tell: what only adds up is shared evenly. A link is at least as fast as every path over it, so
/// its bandwidth is the largest of theirs.
Status calibrate_links(Cluster& cluster, FitLog& log);

/// Overhead and stretch of every all-reduce algorithm: measured = latency of its steps over the
/// links as calibrated + steps x step_overhead + stretch x time of the bytes. An algorithm without
/// measurements takes the other's, since both send their messages by the same transport.
/// Groups with a device that the cluster does not have are left out.
Status calibrate_collectives(Cluster& cluster, FitLog& log);

}  // namespace agpcs
