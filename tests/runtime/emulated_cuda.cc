// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl_sum.h"
#include "runtime/sum.h"
#include "tests/runtime/emulated_gpu.h"

#include <agpcs/types.h>

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>
#include <map>

namespace {

constexpr int kDevices = 8;
thread_local int current_device = 0;

// GPU memory: begin -> bytes.
std::mutex memory_mutex;
std::map<const char*, std::size_t> gpu_memory;  // NOLINT

}  // namespace

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
  return stream->idle() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
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
// Nothing runs on the default stream here.
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (stream == nullptr) return cudaSuccess;
  const std::lock_guard lock(event->mutex);
  ++event->pending;
  stream->push([event] {
    const std::lock_guard held(event->mutex);
    --event->pending;
    event->happened = std::chrono::steady_clock::now();
    event->changed.notify_all();
  });
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const std::scoped_lock lock(begin->mutex, end->mutex);
  if (begin->pending > 0 || end->pending > 0) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->happened - begin->happened).count();
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int /*flags*/) {
  if (stream == nullptr) return cudaSuccess;
  stream->push([event] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->pending == 0; });
  });
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
