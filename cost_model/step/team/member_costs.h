// SPDX-License-Identifier: Apache-2.0
// MemberCosts: seconds of operators as the members of teams compute them.
#pragma once

#include "cost_model/step/cost_table.h"
#include "ir/cluster/cluster.h"
#include "ir/graph/graph.h"
#include "ir/team/body.h"

#include <agpcs/training.h>

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

/// What a member of a team computes of an operator.
struct MemberOp {
  OpId op = kNone;
  int split = kNone;       ///< of `splits_of(graph, op)`; kNone: the member computes all of it
  std::int64_t units = 0;  ///< the member's, of the split's; 0: nothing is divided
  friend auto operator<=>(const MemberOp&, const MemberOp&) = default;
};

/// Returns what member `member` computes of `op`, an operator of `body`.
MemberOp member_op(const Graph& graph, const TeamBody& body, const TeamOp& op, std::size_t member);

/// Parts of operators as operators of a graph that has no edge.
struct PartsGraph {
  Graph graph;
  std::vector<OpId> ops;  ///< parallel to the parts
};
PartsGraph graph_of_parts(const Graph& whole, std::span<const MemberOp> parts);

/// Seconds of what members compute. A part of an operator is an operator with smaller extents, and
/// so costs what that operator does: from the sources of `CostTable`, in their order, where a
/// profile is asked for the signature of the smaller operator. Where the profile has not measured
/// the part, but the whole operator or what members of even teams have of it
/// (`DeviceProfile::teams`), the part takes the fitted seconds times what was measured of these
/// over what is fitted to them: operators of one class may depart from its fit by far, and parts of
/// one operator do so alike. Between two of these the factor is on a line over the logarithm of
/// their size; beyond them it is that of the nearest. No attention is fused in a team. The
/// gradients of an output that several operators read are added up by the operator, as it has the
/// output, although some of them may read another form of it.
///
/// Remembers what was asked for, once for operators with equal signatures. Not for concurrent use.
/// Refers to the graph, the cluster and the table.
class MemberCosts {
 public:
  /// Needs: `costs` are those of the graph, the cluster and the training.
  MemberCosts(const Graph& graph, const Cluster& cluster, Training training, const CostTable& costs)
      : graph_(graph), cluster_(cluster), training_(std::move(training)), costs_(costs) {}

  /// Makes parts known at once, which is faster than one by one where a kind has a profile. Cost:
  /// that of `CostTable::make` for a graph of those that are new.
  void prepare(std::span<const MemberOp> parts);
  /// Returns the seconds of a part for `samples` samples on device kind `kind`. Cost: O(log parts)
  /// if it is known.
  OpSeconds seconds(int kind, const MemberOp& part, std::int64_t samples);

 private:
  /// Parts as operators of a graph that has no edge.
  struct Known {
    Graph graph;
    CostTable costs;
  };
  struct Place {
    const CostTable* costs = nullptr;
    OpId op = kNone;
  };
  /// What was measured of an operator: some units of a split, or all of it.
  struct Anchor {
    double logarithm = 0;  ///< of the part
    Place place;
  };
  /// The anchors of a part on a kind, ascending, and where the part itself lies among them.
  struct Anchors {
    double logarithm = 0;
    std::vector<Anchor> of;
  };
  bool is_whole(const MemberOp& part) const;
  const Anchors& anchors_of(int kind, const MemberOp& part);
  OpSeconds part_seconds(int kind, const MemberOp& part, std::int64_t samples);
  OpId alike(OpId op);  ///< the first operator asked for that has the same signature
  void add(std::span<const MemberOp> parts);  ///< of operators that are the first of their like
  Place place_of(const MemberOp& part);

  const Graph& graph_;
  const Cluster& cluster_;
  Training training_;
  const CostTable& costs_;
  std::unordered_map<std::string, OpId> first_;  // by signature
  std::vector<OpId> alike_;                      // by OpId; kNone: not asked for
  std::vector<std::unique_ptr<const Known>> known_;
  std::map<MemberOp, Place> places_;
  std::map<std::pair<int, MemberOp>, Anchors> anchors_;  // by kind
};

}  // namespace agpcs
