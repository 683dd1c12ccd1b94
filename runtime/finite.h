// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstdint>
#include <string>

namespace agpcs {

struct NotFinite {
  std::int64_t count = 0;   ///< of values that are infinite or no number; 0: all is well
  std::int64_t first = -1;  ///< index of the first one
  double value = 0;         ///< it
};

/// Looks through a buffer of floating-point numbers in the memory of the host, in one pass while
/// all is well. Others, and memory of a GPU, are not looked at.
NotFinite find_not_finite(const Buffer& buffer);

/// "the gradient of 'conv1.weight' is not finite: 12 of 9408 values, the first nan"; `found.first`
/// counts the elements of `bucket`.
std::string describe(const PlanBucket& bucket, const NotFinite& found);

/// What to do about a loss or a gradient that is not finite.
inline constexpr const char* kNotFiniteHint =
    "hint: look at the samples of this step, lower the learning rate, or train on with --allow-nan";

/// kInvalidInput where a value of `bucket`, which is in `buffer`, is not finite in step `step`.
Status check_gradient(const PlanBucket& bucket, const Buffer& buffer, std::int64_t step);
/// The same of its sum over ranks, which was made in `wire`: that may hold less.
Status check_sum(const PlanBucket& bucket, const Buffer& buffer, DType wire, std::int64_t step);

}  // namespace agpcs
