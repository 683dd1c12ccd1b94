// SPDX-License-Identifier: Apache-2.0
// Measuring what training takes from a network: messages, all-reduces, computing and communicating
// at the same time, and what the replayer adds to a message. Through the transport that
// replays; docs/measuring.md says how each figure is obtained.
#pragma once

#include "ir/cluster.h"
#include "ir/profile.h"

#include <agpcs/executor.h>
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
  double overlap_seconds = 2;  ///< of each of the three windows of the overlap
  std::int64_t smallest = 1024, largest = std::int64_t{64} << 20;  ///< bytes; sizes grow by 4
  int all_pairs_up_to = 8;  ///< devices; with more, pairs that show every link and every class
  /// What messages are sent from and received into, and its type, by which all-reduces sum: at
  /// least `largest` + 64 bytes, on the GPU for a transport of GPUs. Empty: fp32 in CPU memory.
  Buffer memory;
  /// One repetition of what this device computes in a step, finished when it returns; called on the
  /// calling thread. Empty on any rank: overlap is not measured.
  std::function<Status()> compute;
  /// Groups that all-reduces need are opened with numbers from here on.
  int first_group = 0;
  /// Longest wait for any one thing, other ranks' measurements before it included.
  std::chrono::milliseconds limit{120000};
  /// On rank 0: told what is measured next.
  std::function<void(const std::string& what)> progress;
};

struct NetworkMeasurements {
  std::vector<MeasuredPath> paths;              ///< the same on every rank, by devices' numbers
  std::vector<MeasuredCollective> collectives;  ///< the same on every rank, by algorithm, devices
  MeasuredOverlap overlap;                      ///< of this rank's device
  double message_overhead = 0;                  ///< seconds, of this rank
};

/// Rank i is device i of `cluster`, and all ranks call it with equal clusters and options (apart
/// from memory, compute and progress). Needs: no collective was started on `transport` yet; nothing
/// else is on the network meanwhile. One rank measures nothing: it has no messages.
/// Errors: ranks that are not the cluster's devices (both numbers), and whatever fails on the way:
/// the transport is then aborted, so that all ranks end, and the status says which rank measured
/// what ("rank 1 (b/0): messages from a/0 to b/0: ...").
Result<NetworkMeasurements> measure_network(const Cluster& cluster, int rank, Transport& transport,
                                            const NetworkOptions& options = {});

}  // namespace agpcs
