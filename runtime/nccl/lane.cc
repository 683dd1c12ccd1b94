// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/lane.h"

#include "runtime/nccl/status.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace agpcs {
namespace {

using std::chrono::milliseconds;

// How often the thread checks on what is under way while no notice comes.
constexpr milliseconds kInspection{500};
// Interval between checks of work that NCCL does outside the GPU, such as connecting; it gives no
// notice of its end.
constexpr milliseconds kMoment{1};
// How long an operation may take to be recorded.
constexpr milliseconds kRecordingLimit{60000};
// How long the last bytes may take to leave this rank.
constexpr milliseconds kFarewell{2000};

}  // namespace

NcclLane::NcclLane(NcclMeeting& meeting, int device, cudaStream_t compute,
                   std::function<void(const Status&)> on_failure)
    : meeting_(meeting),
      device_(device),
      compute_(compute),
      on_failure_(std::move(on_failure)),
      links_(meeting),
      thread_([this] { run(); }) {}

NcclLane::~NcclLane() {
  stop();
  thread_.join();
  const CudaDeviceScope scope(device_);
  for (cudaEvent_t event : events_) cudaEventDestroy(event);
}

void NcclLane::stop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

void NcclLane::await_end() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return drained_; });
}

void NcclLane::fail(const Status& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = reason;
  changed_.notify_all();
}

void NcclLane::begin(std::string what, Task task) {
  const std::lock_guard lock(mutex_);
  task_name_ = std::move(what);
  task_ = std::move(task);
  task_status_ = {};
  changed_.notify_all();
}

Status NcclLane::finish(milliseconds limit) {
  std::unique_lock lock(mutex_);
  const auto over = [&] { return !task_ || drained_; };
  if (!changed_.wait_for(lock, limit, over)) {
    if (failure_.ok()) {
      failure_ = Status(StatusCode::kTimeout,
                        fmt::format("{}: timed out after {} ms", task_name_, limit.count()));
    }
    changed_.notify_all();
    changed_.wait(lock,
                  over);  // the task notices soon, and uses what its caller lent it until then
  }
  return failure_.ok() ? task_status_ : failure_;
}

Result<Ticket> NcclLane::enqueue(const NcclOperation& operation) {
  Job job;
  job.operation = operation;
  {
    const std::lock_guard lock(mutex_);
    if (recording_ && operation.moves() && !operation.buffer.on_gpu) {
      return Status(StatusCode::kUnavailable,
                    fmt::format("{}: its buffer is in CPU memory, which no recorded step reaches",
                                operation.text()));
    }
  }
  if (operation.buffer.on_gpu && operation.moves()) {
    const Status recorded = record_compute(job.computed);
    if (!recorded.ok()) {
      const std::lock_guard lock(mutex_);
      if (job.computed != nullptr) events_.push_back(job.computed);
      return recorded;
    }
  }
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) {
    if (job.computed != nullptr) events_.push_back(job.computed);
    return failure_;
  }
  jobs_.push_back(job);
  changed_.notify_all();
  const Ticket ticket = ++enqueued_;
  // CUDA does not synchronize what threads add to one graph, so that the caller must not go on
  // meanwhile. The lane waits for no other rank, whose connections are there.
  const auto over = [&] { return !failure_.ok() || done_ >= ticket; };
  if (recording_ && !changed_.wait_for(lock, kRecordingLimit, over)) {
    failure_ = timed_out(kRecordingLimit);
    changed_.notify_all();
  }
  return ticket;
}

Status NcclLane::record_compute(cudaEvent_t& event) {
  const CudaDeviceScope scope(device_);
  AGPCS_RETURN_IF_ERROR(scope.status());
  {
    const std::lock_guard lock(mutex_);
    if (!events_.empty()) {
      event = events_.back();
      events_.pop_back();
    }
  }
  if (event == nullptr) {
    AGPCS_RETURN_IF_ERROR(
        cuda_status(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "create an event"));
  }
  return cuda_status(cudaEventRecord(event, compute_), "record an event");
}

Status NcclLane::wait(Ticket ticket, milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (ticket > enqueued_) {
    return internal_error(fmt::format("ticket {} of {} was never given", ticket, enqueued_));
  }
  changed_.wait_for(lock, limit, [&] { return failure_.ok() ? done_ >= ticket : drained_; });
  if (done_ >= ticket) return {};
  return failure_.ok() ? timed_out(limit) : failure_;
}

Status NcclLane::timed_out(milliseconds limit) const {
  return {StatusCode::kTimeout,
          fmt::format("{}: timed out after {} ms",
                      jobs_.front().replayed != nullptr ? "the recorded step"
                                                        : jobs_.front().operation.text(),
                      limit.count())};
}

// Returns whether an unfinished operation, up to `ticket`, goes through the host's memory.
bool NcclLane::staged(Ticket ticket) const {
  return std::any_of(jobs_.begin(), jobs_.begin() + static_cast<std::ptrdiff_t>(ticket - done_),
                     [](const Job& job) { return !job.operation.buffer.on_gpu; });
}

// CUDA is called without the lock: the call may block until the device has made progress, and
// CUDA's notices need the lock.
Status NcclLane::order_after(Ticket ticket, milliseconds limit) {
  std::unique_lock lock(mutex_);
  if (ticket > enqueued_) {
    return internal_error(fmt::format("ticket {} of {} was never given", ticket, enqueued_));
  }
  const auto started = [&] { return !failure_.ok() || done_ + launched_ >= ticket; };
  if (!changed_.wait_for(lock, limit, started)) return timed_out(limit);
  if (recording_ && failure_.ok()) {
    lock.unlock();
    return order_after_recorded(ticket);
  }
  if (!failure_.ok() || done_ >= ticket || staged(ticket)) {
    lock.unlock();
    return wait(ticket, limit);
  }
  const cudaEvent_t ended = jobs_[static_cast<std::size_t>(ticket - done_ - 1)].ended;
  if (ended == nullptr) return {};  // nothing moves
  ordering_ = true;
  lock.unlock();
  const CudaDeviceScope scope(device_);
  Status status = scope.status();
  if (status.ok()) {
    status = cuda_status(cudaStreamWaitEvent(compute_, ended, 0), "wait for the operation");
  }
  lock.lock();
  ordering_ = false;
  changed_.notify_all();
  return status;
}

OperationTime NcclLane::time_of(Ticket ticket) const {
  const std::lock_guard lock(mutex_);
  return times_.of(ticket);
}

void NcclLane::run() {
  const Status ready = set_up();
  if (ready.ok()) {
    work();
  } else {
    fail(ready);
  }
  shut_down();
}

Status NcclLane::set_up() {
  AGPCS_RETURN_IF_ERROR(cuda_status(cudaSetDevice(device_), "use the device"));
  // The stream is not ordered with the default stream, on which the caller computes.
  return cuda_status(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "create a stream");
}

void NcclLane::work() {
  std::unique_lock lock(mutex_);
  const auto called = [&] {
    return stopping_ || !failure_.ok() || task_ || (notices_ > 0 && launched_ > 0) || may_start();
  };
  while (true) {
    const bool quiet = launched_ > 0 && !changed_.wait_for(lock, kInspection, called);
    if (launched_ == 0) changed_.wait(lock, called);
    if (stopping_ || !failure_.ok()) return;
    const bool noticed = notices_ > 0 && launched_ > 0;
    const bool task = static_cast<bool>(task_);
    // Adding jobs to the queue does not move these, and only this thread removes jobs.
    Job* front = launched_ > 0 ? &jobs_.front() : nullptr;
    Job* next = may_start() ? &jobs_[launched_] : nullptr;
    lock.unlock();
    if (quiet) {
      const Status status = inspect(front->peers());
      if (!status.ok()) give_up(front->text(), status);
    } else if (noticed) {
      retire(*front);
    } else if (task) {
      run_task();
    } else {
      start(*next);
    }
    lock.lock();
  }
}

// A replay has the lane to itself, since its notice comes from another stream.
bool NcclLane::may_start() const {
  if (launched_ == jobs_.size()) return false;
  return launched_ == 0 || (!jobs_.front().replayed && !jobs_[launched_].replayed);
}

bool NcclLane::replaying() const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const Job& job) { return job.replayed != nullptr; });
}

void NcclLane::run_task() {
  const Status status = task_(links_, pause_);
  if (!status.ok()) give_up(task_name_, status);
  const std::lock_guard lock(mutex_);
  task_ = nullptr;
  task_status_ = status;
  changed_.notify_all();
}

void NcclLane::start(Job& job) {
  {
    const std::lock_guard lock(mutex_);
    if (job.replayed != nullptr) {  // it runs by itself
      ++launched_;
      return changed_.notify_all();
    }
  }
  awaited_ = job.operation.peers();
  inspected_ = Clock::now();
  if (recording_) return record(job);  // changes only while no operation is started
  const Status status = launch(job);
  awaited_ = {};
  if (!status.ok()) return give_up(job.operation.text(), status);
  const std::lock_guard lock(mutex_);
  ++launched_;
  changed_.notify_all();
}

Result<cudaEvent_t> NcclLane::timed_event() {
  cudaEvent_t event = nullptr;
  if (timed_events_.empty()) {
    AGPCS_RETURN_IF_ERROR(cuda_status(cudaEventCreate(&event), "create an event"));
    return event;
  }
  event = timed_events_.back();
  timed_events_.pop_back();
  return event;
}

Status NcclLane::launch(Job& job) {
  if (job.operation.moves()) {
    if (job.computed != nullptr) {
      AGPCS_RETURN_IF_ERROR(
          cuda_status(cudaStreamWaitEvent(stream_, job.computed, 0), "wait for the computation"));
    }
    const bool staged = !job.operation.buffer.on_gpu;
    if (staged) AGPCS_RETURN_IF_ERROR(copy_in(job));
    void* data = staged ? job.staging.device : job.operation.buffer.data;
    AGPCS_RETURN_IF_ERROR(put_on_stream(job, data, cudaEventRecordDefault));
    if (staged) AGPCS_RETURN_IF_ERROR(copy_out(job, stream_));
  }
  const auto notify = [](void* lane) { static_cast<NcclLane*>(lane)->notice(); };
  return cuda_status(cudaLaunchHostFunc(stream_, notify, this), "ask for a notice");
}

// Puts the operation on the stream between two events that time it.
Status NcclLane::put_on_stream(Job& job, void* data, unsigned event_flags) {
  AGPCS_TRY(job.begun, timed_event());
  AGPCS_TRY(job.ended, timed_event());
  AGPCS_RETURN_IF_ERROR(
      cuda_status(cudaEventRecordWithFlags(job.begun, stream_, event_flags), "record an event"));
  AGPCS_RETURN_IF_ERROR(links_.start(job.operation, data, stream_, pause_));
  return cuda_status(cudaEventRecordWithFlags(job.ended, stream_, event_flags), "record an event");
}

Status NcclLane::copy_in(Job& job) {
  const Buffer& buffer = job.operation.buffer;
  AGPCS_TRY(job.staging, staging_.take(buffer.bytes));
  if (job.operation.kind == NcclOperation::Kind::kRecv) return {};
  std::memcpy(job.staging.host, buffer.data, buffer.bytes);
  return cuda_status(cudaMemcpyAsync(job.staging.device, job.staging.host, buffer.bytes,
                                     cudaMemcpyHostToDevice, stream_),
                     "copy to the device");
}

Status NcclLane::copy_out(const Job& job, cudaStream_t stream) {
  if (job.operation.kind == NcclOperation::Kind::kSend) return {};
  return cuda_status(cudaMemcpyAsync(job.staging.host, job.staging.device,
                                     job.operation.buffer.bytes, cudaMemcpyDeviceToHost, stream),
                     "copy from the device");
}

std::int64_t NcclLane::duration_of(const Job& job) {
  float milliseconds = 0;
  if (job.ended == nullptr ||
      cudaEventElapsedTime(&milliseconds, job.begun, job.ended) != cudaSuccess) {
    return 0;
  }
  return static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
}

void NcclLane::retire(const Job& job) {
  const std::int64_t end = steady_nanoseconds(), begin = end - duration_of(job);
  const Buffer& buffer = job.operation.buffer;
  if (job.staging.host != nullptr) {
    if (job.operation.kind != NcclOperation::Kind::kSend) {
      std::memcpy(buffer.data, job.staging.host, buffer.bytes);
    }
    staging_.give(job.staging);
  }
  leaving_ = -1;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !ordering_; });
  if (job.computed != nullptr) events_.push_back(job.computed);
  for (cudaEvent_t event : {job.begun, job.ended}) {
    if (event != nullptr) timed_events_.push_back(event);
  }
  times_.ran(++done_, begin, end);
  jobs_.pop_front();
  --launched_;
  --notices_;
  changed_.notify_all();
}

Status NcclLane::pause() {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kMoment, [&] { return stopping_ || !failure_.ok(); });
    if (!failure_.ok()) return failure_;
    if (stopping_) return {StatusCode::kCancelled, "the transport is closing"};
  }
  if (Clock::now() - inspected_ < kInspection) return {};
  inspected_ = Clock::now();
  return inspect(awaited_);
}

// A rank may leave when its part is done, while its last bytes are still on their way. So its
// absence counts only if the bytes have not come by the next check.
Status NcclLane::inspect(std::span<const int> peers) {
  AGPCS_RETURN_IF_ERROR(links_.health());
  if (!recording_) {  // a query would break off the capture
    const cudaError_t error = cudaStreamQuery(stream_);
    const Status going = cuda_status(error, "go on");  // also clears the error that it reads
    if (error != cudaErrorNotReady) AGPCS_RETURN_IF_ERROR(going);
  }
  const int before = std::exchange(leaving_, meeting_.gone(peers));
  if (leaving_ < 0 || leaving_ != before) return {};
  return {StatusCode::kPeerFailed, fmt::format("rank {} went away", leaving_)};
}

void NcclLane::give_up(const std::string& what, const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.ok()) return;  // `status` only follows from it
  }
  const Status cause = meeting_.first_cause(status);
  fail({cause.code(), fmt::format("{}: {}", what, cause.message())});
}

void NcclLane::shut_down() {
  std::unique_lock lock(mutex_);
  const bool regular = failure_.ok() && jobs_.empty(), replays = replaying();
  const Status failure = failure_;
  lock.unlock();
  if (regular) {
    const auto deadline = Clock::now() + kFarewell;
    links_.close([this, deadline] {
      std::unique_lock held(mutex_);
      changed_.wait_for(held, kMoment, [&] { return !failure_.ok(); });
      return Clock::now() < deadline ? failure_ : Status(StatusCode::kTimeout, "timed out");
    });
  } else {
    if (!failure.ok()) on_failure_(failure);
    links_.abort();
  }
  // From here on CUDA touches no buffer and gives no more notices.
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (replays) cudaStreamSynchronize(compute_);
  lock.lock();
  if (failure_.ok()) {
    failure_ = Status(StatusCode::kCancelled,
                      fmt::format("rank {} closed its transport", meeting_.rank()));
  }
  changed_.wait(lock, [&] { return !ordering_; });
  for (const Job& job : jobs_) {
    if (job.computed != nullptr) events_.push_back(job.computed);
    for (cudaEvent_t event : {job.begun, job.ended}) {
      if (event != nullptr) timed_events_.push_back(event);
    }
    if (job.staging.host != nullptr) staging_.give(job.staging);
  }
  jobs_.clear();
  launched_ = 0;
  task_ = nullptr;
  drained_ = true;
  changed_.notify_all();
  lock.unlock();
  staging_.release();
  links_.release();
  for (cudaEvent_t event : timed_events_) cudaEventDestroy(event);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

}  // namespace agpcs
