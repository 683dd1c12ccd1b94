// SPDX-License-Identifier: Apache-2.0
// Recording of steps: the work that a step gives to a GPU is recorded once, and from then on
// replayed by one launch (a CUDA graph). Not installed.
#pragma once

#include <agpcs/executor.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace agpcs {

/// A step that was recorded together with the compute stream's work. Destroy it before its
/// transport and before the memory that it reads and writes. Only one thread may use it.
class StepGraph {
 public:
  virtual ~StepGraph() = default;
  /// Starts a replay without waiting for it.
  /// Needs: the last replay has been waited for, no other operation of the transport is under way,
  /// and all ranks of the recorded operations launch their graphs.
  virtual Status launch() = 0;
  /// Waits for the whole replay, under the rules of `Transport::wait`. kTimeout names what has not
  /// ended.
  virtual Status wait(std::chrono::milliseconds limit) = 0;
  /// Returns when a recorded operation ran in the last replay. Needs: that replay was waited for.
  virtual OperationTime time_of(Stream stream, Ticket ticket) const = 0;
};

/// A transport over which steps can be recorded derives from this class, too. No recorded step may
/// use groups that `Transport::close_groups` closes.
class RecordingTransport {
 public:
  virtual ~RecordingTransport() = default;
  /// Returns why no step can be recorded over this transport, or an empty string if one can.
  virtual std::string recording_obstacle() const = 0;
  /// Starts recording. Until `end_recording`, the work given to the compute stream and the
  /// operations enqueued are recorded and not carried out; `Transport::order_after` orders what is
  /// recorded. Buffers must be on the GPU and stay where they are.
  /// Needs: no operation is under way; each pair and each group has exchanged something before; all
  /// ranks of the operations record them, too.
  virtual Status begin_recording() = 0;
  /// Ends the recording; call it in any case, also after an error. If the recording failed, it
  /// returns an error and the transport goes on as before. If the operations themselves failed, the
  /// next operation reports it.
  virtual Result<std::unique_ptr<StepGraph>> end_recording(std::chrono::milliseconds limit) = 0;
};

/// An executor whose steps can be recorded derives from this class, too.
class RecordingExecutor {
 public:
  virtual ~RecordingExecutor() = default;
  /// Returns why this stage's steps cannot be recorded and replayed, such as the node that prevents
  /// it, as far as that is known before a recording is tried; returns an empty string if they can.
  /// Needs: a step has run.
  virtual std::string recording_obstacle() const = 0;
  /// Between `begin_recording` and `end_recording`, the calls of one step (`begin_step` to
  /// `update`) are recorded on the compute stream and compute nothing; buffers returned in between
  /// stay where they are. The caller calls `end_recording` in any case.
  virtual Status begin_recording() = 0;
  virtual Status end_recording() = 0;
  /// Replaces a step's calls before its replay: copies what the host knows of step `step` (samples,
  /// the optimizer's step number) to where the recorded step reads it.
  virtual Status load_step(std::int64_t step) = 0;
};

inline std::string recording_obstacle(const Transport& transport) {
  const auto* records = dynamic_cast<const RecordingTransport*>(&transport);
  return records != nullptr ? records->recording_obstacle()
                            : "the transport computes on no GPU of its own";
}
inline std::string recording_obstacle(const Executor& executor) {
  const auto* records = dynamic_cast<const RecordingExecutor*>(&executor);
  return records != nullptr ? records->recording_obstacle() : "it computes on a CPU";
}

}  // namespace agpcs
