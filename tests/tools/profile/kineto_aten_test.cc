// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/kineto/aten.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Dims = std::vector<std::int64_t>;

TracedInput tensor(Dims dims, DType type = DType::kFp32) { return {type, std::move(dims), {}}; }
TracedInput number() { return {}; }

OpCost work(std::string_view name, std::vector<TracedInput> tensors,
            std::vector<std::string> concrete = {}) {
  const AtenOperator* row = find_aten(name);
  EXPECT_NE(row, nullptr) << name;
  return work_of(*row, {std::move(tensors), std::move(concrete), ""}, Precision::kFp32, true);
}

TEST(AtenTable, NamesOperatorsOfTheTableOfOnnxOperatorsOnceEach) {
  std::set<std::string_view> names;
  for (const AtenOperator& row : aten_operators()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_NE(find_op_info("", row.onnx), nullptr) << row.name << " " << row.onnx;
    EXPECT_EQ(find_aten("aten::" + std::string(row.name)), &row);
  }
}

TEST(AtenTable, KnowsOperatorsThatWorkInPlace) {
  EXPECT_EQ(find_aten("aten::relu_"), find_aten("aten::relu"));
  EXPECT_EQ(find_aten("aten::copy_")->name, "copy_");
  EXPECT_EQ(find_aten("aten::linear"), nullptr);
  EXPECT_EQ(find_aten("mine::relu"), nullptr);
}

TEST(AtenWork, OfAProductIsTwoFlopsForEachFactor) {
  const OpCost mm = work("aten::mm", {tensor({8, 16}), tensor({16, 4})});
  EXPECT_DOUBLE_EQ(mm.forward_flops, 2 * 8 * 16 * 4);
  EXPECT_DOUBLE_EQ(mm.backward_flops, 2 * mm.forward_flops);
  EXPECT_DOUBLE_EQ(mm.forward_bytes, 4 * (8 * 16 + 16 * 4 + 8 * 4));
  const OpCost addmm = work("aten::addmm", {tensor({4}), tensor({8, 16}), tensor({16, 4})});
  EXPECT_DOUBLE_EQ(addmm.forward_flops, mm.forward_flops + 8 * 4);
  const OpCost bmm = work("aten::bmm", {tensor({3, 8, 16}), tensor({3, 16, 4})});
  EXPECT_DOUBLE_EQ(bmm.forward_flops, 3 * mm.forward_flops);
}

TEST(AtenWork, OfAConvolutionFollowsStridePaddingDilationAndGroups) {
  const auto conv = [](const Dims& image, const Dims& weight, std::vector<std::string> concrete) {
    return work("aten::convolution",
                {tensor(image), tensor(weight), number(), number(), number(), number(), number(),
                 number(), number()},
                std::move(concrete))
        .forward_flops;
  };
  EXPECT_DOUBLE_EQ(conv({2, 3, 9, 9}, {8, 3, 3, 3},
                        {"", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"}),
                   2.0 * (2 * 8 * 5 * 5) * (3 * 3 * 3));
  EXPECT_DOUBLE_EQ(
      conv({2, 4, 9, 9}, {8, 2, 3, 3}, {"", "", "", "[1]", "[0]", "[2]", "False", "[0]", "2"}),
      2.0 * (2 * 8 * 5 * 5) * (2 * 3 * 3));
  EXPECT_DOUBLE_EQ(conv({2, 4, 5, 5}, {4, 3, 2, 2},
                        {"", "", "", "[2, 2]", "[0, 0]", "[1, 1]", "True", "[0, 0]", "1"}),
                   2.0 * (2 * 4 * 5 * 5) * (3 * 2 * 2));
}

TEST(AtenWork, OfOtherOperatorsIsThatOfTheOnnxOperator) {
  EXPECT_DOUBLE_EQ(work("aten::add", {tensor({8, 16}), tensor({16}), number()}).forward_bytes,
                   4 * (8 * 16 + 16 + 8 * 16));
  EXPECT_DOUBLE_EQ(
      work("aten::max_pool2d_with_indices", {tensor({1, 2, 8, 8}), number(), number(), number()},
           {"", "[3, 3]", "[2, 2]", "[1, 1]"})
          .forward_flops,
      2 * 4 * 4 * 9);
  EXPECT_DOUBLE_EQ(
      work("aten::embedding", {tensor({100, 16}), tensor({4, 8}, DType::kInt64)}).forward_bytes,
      8 * 4 * 8 + 2 * 4 * (4 * 8 * 16));
  EXPECT_DOUBLE_EQ(work("aten::mean", {tensor({4, 8, 16}), number()}, {"", "[-1]"}).forward_bytes,
                   4 * (4 * 8 * 16 + 4 * 8));
  EXPECT_DOUBLE_EQ(work("aten::cat", {{{}, {}, {{4, 8}, {4, 16}}}, number()}).forward_bytes,
                   4 * 2 * (4 * 8 + 4 * 16));
  EXPECT_DOUBLE_EQ(work("aten::view", {tensor({4, 8})}).forward_bytes, 0);
  const TracedInput heads = tensor({2, 4, 64, 32});
  const OpCost attention =
      work("aten::_scaled_dot_product_flash_attention_for_cpu", {heads, heads, heads});
  EXPECT_DOUBLE_EQ(attention.forward_flops, (2.0 * 4 * 64 * 64) * (2 * 64 + 8));
  EXPECT_LT(attention.forward_bytes, 4 * (2 * 4 * 64 * (4 * 32 + 2)));
}

TEST(AtenWork, OfShapesThatNoDeviceHoldsIsNone) {
  const std::int64_t most = std::int64_t{1} << 39;
  EXPECT_DOUBLE_EQ(work("aten::add", {tensor({most, 1}), tensor({most})}).forward_flops, 0);
}

}  // namespace
}  // namespace agpcs
