// SPDX-License-Identifier: Apache-2.0
// What a team is asked to compute, and what that costs.
#pragma once

#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/traffic.h"
#include "ir/graph/graph.h"

#include <agpcs/training.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace agpcs {

/// Seconds of what the members of a team do.
struct TeamCosts {
  /// Of the forward and backward pass of what a member computes of an operator, for one
  /// micro-batch; `part`: the member's part of the operator (1: all).
  std::function<double(const MemberOp& of, std::size_t member, double part)> compute;
  /// Of an exchange.
  std::function<double(const TeamTraffic& traffic)> exchange;
  /// May be absent: is told, before a choice, all that `compute` will be asked for.
  std::function<void(std::span<const MemberOp> parts)> prepare = {};
};

/// The operators of a stage, ascending and convex, and a team.
struct TeamProblem {
  const Graph& graph;  ///< with its backward derived
  std::vector<OpId> ops;
  std::vector<std::int64_t> parts;  ///< of each member; positive, two at least
  std::int64_t samples = 1;         ///< of a micro-batch
  std::int64_t micro_batches = 1;   ///< of a step, which exchanges gradients of parameters once
  Precision precision = Precision::kFp32;
  TeamCosts costs;
  /// What the choice counts, in seconds, for each element of a trained parameter that the member
  /// with the largest part of it holds: memory has no other price.
  double held_element = 0;
  /// By operator: equal numbers where operators compute the same. If there are any, and operators
  /// repeat in turn, like layers, the choice for a few turns serves all.
  std::vector<int> alike = {};
};

/// Rough speeds: figures of a data sheet.
struct TeamSpeeds {
  std::vector<double> flops;   ///< of each member, in FLOPs per second
  std::vector<double> memory;  ///< of each member, in bytes per second
  double link = 0;             ///< of a member to the others, in bytes per second and direction
  double latency = 0;          ///< of a message
};

/// Returns costs by a roofline: an operator takes the longer of arithmetic and memory, a part of it
/// that part of the time. Collectives go round a ring, as if parts were even; what members copy
/// moves through their memory.
TeamCosts roofline_costs(const Graph& graph, TeamSpeeds speeds, std::int64_t samples,
                         Precision precision);

/// What a body takes.
struct TeamSeconds {
  double compute = 0;   ///< a micro-batch: of every operator the slowest member's time
  double exchange = 0;  ///< a micro-batch: exchanges of both passes, and within operators
  double step_end = 0;  ///< a step: gradients of parameters
  /// Returns what the choice minimizes: the seconds of a micro-batch, with its share of a step's.
  double per_micro_batch(std::int64_t micro_batches) const {
    return compute + exchange + step_end / static_cast<double>(micro_batches);
  }
};

}  // namespace agpcs
