// SPDX-License-Identifier: Apache-2.0
// Coordination: one step's gradients, as ranks agree on what to reduce, in virtual time.
//
// Ranks of data parallelism have the same gradients in different orders and at different times, and
// an all-reduce needs all of them. Horovod has them agree in cycles (Romero et al., NSDI 2022);
// a plan has agreed before the step.
#pragma once

#include "ir/base/rng.h"
#include "tests/bench/coordination/control_messages.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace agpcs {

enum class CoordinationPolicy : std::uint8_t {
  /// Each cycle, every rank sends rank 0 a list of requests, one for each gradient that has become
  /// ready, and gets the list of responses: what all ranks have asked for (the paper's Figure 1).
  kCoordinator,
  /// Each cycle, every rank sets a bit for each ready gradient of its response cache, and ranks
  /// combine their bits by AND. What is not in the cache goes to the coordinator, in the same
  /// cycle; if no rank has any of that, it is not asked (Figure 4 and the six steps).
  kCached,
  /// The same, with a group of gradients as one request or bit, ready when all of them are
  /// (Figure 5).
  kGrouped,
  /// Groups in the order given, each reduced when all ranks have it: no control messages.
  kPlanned,
};
/// "coordinator", "cached", "grouped", "planned".
std::string_view name_of(CoordinationPolicy policy);
std::optional<CoordinationPolicy> find_coordination_policy(std::string_view name);

/// When each rank has each gradient, in seconds of the step.
struct Readiness {
  int ranks = 0, gradients = 0;
  std::vector<double> seconds;  ///< [rank x gradients + gradient]

  double at(int rank, int gradient) const {
    return seconds[static_cast<std::size_t>(rank) * static_cast<std::size_t>(gradients) +
                   static_cast<std::size_t>(gradient)];
  }
  double last() const;
};

/// Mean delays in seconds, each exponentially distributed: noise as in Agarwal, Garg and Vishnoi
/// (HiPC 2005), whose largest of n grows with log n.
struct ReadinessSkew {
  double rank = 0;      ///< of all gradients of a rank
  double gradient = 0;  ///< of each gradient on each rank, which so come in another order on each
};

/// `ready`: when a rank that nothing delays has each gradient. The first ranks of more ranks are
/// the same.
Readiness draw_readiness(std::span<const double> ready, int ranks, const ReadinessSkew& skew,
                         Rng rng);

/// Needs: times > 0, sizes >= 0.
struct CoordinationOptions {
  CoordinationPolicy policy = CoordinationPolicy::kPlanned;

  /// A cycle begins on a rank that long after its last one, or when that has ended. Horovod 0.28:
  /// HOROVOD_CYCLE_TIME, 1 ms.
  double cycle_seconds = 1e-3;
  /// What one cycle has agreed on is reduced in the order agreed on, together as long as it has no
  /// more bytes; a larger gradient or group alone. Horovod 0.28: HOROVOD_FUSION_THRESHOLD, 128 MiB.
  /// `kPlanned` reduces its groups as they are.
  std::int64_t fusion_bytes = std::int64_t{128} << 20;
  /// Gradients, or groups, that the response cache holds, the least recently used leaving first: a
  /// step uses all in turn, so that with more of them each has left before its next use.
  /// Horovod 0.28: HOROVOD_CACHE_CAPACITY, 1024.
  int cache_entries = 1024;
  /// Of `kGrouped`: without a cache all goes to the coordinator, as in the lower half of Figure 8.
  bool cache_groups = true;
  bool first_step = false;  ///< the cache is empty
  /// Cycles go on while a rank has nothing to say (Horovod); else it begins one when it has
  /// (`GradientReducer`), and the others wait for it.
  bool idle_cycles = true;
  /// The thread that coordinates waits for the all-reduces (MPI, Gloo), or not (NCCL's stream).
  bool waits_for_reduces = false;

  ControlCosts costs;
  /// MPI_Gatherv of Horovod's coordinator is linear in usual implementations, MPI_Bcast a tree.
  ControlShape gather = ControlShape::kStar, spread = ControlShape::kTree;
  ControlShape combine = ControlShape::kTree;  ///< the AND of bits, up and down
  int list_parts = 2;                ///< messages of a list: its length, then what is in it
  std::int64_t list_bytes = 8;       ///< of a list of requests or responses without any
  std::int64_t request_bytes = 128;  ///< a name, a shape, a type
  std::int64_t response_bytes = 128;
  std::int64_t status_bytes = 8;  ///< beside the bits: who has what is not cached, who stops

  /// Each gradient in one group. `kPlanned`: also the order.
  std::vector<std::vector<int>> groups;
  /// Of an all-reduce over all ranks that has the network to itself.
  std::function<double(std::int64_t bytes)> reduce_seconds;
};

/// An all-reduce. They run one at a time, in the order of agreement.
struct ReducedMessage {
  std::int64_t bytes = 0;
  int gradients = 0;
  double posted = 0;  ///< on the last rank
  double begin = 0, end = 0;
};

struct CoordinatedStep {
  double seconds = 0;     ///< until all gradients are reduced
  double last_ready = 0;  ///< when the last rank has its last gradient
  /// After `last_ready`: all-reduces, and the rest, in which ranks agree or wait for a cycle.
  double exposed_reduce = 0, exposed_coordination = 0;
  double reduce_seconds = 0;   ///< of all all-reduces
  double control_seconds = 0;  ///< of all cycles, from the first rank's begin to the last one's end
  /// Mean over gradients, from when all ranks have it to when all have posted it.
  double agreement_seconds = 0;
  int cycles = 0;
  ControlTraffic control;
  std::vector<ReducedMessage> messages;
};

/// Cost: O(ranks x (cycles + gradients log gradients)). Errors: sizes that do not fit each other,
/// no ranks or gradients, no cycle time, groups (where there must be any) that leave out or repeat
/// a gradient. The same input gives the same result.
Result<CoordinatedStep> simulate_coordination(const Readiness& readiness,
                                              std::span<const std::int64_t> bytes,
                                              const CoordinationOptions& options);

}  // namespace agpcs
