// SPDX-License-Identifier: Apache-2.0
// The part of a lane that puts operations into a graph and watches over replays.
#include "runtime/nccl/lane.h"
#include "runtime/nccl/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {

using std::chrono::milliseconds;

namespace {

// Returns whether the capture that the stream is part of was broken off.
bool capture_is_broken(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(stream, &status) == cudaSuccess &&
         status == cudaStreamCaptureStatusInvalidated;
}

}  // namespace

std::string NcclLane::Job::text() const {
  if (replayed == nullptr) return operation.text();
  const std::string unfinished = replayed->unfinished();
  return unfinished.empty() ? "the recorded step" : unfinished;
}

std::vector<int> NcclLane::Job::peers() const {
  if (replayed != nullptr) return replayed->missing();
  const std::span<const int> all = operation.peers();
  return {all.begin(), all.end()};
}

// Needs no lock while it uses the event: a recorded operation does not change.
Status NcclLane::order_after_recorded(Ticket ticket) {
  cudaEvent_t joins = nullptr;
  {
    const std::lock_guard lock(mutex_);
    AGPCS_RETURN_IF_ERROR(recorded_.status);
    const NcclRecorded* last = recorded_.find(ticket);
    if (last != nullptr) joins = last->joins;
  }
  if (joins == nullptr) return {};  // nothing moves, or it came before the recording
  const CudaDeviceScope scope(device_);
  AGPCS_RETURN_IF_ERROR(scope.status());
  return cuda_status(cudaStreamWaitEvent(compute_, joins, 0), "wait for the operation");
}

Status NcclLane::begin_recording() {
  const std::lock_guard lock(mutex_);
  AGPCS_RETURN_IF_ERROR(failure_);
  if (!jobs_.empty() || recording_) {
    return internal_error(fmt::format("recording begins with {} under way", jobs_.size()));
  }
  recording_ = true;
  return {};
}

Result<NcclRecording> NcclLane::end_recording(milliseconds limit) {
  std::unique_lock lock(mutex_);
  const bool all = changed_.wait_for(lock, limit, [&] { return !failure_.ok() || jobs_.empty(); });
  const Status late = all ? Status() : timed_out(limit);
  recording_ = false;
  NcclRecording recorded = std::exchange(recorded_, NcclRecording());
  AGPCS_RETURN_IF_ERROR(failure_);
  AGPCS_RETURN_IF_ERROR(late);
  lock.unlock();
  const CudaDeviceScope scope(device_);
  Status status = scope.status();
  if (status.ok()) status = recorded.status;
  if (status.ok() && recorded.joins() != nullptr) {
    status = cuda_status(cudaStreamWaitEvent(compute_, recorded.joins(), 0), "join the operations");
  }
  AGPCS_RETURN_IF_ERROR(status);
  return Result<NcclRecording>(std::move(recorded));
}

Result<Ticket> NcclLane::begin_replay(const NcclRecording& recording) {
  Job job;
  job.replayed = &recording;
  const std::lock_guard lock(mutex_);
  AGPCS_RETURN_IF_ERROR(failure_);
  jobs_.push_back(job);
  changed_.notify_all();
  return ++enqueued_;
}

void NcclLane::notice() {
  const std::lock_guard lock(mutex_);
  ++notices_;
  changed_.notify_all();
}

// Joins the capture by the event of the computations before it. An operator that asks the device
// for a value breaks the capture off, at any moment: NCCL is not called after that, and what fails
// because of it is the recording, not the lane.
void NcclLane::record(Job& job) {
  NcclRecorded made;
  made.operation = job.operation;
  bool moves = job.operation.moves();
  {
    const std::lock_guard lock(mutex_);
    moves = moves && recorded_.status.ok();
  }
  Status broken, status;
  if (moves) {
    broken = cuda_status(cudaStreamWaitEvent(stream_, job.computed, 0), "wait for a computation");
  }
  if (moves && broken.ok()) {
    status = put_on_stream(job, job.operation.buffer.data, cudaEventRecordExternal);
    made.joins = std::exchange(job.computed, nullptr);
    if (status.ok()) {
      status = cuda_status(cudaEventRecord(made.joins, stream_), "record an event");
    }
    if (!status.ok() && capture_is_broken(stream_)) broken = std::exchange(status, Status());
  }
  awaited_ = {};
  made.begun = std::exchange(job.begun, nullptr);
  made.ended = std::exchange(job.ended, nullptr);
  if (!status.ok()) give_up(job.operation.text(), status);
  const std::lock_guard lock(mutex_);
  if (job.computed != nullptr) events_.push_back(job.computed);
  if (!broken.ok()) recorded_.status = broken;
  made.ticket = ++done_;
  times_.ran(done_, 0, 0);
  recorded_.add(made);
  jobs_.pop_front();
  changed_.notify_all();
}

}  // namespace agpcs
