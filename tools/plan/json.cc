// SPDX-License-Identifier: Apache-2.0
#include "tools/common/json.h"

#include "ir/plan/body/body.h"
#include "ir/plan/choices.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/strategy/memory.h"
#include "tools/plan/team/placed_body.h"
#include "tools/plan/team/plan_teams.h"
#include "tools/plan/views.h"

#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {
namespace {

const std::string& stage_name(const Plan& plan, int stage) {
  return plan.stages[static_cast<std::size_t>(stage)].name;
}

Json made_by_json(const Plan& plan) {
  return {{"agpcs", plan.made_by.version},           {"seed", plan.made_by.seed},
          {"seeder", plan.made_by.seeder},           {"refiner", plan.made_by.refiner},
          {"evaluations", plan.made_by.evaluations}, {"interrupted", plan.made_by.interrupted}};
}

Json model_json(const Plan& plan) {
  Json json = {
      {"name", plan.model}, {"digest", plan.model_digest}, {"dims", json_object(plan.dims)}};
  if (!plan.frozen.empty()) json["frozen"] = plan.frozen;
  if (!plan.trained.empty()) json["trained"] = plan.trained;
  if (!plan.fused.empty()) json["fused"] = plan.fused;
  return json;
}

Json optimizer_json(const Optimizer& o) {
  Json json = {{"kind", name_of(o.kind)}, {"learning_rate", o.learning_rate}};
  for (const OptimizerSetting& setting : entry_of(kOptimizers, o.kind).settings) {
    json[std::string(setting.name)] = o.*setting.value;
  }
  if (o.nesterov) json["nesterov"] = true;
  json["weight_decay"] = o.weight_decay;
  if (o.clips()) json["max_norm"] = o.max_norm;
  return json;
}

Json loss_json(const Loss& loss) {
  Json json = {{"kind", name_of(loss.kind)}, {"outputs", json_object(loss.outputs)}};
  if (loss.ignore_index) json["ignore_index"] = *loss.ignore_index;
  if (loss.label_smoothing != 0) json["label_smoothing"] = loss.label_smoothing;
  if (loss.class_axis != 0) json["class_axis"] = loss.class_axis;
  if (!loss.next_token.empty()) json["next_token"] = loss.next_token;
  return json;
}

Json training_json(const Plan& plan) {
  const Training& t = plan.training;
  Json json = {{"batch", t.batch},
               {"micro_batches", plan.micro_batches},
               {"schedule", name_of(plan.schedule)},
               {"precision", name_of(t.precision)},
               {"statistics_every", t.statistics_every}};
  if (t.attention != AttentionForm::kSteps) json["attention"] = name_of(t.attention);
  if (t.wire_type) json["wire_type"] = name_of(*t.wire_type);
  json["loss"] = loss_json(t.loss);
  json["optimizer"] = optimizer_json(t.optimizer);
  return json;
}

Json run_json(const PlanStage::Run& run) {
  return {{"first", run.first}, {"last", run.last}, {"count", run.count}};
}

Json stage_json(const PlanStage& stage) {
  Json replicas = Json::array();
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
    replicas.push_back(
        {{"rank", stage.ranks[i]}, {"device", stage.devices[i]}, {"samples", stage.samples[i]}});
    if (!stage.has_teams()) continue;
    if (stage.has_unlike_teams()) replicas.back()["body"] = fmt::format("t{}", stage.bodies[i]);
    Json& further = replicas.back()["further"] = Json::array();
    for (std::size_t m = 0; m < stage.further_ranks[i].size(); ++m) {
      further.push_back(
          {{"rank", stage.further_ranks[i][m]}, {"device", stage.further_devices[i][m]}});
    }
  }
  Json json = {{"name", stage.name}, {"recompute", stage.recompute}};
  if (stage.has_teams()) json["body"] = fmt::format("t{}", stage.body);
  if (!stage.segments.empty()) json["segments"] = stage.segments;
  if (stage.activations_in_host) json["activations_in"] = "host";
  if (stage.state_in_host) json["state_in"] = "host";
  if (stage.odd >= 0) json["odd"] = stage.odd;
  json["replicas"] = replicas;
  json["operators"] = json_array(stage.operators, run_json);
  return json;
}

Json tensor_json(const CutTensor& tensor) {
  return {{"name", tensor.name},
          {"type", name_of(tensor.type)},
          {"per_sample", tensor.batched},
          {"dims", tensor.dims},
          {"gradient", tensor.gradient}};
}

Json cut_json(const Plan& plan, const Cut& cut) {
  return {{"name", cut.name},
          {"from", stage_name(plan, cut.from)},
          {"to", stage_name(plan, cut.to)},
          {"tensors", json_array(cut.tensors, tensor_json)}};
}

Json flow_json(const Plan& plan, const PlanFlow& flow) {
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(flow.stage)];
  const auto rank_of = [&](int member) { return stage.ranks[static_cast<std::size_t>(member)]; };
  const auto wait_json = [&](const FlowWait& wait) -> Json {
    return {{"from", rank_of(wait.from)}, {"to", rank_of(wait.to)}};
  };
  const auto message_json = [&](const FlowMessage& m) -> Json {
    return {{"from", rank_of(m.from)},
            {"to", rank_of(m.to)},
            {"owner", rank_of(m.chunk / flow.sub_chunks)},
            {"sub_chunk", m.chunk % flow.sub_chunks}};
  };
  const auto step_json = [&](const FlowStep& step) {
    Json json = {{"phase", step.gathers ? "all_gather" : "reduce_scatter"}};
    if (!step.after.empty()) json["after"] = json_array(step.after, wait_json);
    json["messages"] = json_array(step.messages, message_json);
    return json;
  };
  Json json = {{"name", flow.name}, {"stage", stage.name}, {"sub_chunks", flow.sub_chunks}};
  if (flow.order != FlowOrder::kReceivers) json["order"] = name_of(flow.order);
  json["steps"] = json_array(flow.steps, step_json);
  return json;
}

Json bucket_json(const Plan& plan, const PlanBucket& bucket) {
  const auto member_json = [](const BucketMember& member) -> Json {
    return {{"parameter", member.parameter}, {"elements", member.elements}};
  };
  Json json = {{"name", bucket.name}, {"stage", stage_name(plan, bucket.stage)}};
  if (bucket.is_shared()) {
    json["shared_with"] =
        json_array(bucket.shared_with, [&](int stage) { return stage_name(plan, stage); });
  }
  json["algorithm"] = algorithm_text(plan, bucket);
  json["type"] = name_of(bucket.type);
  if (bucket.is_sharded()) {
    json["state"] = name_of(bucket.state);
    json["parts"] = bucket.parts;
  }
  json["elements"] = bucket.elements();
  json["gradients"] = json_array(bucket.members, member_json);
  return json;
}

Json program_json(const Plan& plan, const Program& program) {
  const auto instruction_json = [](const Instruction& instruction) -> Json {
    const auto id_name = [](const InstructionId& id) { return name_of(id); };
    return {{"instruction", name_of(instruction.id)},
            {"after", json_array(instruction.after, id_name)}};
  };
  return {{"stage", stage_name(plan, program.stage)},
          {"in_flight", most_in_flight_of_a_stage(plan, program)},
          {"instructions", json_array(program.instructions, instruction_json)}};
}

Json expectation_json(const Expectation& e) {
  return {{"name", e.name}, {"value", e.value}, {"unit", e.unit}};
}

Json operator_json(const Graph& graph, const Op& op, const std::string& stage) {
  Json outputs = Json::array();
  for (const TensorId id : op.outputs) {
    if (id != kNone) outputs.push_back(graph.tensor(id).name);
  }
  return {{"name", op.name}, {"type", op.type}, {"stage", stage}, {"outputs", outputs}};
}

/// What each rank's memory holds at its peak, by rank, beside what its device has.
Result<Json> memory_json(const Plan& plan, const Graph& graph, const Cluster& cluster) {
  AGPCS_TRY(const std::vector<MemoryUse> use, peak_memory(plan, graph));
  std::vector<Json> by_rank(use.size());
  const std::vector<std::string> devices = devices_of_ranks(plan);
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const MemoryUse& m = use[rank];
    by_rank[rank] = {{"rank", rank},
                     {"device", devices[rank]},
                     {"capacity", cluster.kind_of(cluster.find_device(devices[rank])).memory_bytes},
                     {"parameters", m.parameters},
                     {"gradients", m.gradients},
                     {"optimizer", m.optimizer},
                     {"activations", m.activations},
                     {"transfers", m.transfers},
                     {"workspace", m.workspace}};
    if (m.host > 0) by_rank[rank]["host"] = m.host;
  }
  return Json(by_rank);
}

Json json_of(const Plan& plan) {
  const auto with_plan = [&plan](auto to_json) {
    return [&plan, to_json](const auto& element) { return to_json(plan, element); };
  };
  Json json = {{"format", kPlanVersion},
               {"made_by", made_by_json(plan)},
               {"model", model_json(plan)},
               {"cluster", {{"name", plan.cluster}, {"digest", plan.cluster_digest}}},
               {"training", training_json(plan)},
               {"stages", json_array(plan.stages, stage_json)},
               {"cuts", json_array(plan.cuts, with_plan(cut_json))}};
  if (!plan.bodies.empty()) json["bodies"] = json_array(plan.bodies, body_json);
  if (!plan.flows.empty()) json["flows"] = json_array(plan.flows, with_plan(flow_json));
  json["buckets"] = json_array(plan.buckets, with_plan(bucket_json));
  json["programs"] = json_array(plan.programs, with_plan(program_json));
  json["expect"] = json_array(plan.expect, expectation_json);
  return json;
}

}  // namespace

std::string plan_json(const Plan& plan) { return json_text(json_of(plan)); }

Result<std::string> plan_json(const Plan& plan, const Graph& graph, const Cluster* cluster) {
  AGPCS_TRY(const std::vector<std::vector<OpId>> of_stage, resolve_stages(plan, graph));
  std::vector<std::size_t> stage_of(graph.ops.size());
  for (std::size_t s = 0; s < of_stage.size(); ++s) {
    for (const OpId op : of_stage[s]) stage_of[static_cast<std::size_t>(op)] = s;
  }
  Json json = json_of(plan), operators = Json::array();
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    operators.push_back(operator_json(graph, graph.ops[i], plan.stages[stage_of[i]].name));
  }
  json["operators"] = operators;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const int index : bodies_of(plan.stages[s])) {
      const auto body = static_cast<std::size_t>(index);
      AGPCS_TRY(json["bodies"][body]["placed"],
                placed_body_json(graph, plan, plan.bodies[body], of_stage[s]));
    }
  }
  if (cluster != nullptr) {
    AGPCS_TRY(json["memory"], memory_json(plan, graph, *cluster));
  }
  return json_text(json);
}

}  // namespace agpcs
