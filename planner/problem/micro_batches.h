// SPDX-License-Identifier: Apache-2.0
// Which numbers of micro-batches a step may have.
#pragma once

#include <cstdint>
#include <vector>

namespace agpcs {

struct Problem;

/// Returns all divisors of `n`, ascending. Cost: O(sqrt n).
std::vector<std::int64_t> divisors(std::int64_t n);
/// Returns whether equal micro-batches are enough: `batch` has a divisor from 2 to 3, one from 4 to
/// 7, and so on up to 64 to 127 (or up to the batch).
bool divides_well(std::int64_t batch);
/// Returns the numbers of micro-batches that are tried for a step of `batch` samples, ascending, up
/// to kMostMicroBatches: the divisors of `batch`; and where it does not divide well, also powers of
/// two and three times them, with micro-batches that differ by a sample. No other number whose
/// largest micro-batch divides the batch is among them: equal ones of that size are fewer.
std::vector<std::int64_t> micro_batch_numbers(std::int64_t batch);
/// Returns those of `problem`: the one that its options ask for, or those of its batch.
std::vector<std::int64_t> micro_batch_numbers(const Problem& problem);

}  // namespace agpcs
