// SPDX-License-Identifier: Apache-2.0
// What if: changes of a plan, or of the hardware under it, tried by simulation.
#pragma once

#include "planner/problem/problem.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <string>
#include <vector>

namespace agpcs {

/// A change and the step time with it.
struct WhatIf {
  std::string family;  ///< what it changes: "micro-batches", "buckets", "NIC", ...
  std::string change;  ///< "8 micro-batches instead of 4"
  double step_seconds = 0;
  double gain = 0;  ///< part of the step that it saves; below 0 if the step gets longer
};

struct WhatIfs {
  std::vector<WhatIf> changes;  ///< the best of each family, most gain first
  int tried = 0;                ///< number of simulations, over all families
  int too_large = 0;            ///< changes left out: they lack memory on some device
};

/// Tries changes that a user can make to the plan of `strategy`, whose step takes `step_seconds`:
/// more or fewer micro-batches (shares in proportion), buckets of other sizes, the other all-reduce
/// algorithms for each bucket and for all, samples moved away from the slowest devices of a stage,
/// a stage without its slowest device, kind or host, recomputation, divided state, the other
/// schedule, more and fewer micro-batches in flight. These are moves
/// (planner/refine/moves/strategy_move.h), except other sizes of buckets. It makes one change at a
/// time: buckets stay, unless they are the change. Where replicas are teams, it tries buckets,
/// algorithms, micro-batches and the other schedule alone. Needs: a strategy with buckets that
/// fits. Cost: some dozens of simulations.
Result<WhatIfs> what_if_plan(const Problem& problem, const Strategy& strategy, double step_seconds);

/// Tries the same plan on better hardware: a device kind 10% faster; a host's NIC, all NICs, a
/// host's interconnect, all interconnects, or a cable (both directions) twice as fast, if the plan
/// sends something over it (`Estimate::link_bytes`, by LinkId); half the latency; no overhead of
/// launching operators; messages and all-reduce steps without overhead of the runtime. Each is a
/// family of its own. Cost: a simulation for each.
Result<WhatIfs> what_if_hardware(const Problem& problem, const Plan& plan,
                                 const Estimate& estimate);

}  // namespace agpcs
