// SPDX-License-Identifier: Apache-2.0
// The replanner of agpcs-run: it makes a new plan with the compiler for the hardware as measured.
#pragma once

#include "cost_model/explain/drifted_cluster.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "planner/replan.h"

#include <agpcs/plan.h>
#include <agpcs/replanner.h>
#include <agpcs/status.h>

#include <memory>
#include <string>

namespace agpcs {

/// Returns how the hardware differs from `cluster`, on which `running` was planned, according to
/// `report`. A device is slower than the plan expects by the factor of its rank in `computing`; if
/// `computing` is absent, by the established changes. Links get the changes that explain the probed
/// routes (`blame_links`). Other changes (all-reduces, sends) follow from these. Errors: a device
/// that the cluster does not have.
Result<HardwareDrift> drift_of(const Plan& running, const HardwareReport& report,
                               const Cluster& cluster);

class CompilerReplanner : public Replanner {
 public:
  /// Describes for people how the hardware that the last plan was made for differs from the cluster
  /// file, and which measurements show it; one item per line. Empty before the first plan. Callable
  /// on any thread.
  virtual std::string hardware_text() const = 0;
};

/// Makes a replanner that plans as `agpcs-compile` does, starting from the running plan (`replan`),
/// on one thread of the lowest priority. The new plan has every rank of the running one that is not
/// lost, each on its device, and the digest of the whole current cluster. It may have teams if
/// `plan` has. The replanner remembers
/// the cluster of each plan that it made, because later reports are relative to it. Needs:
/// `cluster` is calibrated and is the one that `plan` was made for; `graph` is the training graph
/// that `plan` was made from. Errors: a digest differs (the message names both).
Result<std::unique_ptr<CompilerReplanner>> make_compiler_replanner(
    const Plan& plan, Graph graph, Cluster cluster, const ReplanOptions& options = {});

}  // namespace agpcs
