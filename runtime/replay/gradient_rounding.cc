// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/gradient_rounding.h"

#include "runtime/support/gradient_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace agpcs {

Result<GradientRounding> GradientRounding::make(const Plan& plan, const ResolvedProgram& program,
                                                Executor& executor) {
  GradientRounding rounding;
  if (!plan.training.wire_type) return rounding;
  rounding.buckets_.resize(plan.buckets.size());
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    const PlanBucket& bucket = plan.buckets[b];
    const DType wire = travelling_type(bucket.type, plan.training.wire_type);
    if (wire == bucket.type || program.sums[b] == kNoInstruction) continue;
    AGPCS_TRY(rounding.buckets_[b], prepare(bucket, static_cast<int>(b), wire, executor));
  }
  std::size_t shared = 0;
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    std::optional<Rounded>& rounded = rounding.buckets_[b];
    if (!rounded || rounded->buffer.data != nullptr) continue;
    if (plan.buckets[b].divides_gradients()) {
      shared = std::max(shared, rounded->buffer.bytes);
    } else {
      rounding.memory_.push_back(std::make_unique<char[]>(rounded->buffer.bytes));
      rounded->buffer.data = rounded->memory = rounding.memory_.back().get();
    }
  }
  if (shared == 0) return rounding;
  rounding.memory_.push_back(std::make_unique<char[]>(shared));
  for (std::optional<Rounded>& rounded : rounding.buckets_) {
    if (!rounded || rounded->buffer.data != nullptr) continue;
    rounded->buffer.data = rounded->memory = rounding.memory_.back().get();
  }
  return rounding;
}

Result<GradientRounding::Rounded> GradientRounding::prepare(const PlanBucket& bucket, int index,
                                                            DType wire, Executor& executor) {
  Rounded rounded;
  rounded.wire = wire;
  AGPCS_TRY(const Buffer held, executor.bucket(index));
  if (held.type != bucket.type) {
    return invalid_input(fmt::format(
        "bucket {} is {} in the executor's memory, and its {} gradients are to travel in {}\n"
        "  hint: plan without --wire-type",
        bucket.name, name_of(held.type), name_of(bucket.type), name_of(wire)));
  }
  if (held.on_gpu) {
    AGPCS_TRY(rounded.buffer, executor.round_bucket(index, wire));
    return rounded;
  }
  const std::size_t bytes = held.bytes / size_of(held.type) * size_of(wire);
  rounded.buffer = {nullptr, bytes, wire, false};
  return rounded;
}

Status GradientRounding::round(int bucket, Executor& executor) {
  if (rounded(bucket) == nullptr) return {};
  Rounded& rounded = *buckets_[static_cast<std::size_t>(bucket)];
  if (rounded.memory == nullptr) {
    AGPCS_TRY(rounded.buffer, executor.round_bucket(bucket, rounded.wire));
    return {};
  }
  AGPCS_TRY(const Buffer held, executor.bucket(bucket));
  copy_in(rounded.memory, rounded.wire, held, 1);
  return {};
}

const Buffer* GradientRounding::rounded(int bucket) const {
  const auto index = static_cast<std::size_t>(bucket);
  return index < buckets_.size() && buckets_[index] ? &buckets_[index]->buffer : nullptr;
}

Status GradientRounding::widen(int bucket, Executor& executor) {
  if (rounded(bucket) == nullptr) return {};
  const Rounded& rounded = *buckets_[static_cast<std::size_t>(bucket)];
  if (rounded.memory == nullptr) return executor.widen_bucket(bucket);
  AGPCS_TRY(const Buffer held, executor.bucket(bucket));
  copy_out(held, rounded.memory, rounded.wire, 1);
  return {};
}

}  // namespace agpcs
