// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/posted_within.h"

#include "ir/plan/lookup.h"

#include <algorithm>
#include <cstddef>
#include <functional>

namespace agpcs {
namespace {

/// Returns the buckets that a pass needs, in its order.
std::vector<int> needed_by(const InstructionId& pass, std::span<const BucketUse> uses) {
  std::vector<int> buckets;
  for (const BucketUse& use : uses) buckets.push_back(use.bucket);
  if (pass.opcode == Opcode::kForward) std::sort(buckets.begin(), buckets.end(), std::greater<>());
  return buckets;
}

InstructionId gather_of(const InstructionId& pass, int bucket) {
  const bool forward = pass.opcode == Opcode::kForward;
  return {forward ? Opcode::kGatherForward : Opcode::kGatherBackward, bucket, pass.micro_batch};
}

}  // namespace

InstructionId first_gather(const InstructionId& pass, std::span<const BucketUse> uses) {
  return gather_of(pass, needed_by(pass, uses).front());
}

std::vector<Instruction> posted_within(const Plan& plan, int stage, const InstructionId& pass,
                                       const InstructionId* next, std::span<const BucketUse> uses) {
  std::vector<int> filled;
  for (int b = 0; b < static_cast<int>(plan.buckets.size()); ++b) {
    if (pass.opcode == Opcode::kForward) break;
    const PlanBucket& bucket = plan.buckets[static_cast<std::size_t>(b)];
    if (bucket.is_of(stage) && bucket.divides_gradients()) filled.push_back(b);
  }
  std::vector<Instruction> posted;
  std::size_t summed = 0;
  const auto sum_up_to = [&](std::size_t end) {
    for (; summed < end && summed < filled.size(); ++summed) {
      posted.push_back({{Opcode::kReduceScatter, filled[summed], pass.micro_batch},
                        {{Opcode::kGradients, filled[summed], pass.micro_batch}}});
    }
  };
  const std::vector<int> needed = needed_by(pass, uses);
  for (std::size_t now = 0; now < needed.size(); ++now) {
    sum_up_to(static_cast<std::size_t>(uses[now].filled));
    const InstructionId need = need_of(gather_of(pass, needed[now]));
    if (now + 1 < needed.size()) {
      posted.push_back({gather_of(pass, needed[now + 1]), {need}});
    } else if (next != nullptr) {
      posted.push_back({first_gather(*next, uses), {need}});
    }
  }
  sum_up_to(filled.size());
  return posted;
}

}  // namespace agpcs
