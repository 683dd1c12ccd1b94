// SPDX-License-Identifier: Apache-2.0
// Measures what training uses of a network: messages, all-reduces, computing and communicating at
// the same time, and what the replayer adds to a message. It measures through the transport that
// replays plans. docs/reference/measuring.md explains how each figure is obtained.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/cluster/profile.h"

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace agpcs {

struct NetworkOptions {
  double seconds = 60;         ///< for all messages and all-reduces together, about
  double longest_message = 1;  ///< seconds; sizes that would take longer are left out
  double overlap_seconds = 2;  ///< for each of the three windows of the overlap
  std::int64_t smallest = 1024, largest = std::int64_t{64} << 20;  ///< bytes; sizes grow by 4
  int all_pairs_up_to = 8;  ///< devices; with more, only pairs that show every link and every class
  /// The memory that messages are sent from and received into, and the type that all-reduces sum.
  /// It has at least `largest` + 64 bytes, and is on the GPU for a transport of GPUs. Empty: fp32
  /// in CPU memory.
  Buffer memory;
  /// Does one repetition of what this device computes in a step, on the calling thread, and returns
  /// when it is finished. If it is empty on any rank, overlap is not measured.
  std::function<Status()> compute;
  /// Number of the first group that all-reduces open; the others follow.
  int first_group = 0;
  /// Longest wait for any single thing, including earlier measurements of other ranks.
  std::chrono::milliseconds limit{120000};
  /// Called on rank 0 with what is measured next.
  std::function<void(const std::string& what)> progress;
};

struct NetworkMeasurements {
  std::vector<MeasuredPath> paths;              ///< the same on every rank, by device numbers
  std::vector<MeasuredCollective> collectives;  ///< the same on every rank, by algorithm, devices
  Overlap overlap;                              ///< of this rank's device
  double message_overhead = 0;                  ///< of this rank, in seconds
};

/// Measures the network of `cluster`, whose device i is rank i. All ranks call it with equal
/// clusters and options (except memory, compute and progress). A single rank measures nothing,
/// because it has no messages.
/// Needs: no collective was started on `transport` yet, and nothing else uses the network
/// meanwhile.
/// Errors: the ranks are not the cluster's devices (the message has both numbers), or a measurement
/// fails. Then the transport is aborted, so that all ranks end, and the status says which rank
/// measured what ("rank 1 (b/0): messages from a/0 to b/0: ...").
Result<NetworkMeasurements> measure_network(const Cluster& cluster, int rank, Transport& transport,
                                            const NetworkOptions& options = {});

}  // namespace agpcs
