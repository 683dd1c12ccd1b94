// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/executed.h"

#include "tests/support/graph_text.h"

#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

TEST(Executed, CountsTheNodesThatTheExecutorDoesNotRunByType) {
  const Graph graph = graph_of(
      "graph g\n"
      "input x fp32[n,2,8,8]\n"
      "a: y = LpPool-11(x) kernel_shape=[2,2] -> fp32[n,2,7,7]\n"
      "b: z = LpPool-11(y) kernel_shape=[2,2] -> fp32[n,2,6,6]\n"
      "c: r = Relu-14(z) -> fp32[n,2,6,6]\n"
      "d: f = com.acme.Foo-1(r) -> fp32[n,2]\n");
  std::string text;
  for (const NotExecuted& op : not_executed(graph)) {
    text += op.type + " " + std::to_string(op.nodes) + "\n";
  }
  EXPECT_EQ(text, "LpPool 2\ncom.acme.Foo 1\n");
}

}  // namespace
}  // namespace agpcs
