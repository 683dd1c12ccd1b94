// SPDX-License-Identifier: Apache-2.0
// What the executor keeps for the backward passes of operators is what the operator table says.
#include "tests/system/executor/kept_bytes.h"

#include "ir/graph/training_graph.h"
#include "ir/plan/lookup.h"
#include "tests/support/graph_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr std::int64_t kBatch = 64;

struct Case {
  std::string name;
  std::string operators;  // from x fp32[n,6,8] to y
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Layers from t, x with its first axes swapped, to y.
std::string layer(const std::string& op, const std::string& weights) {
  return weights + "turn: t = Transpose-13(x) perm=[1,0,2] -> fp32[6,n,8]\nlayer: y = " + op +
         " hidden_size=8 -> fp32[6,1,n,8]\n";
}

const std::string kRecurrent = "parameter r fp32[1,32,8]\nparameter v fp32[1,32,8]\n";

std::vector<Case> cases() {
  return {
      {"clip",
       "constant low fp32[] {-0.1}\nconstant high fp32[] {0.1}\n"
       "op: y = Clip-13(x, low, high) -> fp32[n,6,8]\n"},
      {"power", "constant two fp32[] {2}\nop: y = Pow-15(x, two) -> fp32[n,6,8]\n"},
      {"power_of_a_tensor",
       "exp: e = Exp-13(x) -> fp32[n,6,8]\nop: y = Pow-15(e, x) -> fp32[n,6,8]\n"},
      {"hard_swish", "op: y = HardSwish-14(x) -> fp32[n,6,8]\n"},
      {"dropout",
       "constant ratio fp32[] {0.5}\nconstant training bool[] {0x01}\n"
       "op: y = Dropout-13(x, ratio, training) -> fp32[n,6,8]\n"},
      {"gather",
       "square: z = Mul-14(x, x) -> fp32[n,6,8]\nconstant rows int64[3] {2,0,2}\n"
       "op: y = Gather-13(z, rows) axis=1 -> fp32[n,3,8]\n"},
      {"matrices",
       "exp: e = Exp-13(x) -> fp32[n,6,8]\nturn: t = Transpose-13(e) perm=[0,2,1] -> fp32[n,8,6]\n"
       "op: y = MatMul-13(t, e) -> fp32[n,8,8]\n"},
      {"lstm", layer("LSTM-14(t, v, r)", kRecurrent)},
      {"lstm_of_computed_weights",
       layer("LSTM-14(t, w, r)", kRecurrent + "neg: w = Neg-13(v) -> fp32[1,32,8]\n")},
      {"gru", layer("GRU-14(t, v, r)", "parameter r fp32[1,24,8]\nparameter v fp32[1,24,8]\n")},
      {"rnn", layer("RNN-14(t, v, r)", "parameter r fp32[1,8,8]\nparameter v fp32[1,8,8]\n")},
  };
}

class KeptBytes : public ::testing::TestWithParam<Case> {};

TEST_P(KeptBytes, AreWhatTheTableSays) {
  const auto graph = derive_backward(
      graph_of("graph one\ninput data fp32[n,6,8]\nparameter p fp32[8,8]\n"
               "first: x = MatMul-13(data, p) -> fp32[n,6,8]\n" +
               GetParam().operators + "sum: l = ReduceSum-13(y) keepdims=0 -> fp32[]\nloss l\n"));
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const std::int64_t data = kBatch * 6 * 8 * 4;
  const std::int64_t table = testing::kept_by_table(*graph, kBatch);
  EXPECT_GE(table, data);
  // Scalars are not in the table, nor are a layer's first states: zeros, in place of its last ones.
  const bool has_states = GetParam().operators.find("hidden_size") != std::string::npos;
  const auto near = static_cast<double>(has_states ? 2 * data / 6 : 16);
  EXPECT_NEAR(static_cast<double>(testing::kept_by_executor(*graph, kBatch)),
              static_cast<double>(table), near);
}

INSTANTIATE_TEST_SUITE_P(Operators, KeptBytes, ::testing::ValuesIn(cases()),
                         [](const auto& param) { return param.param.name; });

TEST(SentBytes, AreFreeWhenTheyHaveLeft) {
  const auto graph = derive_backward(
      graph_of("graph two\ninput data fp32[n,256]\nparameter p fp32[256,256]\n"
               "parameter q fp32[256,256]\nfirst: x = MatMul-13(data, p) -> fp32[n,256]\n"
               "second: y = MatMul-13(x, q) -> fp32[n,256]\n"
               "sum: l = ReduceSum-13(y) keepdims=0 -> fp32[]\nloss l\n"));
  ASSERT_TRUE(graph.ok()) << graph.status().message();
  const Cluster two = testing::cluster_of(
      "kind cpu memory=16e9 bandwidth=10e9 fp32=50e9\n"
      "host a cpu 2 bandwidth=1e9 latency=1e-6\n");
  const Plan plan =
      testing::plan_of(*graph, two, "micro-batches 4\nstage a/0=8 : first\nstage a/1=8 : *\n", 32);
  for (const int rank : {0, 1}) {
    const auto executor = make_torch_executor(*graph, {});
    ASSERT_TRUE(executor->prepare(plan, rank).ok());
    ASSERT_TRUE(executor->begin_step(0).ok());
    const auto live = std::make_shared<testing::LiveBytes>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
    testing::BucketLog log;
    std::vector<std::int64_t> bytes;
    for (int m = 0; m < plan.micro_batches; ++m) {
      const auto messages = transfers(plan, 0, rank, m);
      ASSERT_EQ(messages.size(), 1U);
      ASSERT_TRUE(rank == 0 || executor->activation(0, messages[0], m).ok());
      ASSERT_TRUE(executor->forward({0, m}).ok());
      ASSERT_TRUE(rank == 1 || executor->gradient(0, messages[0], m).ok());
      ASSERT_TRUE(executor->backward({0, m}, m == 3, log).ok());
      executor->sent({rank == 0 ? Opcode::kSend : Opcode::kSendGradient, 0, m});
      bytes.push_back(live->bytes());
    }
    EXPECT_EQ(bytes[2], bytes[1]) << "rank " << rank;
    EXPECT_EQ(bytes[3], bytes[1]) << "rank " << rank;
  }
}

}  // namespace
}  // namespace agpcs
