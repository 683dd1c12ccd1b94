// SPDX-License-Identifier: Apache-2.0
// Flows as algorithms of MSCCL, Microsoft's interpreter of collective schedules in NCCL.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>

namespace agpcs {

/// The flow among `members` GPUs as MSCCL's XML (Cowan et al., MSCCLang, ASPLOS 2023; attributes as
/// microsoft/msccl reads them): an all-reduce in place, chunks and order as in the flow, GPUs
/// numbered as members. Each GPU has a thread block for each peer that it sends to and one for each
/// that it receives from; a step that needs another thread block's names it in `depid` and `deps`.
/// The bytes must divide into members x sub_chunks parts, as MSCCL asks. Needs: `verify_flow`.
/// Errors (kInvalidInput): more steps or thread blocks than MSCCL has.
Result<std::string> msccl_xml(const PlanFlow& flow, int members);

}  // namespace agpcs
