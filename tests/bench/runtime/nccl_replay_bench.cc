// SPDX-License-Identifier: Apache-2.0
// What replaying over NCCL costs above the calls of NCCL that it makes: steps of all-reduces beside
// the same calls made by hand, and a step as a CUDA graph beside a graph of the same calls. Prints
// a line of JSON for each set of buckets.
//
//     build/gpu/tests/nccl_replay_bench [--ranks N] [--rounds N] [--divide N]
//
// Ranks are processes, on GPUs of their own where there are so many. Buckets have 1/divide of their
// usual elements.
#include "ir/base/median.h"
#include "runtime/job/renumbered_groups.h"
#include "runtime/nccl/communicator.h"
#include "runtime/nccl/status.h"
#include "runtime/replay/recording_replayer.h"
#include "tests/bench/runtime/bucket_plan.h"
#include "tests/bench/support/mistakes.h"
#include "tests/runtime/null_executor.h"
#include "tests/runtime/world.h"
#include "tests/support/fork_shared.h"

#include <agpcs/nccl.h>
#include <agpcs/replayer.h>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

constexpr const char* kName = "nccl_replay_bench";
// Emulated GPUs are threads of this process, which only calls that do not block may share.
#ifdef AGPCS_TEST_EMULATED_GPU
constexpr bool kBlocking = false;
#else
constexpr bool kBlocking = true;
#endif
constexpr int kWarmUp = 5, kRecordAfter = 2;

void check(const Status& status) {
  if (!status.ok()) bench::end_with(fmt::format("{}: error: {}", kName, status.message()));
}
void check(cudaError_t error, const char* cannot) { check(cuda_status(error, cannot)); }

struct Options {
  int ranks = 2, rounds = 30, divide = 1;
};

/// Buckets in GPU memory, of which nothing is computed: what is left of a step are its all-reduces.
class GpuBuckets final : public NullExecutor, public RecordingExecutor {
 public:
  GpuBuckets() = default;
  ~GpuBuckets() override {
    for (const Buffer& buffer : buffers_) cudaFree(buffer.data);
  }
  GpuBuckets(const GpuBuckets&) = delete;
  GpuBuckets& operator=(const GpuBuckets&) = delete;

  Status prepare(const Plan& plan, int rank) override {
    AGPCS_RETURN_IF_ERROR(NullExecutor::prepare(plan, rank));
    for (const PlanBucket& bucket : plan.buckets) {
      Buffer buffer;
      buffer.bytes = static_cast<std::size_t>(bucket.elements()) * sizeof(float);
      buffer.type = DType::kFp32;
      buffer.on_gpu = true;
      AGPCS_RETURN_IF_ERROR(
          cuda_status(cudaMalloc(&buffer.data, buffer.bytes), "allocate a bucket"));
      buffers_.push_back(buffer);
    }
    return {};
  }
  Result<Buffer> bucket(int bucket) override { return buffers_[static_cast<std::size_t>(bucket)]; }
  std::string recording_obstacle() const override { return {}; }
  Status begin_recording() override { return {}; }
  Status end_recording() override { return {}; }
  Status load_step(std::int64_t /*step*/) override { return {}; }

  const std::vector<Buffer>& buffers() const { return buffers_; }

 private:
  std::vector<Buffer> buffers_;
};

/// What the ranks share, which may be processes: where they wait for each other, and the slowest
/// one's seconds.
class Together {
 public:
  explicit Together(int ranks) : barrier_(ranks) {}
  void meet() { barrier_.meet(); }
  /// Returns the slowest rank's seconds of `work`, which all begin at the same time.
  double slowest(const std::function<void()>& work) {
    meet();
    slowest_ = 0;
    meet();
    const auto begin = std::chrono::steady_clock::now();
    work();
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    double known = slowest_;
    while (known < taken.count() && !slowest_.compare_exchange_weak(known, taken.count())) {
    }
    meet();
    return slowest_;
  }
  ncclUniqueId id{};  ///< of the communicator of the calls by hand; rank 0's

 private:
  SharedBarrier barrier_;
  std::atomic<double> slowest_{0};
};

/// The calls of a step made by hand: each bucket's all-reduce, then the loss's by way of the GPU.
/// `blocking`: on a communicator as most programs have it, whose calls return when they are on the
/// stream; else on one as the transport has it, which can be given up.
class ByHand {
 public:
  ByHand(int rank, int ranks, Together& together, const std::vector<Buffer>& buckets,
         cudaStream_t stream, bool blocking)
      : buckets_(buckets), stream_(stream) {
    together.meet();  // all ranks have read the last one
    if (rank == 0) {
      check(nccl_status(ncclGetUniqueId(&together.id), nullptr, "ncclGetUniqueId"));
    }
    together.meet();
    if (blocking) {
      check(nccl_status(ncclCommInitRank(&blocking_, ranks, together.id, rank), nullptr,
                        "ncclCommInitRank"));
    } else {
      check(communicator_.join(together.id, rank, ranks, go_on));
    }
    void* on_gpu = nullptr;
    check(cudaMalloc(&on_gpu, sizeof(float)), "allocate the loss");
    loss_ = {on_gpu, sizeof(float), DType::kFp32, true};
  }
  ~ByHand() {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    cudaFree(loss_.data);
    if (blocking_ != nullptr) ncclCommAbort(blocking_);
  }
  ByHand(const ByHand&) = delete;
  ByHand& operator=(const ByHand&) = delete;

  void step() {
    for (const Buffer& bucket : buckets_) sum(bucket);
    end_step();
  }
  void record() {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "capture");
    for (const Buffer& bucket : buckets_) sum(bucket);
    cudaGraph_t graph = nullptr;
    check(cudaStreamEndCapture(stream_, &graph), "end the capture");
    check(cudaGraphInstantiateWithFlags(&graph_, graph, 0), "instantiate the graph");
    cudaGraphDestroy(graph);
  }
  void replay() {
    check(cudaGraphLaunch(graph_, stream_), "launch the graph");
    end_step();
  }

 private:
  static Status go_on() { return {}; }
  void sum(const Buffer& buffer) {
    const ncclResult_t result =
        ncclAllReduce(buffer.data, buffer.data, buffer.bytes / sizeof(float), ncclFloat32, ncclSum,
                      blocking_ != nullptr ? blocking_ : communicator_.get(), stream_);
    check(communicator_.settle(result, "ncclAllReduce", go_on));
  }
  void end_step() {
    check(cudaMemcpyAsync(loss_.data, &host_loss_, sizeof(float), cudaMemcpyHostToDevice, stream_),
          "copy the loss");
    sum(loss_);
    check(cudaMemcpyAsync(&host_loss_, loss_.data, sizeof(float), cudaMemcpyDeviceToHost, stream_),
          "copy the loss");
    check(cudaStreamSynchronize(stream_), "wait for the stream");
  }

  const std::vector<Buffer>& buckets_;
  const cudaStream_t stream_;
  NcclCommunicator communicator_;
  ncclComm_t blocking_ = nullptr;  // in its place
  Buffer loss_;
  float host_loss_ = 1;
  cudaGraphExec_t graph_ = nullptr;
};

std::unique_ptr<RecordingReplayer> replayer_of(const Plan& plan, Transport& transport,
                                               Executor& executor, int record_after) {
  ReplayOptions options;
  options.check_finite = false;
  auto replayer =
      RecordingReplayer::create(plan, transport.rank(), transport, executor, options, record_after);
  check(replayer.status());
  return std::move(*replayer);
}

/// The medians of the ways' seconds, which take turns.
std::vector<double> medians(Together& together, int rounds,
                            const std::vector<std::function<void()>>& ways) {
  std::vector<std::vector<double>> taken(ways.size());
  for (int round = 0; round < kWarmUp + rounds; ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      const std::size_t turn = (static_cast<std::size_t>(round) + i) % ways.size();
      const double seconds = together.slowest(ways[turn]);
      if (round >= kWarmUp) taken[turn].push_back(seconds);
    }
  }
  std::vector<double> result;
  for (std::vector<double>& seconds : taken) result.push_back(median(seconds));
  return result;
}

void compare(Transport& transport, cudaStream_t stream, const Buckets& buckets,
             const Options& options, Together& together) {
  const Plan plan = plan_of_buckets(options.ranks, buckets.elements);
  GpuBuckets plain_buckets, graph_buckets;
  constexpr int kGroups = 2;  // of a plan of one stage: its own, and all ranks
  RenumberedGroups graph_groups(transport, kGroups);
  const auto plain = replayer_of(plan, transport, plain_buckets, 0);
  const auto graph = replayer_of(plan, graph_groups, graph_buckets, kRecordAfter);
  const auto by_hand_of = [&](bool blocking) {
    return ByHand(transport.rank(), options.ranks, together, plain_buckets.buffers(), stream,
                  blocking);
  };
  ByHand by_hand = by_hand_of(kBlocking), given_up = by_hand_of(false);
  const auto step_of = [](Replayer& replayer) {
    return [&replayer] { check(replayer.run_step().status()); };
  };
  for (int step = 0; step <= kRecordAfter; ++step) step_of (*graph)();
  by_hand.step();
  by_hand.record();
  given_up.step();
  const std::vector<double> seconds =
      medians(together, options.rounds,
              {[&] { by_hand.step(); }, step_of(*plain), [&] { by_hand.replay(); }, step_of(*graph),
               [&] { given_up.step(); }});
  if (transport.rank() != 0) return;
  const StepRecording& recording = graph->recording();
  const double operations = static_cast<double>(buckets.elements.size() + 1);
  fmt::print(
      R"({{"buckets": "{} ranks, {}", "by_hand_us": {:.1f}, "by_hand_without_blocking_us": {:.1f}, )"
      R"("replayed_us": {:.1f}, )"
      R"("added_us_an_operation": {:.3f}, "graph_by_hand_us": {:.1f}, )"
      R"("graph_replayed_us": {:.1f}, "graph_ratio": {}, "graph": "{}"}})"
      "\n",
      options.ranks, buckets.name, seconds[0] * 1e6, seconds[4] * 1e6, seconds[1] * 1e6,
      (seconds[1] - seconds[0]) * 1e6 / operations, seconds[2] * 1e6, seconds[3] * 1e6,
      recording.replayed ? fmt::format("{:.3f}", seconds[3] / seconds[2]) : "null",
      recording.replayed ? "yes" : recording.why_not);
  std::fflush(stdout);  // also into a pipe, so that a bench that is ended leaves what it has
}

void run(const Options& options, Buckets buckets) {
  for (std::int64_t& elements : buckets.elements) {
    elements = std::max<std::int64_t>(1, elements / options.divide);
  }
  const ForkShared<Together> shared(options.ranks);
  Together& together = *shared;
  std::vector<cudaStream_t> streams(static_cast<std::size_t>(options.ranks));
  const auto options_of = [&](int rank) {
    NcclOptions nccl;
    nccl.device = nccl_device(rank);
    cudaStream_t& stream = streams[static_cast<std::size_t>(rank)];
    check(cudaSetDevice(nccl.device), "use the device");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
    nccl.compute_stream = stream;
    return nccl;
  };
  run_nccl(options.ranks, options_of, [&](Transport& transport) {
    cudaStream_t stream = streams[static_cast<std::size_t>(transport.rank())];
    check(cudaSetDevice(nccl_device(transport.rank())), "use the device");
    compare(transport, stream, buckets, options, together);
    together.meet();  // so that no rank leaves while others still reduce
    cudaStreamDestroy(stream);
  });
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string_view name = argv[i];
    int* const value = name == "--ranks"    ? &options.ranks
                       : name == "--rounds" ? &options.rounds
                       : name == "--divide" ? &options.divide
                                            : nullptr;
    if (value == nullptr || i + 1 == argc) {
      bench::end_with_usage(kName, fmt::format("unknown argument '{}'", name),
                            "[--ranks N] [--rounds N] [--divide N]");
    }
    *value = bench::number_of<int>(kName, argv[i + 1]);
    if (*value < 1) bench::end_with(fmt::format("{}: error: {} is {}", kName, name, *value));
  }
  return options;
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  const agpcs::Options options = agpcs::options_of(argc, argv);
  for (const agpcs::Buckets& buckets : agpcs::usual_buckets()) agpcs::run(options, buckets);
  const testing::TestResult& result = testing::UnitTest::GetInstance()->ad_hoc_test_result();
  return result.Failed() || result.Skipped() ? 1 : 0;
}
