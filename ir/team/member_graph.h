// SPDX-License-Identifier: Apache-2.0
// The graph of one member of a team: its own operators and parts of tensors, with exchanges as
// operators.
#pragma once

#include "ir/team/body.h"

#include <agpcs/status.h>

#include <cstddef>
#include <string_view>

namespace agpcs {

/// The domain of exchanges in a member's graph. Such an operator has one input and one output, two
/// forms of a tensor; its type is the name of the exchange that makes the one of the other
/// ("nothing": they share memory), and its attribute `kGradientExchange` that of the gradient.
inline constexpr std::string_view kExchangeDomain = "agpcs.team";
inline constexpr const char* kGradientExchange = "gradient";
bool is_exchange(const Op& op);

/// Returns what member `member` computes of a body: a graph of the body's operators, in their
/// order, with an operator for each form that is made of another one, just before the first
/// operator that needs it. Tensors have the extents of the member's part. Of a tensor's forms, the
/// copy with which it comes from another stage or leaves for one has the tensor's name; if there is
/// none, the first form. What is there before and has no gradient is whole on every member (inputs,
/// tensors of other stages), or as it is read (constants, states, frozen weights). No attention is
/// fused. Needs: a body that verifies. Cost: O(operators + forms).
Graph member_graph(const Graph& graph, const TeamBody& body, std::size_t member);

}  // namespace agpcs
