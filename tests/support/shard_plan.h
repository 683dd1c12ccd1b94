// SPDX-License-Identifier: Apache-2.0
// Makes plans whose buckets divide the optimizer's state, from plans whose buckets do not.
#pragma once

#include "ir/base/check.h"
#include "ir/plan/lookup.h"

#include <agpcs/plan.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// Returns `ranks` parts of `elements` elements in proportion to `weights`, which are taken in turn
/// as often as needed, from place `at` on. What rounding leaves goes to the largest weight.
inline std::vector<std::int64_t> parts_of(std::int64_t elements, std::size_t ranks,
                                          const std::vector<std::int64_t>& weights,
                                          std::size_t at = 0) {
  std::vector<std::int64_t> parts;
  for (std::size_t i = 0; i < ranks; ++i) parts.push_back(weights[(at + i) % weights.size()]);
  const std::int64_t all = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  AGPCS_CHECK(all > 0, "{} ranks have no weight", ranks);
  const auto largest = std::max_element(parts.begin(), parts.end()) - parts.begin();
  for (std::int64_t& part : parts) part = elements * part / all;
  const std::int64_t given = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  parts[static_cast<std::size_t>(largest)] += elements - given;
  return parts;
}

/// Returns the gathers for the passes of a program, in their order: forward passes read the last
/// bucket first, backward passes the first.
inline std::vector<InstructionId> pass_gathers(const Plan& plan, const Program& program) {
  std::vector<int> buckets;
  for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
    const PlanBucket& bucket = plan.buckets[static_cast<std::size_t>(b)];
    if (bucket.is_of(program.stage) && bucket.divides_parameters()) buckets.push_back(b);
  }
  std::vector<InstructionId> gathers;
  for (const Instruction& instruction : program.instructions) {
    const int mb = instruction.id.micro_batch;
    if (instruction.id.opcode == Opcode::kForward) {
      for (auto b = buckets.rbegin(); b != buckets.rend(); ++b) {
        gathers.push_back({Opcode::kGatherForward, *b, mb});
      }
    }
    if (instruction.id.opcode != Opcode::kBackward) continue;
    for (const int b : buckets) gathers.push_back({Opcode::kGatherBackward, b, mb});
  }
  return gathers;
}

/// Makes a program sum the sharded buckets by reduce_scatter, and gather them after its update, or
/// within its passes.
inline void shard_program(const Plan& plan, Program& program) {
  const std::vector<InstructionId> within = pass_gathers(plan, program);
  std::size_t needed = 0;  // of these, by the passes so far
  std::vector<Instruction> instructions;
  std::vector<InstructionId> gathers;
  InstructionId last_sum;
  for (Instruction& instruction : program.instructions) {
    InstructionId& id = instruction.id;
    if (id.opcode == Opcode::kAllReduce) {
      const PlanBucket& bucket = plan.buckets[static_cast<std::size_t>(id.object)];
      if (bucket.is_sharded()) {
        if (!bucket.divides_parameters()) gathers.push_back({Opcode::kAllGather, id.object, -1});
        id.opcode = Opcode::kReduceScatter;
      }
      if (bucket.divides_gradients()) continue;
    }
    const bool clips = plan.training.optimizer.clips();
    if (id.opcode == (clips ? Opcode::kNorm : Opcode::kUpdate) && last_sum.object >= 0) {
      std::erase_if(instruction.after,
                    [](const InstructionId& one) { return sums_gradients(one.opcode); });
      instruction.after.push_back(last_sum);
    }
    const bool updates = id.opcode == Opcode::kUpdate;
    const int returned = id.opcode == Opcode::kBackward ? id.micro_batch : -1;
    if (sums_gradients(id.opcode)) last_sum = id;
    const InstructionId pass = id;
    const bool first = needed == 0 && id.opcode == Opcode::kForward;
    if (first && !within.empty()) instructions.push_back({within.front(), {}});
    instructions.push_back(std::move(instruction));
    // The pass needs what it has gathered, and lets the next gather begin.
    const auto need = [&] {
      const InstructionId at = need_of(within[needed++]);
      if (needed < within.size()) instructions.push_back({within[needed], {at}});
    };
    while (pass.opcode == Opcode::kForward && needed < within.size() &&
           pass_of(within[needed]) == pass) {
      need();
    }
    for (int b = 0; b < static_cast<int>(plan.buckets.size()) && returned >= 0; ++b) {
      const PlanBucket& bucket = plan.buckets[static_cast<std::size_t>(b)];
      if (!bucket.is_of(program.stage) || !bucket.divides_gradients()) continue;
      if (bucket.divides_parameters()) need();
      last_sum = {Opcode::kReduceScatter, b, returned};
      instructions.push_back({last_sum, {{Opcode::kGradients, b, returned}}});
    }
    for (const InstructionId& gather : gathers) {
      if (updates) instructions.push_back({gather, {{Opcode::kUpdate, -1, -1}}});
    }
  }
  program.instructions = std::move(instructions);
}

/// Divides the state of every bucket that several ranks hold and that has no flow, by `weights`.
/// Buckets begin at different places of `weights`, so that a rank owns much of one and little of
/// another. At StateLevel::kGradients, those of one stage divide their gradients, too, and at
/// StateLevel::kParameters their parameters. Needs:
/// `plan` is verified.
inline Plan sharded(Plan plan, const std::vector<std::int64_t>& weights,
                    StateLevel level = StateLevel::kOptimizer) {
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    PlanBucket& bucket = plan.buckets[b];
    if (!is_reduced(plan, bucket) || bucket.flow >= 0) continue;
    bucket.parts = parts_of(bucket.elements(), ranks_of(plan, bucket).size(), weights, b);
    bucket.state = bucket.is_shared() ? StateLevel::kOptimizer : level;
  }
  for (Program& program : plan.programs) shard_program(plan, program);
  std::vector<Expectation> expect;
  for (const std::string& name : expectation_names(plan)) {
    const Expectation* const had = find_expectation(plan, name);
    expect.push_back({name, had == nullptr ? 1 : had->value, std::string(expectation_unit(name))});
  }
  plan.expect = std::move(expect);
  const Status status = verify_plan(plan);
  AGPCS_CHECK(status.ok(), "{}\n{}", status.message(), print_plan(plan));
  return plan;
}

}  // namespace agpcs::testing
