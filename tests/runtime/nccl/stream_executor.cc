// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/nccl/stream_executor.h"

#include "runtime/support/operation_times.h"

#include <cstring>

namespace agpcs {
namespace {

class NobodyListens final : public GradientListener {
 public:
  void bucket_ready(int /*bucket*/) override {}
};

Status emulated(cudaError_t error) {
  return error == cudaSuccess ? Status() : internal_error("the emulated CUDA refuses a call");
}

}  // namespace

StreamExecutor::~StreamExecutor() {
  cudaStreamSynchronize(stream_);
  for (void* data : allocated_) cudaFree(data);
}

Status StreamExecutor::give(std::function<Status()> work) {
  work_.emplace_back([this, work = std::move(work)] {
    const Status status = work();
    if (failure_.ok()) failure_ = status;
  });
  const auto run = [](void* one) { (*static_cast<std::function<void()>*>(one))(); };
  return emulated(cudaLaunchHostFunc(stream_, run, &work_.back()));
}

Status StreamExecutor::timed(Opcode opcode, int micro_batch, std::function<Status()> work) {
  return give([this, opcode, micro_batch, work = std::move(work)] {
    InstructionTime& time = ran_[{opcode, micro_batch}];
    time.begin = steady_nanoseconds();
    const Status status = work();
    time.end = steady_nanoseconds();
    return status;
  });
}

Status StreamExecutor::prepare(const Plan& plan, int rank) {
  plan_ = plan;
  stage_ = plan.stage_of_rank(rank);
  return fake_.prepare(plan, rank);
}

Status StreamExecutor::begin_step(std::int64_t step) {
  received_.clear();
  if (!recording_) AGPCS_RETURN_IF_ERROR(load_step(step));
  return give([this] { return fake_.begin_step(step_); });
}

Status StreamExecutor::load_step(std::int64_t step) {
  if (when_loaded && !recording_) AGPCS_RETURN_IF_ERROR(when_loaded(step));
  return give([this, step] {
    step_ = step;
    return Status();
  });
}

Status StreamExecutor::begin_recording() {
  recording_ = true;
  return {};
}

Status StreamExecutor::end_recording() {
  recording_ = false;
  return {};
}

Status StreamExecutor::receive(const std::vector<Copy>& copies, int micro_batch) {
  for (const Copy& copy : copies) {
    AGPCS_TRY(const Buffer to, copy.gradient
                                   ? fake_.gradient(copy.cut, copy.transfer, micro_batch)
                                   : fake_.activation(copy.cut, copy.transfer, micro_batch));
    std::memcpy(to.data, copy.gpu.data, to.bytes);
  }
  return {};
}

Status StreamExecutor::forward(const StagePass& pass) {
  ++calls_;
  if (recording_ && when_recorded) AGPCS_RETURN_IF_ERROR(when_recorded(stream_));
  return timed(Opcode::kForward, pass.micro_batch,
               [this, pass, copies = received_[{false, pass.micro_batch}]]() -> Status {
                 AGPCS_RETURN_IF_ERROR(receive(copies, pass.micro_batch));
                 return fake_.forward(pass);
               });
}

Status StreamExecutor::backward(const StagePass& pass, bool last, GradientListener& listener) {
  const Status given =
      timed(Opcode::kBackward, pass.micro_batch,
            [this, pass, last, copies = received_[{true, pass.micro_batch}]]() -> Status {
              AGPCS_RETURN_IF_ERROR(receive(copies, pass.micro_batch));
              NobodyListens nobody;
              return fake_.backward(pass, last, nobody);
            });
  AGPCS_RETURN_IF_ERROR(given);
  for (int b = static_cast<int>(plan_.buckets.size()) - 1; last && b >= 0; --b) {
    if (plan_.buckets[static_cast<std::size_t>(b)].stage != stage_) continue;
    AGPCS_TRY(const Buffer gpu, bucket(b));
    const Status copied = give([this, b, gpu]() -> Status {
      AGPCS_TRY(const Buffer from, fake_.bucket(b));
      std::memcpy(gpu.data, from.data, from.bytes);
      return {};
    });
    AGPCS_RETURN_IF_ERROR(copied);
    listener.bucket_ready(b);
  }
  return {};
}

Status StreamExecutor::update() {
  std::vector<std::pair<int, Buffer>> reduced;
  for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b) {
    if (plan_.buckets[static_cast<std::size_t>(b)].stage != stage_) continue;
    AGPCS_TRY(const Buffer gpu, bucket(b));
    reduced.emplace_back(b, gpu);
  }
  return timed(Opcode::kUpdate, -1, [this, reduced]() -> Status {
    for (const auto& [b, gpu] : reduced) {
      AGPCS_TRY(const Buffer to, fake_.bucket(b));
      std::memcpy(to.data, gpu.data, to.bytes);
    }
    return fake_.update();
  });
}

Result<Buffer> StreamExecutor::memory(const Key& key, std::size_t bytes) {
  Buffer& buffer = memory_[key];
  if (buffer.data == nullptr) {
    AGPCS_RETURN_IF_ERROR(emulated(cudaMalloc(&buffer.data, bytes)));
    allocated_.push_back(buffer.data);
    buffer.bytes = bytes;
    buffer.type = DType::kFp64;
    buffer.on_gpu = true;
  }
  return buffer;
}

Result<Buffer> StreamExecutor::rows(bool gradient, bool sending, int cut, const Transfer& transfer,
                                    int mb) {
  const CutTensor& tensor =
      plan_.cuts[static_cast<std::size_t>(cut)].tensors[static_cast<std::size_t>(transfer.tensor)];
  const auto elements = static_cast<std::size_t>(transfer.rows * tensor.elements_per_row());
  AGPCS_TRY(const Buffer gpu,
            memory({gradient, cut, transfer.tensor, mb, transfer.peer, transfer.first_row},
                   elements * sizeof(double)));
  if (!sending) {
    received_[{gradient, mb}].push_back({gradient, cut, transfer, gpu});
    return gpu;
  }
  const Status copied = give([this, gradient, cut, transfer, mb, gpu]() -> Status {
    AGPCS_TRY(const Buffer from,
              gradient ? fake_.gradient(cut, transfer, mb) : fake_.activation(cut, transfer, mb));
    std::memcpy(gpu.data, from.data, from.bytes);
    return {};
  });
  AGPCS_RETURN_IF_ERROR(copied);
  return gpu;
}

Result<Buffer> StreamExecutor::activation(int cut, const Transfer& transfer, int micro_batch) {
  const bool sending = plan_.cuts[static_cast<std::size_t>(cut)].from == stage_;
  return rows(false, sending, cut, transfer, micro_batch);
}

Result<Buffer> StreamExecutor::gradient(int cut, const Transfer& transfer, int micro_batch) {
  const bool sending = plan_.cuts[static_cast<std::size_t>(cut)].to == stage_;
  return rows(true, sending, cut, transfer, micro_batch);
}

Result<Buffer> StreamExecutor::bucket(int bucket) {
  const auto elements = plan_.buckets[static_cast<std::size_t>(bucket)].elements();
  return memory({false, -1, bucket, 0, 0, 0}, static_cast<std::size_t>(elements) * sizeof(double));
}

// Waits for the stream, as an executor on CUDA does.
double StreamExecutor::loss() const {
  cudaStreamSynchronize(stream_);
  return failure_.ok() ? fake_.loss() : -1;
}

InstructionTime StreamExecutor::time_of(const InstructionId& id) {
  cudaStreamSynchronize(stream_);
  return ran_[{id.opcode, id.micro_batch}];
}

Status StreamExecutor::read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                                  float* out) const {
  cudaStreamSynchronize(stream_);
  return fake_.read_state(item, first, count, out);
}

Status StreamExecutor::write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                                   const float* values) {
  cudaStreamSynchronize(stream_);
  return fake_.write_state(item, first, count, values);
}

const std::vector<std::vector<double>>& StreamExecutor::parameters() const {
  cudaStreamSynchronize(stream_);
  return fake_.parameters();
}

}  // namespace agpcs
