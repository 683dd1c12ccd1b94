// SPDX-License-Identifier: Apache-2.0
// What the NCCL transport promises beyond the conformance suite; CUDA and NCCL are emulated.
#include "tests/runtime/nccl/emulated_gpu.h"
#include "tests/runtime/world.h"

#include <agpcs/nccl.h>
#include <agpcs/transport.h>

#include <cuda_runtime_api.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <barrier>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kLong{60000};

void expect_done(Transport& transport, Stream stream, const Result<Ticket>& ticket) {
  ASSERT_TRUE(ticket.ok()) << ticket.status().message();
  const Status status = transport.wait(stream, *ticket, kLong);
  EXPECT_TRUE(status.ok()) << status.message();
}

// Emulated GPU memory is the CPU's, and may be looked at.
class GpuVector {
 public:
  explicit GpuVector(const std::vector<float>& values) : count_(values.size()) {
    EXPECT_EQ(cudaMalloc(&data_, count_ * sizeof(float)), cudaSuccess);
    std::memcpy(data_, values.data(), count_ * sizeof(float));
  }
  ~GpuVector() { cudaFree(data_); }
  GpuVector(const GpuVector&) = delete;
  GpuVector& operator=(const GpuVector&) = delete;

  Buffer buffer() const { return {data_, count_ * sizeof(float), DType::kFp32, true}; }
  std::vector<float> values() const {
    const float* begin = static_cast<const float*>(data_);
    return {begin, begin + count_};
  }

 private:
  std::size_t count_;
  void* data_ = nullptr;
};

// One stream for each rank to compute on.
class ComputeStreams {
 public:
  explicit ComputeStreams(std::size_t count) : streams_(count) {
    for (cudaStream_t& stream : streams_) {
      EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
    }
  }
  ~ComputeStreams() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  ComputeStreams(const ComputeStreams&) = delete;
  ComputeStreams& operator=(const ComputeStreams&) = delete;

  cudaStream_t of(int rank) const { return streams_[static_cast<std::size_t>(rank)]; }
  NcclOptions options_of(int rank) const {
    NcclOptions options;
    options.device = rank;
    options.compute_stream = of(rank);
    options.links = {{0, 1}};  // so that no message waits for its connection
    return options;
  }

 private:
  std::vector<cudaStream_t> streams_;
};

TEST(NcclEmulated, MovesAndSumsGpuMemoryInPlace) {
  nccl_world().run(2, [](Transport& transport) {
    ASSERT_TRUE(transport.open_group(0, {0, 1}, {0, 0}).ok());
    GpuVector sum({1, 2, 3});
    expect_done(transport, Stream::kCollective,
                transport.all_reduce(sum.buffer(), 0, AllReduce::kRing));
    EXPECT_EQ(sum.values(), (std::vector<float>{2, 4, 6}));
    GpuVector message(transport.rank() == 0 ? std::vector<float>{7, 8} : std::vector<float>{0, 0});
    if (transport.rank() == 0) {
      expect_done(transport, Stream::kSend, transport.send(message.buffer(), 1, 5));
    } else {
      expect_done(transport, Stream::kRecv, transport.recv(message.buffer(), 0, 5));
    }
    EXPECT_EQ(message.values(), (std::vector<float>{7, 8}));
  });
}

// The computation that makes a message is under way when the message is enqueued: it is waited for.
TEST(NcclEmulated, SendsWhatTheComputeStreamMakes) {
  const ComputeStreams streams(2);
  struct Kernel {
    std::promise<void> may_run;
    float* result;
  };
  run_nccl(
      2, [&](int rank) { return streams.options_of(rank); },
      [&](Transport& transport) {
        GpuVector message({0});
        if (transport.rank() == 1) {
          expect_done(transport, Stream::kRecv, transport.recv(message.buffer(), 0, 5));
          EXPECT_EQ(message.values(), std::vector<float>{42});
          return;
        }
        Kernel kernel{{}, static_cast<float*>(message.buffer().data)};
        const auto run = [](void* data) {
          auto* self = static_cast<Kernel*>(data);
          self->may_run.get_future().wait();
          *self->result = 42;
        };
        ASSERT_EQ(cudaLaunchHostFunc(streams.of(0), run, &kernel), cudaSuccess);
        const auto sent = transport.send(message.buffer(), 1, 5);
        ASSERT_TRUE(sent.ok()) << sent.status().message();
        EXPECT_EQ(transport.wait(Stream::kSend, *sent, std::chrono::milliseconds(20)).code(),
                  StatusCode::kTimeout);
        kernel.may_run.set_value();
        expect_done(transport, Stream::kSend, sent);
      });
}

// The caller goes on while the message is on its way; what it computes with it does not.
TEST(NcclEmulated, TheComputeStreamWaitsForAMessageInPlaceOfTheCaller) {
  const ComputeStreams streams(2);
  std::promise<void> may_send;
  run_nccl(
      2, [&](int rank) { return streams.options_of(rank); },
      [&](Transport& transport) {
        if (transport.rank() == 0) {
          const GpuVector message({42});
          may_send.get_future().wait();
          expect_done(transport, Stream::kSend, transport.send(message.buffer(), 1, 5));
          return;
        }
        const GpuVector message({0});
        const auto received = transport.recv(message.buffer(), 0, 5);
        ASSERT_TRUE(received.ok()) << received.status().message();
        const Status ordered = transport.order_after(Stream::kRecv, *received, kLong);
        ASSERT_TRUE(ordered.ok()) << ordered.message();
        struct Kernel {
          const float* read;
          std::promise<float> result;
        } kernel{static_cast<const float*>(message.buffer().data), {}};
        const auto run = [](void* data) {
          auto* self = static_cast<Kernel*>(data);
          self->result.set_value(*self->read);
        };
        ASSERT_EQ(cudaLaunchHostFunc(streams.of(1), run, &kernel), cudaSuccess);
        std::future<float> result = kernel.result.get_future();
        EXPECT_EQ(result.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
        may_send.set_value();
        EXPECT_EQ(result.get(), 42);
        expect_done(transport, Stream::kRecv, received);
      });
}

// The emulation's own, as in CUDA: lanes use the events of an operation that is over for the next
// ones, while the compute stream has still to come to its wait for the first.
TEST(EmulatedGpu, AStreamWaitsForTheRecordThatAnEventHadWhenItWasAskedTo) {
  const ComputeStreams streams(2);
  const cudaStream_t recording = streams.of(0), waiting = streams.of(1);
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, recording), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(recording), cudaSuccess);

  const auto hold = [](void* until) {
    static_cast<std::promise<void>*>(until)->get_future().wait();
  };
  const auto tell = [](void* promise) { static_cast<std::promise<void>*>(promise)->set_value(); };
  std::promise<void> may_wait, may_record, went_on;
  ASSERT_EQ(cudaLaunchHostFunc(waiting, hold, &may_wait), cudaSuccess);
  ASSERT_EQ(cudaStreamWaitEvent(waiting, event, 0), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(waiting, tell, &went_on), cudaSuccess);
  ASSERT_EQ(cudaLaunchHostFunc(recording, hold, &may_record), cudaSuccess);
  ASSERT_EQ(cudaEventRecord(event, recording), cudaSuccess);  // used again
  may_wait.set_value();
  EXPECT_EQ(went_on.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  may_record.set_value();
  for (cudaStream_t stream : {recording, waiting}) cudaStreamSynchronize(stream);
  cudaEventDestroy(event);
}

// A buffer in the host's memory is there when the caller goes on.
TEST(NcclEmulated, WhatGoesThroughTheHostIsWaitedFor) {
  nccl_world().run(2, [](Transport& transport) {
    ASSERT_TRUE(transport.open_group(0, {0, 1}, {0, 0}).ok());
    std::vector<float> sum = {1, 2};
    const auto reduced =
        transport.all_reduce({sum.data(), 8, DType::kFp32, false}, 0, AllReduce::kRing);
    ASSERT_TRUE(reduced.ok()) << reduced.status().message();
    ASSERT_TRUE(transport.order_after(Stream::kCollective, *reduced, kLong).ok());
    EXPECT_EQ(sum, (std::vector<float>{2, 4}));
  });
}

// Of an operation that waits for the work before it, only its own time counts.
TEST(NcclEmulated, TimesAreThoseOfTheDevice) {
  const ComputeStreams streams(2);
  run_nccl(
      2, [&](int rank) { return streams.options_of(rank); },
      [&](Transport& transport) {
        ASSERT_TRUE(transport.open_group(0, {0, 1}, {0, 0}).ok());
        const GpuVector sum({1});
        const auto work = [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
        ASSERT_EQ(cudaLaunchHostFunc(streams.of(transport.rank()), work, nullptr), cudaSuccess);
        const auto before = std::chrono::steady_clock::now().time_since_epoch();
        const auto reduced = transport.all_reduce(sum.buffer(), 0, AllReduce::kRing);
        expect_done(transport, Stream::kCollective, reduced);
        const OperationTime time = transport.time_of(Stream::kCollective, *reduced);
        EXPECT_GE(time.begin, std::chrono::nanoseconds(before).count() + 40'000'000);
        EXPECT_GE(time.end, time.begin);
      });
}

// NCCL of `version` in a process that allows, or does not, that ranks share a GPU.
class NcclOfVersion {
 public:
  NcclOfVersion(int version, bool share) {
    set_nccl_version(version);
    if (share) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  }
  ~NcclOfVersion() {
    unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
    set_nccl_version(NCCL_VERSION_CODE);
  }
  NcclOfVersion(const NcclOfVersion&) = delete;
  NcclOfVersion& operator=(const NcclOfVersion&) = delete;
};

constexpr int kOld = NCCL_VERSION(2, 29, 7), kSharing = NCCL_VERSION(2, 30, 0);

TEST(NcclEmulated, SaysHowManyDevicesAreMissing) {
  const NcclOfVersion old(kOld, true);
  EXPECT_EQ(nccl_obstacle(8), "");
  EXPECT_EQ(nccl_obstacle(9),
            "9 ranks need as many CUDA devices, there are 8; NCCL 2.30.0 lets ranks share one if "
            "NCCL_MULTI_RANK_GPU_ENABLE=1, this is NCCL 2.29.7");
  EXPECT_EQ(nccl_device(9), 9);
}

TEST(NcclEmulated, RanksShareNoDeviceUnlessAskedTo) {
  const NcclOfVersion sharing(kSharing, false);
  EXPECT_NE(nccl_obstacle(9), "");
  EXPECT_EQ(nccl_device(9), 9);
}

TEST(NcclEmulated, RanksShareDevicesWhereNcclAllowsIt) {
  const NcclOfVersion sharing(kSharing, true);
  EXPECT_EQ(nccl_obstacle(9), "");
  EXPECT_EQ(nccl_device(7), 7);
  EXPECT_EQ(nccl_device(9), 1);
  nccl_world().run(9, [](Transport& transport) {
    ASSERT_TRUE(
        transport.open_group(0, {0, 1, 2, 3, 4, 5, 6, 7, 8}, {0, 0, 0, 0, 0, 0, 0, 0, 0}).ok());
    const GpuVector sum({1});
    expect_done(transport, Stream::kCollective,
                transport.all_reduce(sum.buffer(), 0, AllReduce::kRing));
    EXPECT_EQ(sum.values(), std::vector<float>{9});
  });
}

// Ranks 0 and 1 are one host: group 1 has communicators for hosts, and between them.
TEST(NcclEmulated, ClosedGroupsGiveTheirCommunicatorsBack) {
  std::barrier together(3);
  nccl_world().run(3, [&](Transport& transport) {
    together.arrive_and_wait();
    const int of_pairs = open_communicators();
    together.arrive_and_wait();
    const std::vector<int> hosts = {0, 0, 1};
    const auto members = [&](int group) {
      return group == 0 ? std::vector<int>{0, 1} : std::vector<int>{0, 1, 2};
    };
    for (int group = 0; group < 2; ++group) {
      if (group == 0 && transport.rank() == 2) continue;
      ASSERT_TRUE(transport.open_group(group, members(group), hosts).ok());
    }
    together.arrive_and_wait();
    EXPECT_EQ(open_communicators(), of_pairs + 2 + 3 + 2 + 2);
    together.arrive_and_wait();
    const GpuVector values({1, 2});
    expect_done(transport, Stream::kCollective,
                transport.all_reduce(values.buffer(), 1, AllReduce::kHierarchical));
    const Status closed = transport.close_groups(0, 2);
    ASSERT_TRUE(closed.ok()) << closed.message();
    together.arrive_and_wait();
    EXPECT_EQ(open_communicators(), of_pairs);
    together.arrive_and_wait();
    EXPECT_EQ(transport.all_reduce(values.buffer(), 1, AllReduce::kRing).status().message(),
              "group 1 is not open");
    ASSERT_TRUE(transport.open_group(2, members(2), hosts).ok());
    expect_done(transport, Stream::kCollective,
                transport.all_reduce(values.buffer(), 2, AllReduce::kRing));
    EXPECT_EQ(values.values(), (std::vector<float>{9, 18}));
  });
}

// A buffer that is said to be on the GPU and is not: NCCL refuses it, and its words are passed on.
TEST(NcclEmulated, AnErrorNamesTheOperationAndHasNcclsWords) {
  std::barrier together(2);  // rank 0 gives up when rank 1 waits
  nccl_world().run(2, [&](Transport& transport) {
    EXPECT_TRUE(transport.open_group(0, {0, 1}, {0, 0}).ok());
    if (transport.rank() == 1) {
      const GpuVector values({0});
      const auto never = transport.recv(values.buffer(), 0, 9);
      EXPECT_TRUE(never.ok());
      together.arrive_and_wait();
      EXPECT_FALSE(transport.wait(Stream::kRecv, *never, kLong).ok());
      return;
    }
    together.arrive_and_wait();
    std::vector<float> values(4);
    const Buffer buffer{values.data(), 16, DType::kFp32, true};  // which is in the host's memory
    const auto ticket = transport.all_reduce(buffer, 0, AllReduce::kRing);
    ASSERT_TRUE(ticket.ok());
    const Status status = transport.wait(Stream::kCollective, *ticket, kLong);
    EXPECT_EQ(status.code(), StatusCode::kInternal);
    EXPECT_EQ(status.message(),
              "all_reduce of 16 bytes over ranks 0,1, waiting for rank 1: ncclAllReduce: "
              "invalid argument");
    transport.abort(status);
  });
}

}  // namespace
}  // namespace agpcs
