// SPDX-License-Identifier: Apache-2.0
#include "planner/problem/micro_batches.h"

#include "planner/problem/problem.h"

namespace agpcs {

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

std::vector<std::int64_t> micro_batch_numbers(std::int64_t batch) {
  std::vector<std::int64_t> numbers = divisors(batch);
  std::erase_if(numbers, [](std::int64_t number) { return number > kMostMicroBatches; });
  return numbers;
}

}  // namespace agpcs
