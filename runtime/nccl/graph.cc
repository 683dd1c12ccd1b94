// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/graph.h"

#include "runtime/nccl/lane.h"
#include "runtime/nccl/status.h"
#include "runtime/support/operation_times.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

using std::chrono::milliseconds;

// Returns the time from `begin` to `end`; below 0: `end` was before `begin` or has not happened.
std::int64_t nanoseconds_between(cudaEvent_t begin, cudaEvent_t end) {
  float elapsed = 0;  // milliseconds
  if (cudaEventElapsedTime(&elapsed, begin, end) != cudaSuccess) {
    [[maybe_unused]] const cudaError_t cleared = cudaGetLastError();
    return -1;
  }
  return static_cast<std::int64_t>(static_cast<double>(elapsed) * 1e6);
}

}  // namespace

NcclRecording::~NcclRecording() {
  for (const NcclRecorded& one : operations_) {
    for (cudaEvent_t event : {one.begun, one.ended, one.joins}) {
      if (event != nullptr) cudaEventDestroy(event);
    }
  }
}

NcclRecording::NcclRecording(NcclRecording&& other) noexcept
    : status(std::move(other.status)),
      operations_(std::exchange(other.operations_, {})),
      launched_(other.launched_) {}

NcclRecording& NcclRecording::operator=(NcclRecording&& other) noexcept {
  std::swap(status, other.status);
  std::swap(operations_, other.operations_);
  std::swap(launched_, other.launched_);
  return *this;
}

const NcclRecorded* NcclRecording::find(Ticket ticket) const {
  if (operations_.empty() || ticket < operations_.front().ticket) return nullptr;
  const std::size_t at = ticket - operations_.front().ticket;
  return at < operations_.size() ? &operations_[at] : nullptr;
}

cudaEvent_t NcclRecording::joins() const {
  const auto last = std::find_if(operations_.rbegin(), operations_.rend(),
                                 [](const NcclRecorded& one) { return one.joins != nullptr; });
  return last == operations_.rend() ? nullptr : last->joins;
}

// Until this replay reaches the event, the event holds the time of the last replay.
bool NcclRecording::done(const NcclRecorded& one) const {
  return one.ended == nullptr || nanoseconds_between(launched_, one.ended) >= 0;
}

std::string NcclRecording::unfinished() const {
  const auto first = std::find_if(operations_.begin(), operations_.end(),
                                  [&](const NcclRecorded& one) { return !done(one); });
  return first == operations_.end() ? std::string() : first->operation.text();
}

std::vector<int> NcclRecording::missing() const {
  std::vector<int> ranks;
  for (const NcclRecorded& one : operations_) {
    if (done(one)) continue;
    const auto peers = one.operation.peers();
    ranks.insert(ranks.end(), peers.begin(), peers.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

/// A recorded step.
class NcclStepGraph final : public StepGraph {
 public:
  NcclStepGraph(NcclGraphs& graphs, const NcclGraphs::Lanes& lanes)
      : graphs_(graphs), lanes_(lanes) {
    const std::lock_guard lock(graphs_.mutex_);
    graphs_.graphs_.push_back(this);
  }
  ~NcclStepGraph() override;
  NcclStepGraph(const NcclStepGraph&) = delete;
  NcclStepGraph& operator=(const NcclStepGraph&) = delete;

  Status make_events();
  /// Takes the lanes' recordings, and ends the capture.
  Status end(milliseconds limit);

  Status launch() override;
  Status wait(milliseconds limit) override;
  OperationTime time_of(Stream stream, Ticket ticket) const override;

  /// Destroys the graph. Needs the graphs' mutex. Returns false if no replay was under way.
  bool destroy();

 private:
  Status take_recordings(milliseconds limit);
  Status put_on_stream();
  std::string unfinished() const;

  NcclGraphs& graphs_;
  const NcclGraphs::Lanes lanes_;
  std::array<NcclRecording, 3> recordings_;  // by Stream
  cudaEvent_t launched_ = nullptr, finished_ = nullptr;
  cudaGraphExec_t exec_ = nullptr;  // null: destroyed
  std::array<Ticket, 3> tickets_ = {};
  bool under_way_ = false;              // guarded by the graphs' mutex
  std::atomic<std::int64_t> ended_{0};  // steady_nanoseconds of CUDA's notice
};

NcclStepGraph::~NcclStepGraph() {
  const CudaDeviceScope scope(graphs_.device_);
  if (tickets_[0] != 0) cudaStreamSynchronize(graphs_.compute_);  // its notices use this object
  const std::lock_guard lock(graphs_.mutex_);
  destroy();
  std::erase(graphs_.graphs_, this);
  for (cudaEvent_t event : {launched_, finished_}) {
    if (event != nullptr) cudaEventDestroy(event);
  }
}

bool NcclStepGraph::destroy() {
  if (exec_ != nullptr) cudaGraphExecDestroy(exec_);
  exec_ = nullptr;
  return std::exchange(under_way_, false);
}

Status NcclStepGraph::make_events() {
  for (cudaEvent_t* event : {&launched_, &finished_}) {
    AGPCS_RETURN_IF_ERROR(cuda_status(cudaEventCreate(event), "create an event"));
  }
  for (NcclRecording& recording : recordings_) recording.begin_at(launched_);
  return {};
}

Status NcclStepGraph::take_recordings(milliseconds limit) {
  Status status;
  for (std::size_t s = 0; s < lanes_.size(); ++s) {
    auto recorded = lanes_[s]->end_recording(limit);
    if (!recorded.ok()) {
      if (status.ok()) status = recorded.status();
      continue;
    }
    recordings_[s] = std::move(*recorded);
    recordings_[s].begin_at(launched_);
  }
  return status;
}

Status NcclStepGraph::end(milliseconds limit) {
  Status status = take_recordings(limit);
  if (status.ok()) {
    status =
        cuda_status(cudaEventRecordWithFlags(finished_, graphs_.compute_, cudaEventRecordExternal),
                    "record an event");
  }
  cudaGraph_t captured = nullptr;
  const Status ended =
      cuda_status(cudaStreamEndCapture(graphs_.compute_, &captured), "capture the step");
  if (status.ok()) status = ended;
  if (status.ok()) {
    status = cuda_status(cudaGraphInstantiateWithFlags(&exec_, captured, 0), "make a graph");
  }
  if (captured != nullptr) cudaGraphDestroy(captured);
  return status;
}

Status NcclStepGraph::launch() {
  const CudaDeviceScope scope(graphs_.device_);
  AGPCS_RETURN_IF_ERROR(scope.status());
  Status status;
  {
    const std::lock_guard lock(graphs_.mutex_);
    for (std::size_t s = 0; s < lanes_.size() && status.ok(); ++s) {
      auto ticket = lanes_[s]->begin_replay(recordings_[s]);
      status = ticket.status();
      if (status.ok()) tickets_[s] = *ticket;
    }
    if (status.ok() && exec_ == nullptr) {
      status = Status(StatusCode::kCancelled, "the recorded step was given up");
    }
    if (status.ok()) status = put_on_stream();
    under_way_ = status.ok();
  }
  if (status.ok()) return status;
  for (NcclLane* lane : lanes_) lane->fail(status);
  return status;
}

Status NcclStepGraph::put_on_stream() {
  const cudaStream_t compute = graphs_.compute_;
  AGPCS_RETURN_IF_ERROR(cuda_status(cudaEventRecord(launched_, compute), "record an event"));
  AGPCS_RETURN_IF_ERROR(cuda_status(cudaGraphLaunch(exec_, compute), "launch the graph"));
  const auto notify = [](void* graph) {
    auto* self = static_cast<NcclStepGraph*>(graph);
    self->ended_ = steady_nanoseconds();
    for (NcclLane* lane : self->lanes_) lane->notice();
  };
  return cuda_status(cudaLaunchHostFunc(compute, notify, this), "ask for a notice");
}

Status NcclStepGraph::wait(milliseconds limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  for (std::size_t s = 0; s < lanes_.size(); ++s) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
    const Status status = lanes_[s]->wait(tickets_[s], std::max(left, milliseconds(0)));
    if (status.code() == StatusCode::kTimeout) {
      return {StatusCode::kTimeout,
              fmt::format("{}: timed out after {} ms", unfinished(), limit.count())};
    }
    AGPCS_RETURN_IF_ERROR(status);
  }
  const std::lock_guard lock(graphs_.mutex_);
  under_way_ = false;
  return {};
}

// Returns an unfinished operation. It looks at receives first, because others wait for them.
std::string NcclStepGraph::unfinished() const {
  const CudaDeviceScope scope(graphs_.device_);
  for (const Stream stream : {Stream::kRecv, Stream::kCollective, Stream::kSend}) {
    std::string first = recordings_[static_cast<std::size_t>(stream)].unfinished();
    if (!first.empty()) return first;
  }
  return "its computations";
}

OperationTime NcclStepGraph::time_of(Stream stream, Ticket ticket) const {
  const NcclRecorded* one = recordings_[static_cast<std::size_t>(stream)].find(ticket);
  if (one == nullptr || one->ended == nullptr) return {};
  const std::int64_t end = ended_ - nanoseconds_between(one->ended, finished_);
  return {end - nanoseconds_between(one->begun, one->ended), end};
}

std::string NcclGraphs::obstacle() const {
  if (compute_ != nullptr) return {};
  return "it computes on CUDA's default stream, which cannot be captured "
         "(NcclOptions::compute_stream)";
}

Status NcclGraphs::begin(const Lanes& lanes) {
  if (const std::string why = obstacle(); !why.empty()) return {StatusCode::kUnavailable, why};
  const CudaDeviceScope scope(device_);
  Status status = scope.status();
  for (NcclLane* lane : lanes) {
    if (status.ok()) status = lane->begin_recording();
  }
  // The mode is relaxed because autograd and the lanes have threads of their own, and
  // LibTorch allocates.
  if (status.ok()) {
    status = cuda_status(cudaStreamBeginCapture(compute_, cudaStreamCaptureModeRelaxed),
                         "begin a capture");
  }
  if (status.ok()) return status;
  for (NcclLane* lane : lanes) {
    [[maybe_unused]] const auto none = lane->end_recording(milliseconds(0));
  }
  return status;
}

Result<std::unique_ptr<StepGraph>> NcclGraphs::end(const Lanes& lanes, milliseconds limit) {
  const CudaDeviceScope scope(device_);
  auto graph = std::make_unique<NcclStepGraph>(*this, lanes);
  const Status made = graph->make_events();
  const Status ended = graph->end(limit);  // must end in any case
  AGPCS_RETURN_IF_ERROR(made);
  AGPCS_RETURN_IF_ERROR(ended);
  return std::unique_ptr<StepGraph>(std::move(graph));
}

bool NcclGraphs::give_up() {
  const std::lock_guard lock(mutex_);
  bool under_way = false;
  for (NcclStepGraph* graph : graphs_) under_way = graph->destroy() || under_way;
  return under_way;
}

}  // namespace agpcs
