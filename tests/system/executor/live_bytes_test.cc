// SPDX-License-Identifier: Apache-2.0
// The most bytes that live on a rank at a time: as the memory model says, and as the executor has
// them.
#include "ir/base/at.h"
#include "ir/strategy/memory.h"
#include "tests/support/shard_plan.h"
#include "tests/system/executor/kept_bytes.h"
#include "tests/system/executor/optimization.h"
#include "tests/system/executor/stage_driver.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kLayers = 8;

/// A table, and layers that read their weights transposed, as PyTorch's exporter writes them. If
/// tensors skip, all layers read the first one's output, too, which some products keep.
Graph transposing_layers(bool skips) {
  std::string text =
      "input x int64[n,32]\ninput labels int64[n,32]\nparameter table [512,128]\n"
      "h0 = Gather(table, x) [n,32,128]\n";
  for (int i = 0; i < kLayers; ++i) {
    text += fmt::format(
        "parameter w{0} [128,128]\n"
        "t{0} = Transpose(w{0}) [128,128] perm=1,0\n"
        "m{0} = MatMul(h{0}, t{0}) [n,32,128]\n",
        i);
    const bool adds = skips && i > 0;
    text += fmt::format("{}{} = Relu(m{}) [n,32,128]\n", adds ? 'r' : 'h', adds ? i : i + 1, i);
    if (!adds) continue;
    text += fmt::format("h{} = {}(r{}, h1) [n,32,128]\n", i + 1, i % 4 == 1 ? "Mul" : "Add", i);
  }
  return testing::graph_of(text +
                           "y = Transpose(h8) [n,128,32] perm=0,2,1\n"
                           "l = SoftmaxCrossEntropyLoss(y, labels) []\noutputs y\nloss l\n");
}

Cluster two_cpus() {
  return testing::cluster_of("kind cpu memory=16e9 bandwidth=10e9 fp32=50e9\nhost a cpu 2\n");
}

/// Two stages of four layers, or four of two where the schedule is interleaved.
Plan pipeline(const Graph& graph, const std::string& schedule, std::int64_t samples) {
  const bool interleaves = schedule == "interleaved";
  const std::string stages = interleaves ? "stage a/0={0} : h0..h2\nstage a/1={0} : t2..h4\n"
                                           "stage a/0={0} : t4..h6\nstage a/1={0} : *\n"
                                         : "stage a/0={0} : h0..h4\nstage a/1={0} : *\n";
  const std::string strategy =
      fmt::format("micro-batches 4 {}\n", schedule) + fmt::format(fmt::runtime(stages), samples);
  Plan plan = testing::plan_of(graph, two_cpus(), strategy, 4 * samples);
  plan.training.optimizer = optimizer_of(OptimizerKind::kAdam);
  return plan;
}

/// One of two replicas of one stage, with a bucket for each parameter, or one for all.
Plan plan_at(const Graph& graph, StateLevel level, const std::string& recompute,
             std::int64_t samples, bool one_bucket) {
  std::string strategy = fmt::format("micro-batches 2\nstage a/0={0} a/1={0}{1} : *\nbucket 0 ring",
                                     samples, recompute);
  const std::string_view next = one_bucket ? "" : "\nbucket 0 ring";
  for (int i = kLayers; i-- > 0;) strategy += fmt::format(" w{}{}", i, next);
  Plan plan = testing::plan_of(graph, two_cpus(), strategy + " table\n", 4 * samples);
  plan.training.optimizer = optimizer_of(OptimizerKind::kAdam);
  return level == StateLevel::kWhole ? plan : testing::sharded(std::move(plan), {3, 1}, level);
}

/// Drives an executor as the replayer does. Other ranks are not there: what they would send is 0.
class LoneRank : public GradientListener, public ParameterSource {
 public:
  LoneRank(const Graph& graph, Plan plan, int rank)
      : plan_(std::move(plan)),
        program_(static_cast<std::size_t>(plan_.program_of(plan_.stage_of_rank(rank)))),
        rank_(rank),
        gathers_(testing::pass_gathers(plan_, plan_.programs[program_])),
        executor_(make_torch_executor(graph, {})) {
    check(executor_->prepare(plan_, rank));
    if (!gathers_.empty()) check(executor_->gather_with(*this));
  }

  void step(std::int64_t number) {
    needed_ = 0;
    if (!gathers_.empty()) gather();
    check(executor_->begin_step(number));
    for (const Instruction& instruction : plan_.programs[program_].instructions) {
      for (const InstructionId& id : instruction.after) leave(id);
      check(run(instruction.id));
    }
    EXPECT_EQ(needed_, gathers_.size());
    while (!sends_.empty()) leave(sends_.front());
  }

  void bucket_ready(int bucket) override {
    if (!plan_.buckets[static_cast<std::size_t>(bucket)].divides_gradients()) {
      AGPCS_CHECK(executor_->bucket(bucket).ok(), "bucket {}", bucket);
      return;
    }
    check(executor_->fill_bucket(bucket));
    check(executor_->keep_part(bucket));
  }

  Status need(int bucket) override {
    if (needed_ == gathers_.size() || gathers_[needed_].object != bucket) return {};
    if (++needed_ < gathers_.size()) gather();
    return {};
  }

 private:
  Status run(const InstructionId& id) {
    const StagePass pass{Plan::stage_of_pass(id, plan_.programs[program_].stage), id.micro_batch};
    const bool last = pass.micro_batch + 1 == plan_.micro_batches;
    switch (id.opcode) {
      case Opcode::kForward:
        return executor_->forward(pass);
      case Opcode::kBackward:
        return executor_->backward(pass, last, *this);
      case Opcode::kBackwardInput:
        return executor_->backward_input(pass);
      case Opcode::kBackwardWeight:
        return executor_->backward_weight(pass, last, *this);
      case Opcode::kUpdate:
        return executor_->update();
      case Opcode::kSend:
      case Opcode::kSendGradient:
        return send(id);
      case Opcode::kRecv:
      case Opcode::kRecvGradient:
        return with_buffers(id, [](const Buffer& received) {
          std::fill_n(static_cast<char*>(received.data), received.bytes, char{0});
        });
      default:  // what LoneRank does when a bucket is ready or needed, and reports
        return {};
    }
  }

  Status send(const InstructionId& id) {
    AGPCS_RETURN_IF_ERROR(with_buffers(id, [](const Buffer& /*sent*/) {}));
    sends_.push_back(id);
    return {};
  }

  /// Messages leave as late as they may: when an instruction waits for `waited`, one of them or the
  /// gradient that comes back for one.
  void leave(InstructionId waited) {
    if (waited.opcode == Opcode::kRecvGradient) waited.opcode = Opcode::kSend;
    const auto sent = std::find(sends_.begin(), sends_.end(), waited);
    if (sent == sends_.end()) return;
    std::for_each(sends_.begin(), sent + 1, [&](const InstructionId& id) { executor_->sent(id); });
    sends_.erase(sends_.begin(), sent + 1);
  }

  template <typename F>
  Status with_buffers(const InstructionId& id, F use) {
    const bool gradient = id.opcode == Opcode::kSendGradient || id.opcode == Opcode::kRecvGradient;
    for (const Transfer& transfer : transfers(plan_, id.object, rank_, id.micro_batch)) {
      AGPCS_TRY(const Buffer buffer,
                gradient ? executor_->gradient(id.object, transfer, id.micro_batch)
                         : executor_->activation(id.object, transfer, id.micro_batch));
      use(buffer);
    }
    return {};
  }

  static void check(const Status& status) { AGPCS_CHECK(status.ok(), "{}", status.message()); }

  void gather() {
    const int bucket = gathers_[needed_].object;
    const Result<Buffer> whole = executor_->gather(bucket);
    AGPCS_CHECK(whole.ok(), "{}", whole.status().message());
    std::fill_n(static_cast<char*>(whole->data), whole->bytes, char{0});
  }

  Plan plan_;
  std::size_t program_;
  int rank_;
  std::vector<InstructionId> gathers_;
  std::unique_ptr<TorchExecutor> executor_;
  std::size_t needed_ = 0;
  std::deque<InstructionId> sends_;
};

/// Returns the bytes of the window through which rank `rank` updates Adam's moments that are in its
/// host's memory. The model takes all buckets as one, and pieces of the most elements; here each
/// bucket is a piece.
std::int64_t window_of(const Plan& plan, std::size_t rank) {
  std::array<std::int64_t, 3> slots = {};
  std::size_t piece = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    const std::int64_t owned = bucket.parts.empty() ? bucket.elements() : bucket.parts[rank];
    if (owned == 0) continue;
    std::int64_t& slot = slots[piece++ % slots.size()];
    slot = std::max(slot, owned);
  }
  return 8 * (slots[0] + slots[1] + slots[2]);
}

struct LiveCase {
  const char* name;
  StateLevel level;
  const char* recompute;
  std::int64_t samples;            // few: parameters are most of the memory; many: activations
  const char* pipeline = nullptr;  // the schedule of two stages
  bool skips = false;
  bool in_host = false;  // the optimizer's state
  bool moves = false;    // activations, of the segments that `recompute` says
  bool again = true;     // these segments are computed again, too
  bool one_bucket = false;
};
void PrintTo(const LiveCase& live, std::ostream* out) { *out << live.name; }

/// Returns the most bytes that live on the rank at a time, in its first two steps. Without other
/// ranks in its stage, the gradients of the first one are tensors of autograd, which the second one
/// has no more.
std::int64_t live_peak(const Graph& graph, const Plan& plan, int rank) {
  const auto live = std::make_shared<testing::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  LoneRank driven(graph, plan, rank);
  live->begin_peak();
  driven.step(0);
  const bool is_alone = plan.stages[at(plan.stage_of_rank(rank))].ranks.size() == 1;
  if (is_alone) live->begin_peak();
  driven.step(1);
  return live->peak();
}

class LiveBytesOf : public ::testing::TestWithParam<LiveCase> {};

TEST_P(LiveBytesOf, AreThoseOfTheMemoryModel) {
  const LiveCase& live_case = GetParam();
  const Graph graph = transposing_layers(live_case.skips);
  Plan plan = live_case.pipeline != nullptr ? pipeline(graph, live_case.pipeline, live_case.samples)
                                            : plan_at(graph, live_case.level, live_case.recompute,
                                                      live_case.samples, live_case.one_bucket);
  for (PlanStage& stage : plan.stages) {
    stage.state_in_host = live_case.in_host;
    stage.activations_in_host = live_case.moves;
    stage.recompute = stage.recompute && live_case.again;
  }
  const std::vector<MemoryUse> predicted = *peak_memory(plan, graph);
  for (const int rank : {0, 1}) {
    const std::int64_t peak = live_peak(graph, plan, rank);
    const MemoryUse& use = predicted[static_cast<std::size_t>(rank)];
    std::int64_t expected = use.total();
    if (live_case.in_host) {
      const std::int64_t window = window_of(plan, static_cast<std::size_t>(rank));
      EXPECT_LE(window, use.optimizer);
      expected += window - use.optimizer;
    }
    const double ratio = static_cast<double>(peak) / static_cast<double>(expected);
    EXPECT_LT(ratio, 1.05) << "rank " << rank << ": " << peak << " bytes";
    // Where parameters are divided, a gradient is counted that the loss's backward pass has freed.
    EXPECT_GT(ratio, live_case.level == StateLevel::kParameters ? 0.93 : 0.95)
        << "rank " << rank << ": " << peak << " bytes";
  }
}

// As in language models, the scores of the classes are most of the memory. While their gradient is
// made, their logarithms are there, and nothing else of their size.
TEST(LiveBytes, OfManyClassesAreThoseOfTheMemoryModel) {
  const Graph graph = testing::graph_of(
      "input x [n,16]\ninput labels int64[n]\nparameter w [16,2048]\ny = MatMul(x, w) [n,2048]\n"
      "l = SoftmaxCrossEntropyLoss(y, labels) []\noutputs y\nloss l\n");
  const Plan plan =
      testing::plan_of(graph, two_cpus(), "micro-batches 1\nstage a/0=128 a/1=128 : *\n", 256);
  const std::int64_t expected = peak_memory(plan, graph)->front().total();
  const std::int64_t peak = live_peak(graph, plan, 0);
  EXPECT_NEAR(static_cast<double>(peak) / static_cast<double>(expected), 1, 0.05) << peak;
  EXPECT_GT(expected, 2 * 128 * 2048 * 4);
}

INSTANTIATE_TEST_SUITE_P(
    Plans, LiveBytesOf,
    ::testing::Values(
        LiveCase{"whole", StateLevel::kWhole, "", 2},
        LiveCase{"one_bucket", StateLevel::kWhole, "", 2, nullptr, false, false, false, true, true},
        LiveCase{"optimizer", StateLevel::kOptimizer, "", 2},
        LiveCase{"gradients", StateLevel::kGradients, "", 2},
        LiveCase{"parameters", StateLevel::kParameters, "", 2},
        LiveCase{"gradients_of_many_samples", StateLevel::kGradients, "", 8},
        LiveCase{"parameters_of_many_samples", StateLevel::kParameters, "", 8},
        LiveCase{"parameters_of_a_stage_that_recomputes", StateLevel::kParameters, " recompute", 2},
        LiveCase{"state_in_the_host", StateLevel::kWhole, "", 2, nullptr, false, true},
        LiveCase{"divided_state_in_the_host", StateLevel::kOptimizer, "", 2, nullptr, false, true},
        LiveCase{"activations_in_the_host", StateLevel::kWhole, " recompute=6/8", 16, nullptr,
                 false, false, true, false},
        LiveCase{"all_activations_in_the_host", StateLevel::kWhole, " recompute=8/8", 16, nullptr,
                 false, false, true, false},
        LiveCase{"skips_and_activations_in_the_host", StateLevel::kWhole, " recompute=6/8", 16,
                 nullptr, true, false, true, false},
        LiveCase{"recomputed_and_in_the_host", StateLevel::kWhole, " recompute=4/8", 16, nullptr,
                 false, false, true, true},
        LiveCase{"state_and_activations_in_the_host", StateLevel::kOptimizer, " recompute=6/8", 16,
                 nullptr, false, true, true, false},
        LiveCase{"pipeline", StateLevel::kWhole, "", 4, "1f1b"},
        LiveCase{"interleaved_pipeline", StateLevel::kWhole, "", 4, "interleaved"},
        LiveCase{"interleaved_pipeline_of_few_samples", StateLevel::kWhole, "", 1, "interleaved"},
        LiveCase{"skips", StateLevel::kWhole, "", 4, "1f1b", true},
        LiveCase{"interleaved_skips", StateLevel::kWhole, "", 4, "interleaved", true},
        LiveCase{"parted_pipeline", StateLevel::kWhole, "", 4, "zero-bubble"},
        LiveCase{"parted_pipeline_of_few_samples", StateLevel::kWhole, "", 1, "zero-bubble"}),
    [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace agpcs
