// SPDX-License-Identifier: Apache-2.0
// All-reduce schedules as execution plans of MSCCL++.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Prints the flow among GPUs on the hosts `host_of_member` as an execution plan of MSCCL++'s
/// executor, in JSON (as microsoft/mscclpp's execution_plan.cc reads it): an all-reduce in place,
/// with the chunks and the messages of the flow. GPUs have the numbers of members.
/// - Each chunk has a thread block of its own on every GPU, up to 64; beyond that, chunks share
/// them
///   in turns. Thread blocks never wait for each other.
/// - A message of the reduce-scatter is a put into a place of its own in the receiver's scratch
///   buffer, which the receiver then adds. A message of the all-gather is a put into the buffer. A
///   signal follows each put, and the receiver waits for it.
/// - GPUs of one host use memory channels, others port channels, flushed at the end.
/// Needs: for every chunk, the messages of the reduce-scatter form a tree to one member, and those
/// of the all-gather a tree from it. Errors (kInvalidInput): more operations, channels or buffers
/// of a thread block than MSCCL++ has.
Result<std::string> mscclpp_json(const PlanFlow& flow, const std::vector<int>& host_of_member);

/// Returns the number of bytes whose multiples that all-reduce takes.
std::int64_t mscclpp_unit(const PlanFlow& flow, int members);

}  // namespace agpcs
