// SPDX-License-Identifier: Apache-2.0
// TeamBody: what the members of a team compute and exchange for the operators of a stage, in one
// forward and one backward pass of a micro-batch.
#pragma once

#include "ir/team/placement.h"

#include <agpcs/status.h>
#include <agpcs/training.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// An operator of the body.
struct TeamOp {
  OpId op = kNone;
  int split = kNone;     ///< of `splits_of(graph, op)`; kNone: each member computes all of it
  int division = kNone;  ///< of the body; kNone: nothing is divided (whole, or split "sum")
  /// The split's units are one band of so many behind another, and each member has its part of
  /// each; empty: they are one band. So the columns of one product for queries, keys and values are
  /// divided as heads are.
  std::vector<std::int64_t> bands = {};
  /// Whole: each member has a summand of the gradients, not a copy.
  bool own_gradient = false;
  std::vector<int> inputs = {}, outputs = {};  ///< forms, parallel to the operator's; kNone: absent
  friend bool operator==(const TeamOp&, const TeamOp&) = default;
};

/// A tensor as operators of the body read it. A tensor has one form that it begins in, and others
/// that are made of it.
struct TeamForm {
  TensorId tensor = kNone;
  TeamPlacement placement;
  /// The form that it is made of; kNone: its operator, or each member, has it so.
  int from = kNone;
  friend bool operator==(const TeamForm&, const TeamForm&) = default;
};

/// A step of a body: a run of operators, or an exchange that makes a form (forward) or brings its
/// gradient to the form that it was made of (backward).
struct TeamStep {
  int first = 0, last = kNone;  ///< indices in `ops`, both of the run; backward: from last to first
  int form = kNone;             ///< not kNone: an exchange
  friend bool operator==(const TeamStep&, const TeamStep&) = default;
};

/// Tensors that the operators do not make are there before: parameters and states as their first
/// form says, everything else on every member (without a gradient: in each form, because a copy
/// becomes any of them without a message). Tensors of other stages come as copies, and their
/// gradients leave as copies; those that later stages read leave as copies, too.
struct TeamBody {
  std::vector<std::int64_t> parts;  ///< of each member, as asked for
  std::vector<Division> divisions;
  std::vector<TeamOp> ops;      ///< ascending
  std::vector<TeamForm> forms;  ///< by tensor; before those that are made of it
  std::vector<TeamStep> forward, backward;
  std::vector<TeamStep> step_end;  ///< exchanges of parameters' gradients, once a training step

  std::size_t members() const { return parts.size(); }
  friend bool operator==(const TeamBody&, const TeamBody&) = default;
};

/// Returns the body of one member that computes all of these operators, which are ascending: for a
/// device that computes alone beside teams.
TeamBody lone_body(const Graph& graph, const std::vector<OpId>& ops);

/// Returns whether the members divide any operator. Where they do not, each computes all of them,
/// and a member alone would take as long.
bool divides_any(const TeamBody& body);

/// Returns whether a gradient flows to the tensor.
bool has_gradient(const Tensor& tensor);
/// Returns the tensors that leave a body with the operators `ops`, ascending: the loss, and what
/// operators outside of it read.
std::vector<TensorId> leaving_tensors(const Graph& graph, const std::vector<OpId>& ops);

/// How inputs and outputs of an operator lie; meaningless for those that are absent.
struct OpPlacements {
  std::vector<TeamPlacement> inputs, outputs;
};
/// Returns nullopt where a team cannot run it so: it has no such split, the division does not fit
/// its units, or an output would be an extreme. Needs: `splits` are those of the operator.
std::optional<OpPlacements> placements_of(const Graph& graph, const TeamOp& op,
                                          const std::vector<OpSplit>& splits,
                                          const std::vector<Division>& divisions);

/// Returns what makes a form of the one that it is made of, and what makes the gradient of that one
/// of its own. Forms between which that is nothing share a tensor; such an exchange is no step.
TeamExchange forward_exchange(const TeamBody& body, int form);
TeamExchange backward_exchange(const Graph& graph, const TeamBody& body, int form);
/// Returns the bytes of a whole tensor, by which exchanges are counted.
std::int64_t exchanged_bytes(const Tensor& tensor, std::int64_t samples, Precision precision);
/// Returns the bytes of each reduction inside an operator, in their order. A row has one number in
/// a maximum; in the sum, two: of the exponentials, and of the label's score.
std::vector<std::int64_t> inside_bytes(const Graph& graph, OpId op, const OpSplit& split,
                                       std::int64_t samples);

/// Returns the first operator, as an index in the body, that reads each form or one made of it; the
/// number of operators for those that only leave.
std::vector<int> first_uses(const TeamBody& body);

/// Writes the steps of a body whose operators and forms are there. An exchange comes just before
/// the first operator that needs it, and backward just after the last one that adds to the
/// gradient, so that one pass is the other's mirror. Cost: O(operators + forms log forms).
void order_steps(const Graph& graph, TeamBody& body);

/// Checks: every tensor that an operator reads lies as its split needs when it runs; what it leaves
/// lies as its split says; every gradient is complete before it is used, and each summand counts
/// once; each parameter is in parts, of which every element has one member, or a copy on all;
/// what other stages read is a copy; and the body is the only one of its kind: no form and no
/// division is there twice or for nothing, and steps are where `order_steps` puts them. Errors name
/// the operator or tensor. Cost: O(body).
Status verify_team_body(const Graph& graph, const TeamBody& body);

/// Prints parts, divisions and every step, with the bytes of exchanges for `samples` samples.
std::string print_team_body(const Graph& graph, const TeamBody& body, std::int64_t samples,
                            Precision precision);

}  // namespace agpcs
