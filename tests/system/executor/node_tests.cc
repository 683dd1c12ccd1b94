// SPDX-License-Identifier: Apache-2.0
// The executor passes ONNX's own node tests for every operator it claims;
// docs/reference/executed_operators.md is the table of them.
#include "ir/graph/executed.h"
#include "ir/graph/op_table.h"
#include "runtime/torch/executor.h"
#include "tests/system/executor/onnx_node_test.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>

namespace agpcs {
namespace {

constexpr const char* kPage = "docs/reference/executed_operators.md";

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
      "are of ONNX 1.23's own node tests (opset 28) whose model has the operator: {} pass, none "
      "fails. A count of 0 means\n"
      "that ONNX has no such test; the executor's own tests cover those operators. This page is "
      "written by\n"
      "`AGPCS_UPDATE=1 ctest -R NodeTests`, which fails when it is out of date.\n\n"
      "Tests that are not run, by reason:\n\n{}\n{}",
      executed_operators().size(), tally.all.passed, reasons(tally), table(tally));
}

TEST(NodeTests, AllPassWhoseOperatorsTheExecutorClaims) {
  const std::vector<std::string> folders = testing::node_test_folders();
  if (folders.empty())
    GTEST_SKIP() << "ONNX's node tests are not installed (tools/install_deps.sh --tests)";
  const Tally tally = run_all(folders);
  fmt::print("node tests: {} passed, {} failed, {} not run, {} operators claimed\n{}",
             tally.all.passed, tally.all.failed, tally.all.skipped, executed_operators().size(),
             reasons(tally));
  for (const std::string& failure : tally.failures) ADD_FAILURE() << failure;
  EXPECT_GE(executed_operators().size(), 90u);
  if (std::getenv("AGPCS_UPDATE") != nullptr) std::ofstream(kPage) << page(tally);
  std::ifstream in(kPage);
  const std::string written{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(page(tally), written) << kPage << " is out of date: run with AGPCS_UPDATE=1";
}

TEST(NodeTests, TheCompilerKnowsWhatTheExecutorRuns) {
  std::istringstream rows(print_op_table());
  std::set<std::string> known, run;
  for (std::string row; std::getline(rows, row);) {
    const std::string type = row.substr(2, row.find(' ', 2) - 2);
    if (is_executed("", type)) known.insert(type);
  }
  for (const ExecutedOperator& op : executed_operators()) run.insert(std::string(op.type));
  EXPECT_EQ(known, run);
  EXPECT_FALSE(is_executed("com.acme", "Relu"));
}

TEST(NodeTests, AutogradAgreesWithDifferences) {
  const std::vector<std::string> folders = testing::node_test_folders();
  if (folders.empty())
    GTEST_SKIP() << "ONNX's node tests are not installed (tools/install_deps.sh --tests)";
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
