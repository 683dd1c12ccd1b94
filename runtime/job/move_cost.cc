// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/move_cost.h"

#include "ir/plan/body/body.h"
#include "ir/plan/body/groups.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace agpcs {
namespace {

/// Returns the names of what the optimizer remembers of each parameter.
std::vector<std::string> slots_of(const Optimizer& optimizer) {
  if (optimizer.kind == OptimizerKind::kAdam) return {"first", "second"};
  if (optimizer.momentum != 0) return {"momentum"};
  return {};
}

/// Makes `item` the part that a member has of a parameter of a body.
void take_part(const PlanBody& body, const BodyTensor& parameter, std::size_t member,
               StateItem& item) {
  const BodyForm& form = parameter.forms.front();
  if (form.lying != Lying::kPart) return;
  const auto axis = static_cast<std::size_t>(form.axis);
  std::int64_t width = 1;
  for (std::size_t i = axis + 1; i < parameter.shape.size(); ++i) width *= parameter.shape[i].fixed;
  const std::int64_t extent = parameter.shape[axis].fixed;
  item.period = extent * width;
  const BodyDivision& division = body.divisions[static_cast<std::size_t>(form.division)];
  std::int64_t begin = 0;
  for (std::size_t m = 0; m < member; ++m) begin += division.pieces[m];
  const std::int64_t end = begin + division.pieces[member];
  std::int64_t at = 0;
  for (const std::int64_t band :
       form.bands.empty() ? std::vector<std::int64_t>{extent} : form.bands) {
    const std::int64_t piece = band / division.of() * width;
    item.runs.push_back({at + begin * piece, at + end * piece});
    at += band * width;
  }
}

/// Adds what a rank of a stage holds of a bucket.
void add_bucket(const Plan& plan, const PlanStage& stage, const PlanBucket& bucket, int rank,
                std::vector<StateItem>& items) {
  const ElementRange owned = owned_elements(plan, bucket, rank);
  std::int64_t at = 0;
  for (const BucketMember& member : bucket.members) {
    StateItem whole{member.parameter, kValueSlot, member.elements};
    StateItem own = whole;
    if (stage.has_teams()) {
      const auto replica = static_cast<std::size_t>(replica_of(stage, rank));
      const PlanBody& body = plan.bodies[static_cast<std::size_t>(stage.body_of(replica))];
      const BodyTensor* parameter = find_parameter(body, member.parameter);
      if (parameter != nullptr) take_part(body, *parameter, member_of(stage, rank), own);
      whole = own;
    } else if (bucket.is_sharded()) {
      own.before = std::clamp<std::int64_t>(owned.begin - at, 0, member.elements);
      own.after =
          member.elements - std::clamp<std::int64_t>(owned.end - at, own.before, member.elements);
    }
    at += member.elements;
    const auto add = [&](StateItem item, const std::string& slot) {
      if (item.size() == 0) return;
      item.slot = slot;
      items.push_back(std::move(item));
    };
    add(bucket.divides_parameters() ? own : whole, kValueSlot);
    for (const std::string& slot : slots_of(plan.training.optimizer)) add(own, slot);
  }
}

}  // namespace

StateOwners state_under(const Plan& plan) {
  StateOwners owners(static_cast<std::size_t>(plan.rank_count()));
  for (int rank = 0; rank < plan.rank_count(); ++rank) {
    for (const PlanBucket& bucket : plan.buckets) {
      if (!holds(plan, rank, bucket)) continue;
      const PlanStage& stage = plan.stages[static_cast<std::size_t>(plan.stage_of_rank(rank))];
      add_bucket(plan, stage, bucket, rank, owners[static_cast<std::size_t>(rank)]);
    }
  }
  return owners;
}

double seconds_of(const std::vector<StateMove>& moves, const std::vector<LinkMeasurement>& links) {
  std::map<std::pair<int, int>, double> measured;
  double slowest = 0;
  for (const LinkMeasurement& link : links) {
    measured[{link.from, link.to}] = link.seconds_per_byte;
    slowest = std::max(slowest, link.seconds_per_byte);
  }
  std::map<int, double> seconds;  // by rank
  for (const StateMove& move : moves) {
    if (move.from == move.to) continue;
    const auto link = measured.find({move.from, move.to});
    const double of_byte = link == measured.end() ? slowest : link->second;
    const double own =
        static_cast<double>(move.item.size()) * static_cast<double>(sizeof(float)) * of_byte;
    seconds[move.from] += own;
    seconds[move.to] += own;
  }
  double longest = 0;
  for (const auto& [rank, own] : seconds) longest = std::max(longest, own);
  return longest;
}

}  // namespace agpcs
