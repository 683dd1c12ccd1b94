// SPDX-License-Identifier: Apache-2.0
// agpcs-run --trace: gathers and writes the last steps as all ranks measured them.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "tools/common/common.h"
#include "tools/common/measured_step.h"
#include "tools/run/options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/trainer.h>
#include <agpcs/transport.h>

#include <chrono>
#include <optional>

namespace agpcs {

/// Brings the times of one step, and medians over all kept steps, to rank 0. The step is the one
/// whose length is nearest to the median of those kept. Other ranks get an empty step. All ranks
/// call it after the same step, between two steps; the messages are its own. The clocks of the
/// ranks are aligned so that the step's report, which ends on all ranks at about the same time,
/// ends at the same time.
Result<MeasuredStep> gather_step(const Trainer& trainer, Transport& transport,
                                 std::chrono::milliseconds limit);

/// Checks before training, on rank 0, what `write_trace` needs: that --trace can be written, and
/// the cluster of the planned step (`--trace-cluster`, else `--replan`; none if neither is given).
/// Errors: the cluster file cannot be read, or is not the plan's (the message has both digests).
Result<std::optional<Cluster>> prepare_trace(const Plan& plan, const RunOptions& options);

/// Does `gather_step`, and writes the file on rank 0. The planned step stands beside the measured
/// one if there is a `cluster`. If it cannot be simulated, that is a warning.
Status write_trace(const Trainer& trainer, const Graph& graph, const Cluster* cluster,
                   const RunOptions& options, Transport& transport, Console console);

}  // namespace agpcs
