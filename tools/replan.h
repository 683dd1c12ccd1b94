// SPDX-License-Identifier: Apache-2.0
// The replanner of agpcs-run: plans anew with the compiler, for the hardware as it was measured.
#pragma once

#include "cost_model/drifted_cluster.h"
#include "ir/cluster.h"
#include "ir/graph.h"
#include "planner/replan.h"

#include <agpcs/plan.h>
#include <agpcs/replanner.h>
#include <agpcs/status.h>

#include <memory>
#include <string>

namespace agpcs {

/// What `report` says of `cluster`, on which `running` was planned: a device computes as many times
/// longer as its rank does than the plan expects (`computing`; without it, the established
/// changes), links take what explains the routes that were probed (`blame_links`). Other changes
/// (all-reduces, sends) follow from these. Errors: a device that the cluster has not.
Result<HardwareDrift> drift_of(const Plan& running, const HardwareReport& report,
                               const Cluster& cluster);

class CompilerReplanner : public Replanner {
 public:
  /// For people: what differs from the cluster file in the hardware that the last plan was made
  /// for, and what it was told from; a line each. Empty before the first. Any thread.
  virtual std::string hardware_text() const = 0;
};

/// Plans as `agpcs-compile` does, from the running plan on (`replan`), on one thread of the lowest
/// priority. The plan has all ranks of the running one that are not lost, each on its device, and
/// the digest of the whole cluster as it is now. The cluster of each plan that it made is
/// remembered, since later reports are relative to it.
/// `cluster` is calibrated and the one that `plan` was made for, `graph` the training graph that it
/// was made from; errors name both digests where they are not.
Result<std::unique_ptr<CompilerReplanner>> make_compiler_replanner(
    const Plan& plan, Graph graph, Cluster cluster, const ReplanOptions& options = {});

}  // namespace agpcs
