// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/runtime/bucket_plan.h"

#include "ir/base/check.h"
#include "tests/runtime/plans.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace agpcs {

Plan plan_of_buckets(int ranks, const std::vector<std::int64_t>& elements) {
  TestPlan spec;
  spec.shares = {std::vector<std::int64_t>(static_cast<std::size_t>(ranks), 1)};
  Plan plan = make_plan(spec);
  const PlanBucket bucket = plan.buckets.front();
  plan.buckets.clear();
  Program& program = plan.programs.front();
  const auto is_all_reduce = [](const Instruction& i) { return i.id.opcode == Opcode::kAllReduce; };
  program.instructions.erase(
      std::remove_if(program.instructions.begin(), program.instructions.end(), is_all_reduce),
      program.instructions.end());
  std::vector<Instruction> reduces;
  for (std::size_t b = 0; b < elements.size(); ++b) {
    PlanBucket next = bucket;
    next.name = fmt::format("b{}", b);
    next.type = DType::kFp32;
    next.members = {{fmt::format("p{}", b), elements[b]}};
    plan.buckets.push_back(next);
    reduces.push_back({{Opcode::kAllReduce, static_cast<int>(b), -1},
                       {{Opcode::kGradients, static_cast<int>(b), 0}}});
  }
  const auto update =
      std::find_if(program.instructions.begin(), program.instructions.end(),
                   [](const Instruction& i) { return i.id.opcode == Opcode::kUpdate; });
  update->after = {reduces.back().id};
  program.instructions.insert(update, reduces.begin(), reduces.end());
  plan.micro_batches = 1;
  const Status valid = verify_plan(plan);
  AGPCS_CHECK(valid.ok(), "{}", valid.message());
  return plan;
}

std::vector<Buckets> usual_buckets() {
  return {{"ResNet-50 in 25 MB", {6'300'000, 6'300'000, 6'300'000, 6'657'032}},
          {"16 of 1 MB", std::vector<std::int64_t>(16, 250'000)},
          {"64 of 64 kB", std::vector<std::int64_t>(64, 16'000)}};
}

}  // namespace agpcs
