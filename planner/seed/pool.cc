// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/pool.h"

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

bool is_clearly_better(const Score& a, const Score& b) {
  constexpr double kClearly = 1 - 1e-6;
  return is_better(a, b) && (!b.fits() || a.step_seconds <= kClearly * b.step_seconds);
}

double most_seconds(const Score& score) {
  constexpr double kAny = 1e300;
  return score.fits() ? score.step_seconds : kAny;
}

SeedPool SeedPool::known_to_moves() const {
  SeedPool pool;
  for (const Seed& seed : seeds_) {
    const bool interleaved = seed.strategy.schedule == Schedule::kInterleaved;
    if (seed.strategy.bodies.empty() && !interleaved) pool.add(seed);
  }
  return pool;
}

const Seed& SeedPool::best() const {
  return *std::min_element(seeds_.begin(), seeds_.end(), [](const Seed& a, const Seed& b) {
    return is_better(a.score, b.score);
  });
}

std::vector<Seed> SeedPool::bests(std::size_t most) const {
  std::vector<const Seed*> order;
  for (const Seed& seed : seeds_) order.push_back(&seed);
  std::stable_sort(order.begin(), order.end(),
                   [](const Seed* a, const Seed* b) { return is_better(a->score, b->score); });
  std::vector<Seed> bests;
  for (const Seed* seed : order) {
    if (bests.size() == most || seed->score.fits() != order.front()->score.fits()) break;
    const bool known = std::any_of(bests.begin(), bests.end(), [&](const Seed& other) {
      return same_devices(other.strategy, seed->strategy);
    });
    if (!known) bests.push_back(*seed);
  }
  return bests;
}

std::vector<Strategy> SeedPool::starts(std::size_t most) const {
  std::vector<Strategy> starts;
  for (Seed& seed : bests(most)) starts.push_back(std::move(seed.strategy));
  return starts;
}

}  // namespace agpcs
