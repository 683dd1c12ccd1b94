// SPDX-License-Identifier: Apache-2.0
// agpcs-run --trace: the last steps as all ranks measured them.
#pragma once

#include "ir/graph.h"
#include "tools/common.h"
#include "tools/measured_step.h"
#include "tools/run_options.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/trainer.h>
#include <agpcs/transport.h>

#include <chrono>

namespace agpcs {

/// Brings the times of one step, that whose length is the median of those kept, and medians over
/// all kept ones to rank 0 (other ranks get an empty step). All ranks call it after the same step,
/// between two steps; messages are its own. A rank's clock is set so that the step's report, which
/// ends on all ranks at about the same time, ends together.
Result<MeasuredStep> gather_step(const Trainer& trainer, Transport& transport,
                                 std::chrono::milliseconds limit);

/// `gather_step`, and on rank 0 the file: beside the measured step the planned one where a cluster
/// file is given (`--trace-cluster`, else `--replan`). What cannot be simulated is a warning.
Status write_trace(const Trainer& trainer, const Graph& graph, const RunOptions& options,
                   Transport& transport, Console console);

}  // namespace agpcs
