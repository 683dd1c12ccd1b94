// SPDX-License-Identifier: Apache-2.0
#include "tests/codegen/test_models.h"

#include <gtest/gtest.h>

namespace agpcs {
namespace {

using namespace testing;

TEST(Smoke, All) {
  for (const auto& [name, strategy] : strategies()) {
    const Plan plan = plan_of_strategy(strategy);
    std::string text = print_plan(plan);
    if (name == "four stages with a skip" || name=="data parallel") printf("%s\n", text.c_str());
    auto r = parse_plan(text, "p.plan");
    ASSERT_TRUE(r.ok()) << r.status().message();
    EXPECT_EQ(print_plan(*r), text);
  }
}

}  // namespace
}  // namespace agpcs
