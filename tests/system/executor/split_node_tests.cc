// SPDX-License-Identifier: Apache-2.0
// Every split that the table offers is exact: ONNX's node tests, and cases that ONNX lacks, divided
// among two and three members, unevenly, and compared with the whole.
#include "tests/support/graph_text.h"
#include "tests/system/executor/onnx_node_test.h"
#include "tests/system/executor/split_run.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::NodeCase;
using testing::Results;
using testing::SplitInputs;

/// The name that the table gives a split: "axes" for "axis 2".
std::string table_name(const OpSplit& split) {
  if (split.name.substr(0, 5) == "axis ") return "axes";
  if (split.name.substr(0, 6) == "index ") return "indices";
  std::string name = split.name;
  std::replace(name.begin(), name.end(), ' ', '_');
  return name;
}

struct Tally {
  int cases = 0, splits = 0, runs = 0, gradients = 0;
  std::map<std::string, std::set<std::string>> names;  // by operator: splits that ran
  std::set<std::string> with_gradient;
};

/// A cast to fewer bits rounds each summand.
bool same(const at::Tensor& got, const at::Tensor& want) {
  const bool exact = want.scalar_type() == at::kDouble;
  return got.sizes() == want.sizes() &&
         at::allclose(got.to(at::kDouble), want.to(at::kDouble), exact ? 1e-7 : 1e-4,
                      exact ? 1e-9 : 1e-6, true);
}

/// Returns what is wrong with the gradients of a division, if anything is.
std::string gradient_fault(const Results& got, const Results& whole, Tally& tally) {
  bool any = false;
  for (std::size_t i = 0; i < got.gradients.size(); ++i) {
    if (!got.gradients[i].defined() || !whole.gradients[i].defined()) continue;
    any = true;
    if (!same(got.gradients[i], whole.gradients[i])) {
      return fmt::format("the gradient of input {} differs by {}", i,
                         (got.gradients[i] - whole.gradients[i]).abs().max().item<double>());
    }
  }
  if (any) ++tally.gradients;
  return "";
}

/// Runs every split of a case with two and three members; `one` has expected outputs if it is
/// ONNX's.
void try_splits(const SplitInputs& inputs, const NodeCase* one, const std::string& name,
                Tally& tally) {
  const std::vector<OpSplit> splits = splits_of(inputs.graph, 0);
  if (splits.empty()) return;
  const Results whole = run_whole(inputs);
  for (const OpSplit& split : splits) {
    bool ran = false;
    for (const int members : {2, 3}) {
      if (split.units != 0 && split.units < members) continue;
      SCOPED_TRACE(
          fmt::format("{}: {} of {} units, {} members", name, split.name, split.units, members));
      try {
        const Results got = run_members(inputs, split, members, whole);
        for (std::size_t i = 0; i < got.outputs.size(); ++i) {
          if (!got.outputs[i].defined()) continue;
          EXPECT_TRUE(same(got.outputs[i], whole.outputs[i])) << "output " << i;
          if (one == nullptr) continue;
          const at::Tensor typed = got.outputs[i].to(one->expected[i].scalar_type());
          const auto difference = difference_from_expected(*one, i, typed);
          EXPECT_FALSE(difference) << *difference;
        }
        const int before = tally.gradients;
        EXPECT_EQ(gradient_fault(got, whole, tally), "");
        if (tally.gradients > before) tally.with_gradient.insert(inputs.op().type);
        ++tally.runs;
        ran = true;
      } catch (const std::exception& error) {
        ADD_FAILURE() << error.what();
      }
    }
    if (ran) tally.names[inputs.op().type].insert(table_name(split));
    tally.splits += ran;
  }
  ++tally.cases;
}

/// Cases for splits of which ONNX's node tests have none, or only even ones. Random data.
constexpr const char* kCases[] = {
    "input x fp32[2,8,7,7]\ninput w fp32[12,8,3,3]\ninput b fp32[12]\n"
    "op: y = Conv-11(x, w, b) pads=[1,1,1,1] -> fp32[2,12,7,7]\n",
    "input x fp32[2,24,7,7]\ninput w fp32[12,2,3,3]\ninput b fp32[12]\n"
    "op: y = Conv-11(x, w, b) group=12 -> fp32[2,12,5,5]\n",
    "input x fp32[2,8,5]\ninput w fp32[8,12,3]\ninput b fp32[12]\n"
    "op: y = ConvTranspose-11(x, w, b) strides=[2] -> fp32[2,12,11]\n",
    "input x fp32[2,8,5]\ninput w fp32[8,3,3]\ninput b fp32[12]\n"
    "op: y = ConvTranspose-11(x, w, b) group=4 -> fp32[2,12,7]\n",
    "input x fp32[4,6,8,8]\n"
    "op: y = AveragePool-22(x) kernel_shape=[2,2] strides=[2,2] -> fp32[4,6,4,4]\n",
    "input x fp32[4,6,8,8]\nop: y = MaxPool-22(x) kernel_shape=[3,3] -> fp32[4,6,6,6]\n",
    "input x fp32[4,6,8,8]\nop: y = GlobalAveragePool-22(x) -> fp32[4,6,1,1]\n",
    "input x fp32[3,5,6,6]\ninput g fp32[3,4,4,2]\n"
    "op: y = GridSample-22(x, g) padding_mode=\"border\" -> fp32[3,5,4,4]\n",
    "input x fp32[4,6]\nconstant p int64[4] [0,1,0,2]\nop: y = Pad-21(x, p) -> fp32[4,9]\n",
    "input x fp32[3,6,4,4]\n"
    "constant t int64[4] [3,6,8,8]\n"
    "op: y = Resize-19(x, _, _, t) mode=\"linear\" -> fp32[3,6,8,8]\n",
    "input x fp32[3,6,4,4]\nconstant s fp32[4] [1.0,1.0,2.0,2.0]\n"
    "op: y = Upsample-9(x, s) mode=\"nearest\" -> fp32[3,6,8,8]\n",
    "input x fp32[3,6]\nconstant r int64[2] [2,1]\nop: y = Tile-13(x, r) -> fp32[6,6]\n",
    "input x fp32[3,6,6]\nop: y = Trilu-14(x) upper=0 -> fp32[3,6,6]\n",
    "input x fp32[4,24]\nconstant s int64[4] [4,3,4,2]\n"
    "op: y = Reshape-13(x, s) -> fp32[4,3,4,2]\n",
    "input x fp32[4,3,5,8]\nconstant s int64[2] [0,-1]\n"
    "op: y = Reshape-13(x, s) -> fp32[4,120]\n",
    "input x fp32[2,3,4,5]\ninput w fp32[3,5,6]\nop: y = MatMul-13(x, w) -> fp32[2,3,4,6]\n",
    "input x fp32[12,4]\ninput w fp32[8,12]\ninput b fp32[4,1]\n"
    "op: y = Gemm-13(x, w, b) transA=1 transB=1 alpha=0.5 beta=2.0 -> fp32[4,8]\n",
    "input q fp32[2,5,96]\ninput k fp32[2,5,32]\ninput v fp32[2,5,16]\n"
    "op: y = Attention-23(q, k, v) is_causal=1 q_num_heads=12 kv_num_heads=4 -> fp32[2,5,48]\n",
    "input q fp32[2,8,6,4]\ninput k fp32[2,4,7,4]\ninput v fp32[2,4,7,4]\ninput m fp32[8,6,7]\n"
    "op: y, _, _, s = Attention-23(q, k, v, m) qk_matmul_output_mode=1 -> fp32[2,8,6,4] _ _ "
    "fp32[2,8,6,7]\n",
    "input x fp32[2,5,48]\ninput c fp32[2,5,3]\ninput s fp32[2,5,3]\n"
    "op: y = RotaryEmbedding-23(x, c, s) num_heads=8 -> fp32[2,5,48]\n",
    "input a fp32[4,16]\ninput b fp32[4,8]\ninput c fp32[4,8]\n"
    "op: y = Concat-13(a, b, c) axis=1 -> fp32[4,32]\n",
    "input x fp32[4,48]\nconstant s int64[3] [32,8,8]\n"
    "op: q, k, v = Split-18(x, s) axis=-1 -> fp32[4,32] fp32[4,8] fp32[4,8]\n",
    "input x fp32[2,6,4,4]\ninput a fp32[6]\ninput b fp32[6]\ninput m fp32[6]\ninput v fp32[6]\n"
    "op: y, n, w = BatchNormalization-15(x, a, b, m, v) training_mode=1 -> fp32[2,6,4,4] fp32[6] "
    "fp32[6]\n",
    "input x fp32[2,12,4]\ninput a fp32[12]\ninput b fp32[12]\n"
    "op: y = GroupNormalization-21(x, a, b) num_groups=6 -> fp32[2,12,4]\n",
    "input w fp32[13,6]\ninput i int64[2,5]\nop: y = Gather-13(w, i) -> fp32[2,5,6]\n",
    "input x fp32[6,13]\ninput i int64[6]\ninput w fp32[13]\n"
    "op: l, p = SoftmaxCrossEntropyLoss-13(x, i, w) ignore_index=1 -> fp32[] fp32[6,13]\n",
    "input x fp32[6,13,4]\ninput i int64[6,4]\n"
    "op: l = SoftmaxCrossEntropyLoss-13(x, i) reduction=\"sum\" -> fp32[]\n",
    "input x fp32[6,13,4]\ninput i int64[6,4]\n"
    "op: l = SoftmaxCrossEntropyLoss-13(x, i) ignore_index=1 label_smoothing=0.1 -> fp32[]\n",
};

SplitInputs inputs_of(const std::string& text) {
  const Graph graph = graph_of("graph one\n" + text);
  const at::Generator generator = at::detail::createCPUGenerator(3);
  Op op = graph.ops.front();
  Tensors in;
  for (TensorId& id : op.inputs) {
    if (id == kNone) {
      in.emplace_back();
      continue;
    }
    const Tensor& tensor = graph.tensor(id);
    const std::vector<std::int64_t> dims = dims_at(tensor.shape, 1);
    if (tensor.kind == TensorKind::kConstant) {
      in.push_back(at::empty(dims, stored_type(tensor.type)));
      std::memcpy(in.back().data_ptr(), tensor.constant.bytes.data(), in.back().nbytes());
    } else if (tensor.type == DType::kInt64) {
      in.push_back(at::randint(3, dims, generator, at::kLong));
    } else {
      in.push_back(at::rand(dims, generator, at::kDouble) + 0.1);
    }
    id = static_cast<TensorId>(in.size() - 1);
  }
  return testing::split_inputs(std::move(op), in);
}

void run_node_cases(Tally& tally) {
  for (const std::string& folder : testing::node_test_folders()) {
    const std::optional<NodeCase> one = testing::single_node_case(folder);
    if (!one) continue;
    try {
      try_splits(testing::split_inputs(one->op, one->in), &*one, one->test, tally);
    } catch (const std::exception& error) {
      ADD_FAILURE() << one->test << ": " << error.what();
    }
  }
}

/// Expects every split of the table to have run, and none beside them.
void expect_table_covered(const Tally& tally) {
  for (const SplitRow& row : split_table()) {
    const auto found = tally.names.find(std::string(row.type));
    const std::set<std::string> ran =
        found == tally.names.end() ? std::set<std::string>() : found->second;
    EXPECT_EQ(ran, std::set<std::string>(row.names.begin(), row.names.end())) << row.type;
  }
}

void print_tally(const Tally& tally) {
  std::map<std::string_view, int> without;
  for (const SplitRow& row : split_table()) {
    if (row.names.empty()) ++without[row.why_none];
  }
  fmt::print(
      "split node tests: {} cases, {} splits, {} runs with 2 and 3 members, {} with "
      "gradients; {} operators with a split, {} of them with gradients\n",
      tally.cases, tally.splits, tally.runs, tally.gradients, tally.names.size(),
      tally.with_gradient.size());
  for (const auto& [why, count] : without) fmt::print("{} without: {}\n", count, why);
}

TEST(SplitNodeTests, EveryDivisionComputesWhatTheWholeOperatorDoes) {
  if (testing::node_test_folders().empty())
    GTEST_SKIP() << "ONNX's node tests are not installed (tools/install_deps.sh --tests)";
  Tally tally;
  run_node_cases(tally);
  const int of_onnx = tally.cases;
  for (const char* text : kCases) {
    SCOPED_TRACE(text);
    const int before = tally.cases;
    try_splits(inputs_of(text), nullptr, text, tally);
    EXPECT_EQ(tally.cases, before + 1) << "no split";
  }
  fmt::print("{} cases are ONNX's, {} our own\n", of_onnx, tally.cases - of_onnx);
  print_tally(tally);
  expect_table_covered(tally);
}

}  // namespace
}  // namespace agpcs
