// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/kineto/kineto.h"

#include "frontend/cluster/profile_file.h"
#include "ir/base/read_file.h"
#include "tests/support/builders.h"
#include "tools/profile/kineto/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace agpcs {
namespace {

const char* const kCpu = "tests/tools/profile/traces/mlp_cpu.json";
const char* const kCuda = "tests/tools/profile/traces/linear_cuda.json";
const std::string kHint =
    "\n  hint: record a trace by torch.profiler.profile(record_shapes=True, with_stack=True), call "
    "its step() after each training step, and write it by export_chrome_trace(\"trace.json\")";

/// The model of mlp_cpu.json.
const char* const kMlp = R"(
  input x [n,16]
  input labels int64[n]
  parameter up.weight [16,32]
  parameter up.bias [32]
  parameter norm.weight [32]
  parameter norm.bias [32]
  parameter down.weight [32,8]
  parameter down.bias [8]
  up/y = Gemm(x, up.weight, up.bias) [n,32]
  norm/y = LayerNormalization(up/y, norm.weight, norm.bias) [n,32]
  relu = Relu(norm/y) [n,32]
  down/y = Gemm(relu, down.weight, down.bias) [n,8]
  value = SoftmaxCrossEntropyLoss(down/y, labels) []
  outputs down/y
  loss value
)";

std::string event(std::string_view category, std::string_view name, double start, double length,
                  std::string_view args = "") {
  return fmt::format(
      R"({{"ph": "X", "cat": "{}", "name": "{}", "pid": 1, "tid": 1, "ts": {}, "dur": {}, "args": {{{}}}}})",
      category, name, start, length, args);
}

const std::string kStep = event("user_annotation", "ProfilerStep#1", 0, 100);
const std::string kShapes = R"("Input Dims": [[4, 8], [8, 2]], "Input type": ["float", "float"])";

std::string no_backward(std::string_view samples) {
  return fmt::format(
      "trace.json: warning: no backward pass was traced in a step of {}; a plan's "
      "step will be too short\n",
      samples);
}

std::string trace_of(const std::vector<std::string>& events, std::string_view devices = "") {
  return fmt::format(R"({{"deviceProperties": [{}], "traceEvents": [{}]}})", devices,
                     fmt::join(events, ",\n"));
}

Result<KinetoProfile> made(const std::string& text, const Graph* model = nullptr,
                           const KinetoOptions& options = {"cpu", 0, {}}) {
  AGPCS_TRY(const KinetoTrace trace, parse_kineto_trace(text, "trace.json"));
  return profile_of_trace(trace, model, options);
}

std::string refusal(const std::string& text, const Graph* model = nullptr,
                    const KinetoOptions& options = {"cpu", 0, {}}) {
  const Result<KinetoProfile> result = made(text, model, options);
  if (result.ok()) return "no error";
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidInput);
  return result.status().message();
}

const MeasuredOperator* find(const DeviceProfile& device, std::string_view start) {
  for (const MeasuredOperator& op : device.operators) {
    if (op.signature.starts_with(start)) return &op;
  }
  return nullptr;
}

Profile sealed(DeviceProfile device) {
  Profile profile;
  profile.devices.push_back(std::move(device));
  seal_profile(profile);
  return profile;
}

TEST(KinetoTrace, RefusesWhatIsNoTrace) {
  EXPECT_EQ(refusal("{\"traceEvents\": [\n{\"ph\": \"X\", "),
            "trace.json:2:13: error: not JSON: unexpected end of input; expected string literal\n"
            "    {\"ph\": \"X\", \n"
            "                ^" +
                kHint);
  EXPECT_EQ(refusal("\x1f\x8b\x08"),
            "trace.json: error: the trace is compressed\n  hint: gunzip it");
  EXPECT_EQ(refusal("[]"),
            "trace.json: error: it is JSON, but no trace of torch.profiler: it has no "
            "'traceEvents'" +
                kHint);
  EXPECT_EQ(refusal(trace_of({kStep})),
            "trace.json: error: the trace has no operators of PyTorch ('cpu_op')" + kHint);
}

TEST(KinetoTrace, RefusesATraceThatLacksWhatAProfileNeeds) {
  EXPECT_EQ(refusal(trace_of({event("cpu_op", "aten::mm", 10, 5, kShapes)})),
            "trace.json: error: the trace does not say where training steps begin: it has no "
            "'ProfilerStep#'\n  hint: call the profiler's step() after each training step");
  EXPECT_EQ(refusal(trace_of({kStep, event("cpu_op", "aten::mm", 10, 5)})),
            "trace.json: error: the trace has no shapes of operators\n"
            "  hint: record it with record_shapes=True");
  EXPECT_EQ(refusal(trace_of({kStep, event("cpu_op", "aten::mm", 10, 5, kShapes)},
                             R"({"name": "NVIDIA L4"})")),
            "trace.json: error: the machine has a GPU ('NVIDIA L4'), but no kernel was traced: "
            "calls that only launch kernels do not say how long these take\n"
            "  hint: record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]; to "
            "measure the CPU, hide the GPUs: CUDA_VISIBLE_DEVICES=");
  EXPECT_EQ(refusal(trace_of({kStep, event("cpu_op", "mine::mm", 10, 5, kShapes)})),
            "trace.json: error: no step calls an operator of PyTorch that is known here\n"
            "  hint: trace whole training steps");
  EXPECT_EQ(refusal(trace_of({kStep, event("cpu_op", "aten::mm", 10, 5, kShapes)}), nullptr, {}),
            "trace.json: error: a trace does not name the processor\n"
            "  hint: --kind NAME says what cluster.yaml calls it");
}

TEST(KinetoTrace, RefusesCallsThatAreNestedWithoutEnd) {
  std::vector<std::string> events;
  for (int i = 0; i < 1001; ++i) events.push_back(event("cpu_op", "aten::mm", i, 5000, kShapes));
  events.push_back(kStep);
  EXPECT_EQ(refusal(trace_of(events)),
            "trace.json: error: more than 1000 calls are inside one another" + kHint);
}

TEST(KinetoSteps, TellForwardFromBackwardBySequenceNumbers) {
  const auto trace = read_kineto_trace(kCuda);
  ASSERT_TRUE(trace.ok()) << trace.status().message();
  EXPECT_TRUE(trace->on_gpu);
  const std::vector<TracedStep> steps = steps_of(*trace);
  ASSERT_EQ(steps.size(), 2U);
  const TracedStep& step = steps.front();
  ASSERT_EQ(step.ops.size(), 2U);
  EXPECT_EQ(step.ops[0].row->name, "addmm");
  EXPECT_EQ(trace->names[static_cast<std::size_t>(step.ops[0].module)], "Linear_0");
  EXPECT_NEAR(step.ops[0].forward, 43e-6, 1e-12);
  EXPECT_NEAR(step.ops[0].backward, (45 + 47 + 6) * 1e-6, 1e-12);  // two products, AccumulateGrad
  EXPECT_EQ(step.ops[1].row->name, "relu");
  EXPECT_NEAR(step.ops[1].forward, 5e-6, 1e-12);  // its kernel names it by the External id alone
  EXPECT_NEAR(step.ops[1].backward, 8e-6, 1e-12);
  EXPECT_NEAR(step.update, 25e-6, 1e-12);
  EXPECT_EQ(step.optimizer, "SGD");
  EXPECT_TRUE(step.momentum);
  ASSERT_EQ(step.unknown.size(), 1U);
  EXPECT_NEAR(step.unknown.at("aten::_fused_custom"), 2e-6, 1e-12);
}

TEST(KinetoSteps, AreTheSameInTheFormOfOlderTraces) {
  const auto newer = read_kineto_trace(kCuda);
  ASSERT_TRUE(newer.ok());
  std::string text = *read_file(kCuda, {"trace"});
  const auto replace = [&](const char* what, const char* with) {
    text = std::regex_replace(text, std::regex(what), with);
  };
  replace("\"cpu_op\"", "\"Operator\"");
  replace("\"cuda_runtime\"", "\"Runtime\"");
  replace("\"kernel\"", "\"Kernel\"");
  replace("(\"cat\": \"(?:Kernel|Runtime)\".*)\"External id\"", "$1\"external id\"");
  replace("\"tid\": (\\d+)", "\"tid\": \"$1\"");
  const auto older = parse_kineto_trace(text, "older.json");
  ASSERT_TRUE(older.ok()) << older.status().message();
  const std::vector<TracedStep> expected = steps_of(*newer), steps = steps_of(*older);
  ASSERT_EQ(steps.size(), expected.size());
  EXPECT_DOUBLE_EQ(steps[0].busy(), expected[0].busy());
  EXPECT_DOUBLE_EQ(steps[0].ops[0].backward, expected[0].ops[0].backward);
}

TEST(KinetoProfile, OfAGpuHasTheTimesOfItsKernelsAndItsName) {
  const auto trace = read_kineto_trace(kCuda);
  ASSERT_TRUE(trace.ok());
  auto profile = profile_of_trace(*trace, nullptr, {});
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  const DeviceProfile& device = profile->device;
  EXPECT_EQ(device.name, "NVIDIA-A100-SXM4-40GB");
  EXPECT_EQ(device.precision, Precision::kFp16);
  const MeasuredOperator* op = find(device, "aten::addmm(");
  ASSERT_NE(op, nullptr);
  EXPECT_EQ(op->signature, "aten::addmm(fp16[4096], fp16[512,1024], fp16[1024,4096], 1, 1)");
  EXPECT_EQ(op->op_class, OpClass::kMatmul);
  EXPECT_EQ(op->points.front().samples, 512);
  EXPECT_DOUBLE_EQ(op->points.front().forward.seconds, 43.5e-6);  // the median of 43 and 44
  EXPECT_EQ(profile->report,
            std::string(kCuda) +
                ": 2 steps of 512 samples in 900us: forward 48.5us, backward 106us, update 25.0us, "
                "between operators 719us\n"
                "  operators that no class is known of took 1.1% of a step of 512 samples; the "
                "profile lacks them: aten::_fused_custom (1.1%)\n");
  EXPECT_EQ(profile->warnings,
            std::string(kCuda) +
                ": warning: the GPU has no work in 79.8% of a step of 512 samples: it waits for "
                "the host, which no profile knows; a plan's step will be shorter than the job's\n");
  EXPECT_TRUE(verify_profile(sealed(device)).ok());
}

TEST(KinetoProfile, OfAModelGivesItsOperatorsAllOfTheTime) {
  const Graph graph = testing::graph_of(kMlp);
  const auto trace = read_kineto_trace(kCpu);
  ASSERT_TRUE(trace.ok());
  const auto profile = profile_of_trace(*trace, &graph, {"cpu", 0, {}});
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->warnings, "");
  EXPECT_THAT(profile->report,
              ::testing::HasSubstr("  model test: 5 of 5 operators are in the trace, with "));
  double of_model = 0, of_trace = 0;
  for (const MeasuredOperator& op : profile->device.operators) {
    ASSERT_EQ(op.points.size(), 1U);
    EXPECT_EQ(op.points[0].samples, 4) << op.signature;
    (op.signature.starts_with("aten::") ? of_trace : of_model) +=
        op.points[0].forward.seconds + op.points[0].backward.seconds;
  }
  EXPECT_NEAR(of_model, of_trace, 1e-4 * of_trace);
  const MeasuredOperator* up = find(profile->device, "Gemm(fp32[n,16], fp32[16,32]*', ");
  const MeasuredOperator* traced = find(profile->device, "aten::addmm(fp32[32], fp32[4,16], ");
  ASSERT_NE(up, nullptr);
  ASSERT_NE(traced, nullptr);
  EXPECT_DOUBLE_EQ(up->points[0].forward.seconds, traced->points[0].forward.seconds);
  ASSERT_EQ(profile->device.updates.size(), 1U);
  EXPECT_EQ(profile->device.updates[0].optimizer, "sgd momentum");
  EXPECT_EQ(profile->device.updates[0].elements, graph.parameter_elements());
}

TEST(KinetoProfile, IsNotMadeForAnotherModel) {
  const Graph graph = testing::graph_of(R"(
    input x [n,100]
    parameter w [100,100]
    y = MatMul(x, w) [n,100]
    outputs y
    loss y
  )");
  EXPECT_EQ(refusal(*read_file(kCpu, {"trace"}), &graph),
            "trace.json: error: a step's products take 0.0063 MFLOPs, those of model 'test' 0.02 a "
            "sample: the trace is not of this model\n"
            "  hint: give the model that was traced, with the same --dim and --freeze as for "
            "agpcs-compile; or give none, for fits by class alone; --samples N says how many a "
            "step has where unknown operators do a part of the products");
}

/// A model with the product of kShapes.
const char* const kProduct = R"(
  input x [n,8]
  parameter w [8,2]
  y = MatMul(x, w) [n,2]
  outputs y
  loss y
)";

std::string hint_of_other_model() {
  return "\n  hint: give the model that was traced, or none, for fits by class alone; where "
         "gradients are accumulated, call the profiler's step() after each micro-batch";
}

TEST(KinetoProfile, IsNotMadeForAModelThatHasAPartOfTheTimeAlone) {
  const Graph graph = testing::graph_of(kProduct);
  EXPECT_EQ(refusal(trace_of({kStep, event("cpu_op", "aten::mm", 0, 10, kShapes),
                              event("cpu_op", "aten::exp", 10, 90, kShapes)}),
                    &graph),
            "trace.json: error: 1 of 1 operators of model 'test' are in the trace, with 10.0% of "
            "its time: the trace is not of this model" +
                hint_of_other_model());
  std::vector<std::string> micro_batches{kStep};
  for (int i = 0; i < 9; ++i)
    micro_batches.push_back(event("cpu_op", "aten::mm", 10 * i, 10, kShapes));
  EXPECT_EQ(refusal(trace_of(micro_batches), &graph),
            "trace.json: error: a step has 9 operators, model 'test' 1" + hint_of_other_model());
}

TEST(KinetoProfile, SaysWhatWasTracedWithoutModulesAndWithAnUnknownOptimizer) {
  const Graph graph = testing::graph_of(kProduct);
  const std::string text =
      trace_of({kStep, event("cpu_op", "aten::mm", 0, 60, kShapes),
                event("user_annotation", "Optimizer.step#RMSprop.step", 60, 20)});
  const auto profile = made(text, &graph);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(
      profile->warnings,
      no_backward("4 samples") +
          "trace.json: warning: the update by 'RMSprop' is left out: --optimizer says which "
          "optimizer is like it\n"
          "trace.json: warning: the trace has no modules: operators of the model are found by "
          "their order and work alone; record it with with_stack=True\n");
  EXPECT_TRUE(profile->device.updates.empty());

  const auto without = made(trace_of({kStep, event("cpu_op", "aten::mm", 0, 60, kShapes)}), &graph);
  ASSERT_TRUE(without.ok()) << without.status().message();
  EXPECT_THAT(without->warnings,
              ::testing::HasSubstr("\ntrace.json: warning: no optimizer's step was traced; the "
                                   "profile lacks the update\n"));

  Optimizer adam;
  adam.kind = OptimizerKind::kAdam;
  const auto told = made(text, &graph, {"cpu", 0, adam});
  ASSERT_TRUE(told.ok()) << told.status().message();
  ASSERT_EQ(told->device.updates.size(), 1U);
  EXPECT_EQ(told->device.updates[0].optimizer, "adam");
  EXPECT_DOUBLE_EQ(told->device.updates[0].update.seconds, 20e-6);
}

TEST(KinetoProfile, NeedsANumberOfSamples) {
  const std::string text =
      trace_of({kStep, event("cpu_op", "aten::exp", 0, 60,
                             R"("Input Dims": [[]], "Input type": ["float"])")});
  EXPECT_EQ(refusal(text),
            "trace.json: error: the shapes do not say how many samples a step has\n"
            "  hint: --samples N says it");
  const auto profile = made(text, nullptr, {"cpu", 3, {}});
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->device.operators.front().points.front().samples, 3);
}

TEST(KinetoProfile, SaysWhichKernelsItLacksAndWhoseItHas) {
  const auto kernel = [](std::string_view name, int device, double length, int external) {
    return event("kernel", name, 0, length,
                 fmt::format(R"("device": {}, "External id": {})", device, external));
  };
  const std::string text =
      trace_of({kStep, event("cpu_op", "aten::mm", 10, 5, kShapes + R"(, "External id": 7)"),
                kernel("gemm", 0, 60, 7), kernel("gemm", 1, 20, 7), kernel("lost", 0, 20, 8),
                kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0, 30, 7)},
               R"({"name": "NVIDIA L4"})");
  const auto profile = made(text);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(
      profile->warnings,
      no_backward("4 samples") +
          "trace.json: warning: the GPU has no work in 20.0% of a step of 4 samples: it waits "
          "for the host, which no profile knows; a plan's step will be shorter than the job's\n"
          "trace.json: warning: kernels that no call in the trace launched took 20.0% of the "
          "GPU's time; the profile lacks them\n"
          "trace.json: warning: 30.0us of NCCL's kernels are left out: a trace does not say what "
          "links are worth; agpcs-profile --cluster measures them\n"
          "trace.json: warning: kernels of 2 GPUs are taken for those of one\n");
  EXPECT_DOUBLE_EQ(profile->device.operators.front().points.front().forward.seconds, 80e-6);
}

TEST(KinetoProfile, HasThePrecisionOfMostProducts) {
  const std::string half =
      R"("Input Dims": [[4, 8], [8, 2]], "Input type": ["c10::Half", "c10::Half"])";
  const auto profile = made(trace_of({kStep, event("cpu_op", "aten::mm", 0, 30, half),
                                      event("cpu_op", "aten::mm", 30, 30, kShapes),
                                      event("cpu_op", "aten::mm", 60, 30, half)}));
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->device.precision, Precision::kFp16);
  EXPECT_EQ(profile->warnings,
            "trace.json: warning: products are computed in several types: 66.7% of their FLOPs in "
            "fp16, which the profile takes for all\n" +
                no_backward("4 samples"));
}

TEST(KinetoProfile, SaysWhichOperatorsItLacks) {
  const std::string text =
      trace_of({kStep, event("cpu_op", "aten::mm", 0, 60, kShapes),
                event("cpu_op", "mine::scan", 60, 30), event("cpu_op", "mine::fold", 90, 10)});
  const auto profile = made(text);
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->warnings,
            "trace.json: warning: operators that no class is known of took 40.0% of a step of 4 "
            "samples; the profile lacks them: mine::scan (30.0%), mine::fold (10.0%)\n" +
                no_backward("4 samples"));
}

TEST(KinetoProfile, HasAPointForEachNumberOfSamplesAndLeavesOddStepsOut) {
  std::vector<std::string> events;
  const auto step = [&](int i, int samples, std::string_view name, double length) {
    events.push_back(event("user_annotation", fmt::format("ProfilerStep#{}", i), 100 * i, 90));
    events.push_back(
        event("cpu_op", name, 100 * i, length,
              fmt::format(R"("Input Dims": [[{}, 8], [8, 8]], "Input type": ["float", "float"])",
                          samples)));
  };
  step(1, 4, "aten::mm", 20);
  step(2, 4, "aten::mm", 30);
  step(3, 8, "aten::mm", 60);
  step(4, 4, "aten::add", 70);
  const auto profile = made(trace_of(events));
  ASSERT_TRUE(profile.ok()) << profile.status().message();
  EXPECT_EQ(profile->warnings,
            "trace.json: warning: 1 of 4 steps are left out: their operators are not those of the "
            "others\n" +
                no_backward("4 samples") + no_backward("8 samples"));
  const MeasuredOperator* four = find(profile->device, "aten::mm(fp32[4,8]");
  const MeasuredOperator* eight = find(profile->device, "aten::mm(fp32[8,8]");
  ASSERT_NE(four, nullptr);
  ASSERT_NE(eight, nullptr);
  EXPECT_DOUBLE_EQ(four->points[0].forward.seconds, 25e-6);
  EXPECT_EQ(eight->points[0].samples, 8);
  EXPECT_EQ(find(profile->device, "aten::add"), nullptr);
}

}  // namespace
}  // namespace agpcs
