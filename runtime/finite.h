// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/executor.h>
#include <agpcs/plan.h>

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

}  // namespace agpcs
