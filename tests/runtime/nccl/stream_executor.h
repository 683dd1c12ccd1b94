// SPDX-License-Identifier: Apache-2.0
// FakeExecutor's numbers, computed on an emulated GPU: calls give work to a stream and return;
// buffers are GPU memory that stays where it is; the step's number is read when the work is carried
// out. So its steps can be recorded, and a replay that misses something changes the sums.
#pragma once

#include "runtime/support/recording.h"
#include "tests/runtime/fake_executor.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {

class StreamExecutor final : public Executor, public RecordingExecutor {
 public:
  explicit StreamExecutor(cudaStream_t stream) : stream_(stream) {}
  ~StreamExecutor() override;
  StreamExecutor(const StreamExecutor&) = delete;
  StreamExecutor& operator=(const StreamExecutor&) = delete;

  Status prepare(const Plan& plan, int rank) override;
  Status begin_step(std::int64_t step) override;
  Status forward(const StagePass& pass) override;
  Status backward(const StagePass& pass, bool last, GradientListener& listener) override;
  Status update() override;
  Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) override;
  Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) override;
  Result<Buffer> bucket(int bucket) override;
  double loss() const override;
  InstructionTime time_of(const InstructionId& id) override;

  std::string recording_obstacle() const override { return obstacle; }
  Status begin_recording() override;
  Status end_recording() override;
  Status load_step(std::int64_t step) override;

  std::vector<StateItem> state() const override { return fake_.state(); }
  Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                    float* out) const override;
  Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                     const float* values) override;

  const std::vector<std::vector<double>>& parameters() const;
  int calls() const { return calls_; }  ///< of forward

  std::string obstacle;                                  ///< to recording
  std::function<Status(cudaStream_t)> when_recorded;     ///< in a forward that is recorded
  std::function<Status(std::int64_t step)> when_loaded;  ///< in load_step

 private:
  struct Copy {
    bool gradient = false;
    int cut = 0;
    Transfer transfer;
    Buffer gpu;
  };
  using Key = std::tuple<bool, int, int, int, int, std::int64_t>;
  /// Gives `work` to the stream, as often as it is recorded and replayed.
  Status give(std::function<Status()> work);
  Status timed(Opcode opcode, int micro_batch, std::function<Status()> work);
  Status receive(const std::vector<Copy>& copies, int micro_batch);
  Result<Buffer> rows(bool gradient, bool sending, int cut, const Transfer& transfer, int mb);
  Result<Buffer> memory(const Key& key, std::size_t bytes);

  const cudaStream_t stream_;
  Plan plan_;
  int stage_ = 0;
  FakeExecutor fake_;  // the stream's
  std::int64_t step_ = 0;
  Status failure_;                                         // the stream's first
  std::map<std::pair<Opcode, int>, InstructionTime> ran_;  // by the stream
  std::deque<std::function<void()>> work_;
  std::map<Key, Buffer> memory_;
  std::map<std::pair<bool, int>, std::vector<Copy>> received_;  // by gradient, micro-batch
  std::vector<void*> allocated_;
  bool recording_ = false;
  int calls_ = 0;
};

}  // namespace agpcs
