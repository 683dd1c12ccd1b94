// SPDX-License-Identifier: Apache-2.0
#include "tools/json.h"
#include "tools/plan_views.h"

#include <cstddef>

namespace agpcs {
namespace {

void write_header(JsonWriter& json, const Plan& plan) {
  json.key("format").value(kPlanVersion);
  json.key("made_by").begin_object();
  json.key("agpcs").value(plan.made_by.version).key("seed").value(plan.made_by.seed);
  json.key("seeder").value(plan.made_by.seeder).key("refiner").value(plan.made_by.refiner);
  json.key("evaluations").value(plan.made_by.evaluations);
  json.key("interrupted").value(plan.made_by.interrupted);
  json.end_object();
  json.key("model").begin_object().key("name").value(plan.model);
  json.key("digest").value(plan.model_digest).key("dims").begin_object();
  for (const auto& [name, value] : plan.dims) json.key(name).value(value);
  json.end_object();
  if (!plan.frozen.empty()) {
    json.key("frozen").begin_array();
    for (const std::string& name : plan.frozen) json.value(name);
    json.end_array();
  }
  json.end_object();
  json.key("cluster").begin_object().key("name").value(plan.cluster);
  json.key("digest").value(plan.cluster_digest).end_object();
}

void write_training(JsonWriter& json, const Plan& plan) {
  const Training& t = plan.training;
  json.key("training").begin_object();
  json.key("batch").value(t.batch).key("micro_batches").value(plan.micro_batches);
  json.key("schedule").value(name_of(plan.schedule)).key("precision").value(t.precision);
  json.key("statistics_every").value(t.statistics_every);
  if (t.wire_type) json.key("wire_type").value(name_of(*t.wire_type));
  json.key("loss").begin_object().key("kind").value(t.loss.kind).key("outputs").begin_object();
  for (const auto& [output, weight] : t.loss.outputs) json.key(output).value(weight);
  json.end_object().end_object();
  const Optimizer& o = t.optimizer;
  json.key("optimizer").begin_object().key("kind").value(o.kind);
  json.key("learning_rate").value(o.learning_rate);
  if (o.kind == "adam") {
    json.key("beta1").value(o.beta1).key("beta2").value(o.beta2).key("epsilon").value(o.epsilon);
  } else {
    json.key("momentum").value(o.momentum);
  }
  json.key("weight_decay").value(o.weight_decay).end_object().end_object();
}

void write_stages(JsonWriter& json, const Plan& plan) {
  json.key("stages").begin_array();
  for (const PlanStage& stage : plan.stages) {
    json.begin_object().key("name").value(stage.name).key("recompute").value(stage.recompute);
    json.key("replicas").begin_array();
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      json.begin_object().key("rank").value(stage.ranks[i]);
      json.key("device").value(stage.devices[i]).key("samples").value(stage.samples[i]);
      json.end_object();
    }
    json.end_array().key("operators").begin_array();
    for (const PlanStage::Run& run : stage.operators) {
      json.begin_object().key("first").value(run.first).key("last").value(run.last);
      json.key("count").value(run.count).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_cuts(JsonWriter& json, const Plan& plan) {
  json.key("cuts").begin_array();
  for (const Cut& cut : plan.cuts) {
    json.begin_object().key("name").value(cut.name);
    json.key("from").value(plan.stages[static_cast<std::size_t>(cut.from)].name);
    json.key("to").value(plan.stages[static_cast<std::size_t>(cut.to)].name);
    json.key("tensors").begin_array();
    for (const CutTensor& tensor : cut.tensors) {
      json.begin_object().key("name").value(tensor.name).key("type").value(name_of(tensor.type));
      json.key("per_sample").value(tensor.batched).key("dims").begin_array();
      for (const std::int64_t dim : tensor.dims) json.value(dim);
      json.end_array().key("gradient").value(tensor.gradient).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_flows(JsonWriter& json, const Plan& plan) {
  json.key("flows").begin_array();
  for (const PlanFlow& flow : plan.flows) {
    const PlanStage& stage = plan.stages[static_cast<std::size_t>(flow.stage)];
    const auto rank_of = [&](int member) { return stage.ranks[static_cast<std::size_t>(member)]; };
    json.begin_object().key("name").value(flow.name).key("stage").value(stage.name);
    json.key("sub_chunks").value(flow.sub_chunks);
    if (flow.order != FlowOrder::kReceivers) json.key("order").value(name_of(flow.order));
    json.key("steps").begin_array();
    for (const FlowStep& step : flow.steps) {
      json.begin_object().key("phase").value(step.gathers ? "all_gather" : "reduce_scatter");
      if (!step.after.empty()) {
        json.key("after").begin_array();
        for (const FlowWait& wait : step.after) {
          json.begin_object().key("from").value(rank_of(wait.from));
          json.key("to").value(rank_of(wait.to)).end_object();
        }
        json.end_array();
      }
      json.key("messages").begin_array();
      for (const FlowMessage& m : step.messages) {
        json.begin_object().key("from").value(rank_of(m.from)).key("to").value(rank_of(m.to));
        json.key("owner").value(rank_of(m.chunk / flow.sub_chunks));
        json.key("sub_chunk").value(m.chunk % flow.sub_chunks).end_object();
      }
      json.end_array().end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_buckets(JsonWriter& json, const Plan& plan) {
  json.key("buckets").begin_array();
  for (const PlanBucket& bucket : plan.buckets) {
    json.begin_object().key("name").value(bucket.name);
    json.key("stage").value(plan.stages[static_cast<std::size_t>(bucket.stage)].name);
    json.key("algorithm").value(algorithm_text(plan, bucket));
    json.key("type").value(name_of(bucket.type)).key("elements").value(bucket.elements());
    json.key("gradients").begin_array();
    for (const BucketMember& member : bucket.members) {
      json.begin_object().key("parameter").value(member.parameter);
      json.key("elements").value(member.elements).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_programs(JsonWriter& json, const Plan& plan) {
  json.key("programs").begin_array();
  for (const Program& program : plan.programs) {
    json.begin_object();
    json.key("stage").value(plan.stages[static_cast<std::size_t>(program.stage)].name);
    json.key("instructions").begin_array();
    for (const Instruction& instruction : program.instructions) {
      json.begin_object().key("instruction").value(name_of(instruction.id));
      json.key("after").begin_array();
      for (const InstructionId& id : instruction.after) json.value(name_of(id));
      json.end_array().end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_expect(JsonWriter& json, const Plan& plan) {
  json.key("expect").begin_array();
  for (const Expectation& e : plan.expect) {
    json.begin_object().key("name").value(e.name).key("value").value(e.value);
    json.key("unit").value(e.unit).end_object();
  }
  json.end_array();
}

}  // namespace

std::string plan_json(const Plan& plan) {
  JsonWriter json;
  json.begin_object();
  write_header(json, plan);
  write_training(json, plan);
  write_stages(json, plan);
  write_cuts(json, plan);
  if (!plan.flows.empty()) write_flows(json, plan);
  write_buckets(json, plan);
  write_programs(json, plan);
  write_expect(json, plan);
  json.end_object();
  return json.text();
}

}  // namespace agpcs
