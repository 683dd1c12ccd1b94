// SPDX-License-Identifier: Apache-2.0
// What a program that runs a model by itself measures for a profile of it.
#pragma once

#include "tools/common/json.h"
#include "tools/compile/pipeline.h"

#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// Returns what is to be measured of a model on the devices of its cluster, by name and in this
/// order; none: all of them. Its keys:
/// - "model", "precision", "optimizer" (`optimizer_name`) and "batch"; "ignore_index" of the loss,
///   or null;
/// - "devices": "name" and "kind" of each;
/// - "paths": "from" and "to", numbers of devices, and "links" by name. Of up to four devices all,
///   of more those from each to the next, and from the last to the first;
/// - "samples": 1, 2, 4 and so on, up to the batch, but two at least;
/// - "operators": as `agpcs-plan json` has them, with "signature", "class" and "work", which is
///   [forward FLOPs, backward FLOPs, forward bytes, backward bytes] for each of "samples".
/// Errors: a device that the cluster does not have; no batch.
Result<Json> to_measure(const TrainedModel& model, const std::vector<std::string>& devices);

}  // namespace agpcs
