// SPDX-License-Identifier: Apache-2.0
#include "ir/base/all_values.h"
#include "ir/base/named.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "runtime/reduce/reducer_base.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/support/sum.h"
#include "runtime/support/text_agreement.h"

#include <agpcs/gradient_reducer.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

namespace agpcs {
namespace {

constexpr std::array<std::pair<Coordination, std::string_view>, 3> kCoordinations = {
    {{Coordination::kCoordinator, "coordinator"},
     {Coordination::kCached, "cached"},
     {Coordination::kPlanned, "planned"}}};

Status check_gradients(const GradientSet& set, const ReducerOptions& options) {
  std::set<std::string_view> names;
  for (const Gradient& gradient : set.gradients) {
    if (!names.insert(gradient.name).second) {
      return invalid_input(fmt::format("gradient '{}' is declared twice", gradient.name));
    }
    if (gradient.elements < 0 || !can_sum(gradient.type)) {
      return invalid_input(fmt::format("gradient '{}': {} elements of {} cannot be summed",
                                       gradient.name, gradient.elements, name_of(gradient.type)));
    }
  }
  if (options.wire_type && !is_wire_type(options.wire_type)) {
    return invalid_input(fmt::format("gradients cannot travel as {}\n  hint: {}",
                                     name_of(*options.wire_type),
                                     fmt::join(names_of(kWireTypes), " or ")));
  }
  return {};
}

Status check_group(const GradientSet& set, const GradientGroup& group, bool planned,
                   std::vector<char>& grouped) {
  const auto trouble = [&](const std::string& what) {
    return invalid_input(fmt::format("group '{}': {}", group.name, what));
  };
  if (group.gradients.empty()) return trouble("it has no gradient");
  for (const int g : group.gradients) {
    if (g < 0 || g >= static_cast<int>(grouped.size())) {
      return trouble(fmt::format("there is no gradient {} of {}", g, grouped.size()));
    }
    const Gradient& gradient = set.gradients[static_cast<std::size_t>(g)];
    if (std::exchange(grouped[static_cast<std::size_t>(g)], 1) != 0) {
      return trouble(fmt::format("gradient '{}' is in a group already", gradient.name));
    }
    const Gradient& first = set.gradients[static_cast<std::size_t>(group.gradients.front())];
    if (planned && gradient.type != first.type) {
      return trouble(fmt::format("gradient '{}' is {}, '{}' is {}", gradient.name,
                                 name_of(gradient.type), first.name, name_of(first.type)));
    }
  }
  const bool flows = group.algorithm == AllReduce::kFlow;
  if (planned && flows && (group.flow < 0 || group.flow >= static_cast<int>(set.flows.size()))) {
    return trouble(fmt::format("there is no flow {} of {}", group.flow, set.flows.size()));
  }
  return {};
}

Status check_set(const GradientSet& set, const ReducerOptions& options) {
  AGPCS_RETURN_IF_ERROR(check_gradients(set, options));
  const bool planned = options.coordination == Coordination::kPlanned;
  std::vector<char> grouped(set.gradients.size(), 0);
  for (const GradientGroup& group : set.groups) {
    AGPCS_RETURN_IF_ERROR(check_group(set, group, planned, grouped));
  }
  const auto left = std::find(grouped.begin(), grouped.end(), 0) - grouped.begin();
  if (planned && left < static_cast<std::ptrdiff_t>(grouped.size())) {
    return invalid_input(
        fmt::format("gradient '{}' is in no group\n  hint: what is planned has "
                    "each gradient in a group; gradients_of takes them from a plan",
                    set.gradients[static_cast<std::size_t>(left)].name));
  }
  return {};
}

// Returns what all ranks must pass alike, one thing on a line.
std::string text_of(const GradientSet& set, const ReducerOptions& options) {
  std::string text = fmt::format("coordination {}\n", name_of(options.coordination));
  text += fmt::format("fusion {} alone {} cycle {} us cache {} algorithm {}\n",
                      options.fusion_bytes, options.alone_bytes, options.cycle.count(),
                      options.cache_capacity, name_of(options.algorithm));
  text +=
      fmt::format("wire {} scale-out {}\n",
                  options.wire_type ? name_of(*options.wire_type) : "as it is", options.scale_out);
  for (const Gradient& gradient : set.gradients) {
    text += fmt::format("gradient '{}' {} {}\n", gradient.name, name_of(gradient.type),
                        gradient.elements);
  }
  for (const GradientGroup& group : set.groups) {
    text += fmt::format("group '{}' {} flow {} of {}\n", group.name, name_of(group.algorithm),
                        group.flow, fmt::join(group.gradients, " "));
  }
  for (const PlanFlow& flow : set.flows) {
    text += fmt::format("flow of {} sub-chunks by {}", flow.sub_chunks, name_of(flow.order));
    for (const FlowStep& step : flow.steps) {
      text += step.gathers ? " |" : " +";
      for (const FlowWait& wait : step.after) text += fmt::format(" {}>{}", wait.from, wait.to);
      for (const FlowMessage& m : step.messages) {
        text += fmt::format(" {}>{}:{}", m.from, m.to, m.chunk);
      }
    }
    text += '\n';
  }
  return text;
}

GradientSet completed(GradientSet set, int size) {
  if (set.ranks.empty()) {
    set.ranks.resize(static_cast<std::size_t>(size));
    std::iota(set.ranks.begin(), set.ranks.end(), 0);
  }
  if (set.host_of_rank.empty()) set.host_of_rank.assign(static_cast<std::size_t>(size), 0);
  return set;
}

Status check_ranks(const GradientSet& set, const Transport& transport) {
  if (std::binary_search(set.ranks.begin(), set.ranks.end(), transport.rank())) return {};
  return invalid_input(fmt::format("rank {} is none of {}, whose gradients are summed",
                                   transport.rank(), fmt::join(set.ranks, ",")));
}

}  // namespace

std::string_view name_of(Coordination coordination) {
  return kCoordinations[static_cast<std::size_t>(coordination)].second;
}

std::optional<Coordination> coordination_named(std::string_view name) {
  for (const auto& entry : kCoordinations) {
    if (entry.second == name) return entry.first;
  }
  return std::nullopt;
}

Result<GradientSet> gradients_of(const Plan& plan, int rank) {
  AGPCS_RETURN_IF_ERROR(refuse_teams(plan, "a reducer"));
  AGPCS_RETURN_IF_ERROR(refuse_interleaved(plan, "a reducer"));
  GradientSet set;
  const int stage = plan.stage_of_rank(rank);
  if (plan.stages[static_cast<std::size_t>(stage)].state_in_host) {
    return invalid_input(
        fmt::format("stage {} keeps the optimizer's state in the memory of hosts, and a reducer "
                    "leaves updates to its caller\n"
                    "  hint: a plan made with --without offload, or agpcs-run",
                    plan.stages[static_cast<std::size_t>(stage)].name));
  }
  if (plan.stages[static_cast<std::size_t>(stage)].activations_in_host) {
    return invalid_input(fmt::format(
        "stage {} keeps activations in the memory of hosts, and a reducer leaves passes "
        "to its caller\n"
        "  hint: a plan made with --without activations, or agpcs-run",
        plan.stages[static_cast<std::size_t>(stage)].name));
  }
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.is_shared() || !bucket.is_of(stage)) continue;
    return invalid_input(fmt::format(
        "bucket {} ('{}') is summed over the ranks of stages s{}, and a reducer sums "
        "over those of one stage\n"
        "  hint: a plan whose stages share no parameters, or agpcs-run",
        bucket.name, bucket.members.front().parameter, fmt::join(stages_of(bucket), " and s")));
  }
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.is_sharded() || !bucket.is_of(stage)) continue;
    return invalid_input(fmt::format(
        "the ranks of bucket {} divide its optimizer state, and a reducer leaves all gradients on "
        "each of them\n"
        "  hint: a plan made with --without state, agpcs.torch.Job, or agpcs-run",
        bucket.name));
  }
  set.ranks = plan.stages[static_cast<std::size_t>(stage)].ranks;
  set.host_of_rank = hosts_of_ranks(plan);
  const auto add = [&](int index) {
    const PlanBucket& bucket = plan.buckets[static_cast<std::size_t>(index)];
    GradientGroup& group = set.groups.emplace_back();
    group.name = bucket.name;
    group.algorithm = bucket.algorithm;
    if (bucket.flow >= 0) {
      group.flow = static_cast<int>(set.flows.size());
      set.flows.push_back(plan.flows[static_cast<std::size_t>(bucket.flow)]);
    }
    for (const BucketMember& member : bucket.members) {
      group.gradients.push_back(static_cast<int>(set.gradients.size()));
      set.gradients.push_back({member.parameter, bucket.type, member.elements});
    }
  };
  std::vector<char> added(plan.buckets.size(), 0);
  for (const Instruction& instruction :
       plan.programs[static_cast<std::size_t>(stage)].instructions) {
    if (instruction.id.opcode != Opcode::kAllReduce) continue;
    add(instruction.id.object);
    added[static_cast<std::size_t>(instruction.id.object)] = 1;
  }
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {  // buckets of a stage with a single rank
    if (plan.buckets[b].stage == stage && added[b] == 0) add(static_cast<int>(b));
  }
  return set;
}

Result<std::unique_ptr<GradientReducer>> GradientReducer::create(const GradientSet& set,
                                                                 Transport& transport,
                                                                 const ReducerOptions& options) {
  const GradientSet whole = completed(set, transport.size());
  AGPCS_RETURN_IF_ERROR(check_ranks(whole, transport));
  AGPCS_RETURN_IF_ERROR(transport.open_group(options.group, whole.ranks, whole.host_of_rank));
  const auto me = std::lower_bound(whole.ranks.begin(), whole.ranks.end(), transport.rank());
  const Comparison among{transport, options.group, whole.ranks,
                         static_cast<std::size_t>(me - whole.ranks.begin()), options.limit};
  AGPCS_RETURN_IF_ERROR(agree_on_text(among, text_of(whole, options)));
  AGPCS_RETURN_IF_ERROR(check_set(whole, options));
  for (std::size_t f = 0; f < whole.flows.size(); ++f) {
    AGPCS_RETURN_IF_ERROR(transport.open_flow(options.first_flow + static_cast<int>(f),
                                              options.group, whole.flows[f]));
  }
  if (options.coordination == Coordination::kPlanned) {
    return make_planned_reducer(whole, transport, options);
  }
  return make_negotiated_reducer(whole, transport, options);
}

Status GradientReducer::submit(std::string_view name, const Buffer& buffer) {
  const int index = index_of(name);
  if (index < 0) return invalid_input(fmt::format("there is no gradient '{}'", name));
  return submit(index, buffer);
}

Status GradientReducer::submit_absent(std::string_view name, const Buffer& sum) {
  const int index = index_of(name);
  if (index < 0) return invalid_input(fmt::format("there is no gradient '{}'", name));
  return submit_absent(index, sum);
}

}  // namespace agpcs
