// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/statistics.h"

#include "ir/base/check.h"
#include "ir/base/significant_digits.h"
#include "tools/profile/network/pace.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace agpcs {
Measured rounded(const Measured& value) {
  return {to_significant(value.seconds, 6), to_significant(value.spread, 3)};
}

void add_to(Measured& sum, const Measured& value) {
  sum.seconds += value.seconds;
  sum.spread += value.spread;
}

Measured mean_of(const Measured& sum, int count) {
  return {sum.seconds / count, sum.spread / count};
}

Measured scaled(const Measured& value, double factor) {
  return {value.seconds * factor, value.spread};
}

double stretch(const std::vector<TimedStep>& steps) {
  AGPCS_CHECK(!steps.empty(), "no step was timed");
  struct Block {
    double wall = 0, busy = 0;
    double ratio() const { return wall / busy; }
  };
  std::vector<Block> blocks(1);
  for (const TimedStep& step : steps) {
    if (blocks.back().wall >= kBlockSeconds) blocks.emplace_back();
    blocks.back().wall += step.wall;
    blocks.back().busy += step.busy();
  }
  std::vector<double> ratios;
  ratios.reserve(blocks.size());
  for (const Block& block : blocks) ratios.push_back(block.ratio());
  const double most = kOutlier * summarize(std::move(ratios)).seconds;
  Block all;
  for (const Block& block : blocks) {
    if (block.ratio() > most) continue;
    all.wall += block.wall;
    all.busy += block.busy;
  }
  return all.ratio();
}

}  // namespace agpcs
