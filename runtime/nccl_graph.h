// SPDX-License-Identifier: Apache-2.0
// NcclGraphs: steps of the NCCL transport recorded as CUDA graphs, and their replays.
//
// A replay is under way on the compute stream; each lane takes it for an operation of its own until
// CUDA's notice comes, and so looks after it as after any other: communicators, ranks that went
// away, failures of the job. NCCL's communicators wait for the graphs that use them when they are
// aborted or closed, so that graphs are destroyed first.
#pragma once

#include "runtime/nccl_links.h"

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

/// An operation of a recording. Events are null where nothing moves.
struct NcclRecorded {
  Ticket ticket = 0;
  NcclOperation operation;
  cudaEvent_t begun = nullptr, ended = nullptr;  ///< recorded anew by each replay
  cudaEvent_t joins = nullptr;                   ///< by which others come after it, in the capture
};

/// What one lane put into a graph, in order. Owns its events. Threads as for the lane's stream, but
/// `unfinished` and `missing` are anybody's during a replay.
class NcclRecording {
 public:
  NcclRecording() = default;
  ~NcclRecording();
  NcclRecording(NcclRecording&& other) noexcept;
  NcclRecording& operator=(NcclRecording&& other) noexcept;
  NcclRecording(const NcclRecording&) = delete;
  NcclRecording& operator=(const NcclRecording&) = delete;

  void add(const NcclRecorded& one) { operations_.push_back(one); }
  /// Null: it is not of this recording.
  const NcclRecorded* find(Ticket ticket) const;
  /// Of the last operation that moves something; null: none does.
  cudaEvent_t joins() const;
  /// The event before each replay, from which on operations count as done.
  void begin_at(cudaEvent_t launched) { launched_ = launched; }

  /// The first operation that is not done yet, "recv from rank 1, 64 bytes"; empty: all are.
  std::string unfinished() const;
  /// The ranks that those not done yet need, ascending.
  std::vector<int> missing() const;

  Status status;  ///< why not all were recorded

 private:
  bool done(const NcclRecorded& one) const;

  std::vector<NcclRecorded> operations_;  // tickets ascending, without gaps
  cudaEvent_t launched_ = nullptr;
};

class NcclStepGraph;

/// The graphs of a transport. Any thread.
class NcclGraphs {
 public:
  /// Lanes by Stream; they outlive their replays, not this.
  NcclGraphs(int device, cudaStream_t compute) : device_(device), compute_(compute) {}

  using Lanes = std::array<NcclLane*, 3>;
  /// Why nothing can be recorded.
  std::string obstacle() const;
  Status begin(const Lanes& lanes);
  Result<std::unique_ptr<StepGraph>> end(const Lanes& lanes, std::chrono::milliseconds limit);

  /// Destroys all: what runs is let go of when it ends, and no more replays begin. False: no replay
  /// was under way.
  bool give_up();

 private:
  friend class NcclStepGraph;
  const int device_;
  const cudaStream_t compute_;
  std::mutex mutex_;
  std::vector<NcclStepGraph*> graphs_;
};

}  // namespace agpcs
