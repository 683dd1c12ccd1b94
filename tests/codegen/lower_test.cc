// SPDX-License-Identifier: Apache-2.0
#include "ir/memory.h"
#include "tests/codegen/test_models.h"

#include <gtest/gtest.h>

namespace agpcs {
namespace {

using namespace testing;

TEST(Smoke, All) {
  for (const auto& [name, strategy] : strategies()) {
    const Plan plan = plan_of_strategy(strategy);
    std::string text = print_plan(plan);
    auto st = verify_plan_against(plan, skip_model(), two_hosts()); EXPECT_TRUE(st.ok()) << st.message();
    auto mem = peak_memory(plan, skip_model());
    for (auto& m : *mem) printf("%s: par %ld grad %ld opt %ld act %ld tr %ld ws %ld\n", name.c_str(), m.parameters, m.gradients, m.optimizer, m.activations, m.transfers, m.workspace);
    auto r = parse_plan(text, "p.plan");
    ASSERT_TRUE(r.ok()) << r.status().message();
    EXPECT_EQ(print_plan(*r), text);
  }
}

}  // namespace
}  // namespace agpcs
