// SPDX-License-Identifier: Apache-2.0
// Small queries on the bodies of teams, and what brings a tensor from one form to another.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// What brings a tensor, or its gradient, from one form to another. The first four cost no message.
enum class TeamExchange : std::uint8_t {
  kNothing,
  kTakePart,       ///< copy to part: each member takes its part
  kKeepOne,        ///< copy to sum: the first member keeps it, the others have zeros
  kFillWithZeros,  ///< part to sum: each member has its part, and zeros around it
  kAllReduce,      ///< sum to copy
  kAllGather,      ///< part to copy
  kReduceScatter,  ///< sum to part
  kAllToAll,       ///< part to another part
};
std::string_view name_of(TeamExchange exchange);
inline bool is_collective(TeamExchange exchange) { return exchange >= TeamExchange::kAllReduce; }

/// Returns what makes `to` of `from`. `same_part`: if both are parts, they are the same.
TeamExchange exchange_between(Lying from, Lying to, bool same_part);
/// Returns what makes a form of the one that it is made of.
TeamExchange forward_exchange(const BodyTensor& tensor, int form);
/// Returns what makes the gradient of that one of the form's own.
TeamExchange backward_exchange(const BodyTensor& tensor, int form);

std::string_view name_of(Lying lying);  ///< "copy", "copy/sum", "sum", "part"
/// Print and parse "copy", "copy/sum", "sum", "part:1:d0", "part:2:d1:512+64+64".
std::string print_lying(const BodyForm& form);
std::optional<BodyForm> parse_lying(std::string_view text);
/// Print and parse "sum,sum>copy": the forms of a tensor, each behind the one that it is made of.
std::string print_forms(const std::vector<BodyForm>& forms);
std::optional<std::vector<BodyForm>> parse_forms(std::string_view text);
/// Print and parse "samplesx12x64", "12samples+1x64", "scalar".
std::string print_extents(const std::vector<BodyExtent>& shape);
std::optional<std::vector<BodyExtent>> parse_extents(std::string_view text);
/// Print and parse "5,3" and "512+64": integers joined by `separator`.
std::string print_numbers(const std::vector<std::int64_t>& numbers, char separator);
std::optional<std::vector<std::int64_t>> parse_numbers(std::string_view text, char separator);

/// Returns the elements of a whole tensor, of `samples` samples.
std::int64_t whole_elements(const BodyTensor& tensor, std::int64_t samples);
/// Returns the elements that a member has of a tensor in a form: all of them, or its part.
std::int64_t held_elements(const PlanBody& body, const BodyTensor& tensor, const BodyForm& form,
                           std::size_t member, std::int64_t samples);
/// Returns the parameter of that name in a body, or null.
const BodyTensor* find_parameter(const PlanBody& body, std::string_view name);

/// Returns the member's number in its team, from 0; 0 where replicas are single ranks. Needs: the
/// stage has the rank.
std::size_t member_of(const PlanStage& stage, int rank);
/// Returns the index of the replica that `rank` is, or is a member of; -1: none of the stage.
int replica_of(const PlanStage& stage, int rank);
/// Returns the bodies of a stage, ascending.
std::vector<int> bodies_of(const PlanStage& stage);
/// Returns the elements that member `member` of each replica of stage `stage`, or of those that
/// have the same body as replica `like`, holds of `bucket`.
std::int64_t member_elements(const Plan& plan, const PlanBucket& bucket, int stage,
                             std::size_t member, std::size_t like = 0);
/// Returns the elements that `rank` holds of `bucket`. Needs: it is of stage `stage`.
std::int64_t rank_elements(const Plan& plan, const PlanBucket& bucket, int stage, int rank);

/// Returns an error that names the first stage with teams, for code that knows none: `who`, as in
/// "the simulator".
Status refuse_teams(const Plan& plan, std::string_view who);
/// Returns an error that names the first stage whose replicas have unlike bodies, for code that
/// knows none.
Status refuse_unlike_teams(const Plan& plan, std::string_view who);

}  // namespace agpcs
