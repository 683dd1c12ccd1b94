// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/sample_order.h"

#include "ir/base/rng.h"
#include "ir/base/shuffle.h"

#include <fmt/format.h>

#include <cstddef>
#include <numeric>

namespace agpcs {

std::int64_t SampleOrder::row(std::int64_t sample, std::int64_t rows) {
  const std::int64_t number = sample / rows, place = sample % rows;
  if (!seed_) return place;
  Epoch& epoch = epochs_[static_cast<std::size_t>(number % 2)];
  if (epoch.number != number) {
    epoch.rows.resize(static_cast<std::size_t>(rows));
    std::iota(epoch.rows.begin(), epoch.rows.end(), std::int64_t{0});
    Rng rng = Rng(*seed_).fork(fmt::format("samples of epoch {}", number));
    shuffle(epoch.rows, rng);
    epoch.number = number;
  }
  return epoch.rows[static_cast<std::size_t>(place)];
}

}  // namespace agpcs
