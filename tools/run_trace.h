// SPDX-License-Identifier: Apache-2.0
// agpcs-run --trace: the last steps as all ranks measured them.
#pragma once

#include "ir/cluster.h"
#include "ir/graph.h"
#include "tools/common.h"
#include "tools/measured_step.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/trainer.h>
#include <agpcs/transport.h>

#include <chrono>
#include <optional>

namespace agpcs {

/// Brings the times of one step, that whose length is the median of those kept, and medians over
/// all kept ones to rank 0 (other ranks get an empty step). All ranks call it after the same step,
/// between two steps; messages are its own. A rank's clock is set so that the step's report, which
/// ends on all ranks at about the same time, ends together.
Result<MeasuredStep> gather_step(const Trainer& trainer, Transport& transport,
                                 std::chrono::milliseconds limit);

/// What rank 0 looks at before training, for `write_trace`: whether --trace can be written, and the
/// cluster of the planned step (`--trace-cluster`, else `--replan`; none without). Errors: the
/// cluster file cannot be read, or is not the plan's (both digests).
Result<std::optional<Cluster>> prepare_trace(const Plan& plan, const RunOptions& options);

/// `gather_step`, and on rank 0 the file: beside the measured step the planned one where there is a
/// `cluster`. What cannot be simulated is a warning.
Status write_trace(const Trainer& trainer, const Graph& graph, const Cluster* cluster,
                   const RunOptions& options, Transport& transport, Console console);

}  // namespace agpcs
