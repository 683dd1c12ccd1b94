// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/job/busy_machine.h"

#include "ir/base/rng.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace agpcs {
namespace {

constexpr std::int64_t kWander = 40;  // steps
constexpr double kPartOfReduce = 0.2;

Rng rng_of(std::uint64_t seed, std::int64_t step, int rank, std::uint64_t what) {
  return Rng(((seed * 1'000'003 + static_cast<std::uint64_t>(step)) * 64 +
              static_cast<std::uint64_t>(rank)) *
                 8 +
             what);
}

/// Between its values every kWander steps, the logarithm of a rank's load is a straight line.
double wandering(std::uint64_t seed, std::int64_t step, int rank) {
  const auto at = [&](std::int64_t knot) {
    return 1.4 * (rng_of(seed, knot, rank, 1).uniform() - 0.5);
  };
  const double part = static_cast<double>(step % kWander) / kWander;
  return std::exp((1 - part) * at(step / kWander) + part * at(step / kWander + 1));
}

}  // namespace

BusyMachine::Step BusyMachine::step_of(std::int64_t step, int rank) const {
  double share = shares_[static_cast<std::size_t>(rank)], work = 1, crowd = 0, rate = 1;
  for (const MachineChange& change : changes_) {
    if (step < change.from) continue;
    rate = change.link_rate;
    if (change.rank != rank) continue;
    share = shares_[static_cast<std::size_t>(rank)] * change.share;
    work = change.work;
    crowd = change.crowd;
  }
  Rng rng = rng_of(seed_, step, rank, 0);
  Step made;
  made.processor = kProcessor * work * (1 + 0.08 * (rng.uniform() - 0.5));
  const double busy = load_ * wandering(seed_, step, rank) * -std::log(1 - rng.uniform());
  const double waits = made.processor * (busy + crowd);
  made.held = std::max(0.0, made.processor / share - made.processor - waits);
  made.wall = made.processor + made.held + waits;
  made.reduce = kReduce / rate + kPartOfReduce * (waits + std::max(0.0, made.held));
  return made;
}

Source BusyMachine::source() const {
  return [*this](std::int64_t step, int rank) {
    const Step made = step_of(step, rank);
    return QuantitySeconds{made.wall, made.reduce, 0};
  };
}

OwnSource BusyMachine::own() const {
  return [*this](std::int64_t step, int rank) {
    const Step made = step_of(step, rank);
    return OwnSeconds{made.processor, made.held};
  };
}

std::vector<QuantitySeconds> BusyMachine::expected() const {
  std::vector<QuantitySeconds> expected;
  for (const double share : shares_) expected.push_back({kProcessor / share, kReduce, 0});
  return expected;
}

Plan BusyMachine::plan() const {
  return drift_plan({static_cast<int>(shares_.size())}, kStep, expected());
}

}  // namespace agpcs
