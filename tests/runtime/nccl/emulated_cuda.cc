// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/sum.h"
#include "runtime/support/sum.h"
#include "tests/runtime/nccl/emulated_gpu.h"

#include <agpcs/types.h>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace {

constexpr int kDevices = 8;
thread_local int current_device = 0;

// GPU memory: begin -> bytes.
std::mutex memory_mutex;
std::map<const char*, std::size_t> gpu_memory;  // NOLINT

thread_local bool graph_thread = false;
std::atomic<int> graph_launches{0};

// A thread for each branch.
void run_graph(const CUgraph_st& graph) {
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::size_t> done(graph.branches.size(), 0);
  std::vector<std::thread> threads;
  for (std::size_t b = 0; b < graph.branches.size(); ++b) {
    threads.emplace_back([&, b] {
      graph_thread = true;
      for (const CUgraph_st::Node& node : graph.branches[b]) {
        if (node.work) node.work();
        std::unique_lock lock(mutex);
        if (!node.work) changed.wait(lock, [&] { return done[node.branch] >= node.nodes; });
        ++done[b];
        changed.notify_all();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Questions about a stream that is captured, and waits for it, break the capture off.
bool breaks_off(cudaStream_t stream) {
  const InCapture capture = stream->captured();
  if (!capture.graph) return false;
  const std::lock_guard lock(capture.graph->mutex);
  capture.graph->broken = true;
  return true;
}

bool broken(const InCapture& capture) {
  if (!capture.graph) return false;
  const std::lock_guard lock(capture.graph->mutex);
  return capture.graph->broken;
}

// `stream` waits for what `event` stands for, and becomes part of its capture where it is not yet.
cudaError_t wait_captured(cudaStream_t stream, const InCapture& event) {
  InCapture here = stream->captured();
  const std::lock_guard lock(event.graph->mutex);
  CUgraph_st& graph = *event.graph;
  if (graph.over) return cudaErrorCapturedEvent;
  if (graph.broken) return cudaErrorStreamCaptureInvalidated;
  if (here.graph && here.graph != event.graph) return cudaErrorStreamCaptureMerge;
  if (!here.graph) {
    here = {event.graph, graph.branches.size(), 0};
    graph.branches.emplace_back();
    graph.joined.push_back(0);
    stream->capture_into(event.graph, here.branch);
  }
  graph.branches[here.branch].push_back({nullptr, event.branch, event.nodes});
  if (here.branch == 0) {
    graph.joined[event.branch] = std::max(graph.joined[event.branch], event.nodes);
  }
  return cudaSuccess;
}

}  // namespace

bool in_graph() { return graph_thread; }
int launched_graphs() { return graph_launches; }

bool on_gpu(const void* data, std::size_t bytes) {
  const std::lock_guard lock(memory_mutex);
  const char* at = static_cast<const char*>(data);
  auto it = gpu_memory.upper_bound(at);
  if (it == gpu_memory.begin()) return false;
  --it;
  return at + bytes <= it->first + it->second;
}

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorNotReady ? "device not ready" : "an emulated error";
}

cudaError_t cudaMalloc(void** data, size_t bytes) {
  *data = std::malloc(bytes);
  const std::lock_guard lock(memory_mutex);
  gpu_memory[static_cast<char*>(*data)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  const std::lock_guard lock(memory_mutex);
  gpu_memory.erase(static_cast<char*>(data));
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** data, size_t bytes, unsigned int /*flags*/) {
  *data = std::malloc(bytes);
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* data) {
  std::free(data);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (!on_gpu(kind == cudaMemcpyHostToDevice ? to : from, bytes)) return cudaErrorInvalidValue;
  stream->push([=] { std::memcpy(to, from, bytes); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int /*flags*/) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  if (breaks_off(stream)) return cudaErrorStreamCaptureUnsupported;
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (breaks_off(stream)) return cudaErrorStreamCaptureUnsupported;
  stream->synchronize();
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  stream->push([=] { function(data); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int /*flags*/) {
  *event = new CUevent_st;
  return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags) {
  if (flags == cudaEventRecordDefault) return cudaEventRecord(event, stream);
  const InCapture capture = stream->captured();
  if (!capture.graph) return cudaErrorInvalidValue;
  if (broken(capture)) return cudaErrorStreamCaptureInvalidated;
  stream->push([event] {  // anew in each launch of the graph
    const auto moment = std::make_shared<Moment>();
    moment->happen();
    const std::lock_guard held(event->mutex);
    event->last = moment;
  });
  return cudaSuccess;
}
// Nothing runs on the default stream here.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream == nullptr) return cudaSuccess;
  const InCapture capture = stream->captured();
  if (broken(capture)) return cudaErrorStreamCaptureInvalidated;
  const std::lock_guard lock(event->mutex);
  event->capture = capture;
  event->last = nullptr;
  if (capture.graph) return cudaSuccess;
  event->last = std::make_shared<Moment>();
  stream->push([moment = event->last] { moment->happen(); });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  std::array<Moment::Clock::time_point, 2> at;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const cudaEvent_t event = i == 0 ? begin : end;
    const std::lock_guard lock(event->mutex);
    if (event->capture.graph) return cudaErrorCapturedEvent;
    if (!event->last) return cudaErrorInvalidResourceHandle;
    const auto when = event->last->when();
    if (!when) return cudaErrorNotReady;
    at[i] = *when;
  }
  *milliseconds = std::chrono::duration<float, std::milli>(at[1] - at[0]).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  if (stream == nullptr) return cudaSuccess;
  InCapture captured;
  std::shared_ptr<Moment> moment;
  {
    const std::lock_guard lock(event->mutex);
    captured = event->capture;
    moment = event->last;
  }
  if (captured.graph) return wait_captured(stream, captured);
  if (stream->captured().graph) return cudaErrorStreamCaptureIsolation;
  if (moment) stream->push([moment] { moment->await(); });
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (stream == nullptr) return cudaErrorStreamCaptureUnsupported;
  if (stream->captured().graph) return cudaErrorIllegalState;
  auto graph = std::make_shared<CUgraph_st>();
  graph->branches.resize(1);
  graph->joined.resize(1);
  stream->capture_into(std::move(graph), 0);
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const InCapture capture = stream->captured();
  *status = !capture.graph    ? cudaStreamCaptureStatusNone
            : broken(capture) ? cudaStreamCaptureStatusInvalidated
                              : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const InCapture capture = stream->captured();
  if (!capture.graph || capture.branch != 0) return cudaErrorStreamCaptureUnmatched;
  std::vector<std::vector<CUgraph_st::Node>> branches;  // let go of without the lock
  const std::lock_guard lock(capture.graph->mutex);
  capture.graph->over = true;
  std::swap(branches, capture.graph->branches);
  if (capture.graph->broken) return cudaErrorStreamCaptureInvalidated;
  for (std::size_t b = 1; b < branches.size(); ++b) {
    if (capture.graph->joined[b] < branches[b].size()) return cudaErrorStreamCaptureUnjoined;
  }
  *graph = new CUgraph_st;
  (*graph)->branches = std::move(branches);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                          unsigned long long /*flags*/) {
  auto copy = std::make_shared<CUgraph_st>();
  copy->branches = graph->branches;
  *exec = new CUgraphExec_st{std::move(copy)};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (stream->captured().graph) return cudaErrorStreamCaptureUnsupported;
  ++graph_launches;
  stream->push([graph = exec->graph] { run_graph(*graph); });
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

}  // extern "C"

// In the place of the kernel.
namespace agpcs {

bool can_add_on_gpu() { return true; }

cudaError_t add_on_gpu(void* to, const void* from, std::size_t elements, DType type,
                       cudaStream_t stream) {
  const std::size_t bytes = elements * size_of(type);
  if (!on_gpu(to, bytes) || !on_gpu(from, bytes)) return cudaErrorInvalidValue;
  stream->push([=] { add_into(to, from, elements, type); });
  return cudaSuccess;
}

}  // namespace agpcs
