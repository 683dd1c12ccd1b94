// SPDX-License-Identifier: Apache-2.0
// Figures of a data-parallel job on machines of a stated model. They are made up: they test rules,
// and measure nothing. tests/system/testbed/record_drift.py makes recordings of real jobs.
#pragma once

#include "tests/runtime/job/drift_player.h"

#include <cstdint>
#include <vector>

namespace agpcs {

/// What is different from step `from` on.
struct MachineChange {
  std::int64_t from = 0;
  int rank = 0;
  double share = 1;      ///< of what its quota gave the rank
  double work = 1;       ///< processor time of a step
  double crowd = 0;      ///< other work that stays on its processor: seconds for each of its own
  double link_rate = 1;  ///< of the link of all ranks
};

/// The model, of each step:
///  - a rank computes for `kProcessor` seconds of processor time, give or take 4%;
///  - its quota gives it a part of a processor, and holds it back for the rest;
///  - other work keeps it waiting for `load` x an exponential time, whose mean wanders by a factor
///    of about 2 over some 40 steps, by itself on each rank. What it waits, the quota does not hold
///    back;
///  - an all-reduce takes `kReduce` seconds at the link's rate, and longer by a part of what each
///    rank is kept from its processor.
class BusyMachine {
 public:
  static constexpr double kStep = 0.2, kProcessor = 0.05, kReduce = 0.06;

  BusyMachine(std::uint64_t seed, std::vector<double> shares, double load,
              std::vector<MachineChange> changes = {})
      : seed_(seed), shares_(std::move(shares)), load_(load), changes_(std::move(changes)) {}
  /// As `play` wants them.
  Source source() const;
  OwnSource own() const;
  /// What a plan expects: the figures of an empty machine.
  std::vector<QuantitySeconds> expected() const;
  Plan plan() const;

 private:
  struct Step {
    double wall = 0, processor = 0, held = 0, reduce = 0;
  };
  Step step_of(std::int64_t step, int rank) const;

  std::uint64_t seed_;
  std::vector<double> shares_;
  double load_;
  std::vector<MachineChange> changes_;
};

}  // namespace agpcs
