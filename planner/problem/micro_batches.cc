// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/micro_batches.h"

#include "ir/strategy/strategy.h"
#include "planner/problem/problem.h"

#include <algorithm>

namespace agpcs {
namespace {

/// More micro-batches than this are hardly ever wanted for themselves.
constexpr std::int64_t kMostWanted = 64;

std::vector<std::int64_t> few_divisors(std::int64_t batch) {
  std::vector<std::int64_t> numbers = divisors(batch);
  std::erase_if(numbers, [](std::int64_t number) { return number > kMostMicroBatches; });
  return numbers;
}

}  // namespace

std::vector<std::int64_t> divisors(std::int64_t n) {
  std::vector<std::int64_t> low, high;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

bool divides_well(std::int64_t batch) {
  const std::vector<std::int64_t> numbers = few_divisors(batch);
  for (std::int64_t wanted = 2; wanted <= std::min(kMostWanted, batch); wanted *= 2) {
    const auto found = std::lower_bound(numbers.begin(), numbers.end(), wanted);
    if (found == numbers.end() || *found >= 2 * wanted) return false;
  }
  return true;
}

std::vector<std::int64_t> micro_batch_numbers(std::int64_t batch) {
  std::vector<std::int64_t> numbers = few_divisors(batch);
  if (divides_well(batch)) return numbers;
  for (std::int64_t power = 2; power <= std::min(batch, kMostMicroBatches); power *= 2) {
    for (const std::int64_t number : {power, power / 2 * 3}) {
      if (number > std::min(batch, kMostMicroBatches)) continue;
      if (batch % largest_micro_batch(batch, number) != 0) numbers.push_back(number);
    }
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<std::int64_t> micro_batch_numbers(const Problem& problem) {
  const std::int64_t fixed = problem.options.micro_batches;
  return fixed > 0 ? std::vector{fixed} : micro_batch_numbers(problem.training.batch);
}

}  // namespace agpcs
