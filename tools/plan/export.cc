// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/export.h"

#include "codegen/algorithm_flow.h"
#include "codegen/export_megatron_layout.h"
#include "codegen/export_msccl.h"
#include "codegen/export_mscclpp.h"
#include "codegen/export_torch_schedule.h"
#include "codegen/export_torchtitan.h"
#include "ir/base/diagnostics.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/plan_against.h"
#include "tools/common/calibrated_cluster.h"
#include "tools/plan/nccl_tuner.h"
#include "tools/plan/views.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <ostream>
#include <string_view>

namespace agpcs {
namespace {

struct Format {
  std::string_view name;
  Status (*write)(const ExportOptions& options, const Plan& plan, Console console);
  bool interleaves = false;  ///< it has words for ranks with several stages
};

/// Returns the flow called `name`, or the only one. `otherwise` is the hint where a plan has none.
Result<const PlanFlow*> flow_of(const Plan& plan, const std::string& name,
                                std::string_view otherwise) {
  if (plan.flows.empty()) {
    return invalid_input(fmt::format("the plan has no flow to export\n  hint: {}", otherwise));
  }
  std::vector<std::string> names;
  for (const PlanFlow& flow : plan.flows) {
    if (flow.name == name || (name.empty() && plan.flows.size() == 1)) return &flow;
    names.push_back(flow.name);
  }
  if (name.empty()) {
    return invalid_input(fmt::format("the plan has {} flows, an export has one\n  hint: --flow {}",
                                     plan.flows.size(), fmt::join(names, ", --flow ")));
  }
  return invalid_input(fmt::format("the plan has no flow '{}'\n  hint: {}", name,
                                   did_you_mean(name, names, "flows")));
}

void warn_of_order(const PlanFlow& flow, std::string_view reader, Console console) {
  if (flow.order == FlowOrder::kReceivers) return;
  console.err << fmt::format(
      "agpcs-plan: warning: flow {} has order={}, which {} has no words for: there messages leave "
      "as soon as they can\n",
      flow.name, name_of(flow.order), reader);
}

Status export_flow(const ExportOptions& o, const Plan& plan, Console console) {
  AGPCS_TRY(const PlanFlow* const flow,
            flow_of(plan, o.flow,
                    "its all-reduces are NCCL's own; agpcs-compile --all-reduce auto makes flows "
                    "where they are faster"));
  const PlanStage& stage = plan.stages[static_cast<std::size_t>(flow->stage)];
  AGPCS_TRY(const std::string xml, msccl_xml(*flow, static_cast<int>(stage.ranks.size())));
  warn_of_order(*flow, "MSCCL", console);
  return write_file(o.output, xml, console);
}

/// Returns the host of each of `ranks`.
std::vector<int> members_on(const std::vector<int>& host_of_rank, const std::vector<int>& ranks) {
  std::vector<int> hosts;
  for (const int rank : ranks) hosts.push_back(host_of_rank[static_cast<std::size_t>(rank)]);
  return hosts;
}

/// Returns the reduced bucket called `name`.
Result<const PlanBucket*> bucket_of(const Plan& plan, const std::string& name) {
  std::vector<std::string> names;
  for (const PlanBucket& bucket : plan.buckets) {
    if (!is_reduced(plan, bucket)) continue;
    if (bucket.name == name) return &bucket;
    names.push_back(bucket.name);
  }
  if (names.empty()) return invalid_input("the plan has no all-reduce to export");
  return invalid_input(fmt::format("the plan reduces no bucket '{}'\n  hint: {}", name,
                                   did_you_mean(name, names, "buckets")));
}

void warn_of_size(const Plan& plan, const std::string& name, std::int64_t unit, Console console) {
  for (const PlanBucket& bucket : plan.buckets) {
    const std::int64_t bytes = travelling_bytes(plan.training, bucket);
    if (bucket.name != name || bytes % unit == 0) continue;
    console.err << fmt::format(
        "agpcs-plan: warning: bucket {} has {} bytes, this all-reduce takes multiples of {} bytes\n"
        "  hint: pad the buffer to {} bytes\n",
        name, bytes, unit, (bytes + unit - 1) / unit * unit);
  }
}

Status export_mscclpp(const ExportOptions& o, const Plan& plan, Console console) {
  PlanFlow flow;
  std::vector<int> ranks;
  if (o.bucket.empty()) {
    AGPCS_TRY(const PlanFlow* const found,
              flow_of(plan, o.flow, "--bucket NAME exports the all-reduce of any bucket"));
    flow = *found;
    ranks = plan.stages[static_cast<std::size_t>(flow.stage)].ranks;
  } else {
    AGPCS_TRY(const PlanBucket* const bucket, bucket_of(plan, o.bucket));
    if (bucket->is_sharded()) {
      return invalid_input(
          fmt::format("bucket {} is not all-reduced: its ranks divide its optimizer state\n"
                      "  hint: a bucket without state=, or a plan made with --without state",
                      bucket->name));
    }
    ranks = ranks_of(plan, *bucket);
    flow = bucket->flow >= 0
               ? plan.flows[static_cast<std::size_t>(bucket->flow)]
               : algorithm_flow(bucket->algorithm, members_on(hosts_of_ranks(plan), ranks));
  }
  AGPCS_TRY(const std::string json, mscclpp_json(flow, members_on(hosts_of_ranks(plan), ranks)));
  warn_of_order(flow, "MSCCL++", console);
  warn_of_size(plan, o.bucket, mscclpp_unit(flow, static_cast<int>(ranks.size())), console);
  return write_file(o.output, json, console);
}

Status export_nccl_tuner(const ExportOptions& o, const Plan& plan, Console console) {
  if (o.cluster.empty()) {
    return invalid_input(
        "--format nccl-tuner needs the cluster, whose links decide between ring and tree\n"
        "  hint: --cluster cluster.yaml");
  }
  AGPCS_TRY(const CalibratedCluster calibrated,
            read_calibrated_cluster(o.cluster, [&] { return plan.training.precision; }));
  if (!calibrated.file.warnings.empty()) console.err << calibrated.file.warnings << '\n';
  AGPCS_RETURN_IF_ERROR(verify_plan_cluster(plan, calibrated.file.cluster));
  AGPCS_TRY(const std::string csv, nccl_tuner_csv(plan, calibrated.file.cluster, o.channels));
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.is_sharded()) {
      console.err << fmt::format(
          "agpcs-plan: warning: bucket {} is scattered and gathered, which the tuner leaves to "
          "NCCL\n",
          bucket.name);
      continue;
    }
    if (bucket.algorithm != AllReduce::kFlow && bucket.algorithm != AllReduce::kHierarchical) {
      continue;
    }
    if (!is_reduced(plan, bucket)) continue;
    console.err << fmt::format(
        "agpcs-plan: warning: bucket {} has algorithm={}, which NCCL's tuner has no words for: it "
        "gets the faster of ring and tree\n",
        bucket.name, algorithm_text(plan, bucket));
  }
  return write_file(o.output, csv, console);
}

void warn_of_recomputation(const Plan& plan, std::string_view hint, Console console) {
  for (const PlanStage& stage : plan.stages) {
    if (!stage.recompute) continue;
    console.err << fmt::format(
        "agpcs-plan: warning: stages recompute in the plan ({} is {}), which the export does not "
        "say\n"
        "  hint: {}\n",
        stage.name, recomputation_text(stage), hint);
    return;
  }
}

void warn_of_hosts(const Plan& plan, bool PlanStage::*in_host, std::string_view what,
                   std::string_view hint, Console console) {
  for (const PlanStage& stage : plan.stages) {
    if (!(stage.*in_host)) continue;
    console.err << fmt::format(
        "agpcs-plan: warning: stage {} has {} in the memory of hosts, which the export does not "
        "say\n"
        "  hint: {}\n",
        stage.name, what, hint);
    return;
  }
}

void warn_of_hosts(const Plan& plan, Console console) {
  warn_of_hosts(plan, &PlanStage::state_in_host, "the optimizer's state",
                "offload the optimizer of its ranks, or make the plan with --without offload",
                console);
  warn_of_hosts(plan, &PlanStage::activations_in_host, "activations",
                "offload the activations of its ranks, or make the plan with --without activations",
                console);
}

constexpr std::string_view kCheckpointing =
    "wrap the layers of these stages' segments in torch.utils.checkpoint, each segment's together";

Status export_torch_schedule(const ExportOptions& o, const Plan& plan, Console console) {
  AGPCS_TRY(const std::string csv, torch_schedule_csv(plan));
  warn_of_recomputation(plan, kCheckpointing, console);
  warn_of_hosts(plan, console);
  return write_file(o.output, csv, console);
}

Result<TrainingModel> model_to_export(const ExportOptions& o, const Plan& plan, Console console) {
  if (o.model.empty()) {
    return invalid_input(
        fmt::format("--format {} needs the model, whose operators name their modules\n"
                    "  hint: --model model.onnx",
                    o.format));
  }
  AGPCS_TRY(TrainingModel model, read_planned_model(o.model, plan));
  if (!model.warnings.empty()) console.err << model.warnings << '\n';
  return model;
}

/// Writes two files: the settings, and the schedule that they name.
Status export_torchtitan(const ExportOptions& o, const Plan& plan, Console console) {
  if (o.output == "-") {
    return invalid_input(
        "--format torchtitan writes two files\n"
        "  hint: -o llama.toml, beside which llama.csv is written");
  }
  const std::string schedule = std::filesystem::path(o.output).replace_extension(".csv").string();
  if (schedule == o.output) {
    return invalid_input(fmt::format(
        "-o {} is the name of the schedule that torchtitan's settings refer to\n  hint: -o {}",
        o.output, std::filesystem::path(o.output).replace_extension(".toml").string()));
  }
  AGPCS_TRY(const TrainingModel model, model_to_export(o, plan, console));
  AGPCS_TRY(const std::string toml, torchtitan_toml(plan, model.graph, schedule));
  warn_of_recomputation(plan, "[activation_checkpoint] in torchtitan's settings", console);
  warn_of_hosts(plan, console);
  AGPCS_RETURN_IF_ERROR(write_file(schedule, schedule_lines(plan), console));
  return write_file(o.output, toml, console);
}

Status export_megatron_layout(const ExportOptions& o, const Plan& plan, Console console) {
  AGPCS_TRY(const TrainingModel model, model_to_export(o, plan, console));
  AGPCS_TRY(const std::string layout, megatron_layout(plan, model.graph));
  warn_of_recomputation(
      plan,
      "--recompute-granularity full, with --recompute-method uniform for segments of "
      "as many layers each, and block where a stage keeps some",
      console);
  warn_of_hosts(plan, console);
  if (plan.schedule != Schedule::k1F1B) {
    console.err << fmt::format(
        "agpcs-plan: warning: the plan's schedule is {}, and Megatron's is 1f1b\n",
        name_of(plan.schedule));
  }
  for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
    const std::string in_flight = in_flight_text(plan, s);
    if (in_flight.empty() || plan.schedule != Schedule::k1F1B) continue;
    console.err << fmt::format(
        "agpcs-plan: warning: stage {} has {} in the plan, and Megatron's 1F1B has the "
        "textbook's number\n",
        plan.stages[static_cast<std::size_t>(s)].name, in_flight);
  }
  return write_file(o.output, layout, console);
}

constexpr Format kFormats[] = {
    {"msccl", export_flow},
    {"mscclpp", export_mscclpp},
    {"nccl-tuner", export_nccl_tuner},
    {"torch-schedule", export_torch_schedule, true},
    {"torchtitan", export_torchtitan},
    {"megatron-layout", export_megatron_layout},
};

}  // namespace

std::vector<std::string> export_formats() {
  std::vector<std::string> names;
  for (const Format& format : kFormats) names.emplace_back(format.name);
  return names;
}

Status export_plan(const ExportOptions& options, const Plan& plan, Console console) {
  for (const Format& format : kFormats) {
    if (format.name != options.format) continue;
    const std::string who = fmt::format("agpcs-plan export --format {}", format.name);
    if (!format.interleaves) AGPCS_RETURN_IF_ERROR(refuse_interleaved(plan, who));
    return format.write(options, plan, console);
  }
  return {StatusCode::kUsage, fmt::format("unknown format '{}'", options.format)};
}

}  // namespace agpcs
