// SPDX-License-Identifier: Apache-2.0
// What the collectives of a team put on the links between its members.
#pragma once

#include "cost_model/network/link_model.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/graph/split/split.h"
#include "ir/team/body.h"

#include <agpcs/training.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// An exchange of a team, and how many bytes it has.
struct TeamTraffic {
  TeamExchange exchange = TeamExchange::kNothing;
  /// All-reduce: those of the tensor. All-gather, reduce-scatter: those of each member's part.
  /// All-to-all: what member m gives member k, at m x members + k. Else none.
  std::vector<std::int64_t> bytes = {};
  /// By member: the bytes that it reads and writes in its own memory, as runtime/torch/team/link
  /// does: parts taken, zeros, and what a collective packs and unpacks. Empty: none.
  std::vector<std::int64_t> copied = {};
  friend auto operator<=>(const TeamTraffic&, const TeamTraffic&) = default;
};

/// Returns what makes `to` of `from` among `members` members. `tensor` is whole. What is copied of
/// an all-gather counts as if ranks were in the order of members. Cost: O(members^2).
TeamTraffic team_traffic(const std::vector<Division>& divisions, std::size_t members,
                         const TeamPlacement& from, const TeamPlacement& to, const Tensor& tensor,
                         std::int64_t samples, Precision precision);
/// Returns what makes a form of the one that it is made of, or the gradient of that one of its own.
TeamTraffic forward_traffic(const Graph& graph, const TeamBody& body, int form,
                            std::int64_t samples, Precision precision);
TeamTraffic backward_traffic(const Graph& graph, const TeamBody& body, int form,
                             std::int64_t samples, Precision precision);
/// Returns the reductions inside an operator that is divided by `split`, in their order. A maximum
/// is gathered, because transports add only.
std::vector<TeamTraffic> inside_traffic(const Graph& graph, OpId op, const OpSplit& split,
                                        std::int64_t samples, std::size_t members);

/// Returns the traffic on the links between `devices`, which are the members in their order.
/// Collectives go in the order of ranks, which is that of devices, whatever that of members is.
/// All-reduces, all-gathers and reduce-scatters go round a ring. In an all-to-all, every member
/// sends a message to each other one, first to the next, last to the one before it: a phase for
/// each of these turns. Cost: O(members) routes, all-to-all O(members^2).
Exchange team_exchange(const Cluster& cluster, const std::vector<DeviceId>& devices,
                       const TeamTraffic& traffic);
/// Returns the seconds that a member on `device` copies within its memory, at its bandwidth.
double copy_seconds(const Cluster& cluster, DeviceId device, std::size_t member,
                    const TeamTraffic& traffic);
/// Returns the seconds of an exchange among `devices`: those of the member that copies longest, and
/// those on links that nothing else uses.
double lone_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    const TeamTraffic& traffic);

}  // namespace agpcs
