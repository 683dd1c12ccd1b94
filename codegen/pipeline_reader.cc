// SPDX-License-Identifier: Apache-2.0
#include "codegen/pipeline_reader.h"

#include "ir/plan/lookup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

Status check_stages(const Plan& plan, const PipelineReader& reader) {
  if (plan.stages.size() < 2) {
    return invalid_input(
        fmt::format("the plan has one stage, and {} runs pipelines\n"
                    "  hint: agpcs.torch.plan_hook trains such a plan in DistributedDataParallel",
                    reader.name));
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    if (stage.ranks.size() == 1) continue;
    return invalid_input(
        fmt::format("stage s{} has {} ranks, and a stage of {} has one\n"
                    "  hint: agpcs-compile --layout \"a/0|b/0\" plans one device a stage",
                    s, stage.ranks.size(), reader.name));
  }
  return {};
}

Status check_cuts(const Plan& plan, const PipelineReader& reader) {
  for (const Cut& cut : plan.cuts) {
    for (const CutTensor& tensor : cut.tensors) {
      if (reader.repeats_constants && !tensor.batched && !tensor.gradient) continue;
      if (cut.to != cut.from + 1) {
        return invalid_input(fmt::format(
            "tensor '{}' goes from stage s{} to s{}, and {} sends to the next stage alone\n"
            "  hint: plan another layout, or replay the plan by agpcs-run",
            tensor.name, cut.from, cut.to, reader.name));
      }
      if (!tensor.batched) {
        return invalid_input(
            fmt::format("tensor '{}' between stages s{} and s{} has no axis of samples, which {} "
                        "divides into micro-batches",
                        tensor.name, cut.from, cut.to, reader.name));
      }
    }
  }
  return {};
}

Status check_buckets(const Plan& plan, const PipelineReader& reader) {
  const std::vector<int> ends = {0, static_cast<int>(plan.stages.size()) - 1};
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.is_shared() || (reader.ties_ends && stages_of(bucket) == ends)) continue;
    return invalid_input(fmt::format(
        "parameter '{}' is in stages s{}, and {} does not sum its gradients over them\n"
        "  hint: plan another layout, or train by agpcs.torch.Job",
        bucket.members.front().parameter, fmt::join(stages_of(bucket), " and s"), reader.name));
  }
  return {};
}

}  // namespace

Status check_pipeline(const Plan& plan, const PipelineReader& reader) {
  AGPCS_RETURN_IF_ERROR(check_stages(plan, reader));
  AGPCS_RETURN_IF_ERROR(check_cuts(plan, reader));
  AGPCS_RETURN_IF_ERROR(check_buckets(plan, reader));
  if (plan.smaller_from() == plan.micro_batches) return {};
  return invalid_input(
      fmt::format("a batch of {} in {} micro-batches makes some of them smaller, and {} has equal "
                  "ones\n  hint: --micro-batches with a divisor of the batch",
                  plan.training.batch, plan.micro_batches, reader.name));
}

}  // namespace agpcs
