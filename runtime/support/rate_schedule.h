// SPDX-License-Identifier: Apache-2.0
// RateSchedule: how the learning rate changes over the steps of a job.
#pragma once

#include "ir/base/named.h"

#include <array>
#include <cstdint>
#include <string_view>

namespace agpcs {

enum class RateShape : std::uint8_t { kConstant, kLinear, kCosine, kStep };

struct RateShapeEntry {
  RateShape value;
  std::string_view name, help;
};
inline constexpr std::array<RateShapeEntry, 4> kRateShapes = {{
    {RateShape::kConstant, "constant", "the plan's"},
    {RateShape::kLinear, "linear", "from the plan's in a line to --last-rate at --steps"},
    {RateShape::kCosine, "cosine", "the same in half a wave"},
    {RateShape::kStep, "step", "times --rate-decay every --rate-every steps"},
}};
static_assert(is_in_order(kRateShapes));

/// What multiplies the plan's learning rate. It depends on a step's number alone, so that a job
/// which goes on from a checkpoint goes on with its rates.
struct RateSchedule {
  RateShape shape = RateShape::kConstant;
  std::int64_t warmup = 0;  ///< steps in which the rate rises
  std::int64_t steps = 1;   ///< linear, cosine: where the rate has reached `last`
  double last = 0;          ///< linear, cosine: the last factor
  std::int64_t every = 1;   ///< step: how many steps have one rate
  double decay = 0.1;       ///< step: what each next rate is of the one before

  /// Returns the factor of step `step`, from 0. During warm-up it is (step + 1) / (warmup + 1).
  /// Afterwards, where t goes from 0 to 1 between the end of warm-up and `steps`:
  ///   linear  1 + (last - 1) t                  (PyTorch's LinearLR from 1 to `last`)
  ///   cosine  last + (1 - last)(1 + cos pi t)/2 (PyTorch's CosineAnnealingLR; Loshchilov and
  ///                                              Hutter 2017, equation 5, without restarts)
  ///   step    decay ^ floor((step - warmup) / every)                      (PyTorch's StepLR)
  double factor(std::int64_t step) const;
};

}  // namespace agpcs
