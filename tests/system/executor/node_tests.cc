// SPDX-License-Identifier: Apache-2.0
// The executor passes ONNX's own node tests for every operator it claims;
// docs/executed_operators.md is the table of them.
#include "runtime/torch_executor.h"
#include "tests/executor/onnx_node_test.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace agpcs {
namespace {

constexpr const char* kPage = "docs/executed_operators.md";
constexpr std::size_t kTestsOfOnnx_1_12 = 932;

struct Counts {
  int passed = 0, failed = 0, skipped = 0;
};

struct Tally {
  Counts all;
  std::map<std::string, Counts> by_operator;
  std::map<std::string, int> skipped_by_reason;
  std::vector<std::string> failures;
};

Tally run_all(const std::vector<std::string>& folders) {
  Tally tally;
  for (const std::string& folder : folders) {
    const testing::NodeTestResult result = testing::run_node_test(folder);
    const auto count = [&result](Counts& counts) {
      if (result.outcome == testing::NodeTestResult::kPassed) ++counts.passed;
      if (result.outcome == testing::NodeTestResult::kFailed) ++counts.failed;
      if (result.outcome == testing::NodeTestResult::kSkipped) ++counts.skipped;
    };
    count(tally.all);
    for (const std::string& type : result.operators) count(tally.by_operator[type]);
    if (result.outcome == testing::NodeTestResult::kSkipped) ++tally.skipped_by_reason[result.why];
    if (result.outcome == testing::NodeTestResult::kFailed) {
      tally.failures.push_back(std::filesystem::path(folder).filename().string() + ": " +
                               result.why);
    }
  }
  return tally;
}

std::string table(const Tally& tally) {
  std::string text = "| operator | node tests passed | not run |\n| --- | ---: | ---: |\n";
  for (const ExecutedOperator& op : executed_operators()) {
    const auto found = tally.by_operator.find(std::string(op.type));
    const Counts counts = found == tally.by_operator.end() ? Counts{} : found->second;
    text += fmt::format("| {} | {} | {} |\n", op.type, counts.passed, counts.skipped);
  }
  return text;
}

std::string reasons(const Tally& tally) {
  std::string text;
  for (const auto& [reason, count] : tally.skipped_by_reason)
    text += fmt::format("* {}: {}\n", reason, count);
  return text;
}

std::string page(const Tally& tally) {
  return fmt::format(
      "# Operators that the LibTorch executor runs\n\n"
      "`agpcs-run` executes these {} operators of `ai.onnx` with ATen, forward and (by autograd) "
      "backward. The counts\n"
      "are of ONNX 1.12's own node tests whose model has the operator: {} pass, none fails. A "
      "count of 0 means that\n"
      "ONNX 1.12 has no such test; the executor's own tests cover those operators. This page is "
      "written by\n"
      "`AGPCS_UPDATE=1 ctest -R NodeTests`, which fails when it is out of date.\n\n"
      "Tests that are not run, by reason:\n\n{}\n{}",
      executed_operators().size(), tally.all.passed, reasons(tally), table(tally));
}

TEST(NodeTests, AllPassWhoseOperatorsTheExecutorClaims) {
  const std::vector<std::string> folders = testing::node_test_folders();
  if (folders.empty())
    GTEST_SKIP() << "ONNX's node tests (Debian's libonnx-testdata) are not installed";
  const Tally tally = run_all(folders);
  fmt::print("node tests: {} passed, {} failed, {} not run, {} operators claimed\n{}",
             tally.all.passed, tally.all.failed, tally.all.skipped, executed_operators().size(),
             reasons(tally));
  for (const std::string& failure : tally.failures) ADD_FAILURE() << failure;
  EXPECT_GE(executed_operators().size(), 90u);
  if (folders.size() != kTestsOfOnnx_1_12)
    return;  // another release: its counts are not on the page
  if (std::getenv("AGPCS_UPDATE") != nullptr) std::ofstream(kPage) << page(tally);
  std::ifstream in(kPage);
  const std::string written{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(page(tally), written) << kPage << " is out of date: run with AGPCS_UPDATE=1";
}

TEST(NodeTests, AutogradAgreesWithDifferences) {
  const std::vector<std::string> folders = testing::node_test_folders();
  if (folders.empty())
    GTEST_SKIP() << "ONNX's node tests (Debian's libonnx-testdata) are not installed";
  std::map<std::string, int> checked;
  for (const std::string& folder : folders) {
    const testing::GradientCheck check = testing::check_gradient(folder);
    if (!check.done) continue;
    ++checked[check.type];
    EXPECT_EQ(check.exception, "") << std::filesystem::path(folder).filename();
    EXPECT_LT(check.error, 1e-3) << std::filesystem::path(folder).filename();
  }
  int tests = 0;
  for (const auto& [type, count] : checked) tests += count;
  fmt::print("gradients: {} tests of {} operators\n", tests, checked.size());
  EXPECT_GE(checked.size(), 80u);
}

}  // namespace
}  // namespace agpcs
