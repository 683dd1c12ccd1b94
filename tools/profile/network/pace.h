// SPDX-License-Identifier: Apache-2.0
// Pace: decides how often work is repeated to time it when several ranks take part.
#pragma once

#include "ir/cluster/profile.h"

#include <agpcs/status.h>

#include <cstdint>
#include <vector>

namespace agpcs {

/// Work that several ranks do together. One of them leads: it takes the times.
class Repeated {
 public:
  virtual ~Repeated() = default;
  virtual bool leads() const = 0;
  /// Tells all ranks the leader's `number` and returns it; the numbers of the others are ignored.
  virtual Result<std::int64_t> agree(std::int64_t number) = 0;
  /// Does the work `times` times with `bytes`. Returns when this rank's part is done.
  virtual Status repeat(std::int64_t bytes, std::int64_t times) = 0;
};

struct Pace {
  double seconds = 0.25;  ///< for each size
  double longest = 1;     ///< for one repetition; larger sizes are left out
};

/// Returns the median of at least one value, and the interquartile range divided by the median.
Measured summarize(std::vector<double> values);

/// Times the work for each of `sizes` (ascending); the first size is always timed. After a
/// repetition to warm up, each size is repeated in blocks. A block fills a fifth of the pace's
/// seconds. Blocks go on until the seconds are over and at least three blocks are done. A figure is
/// the median over the blocks of a block's mean; so bursts (a processor's quota, a busy neighbour)
/// count in proportion if blocks are longer than they are. Timing ends before the first size that
/// would take longer than the pace's longest at the bandwidth so far. All ranks call it with equal
/// `sizes`; only the leader gets points.
Result<std::vector<MeasuredMessages>> measure_sizes(Repeated& work,
                                                    const std::vector<std::int64_t>& sizes,
                                                    const Pace& pace);

}  // namespace agpcs
