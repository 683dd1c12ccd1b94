// SPDX-License-Identifier: Apache-2.0
// Pace: how often something is repeated to be timed, when several ranks take part.
#pragma once

#include "ir/profile.h"

#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// Something that several ranks do together. One of them leads: it holds the watch.
class Repeated {
 public:
  virtual ~Repeated() = default;
  virtual bool leads() const = 0;
  /// The leader's `number`, told to everybody; what the others give does not count.
  virtual Result<std::int64_t> agree(std::int64_t number) = 0;
  /// Does it `times` times with `bytes`; over when this rank's part is over.
  virtual Status repeat(std::int64_t bytes, std::int64_t times) = 0;
};

struct Pace {
  double seconds = 0.25;  ///< for each size
  double longest = 1;     ///< of one repetition; larger sizes are left out
};

/// Median and interquartile range / median of at least one value.
Measured summarize(std::vector<double> values);

/// Times each of `sizes` (ascending), the first in any case: once to warm up, then blocks of as
/// many repetitions as fill a fifth of the pace's seconds, until these are over and at least three
/// blocks are done. A figure is the median over the blocks of a block's mean, so that what happens
/// in bursts (a processor's quota, a busy neighbour) counts with its share in blocks longer than
/// the bursts. Ends before the first size that, at the bandwidth so far, would take longer than the
/// pace's longest. All ranks call it with equal `sizes`; only the leader gets points.
Result<std::vector<MeasuredMessages>> measure_sizes(Repeated& work,
                                                    const std::vector<std::int64_t>& sizes,
                                                    const Pace& pace);

}  // namespace agpcs
