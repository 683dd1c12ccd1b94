// SPDX-License-Identifier: Apache-2.0
// Flows as algorithms of MSCCL, Microsoft's interpreter of collective schedules in NCCL.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>

namespace agpcs {

/// Prints the flow among `members` GPUs as MSCCL's XML (Cowan et al., MSCCLang, ASPLOS 2023;
/// attributes as microsoft/msccl reads them): an all-reduce in place, with the chunks and the order
/// of the flow; GPUs have the numbers of members. Each GPU has a thread block for each peer that it
/// sends to, and one for each peer that it receives from. A step that depends on a step of another
/// thread block names it in `depid` and `deps`. The bytes must divide into members x sub_chunks
/// parts, because MSCCL requires it. Needs: `verify_flow`. Errors (kInvalidInput): more steps or
/// thread blocks than MSCCL allows.
Result<std::string> msccl_xml(const PlanFlow& flow, int members);

}  // namespace agpcs
