// SPDX-License-Identifier: Apache-2.0
// Problem: what is to be planned. Strategies compete on `evaluate`.
#pragma once

#include "cost_model/cost_table.h"
#include "cost_model/simulator.h"
#include "ir/cluster.h"
#include "ir/graph.h"
#include "ir/strategy.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>

namespace agpcs {

struct Problem {
  Graph graph;  ///< a training graph (loss attached, backward derived)
  Cluster cluster;
  Training training;
  CostTable costs;  // refers to `graph`: a Problem is made in place and does not move
  std::int64_t bucket_bytes = 25'000'000;

  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;
};

/// A strategy with its plan and what the simulator says of it.
struct Evaluated {
  Strategy strategy;
  Plan plan;
  Estimate estimate;
};

}  // namespace agpcs
