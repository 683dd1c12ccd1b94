// SPDX-License-Identifier: Apache-2.0
// Which numbers of micro-batches a step may have.
#pragma once

#include <cstdint>
#include <vector>

namespace agpcs {

/// Returns all divisors of `n`, ascending. Cost: O(sqrt n).
std::vector<std::int64_t> divisors(std::int64_t n);
/// Returns the numbers of micro-batches that a step of `batch` samples may have: the divisors of
/// `batch` up to kMostMicroBatches.
std::vector<std::int64_t> micro_batch_numbers(std::int64_t batch);

}  // namespace agpcs
