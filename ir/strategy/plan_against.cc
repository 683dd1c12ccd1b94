// SPDX-License-Identifier: Apache-2.0
// Checks a plan against the model and the cluster that it was made for.
#include "ir/strategy/plan_against.h"

#include "ir/base/units.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/plan/verify.h"
#include "ir/strategy/memory.h"
#include "ir/strategy/offload.h"
#include "ir/strategy/plan_body.h"
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/posted_within.h"
#include "ir/strategy/stage_memory.h"
#include "ir/strategy/strategy.h"

#include <agpcs/digest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

namespace agpcs {
namespace {

template <typename... Args>
Status fail(fmt::format_string<Args...> format, Args&&... args) {
  return invalid_input("plan: error: " + fmt::format(format, std::forward<Args>(args)...));
}

std::string describe(const CutTensor& tensor) {
  std::string shape = tensor.batched ? "samples" : "";
  for (const std::int64_t dim : tensor.dims) {
    shape += fmt::format("{}{}", shape.empty() ? "" : "x", dim);
  }
  return fmt::format("'{}' {} {} gradient={}", tensor.name, name_of(tensor.type),
                     shape.empty() ? "scalar" : shape, tensor.gradient ? "yes" : "no");
}

std::string describe(const Cut& cut) {
  std::string text = fmt::format("s{} to s{}:", cut.from, cut.to);
  for (const CutTensor& tensor : cut.tensors) text += " " + describe(tensor);
  return text;
}

Status check_cuts(const Plan& plan, const Graph& graph, const std::vector<int>& stage_of) {
  const std::vector<Cut> wanted = cuts_between(graph, stage_of, plan.training.precision);
  for (std::size_t i = 0; i < std::max(wanted.size(), plan.cuts.size()); ++i) {
    const std::string has = i < plan.cuts.size() ? describe(plan.cuts[i]) : "nothing";
    const std::string needs = i < wanted.size() ? describe(wanted[i]) : "nothing";
    if (has != needs) {
      return fail("cut c{} is {}\n  the model needs {}\n  hint: compile again", i, has, needs);
    }
  }
  return {};
}

Status check_edges(const Graph& graph, const std::vector<int>& stage_of) {
  const std::vector<bool> crosses = can_cross(graph);
  for (std::size_t id = 0; id < graph.tensors.size(); ++id) {
    const Tensor& tensor = graph.tensors[id];
    const bool owned =
        tensor.kind == TensorKind::kState;  // each operator of a parameter has a copy
    if (tensor.consumers.empty() || (!owned && tensor.producer == kNone)) continue;
    const OpId first = owned ? tensor.consumers.front() : tensor.producer;
    const int from = stage_of[static_cast<std::size_t>(first)];
    for (const OpId consumer : tensor.consumers) {
      const int to = stage_of[static_cast<std::size_t>(consumer)];
      if (owned ? to != from : to < from) {
        return fail("'{}' goes from stage s{} to stage s{}\n  hint: {}", tensor.name, from, to,
                    owned ? "operators that share running statistics share a stage"
                          : "a tensor goes to the same or to a later stage");
      }
      if (to != from && !crosses[id]) {
        return fail(
            "'{}' goes from stage s{} to stage s{}, but cannot be split by samples\n"
            "  hint: the operators that make and read it share a stage",
            tensor.name, from, to);
      }
    }
  }
  return {};
}

Status check_buckets(const Plan& plan, const Graph& graph, const std::vector<int>& stage_of) {
  std::map<std::string, TensorId> unplaced;
  for (const TensorId id : graph.parameters()) {
    if (graph.tensor(id).needs_gradient) unplaced[graph.tensor(id).name] = id;
  }
  for (const PlanBucket& bucket : plan.buckets) {
    for (const BucketMember& member : bucket.members) {
      const auto it = unplaced.find(member.parameter);
      if (it == unplaced.end()) {
        return fail("bucket {}: the model trains no parameter '{}'", bucket.name, member.parameter);
      }
      const Tensor& parameter = graph.tensor(it->second);
      const std::int64_t elements = elements_at(parameter.shape, 1);
      const std::vector<int> readers = stages_reading(graph, stage_of, it->second);
      const std::vector<int> stages = stages_of(bucket);
      const DType type = held_type(parameter.type, plan.training.precision);
      if (elements != member.elements || readers != stages || type != bucket.type) {
        return fail("bucket {}: '{}' has {} elements of {} in s{}, the model has {} of {} in s{}",
                    bucket.name, member.parameter, member.elements, name_of(bucket.type),
                    fmt::join(stages, " and s"), elements, name_of(type),
                    fmt::join(readers, " and s"));
      }
      unplaced.erase(it);
    }
  }
  if (unplaced.empty()) return {};
  return fail("the gradient of '{}' is in no bucket", unplaced.begin()->first);
}

/// Checks that members of teams can compute the model so.
Status check_bodies(const Plan& plan, const Graph& graph,
                    const std::vector<std::vector<OpId>>& ops) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const int index : bodies_of(plan.stages[s])) {
      const PlanBody& said = plan.bodies[static_cast<std::size_t>(index)];
      AGPCS_TRY(const TeamBody body, team_body_of(graph, said, ops[s], plan.training.precision));
      const Status sound = verify_team_body(graph, body);
      if (!sound.ok()) return fail("body {} of stage s{}: {}", said.name, s, sound.message());
    }
  }
  return {};
}

/// Checks that buckets whose gradients ranks divide are in the order in which backward passes fill
/// them: a pass waits for each before it fills the one after the next.
Status check_order(const Plan& plan, const Graph& graph) {
  std::map<std::string_view, TensorId> ids;
  for (const TensorId id : graph.parameters()) ids[graph.tensor(id).name] = id;
  std::map<int, std::pair<OpId, std::string_view>> before;  // by stage
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.divides_gradients()) continue;
    OpId last = std::numeric_limits<OpId>::max();
    for (const BucketMember& member : bucket.members) {
      last = std::min(last, graph.tensor(ids.at(member.parameter)).consumers.front());
    }
    const auto [entry, first] = before.try_emplace(bucket.stage, last, bucket.name);
    if (!first && last > entry->second.first) {
      return fail(
          "bucket {} has its last gradient before bucket {}\n"
          "  hint: buckets of state=gradients are in the order in which they get them",
          bucket.name, entry->second.second);
    }
    entry->second = {last, bucket.name};
  }
  return {};
}

/// Checks that passes gather parameters, and sum gradients between, in the order in which they come
/// to them: a pass that waits for what is behind a later sum would wait forever.
Status check_gathers(const Plan& plan, const Graph& graph,
                     const std::vector<std::vector<OpId>>& ops) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const auto stage = static_cast<int>(s);
    if (!divides_parameters(plan, stage)) continue;
    const std::vector<BucketUse> uses = parts_of_stage(plan, graph, stage, ops[s]).uses;
    std::vector<InstructionId> expected, found, passes;
    for (const Instruction& instruction : plan.programs[s].instructions) {
      const InstructionId& id = instruction.id;
      if (gathers_for_pass(id.opcode) || sums_one_micro_batch(id)) found.push_back(id);
      if (id.opcode == Opcode::kForward || id.opcode == Opcode::kBackward) passes.push_back(id);
    }
    for (std::size_t i = 0; i < passes.size(); ++i) {
      if (i == 0) expected.push_back(first_gather(passes[i], uses));
      const InstructionId* const next = i + 1 < passes.size() ? &passes[i + 1] : nullptr;
      for (const Instruction& posted : posted_within(plan, stage, passes[i], next, uses)) {
        expected.push_back(posted.id);
      }
    }
    const auto [is, should] =
        std::mismatch(found.begin(), found.end(), expected.begin(), expected.end());
    if (is == found.end() && should == expected.end()) continue;
    return fail(
        "program {}: '{}' comes where '{}' has to\n"
        "  hint: passes need parameters, and fill buckets, in the order of the model's operators",
        plan.stages[s].name, is == found.end() ? "report" : spelled(*is),
        should == expected.end() ? "report" : spelled(*should));
  }
  return {};
}

/// Returns "parameters 1.00GB, gradients 1.00GB, ...": the parts that are not zero.
std::string parts_of(const MemoryUse& use) {
  const std::pair<const char*, std::int64_t> parts[] = {
      {"parameters", use.parameters},   {"gradients", use.gradients}, {"optimizer", use.optimizer},
      {"activations", use.activations}, {"transfers", use.transfers}, {"workspace", use.workspace}};
  std::string text;
  for (const auto& [name, bytes] : parts) {
    if (bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, byte_figure(bytes));
  }
  return text;
}

/// Returns the one of a stage's operators that needs most memory by itself.
NeediestParts neediest_operator(const Plan& plan, const Graph& graph,
                                const std::vector<OpId>& ops) {
  std::vector<std::vector<OpId>> units;
  units.reserve(ops.size());
  for (const OpId op : ops) units.push_back({op});
  return neediest(graph, plan.training, units);
}

std::string or_less_state(const MemoryUse& use) {
  return use.optimizer > 0 ? ", or an optimizer with less state" : "";
}

/// Returns what would make the plan fit; it depends on what takes the memory.
std::string remedy(const Plan& plan, const PlanStage& stage, std::int64_t samples,
                   const MemoryUse& use, std::int64_t memory) {
  const std::int64_t resident = use.parameters + use.gradients + use.optimizer;
  if (resident > memory) {
    return "parameters, gradients and optimizer state alone do not fit: more stages" +
           or_less_state(use);
  }
  std::string text;
  if (samples > 1) {
    text += fmt::format("more micro-batches (now {}), a smaller batch (now {})", plan.micro_batches,
                        plan.training.batch);
  }
  if (!stage.recompute && !stage.has_teams())
    text += text.empty() ? "recomputation" : ", recomputation";
  return text + (text.empty() ? "" : ", ") + "more devices or more stages";
}

Status check_memory(const Plan& plan, const Graph& graph, const Cluster& cluster,
                    const std::vector<std::vector<OpId>>& ops) {
  AGPCS_TRY(const std::vector<MemoryUse> ranks, peak_memory(plan, graph));
  const std::vector<std::string> devices = devices_of_ranks(plan);
  std::string text;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    std::optional<NeediestParts> most;
    for (const int rank : stage.all_ranks()) {
      const MemoryUse& use = ranks[static_cast<std::size_t>(rank)];
      const std::string& device = devices[static_cast<std::size_t>(rank)];
      const std::int64_t samples = stage.samples[static_cast<std::size_t>(replica_of(stage, rank))];
      const std::int64_t memory = cluster.kind_of(cluster.find_device(device)).memory_bytes;
      if (use.total() <= memory) continue;
      if (!most && !stage.has_teams() && !stage.state_in_host && !stage.activations_in_host)
        most = neediest_operator(plan, graph, ops[s]);
      const std::string help =
          most && most->bytes > memory
              ? fmt::format(
                    "operator '{}' alone needs {} with one sample: a device with more memory{}",
                    graph.op(ops[s][most->index]).name, byte_figure(most->bytes),
                    or_less_state(use))
              : remedy(plan, stage, samples, use, memory);
      text += fmt::format(
          "{}{} (rank {}, stage {}) lacks {}: it has {} and needs {}\n  {}\n"
          "  hint: {}",
          text.empty() ? "" : "\n", device, rank, stage.name, byte_figure(use.total() - memory),
          byte_figure(memory), byte_figure(use.total()), parts_of(use), help);
    }
  }
  if (!text.empty()) return {StatusCode::kInfeasible, std::move(text)};
  return check_host_memory(plan, ranks, cluster);
}

}  // namespace

Status verify_plan_cluster(const Plan& plan, const Cluster& cluster) {
  const std::string digest = digest_of(print_cluster(cluster));
  if (digest != plan.cluster_digest) {
    return fail(
        "the plan is for cluster '{}' ({}), this cluster is '{}' ({})\n"
        "  hint: give the cluster that the plan was made for, or compile again",
        plan.cluster, plan.cluster_digest, cluster.name, digest);
  }
  const std::vector<std::string> devices = devices_of_ranks(plan);
  DeviceId before = -1;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const std::string& name = devices[rank];
    const DeviceId device = cluster.find_device(name);
    if (device == kNone) return fail("rank {}: cluster '{}' has no '{}'", rank, cluster.name, name);
    if (device <= before) {
      return fail("rank {} is on '{}', which the cluster lists before '{}' of rank {}", rank, name,
                  cluster.device_name(before), rank - 1);
    }
    before = device;
  }
  return {};
}

Status verify_plan_against(const Plan& plan, const Graph& graph, const Cluster& cluster) {
  AGPCS_RETURN_IF_ERROR(verify_plan(plan));
  AGPCS_RETURN_IF_ERROR(verify_plan_cluster(plan, cluster));
  AGPCS_TRY(const auto stages, resolve_stages(plan, graph));
  std::vector<int> stage_of(graph.ops.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (const OpId op : stages[s]) stage_of[static_cast<std::size_t>(op)] = static_cast<int>(s);
  }
  AGPCS_RETURN_IF_ERROR(check_edges(graph, stage_of));
  AGPCS_RETURN_IF_ERROR(check_cuts(plan, graph, stage_of));
  AGPCS_RETURN_IF_ERROR(check_buckets(plan, graph, stage_of));
  AGPCS_RETURN_IF_ERROR(check_bodies(plan, graph, stages));
  AGPCS_RETURN_IF_ERROR(check_order(plan, graph));
  AGPCS_RETURN_IF_ERROR(check_gathers(plan, graph, stages));
  return check_memory(plan, graph, cluster, stages);
}

}  // namespace agpcs
