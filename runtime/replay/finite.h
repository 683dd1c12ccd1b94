// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/buffer.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace agpcs {

struct NotFinite {
  std::int64_t count = 0;   ///< values that are infinite or NaN; 0: all are finite
  std::int64_t first = -1;  ///< index of the first such value
  double value = 0;         ///< the first such value
};

/// Searches a buffer of floating-point numbers in the host's memory; one pass while all are finite.
/// It does not search buffers of other types or in a GPU's memory.
NotFinite find_not_finite(const Buffer& buffer);

/// Returns "the gradient of 'conv1.weight' is not finite: 12 of 9408 values, the first nan".
/// `found.first` counts the elements of `bucket`.
std::string describe(const PlanBucket& bucket, const NotFinite& found);

/// Advice on a loss or a gradient that is not finite.
inline constexpr const char* kNotFiniteHint =
    "hint: look at the samples of this step, lower the learning rate, or train on with --allow-nan";

/// Returns kInvalidInput if a value of `bucket`, which is in `buffer`, is not finite in
/// step `step`.
Status check_gradient(const PlanBucket& bucket, const Buffer& buffer, std::int64_t step);
/// Does the same for the gradient of one member, which alone is in `buffer`.
Status check_gradient(const PlanBucket& bucket, std::size_t member, const Buffer& buffer,
                      std::int64_t step);
/// Does the same for its sum over ranks, which was made in type `wire` and may have
/// overflowed there. Only the elements in `owned` are looked at: after a reduce-scatter, the others
/// are no sums.
Status check_sum(const PlanBucket& bucket, const Buffer& buffer, const ElementRange& owned,
                 DType wire, std::int64_t step);

}  // namespace agpcs
