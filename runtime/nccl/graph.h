// SPDX-License-Identifier: Apache-2.0
// NcclGraphs: steps of the NCCL transport, recorded as CUDA graphs and replayed.
//
// A replay runs on the compute stream. Until CUDA's notice comes, each lane treats it as an
// operation of its own and watches over it as over any other: communicators, ranks that went away,
// failures of the job. When NCCL's communicators are aborted or closed, they wait for the graphs
// that use them, so graphs are destroyed first.
#pragma once

#include "runtime/nccl/links.h"
#include "runtime/support/recording.h"

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace agpcs {

class NcclLane;

/// An operation of a recording. Its events are null if nothing moves.
struct NcclRecorded {
  Ticket ticket = 0;
  NcclOperation operation;
  cudaEvent_t begun = nullptr, ended = nullptr;  ///< each replay records them anew
  cudaEvent_t joins = nullptr;  ///< in the capture, other work comes after it by this event
};

/// What one lane put into a graph, in order. It owns its events. The thread of the lane's stream
/// uses it; any thread may call `unfinished` and `missing` during a replay.
class NcclRecording {
 public:
  NcclRecording() = default;
  ~NcclRecording();
  NcclRecording(NcclRecording&& other) noexcept;
  NcclRecording& operator=(NcclRecording&& other) noexcept;
  NcclRecording(const NcclRecording&) = delete;
  NcclRecording& operator=(const NcclRecording&) = delete;

  void add(const NcclRecorded& one) { operations_.push_back(one); }
  /// Returns an operation; null: it is not of this recording.
  const NcclRecorded* find(Ticket ticket) const;
  /// Returns the event of the last operation that moves something; null: no operation does.
  cudaEvent_t joins() const;
  /// Sets the event before each replay; operations that end after it count as done.
  void begin_at(cudaEvent_t launched) { launched_ = launched; }

  /// Returns the first operation that is not done yet, "recv from rank 1, 64 bytes", or an
  /// empty string.
  std::string unfinished() const;
  /// Returns the ranks that unfinished operations need, ascending.
  std::vector<int> missing() const;

  Status status;  ///< the error if not all were recorded

 private:
  bool done(const NcclRecorded& one) const;

  std::vector<NcclRecorded> operations_;  // tickets ascend without gaps
  cudaEvent_t launched_ = nullptr;
};

class NcclStepGraph;

/// The graphs of a transport. Any thread may use them.
class NcclGraphs {
 public:
  /// `lanes` are by Stream. They must outlive their replays, but not this object.
  NcclGraphs(int device, cudaStream_t compute) : device_(device), compute_(compute) {}

  using Lanes = std::array<NcclLane*, 3>;
  /// Returns why nothing can be recorded, or an empty string.
  std::string obstacle() const;
  Status begin(const Lanes& lanes);
  Result<std::unique_ptr<StepGraph>> end(const Lanes& lanes, std::chrono::milliseconds limit);

  /// Destroys all graphs: running replays release their memory when they end, and no more replays
  /// begin. Returns false if no replay was under way.
  bool give_up();

 private:
  friend class NcclStepGraph;
  const int device_;
  const cudaStream_t compute_;
  std::mutex mutex_;
  std::vector<NcclStepGraph*> graphs_;
};

}  // namespace agpcs
