// SPDX-License-Identifier: Apache-2.0
#include "planner/seed_pool.h"

#include <algorithm>

namespace agpcs {
namespace {

bool same_devices(const Strategy& a, const Strategy& b) {
  return std::equal(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(),
                    [](const StageSpec& x, const StageSpec& y) { return x.devices == y.devices; });
}

}  // namespace

bool is_better(const Score& a, const Score& b) {
  if (a.fits() != b.fits()) return a.fits();
  return a.fits() ? a.step_seconds < b.step_seconds : a.lacking < b.lacking;
}

const Seed& SeedPool::best() const {
  return *std::min_element(seeds_.begin(), seeds_.end(), [](const Seed& a, const Seed& b) {
    return is_better(a.score, b.score);
  });
}

std::vector<Strategy> SeedPool::starts(std::size_t most) const {
  std::vector<const Seed*> order;
  for (const Seed& seed : seeds_) order.push_back(&seed);
  std::stable_sort(order.begin(), order.end(),
                   [](const Seed* a, const Seed* b) { return is_better(a->score, b->score); });
  std::vector<Strategy> starts;
  for (const Seed* seed : order) {
    if (starts.size() == most || seed->score.fits() != order.front()->score.fits()) break;
    const bool known = std::any_of(starts.begin(), starts.end(), [&](const Strategy& strategy) {
      return same_devices(strategy, seed->strategy);
    });
    if (!known) starts.push_back(seed->strategy);
  }
  return starts;
}

}  // namespace agpcs
