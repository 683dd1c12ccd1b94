// SPDX-License-Identifier: Apache-2.0
// Makes a profile from a trace of torch.profiler.
#pragma once

#include "ir/cluster/profile.h"
#include "ir/graph/graph.h"
#include "tools/profile/kineto/trace.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <optional>
#include <string>

namespace agpcs {

struct KinetoOptions {
  std::string kind;          ///< name of the device's entry in the profile; empty: the GPU's name
  std::int64_t samples = 0;  ///< of a step; 0: as its shapes say
  std::optional<Optimizer> optimizer;  ///< whose update was traced; absent: as the trace says
};

struct KinetoProfile {
  DeviceProfile device;
  std::string report;    ///< what was found, ready to print
  std::string warnings;  ///< what the profile lacks, ready to print; empty: nothing
};

/// Makes a profile of the traced steps. Each operator of PyTorch becomes an entry of its own, for
/// the fits by class. With `model` (loss attached, backward derived), each operator of the model
/// gets an entry, too, with the times that `match_model` gives it.
///
/// Steps with the same operators are one measurement; times are their medians. Of several such
/// groups for one number of samples, the largest counts.
/// Errors (kInvalidInput): no name for the device; no operator with shapes; the trace is not of
/// this model, or of another number of samples.
Result<KinetoProfile> profile_of_trace(const KinetoTrace& trace, const Graph* model,
                                       const KinetoOptions& options);

}  // namespace agpcs
