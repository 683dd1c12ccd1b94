// SPDX-License-Identifier: Apache-2.0
// Steps recorded once and replayed by one launch, over the NCCL transport; CUDA and NCCL are
// emulated, which is no proof of how devices behave.
#include "runtime/job/recording_trainer.h"
#include "runtime/job/renumbered_groups.h"
#include "runtime/replay/recording_replayer.h"
#include "runtime/support/recording.h"
#include "tests/runtime/nccl/emulated_gpu.h"
#include "tests/runtime/nccl/stream_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"

#include <agpcs/nccl.h>
#include <agpcs/replayer.h>
#include <agpcs/trainer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr milliseconds kLong{60000};
constexpr milliseconds kEnough{3000};  // for a step, on a busy machine
constexpr int kRecordAfter = 2, kSteps = 7;

// A stream for each rank to compute on.
class Streams {
 public:
  explicit Streams(int count) : streams_(static_cast<std::size_t>(count)) {
    for (cudaStream_t& stream : streams_) {
      EXPECT_EQ(cudaStreamCreateWithFlags(&stream, 0), cudaSuccess);
    }
  }
  ~Streams() {
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
  }
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  cudaStream_t of(int rank) const { return streams_[static_cast<std::size_t>(rank)]; }

 private:
  std::vector<cudaStream_t> streams_;
};

void run(int ranks, const std::function<void(Transport&, cudaStream_t)>& body) {
  const Streams streams(ranks);
  run_nccl(
      ranks,
      [&](int rank) {
        NcclOptions options;
        options.device = rank;
        options.compute_stream = streams.of(rank);
        return options;
      },
      [&](Transport& transport) { body(transport, streams.of(transport.rank())); });
}

std::unique_ptr<RecordingReplayer> replayer_of(const Plan& plan, Transport& transport,
                                               Executor& executor, int record_after,
                                               milliseconds limit = kLong) {
  ReplayOptions options;
  options.limit = limit;
  auto replayer =
      RecordingReplayer::create(plan, transport.rank(), transport, executor, options, record_after);
  EXPECT_TRUE(replayer.ok()) << replayer.status().message();
  return std::move(*replayer);
}

void take_steps(Replayer& replayer, int count, std::vector<double>* losses = nullptr) {
  for (int i = 0; i < count; ++i) {
    const auto report = replayer.run_step();
    ASSERT_TRUE(report.ok()) << report.status().message();
    if (losses != nullptr) losses->push_back(report->loss);
  }
}

void expect_parameters(const Plan& plan, int rank, const StreamExecutor& executor, int steps) {
  const FakeOutcome expected = fake_reference(plan, steps);
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    if (plan.buckets[b].stage != plan.stage_of_rank(rank)) continue;
    EXPECT_EQ(executor.parameters()[b], expected.parameters[b]) << "rank " << rank << ", " << b;
  }
}

using Prepare = std::function<void(int rank, StreamExecutor&)>;

struct Trained {
  std::vector<double> losses;  // of rank 0
  StepRecording recording;     // likewise
  int launches = 0;            // of graphs, by all ranks
};

// Trains, and checks the parameters of every rank.
Trained train(const Plan& plan, int record_after, const Prepare& prepare = {}) {
  Trained trained;
  const int before = launched_graphs();
  run(plan.rank_count(), [&](Transport& transport, cudaStream_t stream) {
    StreamExecutor executor(stream);
    if (prepare) prepare(transport.rank(), executor);
    const auto replayer = replayer_of(plan, transport, executor, record_after);
    std::vector<double> losses;
    take_steps(*replayer, kSteps, &losses);
    expect_parameters(plan, transport.rank(), executor, kSteps);
    if (transport.rank() != 0) return;
    trained.losses = losses;
    trained.recording = replayer->recording();
  });
  trained.launches = launched_graphs() - before;
  return trained;
}

Plan pipeline() { return make_plan({{{3, 1}, {1, 3}}, {{0, 1, {"a", "A"}}}, 3}); }

std::vector<Plan> plans() {
  std::vector<Plan> all = {
      make_plan({{{4}}, {}, 2}),
      make_plan({{{2, 2}}, {}, 2}),
      pipeline(),
      make_plan({{{4}, {2, 2}, {4}}, {{0, 1, {"a"}}, {1, 2, {"b"}}}, 4}),
      make_plan({{{4}, {3, 1}, {0}}, {{0, 1, {"a"}}}, 3}),
  };
  for (const AllReduce algorithm : {AllReduce::kHierarchical, AllReduce::kTree, AllReduce::kFlow}) {
    TestPlan spec{{{1, 2, 1}}, {}, 2};
    spec.algorithm = algorithm;
    all.push_back(make_plan(spec));
  }
  return all;
}

TEST(NcclGraph, ReplaysGiveTheSameLossesAndParametersAsStepsLaunchedOneByOne) {
  for (const Plan& plan : plans()) {
    const Trained replayed = train(plan, kRecordAfter), launched = train(plan, 0);
    EXPECT_TRUE(replayed.recording.decided);
    EXPECT_TRUE(replayed.recording.replayed) << replayed.recording.why_not;
    EXPECT_FALSE(launched.recording.decided);
    EXPECT_EQ(replayed.losses, launched.losses);
    EXPECT_EQ(replayed.losses.back(), fake_reference(plan, kSteps).loss);
    EXPECT_EQ(replayed.launches, (kSteps - kRecordAfter) * plan.rank_count());
    EXPECT_EQ(launched.launches, 0);
  }
}

// The parts are needed until the recording ends.
TEST(NcclGraph, ScatteredSumsAndGatheredPartsAreRecorded) {
  run(3, [&](Transport& transport, cudaStream_t) {
    const auto rank = static_cast<std::size_t>(transport.rank());
    auto& recording = dynamic_cast<RecordingTransport&>(transport);
    ASSERT_TRUE(transport.open_group(0, {0, 1, 2}, {0, 0, 1}).ok());
    void* data = nullptr;
    ASSERT_EQ(cudaMalloc(&data, 6 * sizeof(float)), cudaSuccess);
    auto* values = static_cast<float*>(data);
    const Buffer buffer = {values, 6 * sizeof(float), DType::kFp32, true};
    const auto scatter_and_gather = [&](const std::vector<std::int64_t>& parts) {
      const auto scattered = transport.reduce_scatter(buffer, parts, 0, AllReduce::kRing);
      ASSERT_TRUE(scattered.ok()) << scattered.status().message();
      ASSERT_TRUE(transport.order_after(Stream::kCollective, *scattered, kLong).ok());
      const auto gathered = transport.all_gather(buffer, parts, 0, AllReduce::kTree);
      ASSERT_TRUE(gathered.ok()) << gathered.status().message();
      ASSERT_TRUE(transport.wait(Stream::kCollective, *gathered, kLong).ok());
    };
    for (const std::vector<std::int64_t>& parts : {std::vector<std::int64_t>{2, 2, 2}, {3, 0, 3}}) {
      std::fill(values, values + 6, 1.F);
      scatter_and_gather(parts);
      EXPECT_EQ(std::vector<float>(values, values + 6), std::vector<float>(6, 3.F));
      ASSERT_TRUE(recording.begin_recording().ok());
      {
        const std::vector<std::int64_t> passing = parts;
        scatter_and_gather(passing);
      }
      auto graph = recording.end_recording(kLong);
      ASSERT_TRUE(graph.ok()) << graph.status().message();
      for (int replay = 1; replay < 3; ++replay) {
        for (std::size_t i = 0; i < 6; ++i) {
          values[i] = static_cast<float>((rank + 1) * (i + 1) * static_cast<std::size_t>(replay));
        }
        ASSERT_TRUE((*graph)->launch().ok());
        ASSERT_TRUE((*graph)->wait(kLong).ok());
        for (std::size_t i = 0; i < 6; ++i) {
          EXPECT_EQ(values[i], static_cast<float>(6 * (i + 1) * static_cast<std::size_t>(replay)));
        }
      }
    }
    cudaFree(data);
  });
}

TEST(NcclGraph, AReplayCallsTheExecutorNoMore) {
  const Plan plan = pipeline();
  std::atomic<int> calls{0};
  run(plan.rank_count(), [&](Transport& transport, cudaStream_t stream) {
    StreamExecutor executor(stream);
    const auto replayer = replayer_of(plan, transport, executor, kRecordAfter);
    take_steps(*replayer, kSteps);
    calls += executor.calls();
  });
  const int a_step = plan.rank_count() * static_cast<int>(plan.micro_batches);
  EXPECT_EQ(calls, (kRecordAfter + 1) * a_step);
}

TEST(NcclGraph, TimesOfAReplayAreThoseOfItsInstructions) {
  const Plan plan = pipeline();
  run(plan.rank_count(), [&](Transport& transport, cudaStream_t stream) {
    StreamExecutor executor(stream);
    const auto replayer = replayer_of(plan, transport, executor, 1);
    take_steps(*replayer, 3);
    const auto begin = std::chrono::steady_clock::now().time_since_epoch();
    take_steps(*replayer, 1);
    const auto end = std::chrono::steady_clock::now().time_since_epoch();
    const InstructionTime* times = replayer->times().row(3);
    std::int64_t forward_end = 0;
    for (std::size_t i = 0; i < replayer->instructions().size(); ++i) {
      const InstructionId& id = replayer->instructions()[i];
      EXPECT_GE(times[i].begin, std::chrono::nanoseconds(begin).count()) << i;
      EXPECT_GE(times[i].end, times[i].begin) << i;
      EXPECT_LE(times[i].end, std::chrono::nanoseconds(end).count()) << i;
      if (id.opcode == Opcode::kForward && forward_end == 0) forward_end = times[i].end;
      if (id.opcode != Opcode::kAllReduce) continue;
      EXPECT_GE(times[i].end, forward_end) << i;
    }
  });
}

TEST(NcclGraph, WhereOneRankCannotAllGoOnAsBeforeAndSayWhy) {
  const Trained trained = train(pipeline(), kRecordAfter, [](int rank, StreamExecutor& executor) {
    if (rank >= 2) executor.obstacle = "node 'drop' (Dropout): the host draws its mask";
  });
  EXPECT_TRUE(trained.recording.decided);
  EXPECT_FALSE(trained.recording.replayed);
  EXPECT_EQ(trained.recording.why_not,
            "rank 2 (host1/0): node 'drop' (Dropout): the host draws its mask");
  EXPECT_EQ(trained.launches, 0);
}

// What nobody knew before it was tried.
TEST(NcclGraph, ARecordingThatAnOperatorBreaksOffIsThrownAwayOnAllRanks) {
  for (const bool says_so : {true, false}) {
    const Trained trained = train(pipeline(), kRecordAfter, [=](int rank, StreamExecutor& one) {
      if (rank != 1) return;
      one.when_recorded = [=](cudaStream_t stream) -> Status {
        EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported);
        if (!says_so) return {};
        return invalid_input("node 'nz' (NonZero): operation not permitted during a capture");
      };
    });
    EXPECT_TRUE(trained.recording.decided);
    EXPECT_FALSE(trained.recording.replayed);
    EXPECT_THAT(trained.recording.why_not, StartsWith("rank 1 (host0/1): "));
    EXPECT_THAT(trained.recording.why_not,
                HasSubstr(says_so ? "forward mb=0: node 'nz' (NonZero)" : "CUDA cannot"));
    EXPECT_EQ(trained.launches, 0);
  }
}

// What streams have been given since a capture began, on all its branches.
std::size_t captured_on(cudaStream_t stream) {
  const std::shared_ptr<CUgraph_st> graph = stream->captured().graph;
  std::size_t nodes = 0;
  if (!graph) return nodes;
  const std::lock_guard lock(graph->mutex);
  for (const auto& branch : graph->branches) nodes += branch.size();
  return nodes;
}

// CUDA does not synchronize what several threads add to one graph.
TEST(NcclGraph, AnOperationIsRecordedBeforeItsCallerGoesOn) {
  run(2, [](Transport& transport, cudaStream_t stream) {
    ASSERT_TRUE(transport.open_group(0, {0, 1}, {0, 0}).ok());
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, sizeof(float)), cudaSuccess);
    const Buffer buffer{memory, sizeof(float), DType::kFp32, true};
    auto& recording = dynamic_cast<RecordingTransport&>(transport);
    ASSERT_TRUE(recording.begin_recording().ok());
    std::size_t before = captured_on(stream);
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(transport.all_reduce(buffer, 0, AllReduce::kRing).ok());
      const std::size_t after = captured_on(stream);
      ASSERT_GT(after, before) << i;
      before = after;
      ASSERT_EQ(captured_on(stream), after) << i << ": nothing comes later";
    }
    EXPECT_TRUE(recording.end_recording(kLong).ok());
    cudaFree(memory);
  });
}

// Its numbers are in the host's memory, which it does not say.
class CarelessExecutor : public FakeExecutor, public RecordingExecutor {
 public:
  std::string recording_obstacle() const override { return {}; }
  Status begin_recording() override { return {}; }
  Status end_recording() override { return {}; }
  Status load_step(std::int64_t /*step*/) override { return {}; }
};

TEST(NcclGraph, BuffersInTheHostsMemoryAreNotRecorded) {
  const Plan plan = make_plan({{{2, 2}}, {}, 1});
  run(2, [&](Transport& transport, cudaStream_t) {
    CarelessExecutor executor;
    const auto replayer = replayer_of(plan, transport, executor, 1);
    take_steps(*replayer, 3);
    EXPECT_FALSE(replayer->recording().replayed);
    EXPECT_THAT(replayer->recording().why_not, HasSubstr("its buffer is in CPU memory"));
  });
}

TEST(NcclGraph, TheDefaultStreamIsNotRecorded) {
  const Plan plan = make_plan({{{2, 2}}, {}, 1});
  nccl_world().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    const auto replayer = replayer_of(plan, transport, executor, 1);
    take_steps(*replayer, 2);
    EXPECT_THAT(replayer->recording().why_not, HasSubstr("CUDA's default stream"));
  });
}

TEST(NcclGraph, OverLoopbackItIsSaidThatThereIsNoGpu) {
  const Plan plan = make_plan({{{2, 2}}, {}, 1});
  loopback_world().run(2, [&](Transport& transport) {
    FakeExecutor executor;
    const auto replayer = replayer_of(plan, transport, executor, 1);
    take_steps(*replayer, 2);
    EXPECT_EQ(replayer->recording().why_not,
              "rank 0 (host0/0): the transport computes on no GPU of its own");
  });
}

// Waits for a message that never comes, and so for the end of the world.
void stay_until_failure(Transport& transport, int peer) {
  int never = 0;
  const auto ticket = transport.recv({&never, sizeof never, DType::kInt32, false}, peer, 999);
  if (!ticket.ok()) return;
  EXPECT_FALSE(transport.wait(Stream::kRecv, *ticket, kLong).ok());
}

TEST(NcclGraph, AReplayThatHangsEndsInTimeWithTheRankTheStepAndWhatHangs) {
  const Plan plan = make_plan({{{4}, {4}}, {{0, 1, {"a"}}}, 2});
  run(2, [&](Transport& transport, cudaStream_t stream) {
    StreamExecutor executor(stream);
    const bool stops = transport.rank() == 0;
    const auto replayer = replayer_of(plan, transport, executor, 1, stops ? kLong : kEnough);
    take_steps(*replayer, 4);
    ASSERT_TRUE(replayer->recording().replayed) << replayer->recording().why_not;
    if (stops) return stay_until_failure(transport, 1);
    const auto report = replayer->run_step();
    EXPECT_EQ(report.status().code(), StatusCode::kTimeout);
    EXPECT_THAT(
        report.status().message(),
        StartsWith("rank 1 (host0/1): step 4, replayed as a CUDA graph: recv from rank 0, "));
    EXPECT_THAT(report.status().message(), HasSubstr("timed out after 3000 ms"));
    EXPECT_EQ(replayer->run_step().status().message(), report.status().message());
  });
}

TEST(NcclGraph, ARankThatGoesAwayIsNoticedDuringAReplay) {
  const Plan plan = make_plan({{{2, 2}}, {}, 2});
  run(2, [&](Transport& transport, cudaStream_t stream) {
    StreamExecutor executor(stream);
    const auto replayer = replayer_of(plan, transport, executor, 1);
    take_steps(*replayer, 4);
    if (transport.rank() == 1) return;
    const auto begin = std::chrono::steady_clock::now();
    const auto report = replayer->run_step();
    EXPECT_EQ(report.status().code(), StatusCode::kPeerFailed);
    EXPECT_THAT(report.status().message(),
                HasSubstr("step 4, replayed as a CUDA graph: all_reduce"));
    EXPECT_THAT(report.status().message(), HasSubstr("rank 1 went away"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  });
}

TEST(NcclGraph, AnErrorBeforeAReplayNamesTheStepAndEndsItOnAllRanks) {
  const Plan plan = make_plan({{{2, 2}}, {}, 2});
  run(2, [&](Transport& transport, cudaStream_t stream) {
    StreamExecutor executor(stream);
    if (transport.rank() == 1) {
      executor.when_loaded = [](std::int64_t step) {
        return step < 3 ? Status() : invalid_input("samples.npy cannot be read");
      };
    }
    const auto replayer = replayer_of(plan, transport, executor, 1);
    // The other rank may hear of it before it has the third step's loss.
    auto report = replayer->run_step();
    for (int step = 1; step < 4 && report.ok(); ++step) report = replayer->run_step();
    ASSERT_FALSE(report.ok());
    EXPECT_THAT(report.status().message(),
                HasSubstr("rank 1 (host0/1): step 3, replayed as a CUDA graph: samples.npy"));
  });
}

// A program of one's own that goes from one plan to another on the same transport.
TEST(NcclGraph, ASecondPlanOnTheSameTransportIsRecordedAnew) {
  const std::vector<Plan> plans = {make_plan({{{2, 2}}, {}, 2}),
                                   make_plan({{{4}, {4}}, {{0, 1, {"a"}}}, 2})};
  run(2, [&](Transport& transport, cudaStream_t stream) {
    int groups = 0;
    for (const Plan& plan : plans) {
      RenumberedGroups renumbered(transport, groups);
      groups += 10;
      StreamExecutor executor(stream);
      const auto replayer = replayer_of(plan, renumbered, executor, 1);
      take_steps(*replayer, 4);
      EXPECT_TRUE(replayer->recording().replayed) << replayer->recording().why_not;
      expect_parameters(plan, transport.rank(), executor, 4);
    }
  });
}

class OnePlan final : public Replanner {
 public:
  explicit OnePlan(Plan plan) : plan_(std::move(plan)) {}
  Result<std::optional<Replan>> replan(const Plan& /*running*/, const HardwareReport& /*hardware*/,
                                       const std::atomic<bool>& /*cancel*/) override {
    return std::optional<Replan>(Replan{plan_, 0.5, 0.1});
  }

 private:
  Plan plan_;
};

// Drift is seen in the times of replays, and the move throws the graph away.
TEST(NcclGraph, AMoveToAnotherPlanIsRecordedAnewAndNothingIsLost) {
  constexpr int kMostSteps = 300;
  Plan plan = pipeline();
  for (Expectation& line : plan.expect) {
    if (line.name == "utilization host0/0") line.value = 0.01;  // told to be slow, then
  }
  OnePlan replanner(make_plan({{{4}, {1, 2, 1}}, {{0, 1, {"a", "A"}}}, 3}));
  std::vector<std::string> told, why;
  run(plan.rank_count(), [&](Transport& transport, cudaStream_t stream) {
    const int rank = transport.rank();
    std::vector<std::int64_t> recorded_at;
    TrainerOptions options;
    options.replay.limit = kLong;
    TrainerRecording recording{kRecordAfter, {}};
    bool replayed = false;
    recording.on_decided = [&](std::int64_t step, const StepRecording& decided) {
      replayed = decided.replayed;
      if (rank != 0) return;
      told.emplace_back("recorded");
      why.push_back(decided.why_not);
      recorded_at.push_back(step);
    };
    if (rank == 0) {
      options.replanner = &replanner;
      options.on_event = [&](const TrainerEvent& event) {
        // A busy machine may drift more than once.
        if (event.kind == TrainerEvent::Kind::kSwitched) told.emplace_back("switched");
        why.push_back(event.why);
      };
    }
    const auto executors = [&]() -> Result<std::unique_ptr<Executor>> {
      return std::unique_ptr<Executor>(std::make_unique<StreamExecutor>(stream));
    };
    auto trainer = make_recording_trainer(plan, rank, transport, executors, options, recording);
    ASSERT_TRUE(trainer.ok()) << trainer.status().message();
    double loss = 0;
    while (!(*trainer)->stops() && (*trainer)->next_step() < kMostSteps) {
      const bool enough =
          recorded_at.size() == 2 && (*trainer)->next_step() > recorded_at.back() + 3;
      if (enough) (*trainer)->ask_to_stop();  // rank 0's alone
      const auto report = (*trainer)->run_step();
      ASSERT_TRUE(report.ok()) << report.status().message();
      loss = report->loss;
    }
    const int steps = static_cast<int>((*trainer)->next_step());
    EXPECT_EQ(loss, fake_reference(plan, steps).loss);
    EXPECT_TRUE(replayed);
    expect_parameters((*trainer)->plan(), rank,
                      static_cast<const StreamExecutor&>((*trainer)->executor()), steps);
  });
  EXPECT_THAT(why, testing::Each(""));
  EXPECT_THAT(told, testing::ElementsAre("recorded", "switched", "recorded"));
}

}  // namespace
}  // namespace agpcs
