// SPDX-License-Identifier: Apache-2.0
#include "codegen/export_torch_schedule.h"

#include "ir/plan/lookup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <vector>

namespace agpcs {
namespace {

Status check_stages(const Plan& plan) {
  if (plan.stages.size() < 2) {
    return invalid_input(
        "the plan has one stage, and a schedule of PyTorch is that of a pipeline\n"
        "  hint: agpcs.torch.plan_hook trains such a plan in DistributedDataParallel");
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const PlanStage& stage = plan.stages[s];
    if (stage.ranks.size() == 1) continue;
    return invalid_input(
        fmt::format("stage s{} has {} ranks, and a stage of a schedule of PyTorch has one\n"
                    "  hint: agpcs-compile --layout \"a/0|b/0\" plans one device a stage",
                    s, stage.ranks.size()));
  }
  return {};
}

Status check_cuts(const Plan& plan) {
  for (const Cut& cut : plan.cuts) {
    for (const CutTensor& tensor : cut.tensors) {
      if (cut.to != cut.from + 1) {
        return invalid_input(fmt::format(
            "tensor '{}' goes from stage s{} to s{}, and PyTorch's runtime sends to the next stage "
            "alone\n  hint: plan another layout, or replay the plan by agpcs-run",
            tensor.name, cut.from, cut.to));
      }
      if (!tensor.batched) {
        return invalid_input(
            fmt::format("tensor '{}' between stages s{} and s{} has no axis of samples, which "
                        "PyTorch's runtime divides into micro-batches",
                        tensor.name, cut.from, cut.to));
      }
    }
  }
  return {};
}

Status check_buckets(const Plan& plan) {
  for (const PlanBucket& bucket : plan.buckets) {
    if (!bucket.is_shared()) continue;
    return invalid_input(
        fmt::format("parameter '{}' is in stages s{}, and PyTorch's runtime does not sum its "
                    "gradients over them\n  hint: plan another layout, or train by agpcs.torch.Job",
                    bucket.members.front().parameter, fmt::join(stages_of(bucket), " and s")));
  }
  return {};
}

}  // namespace

Result<std::string> torch_schedule_csv(const Plan& plan) {
  AGPCS_RETURN_IF_ERROR(check_stages(plan));
  AGPCS_RETURN_IF_ERROR(check_cuts(plan));
  AGPCS_RETURN_IF_ERROR(check_buckets(plan));
  if (plan.smaller_from() < plan.micro_batches) {
    return invalid_input(
        fmt::format("a batch of {} in {} micro-batches makes some of them smaller, and PyTorch's "
                    "runtime has equal ones\n  hint: --micro-batches with a divisor of the batch",
                    plan.training.batch, plan.micro_batches));
  }
  std::vector<std::string> lines(plan.stages.size());
  for (const Program& program : plan.programs) {
    std::string& line = lines[static_cast<std::size_t>(
        plan.stages[static_cast<std::size_t>(program.stage)].ranks.front())];
    for (const Instruction& instruction : program.instructions) {
      const InstructionId& id = instruction.id;
      if (id.opcode != Opcode::kForward && id.opcode != Opcode::kBackward) continue;
      line += fmt::format("{}{}{}{}", line.empty() ? "" : ",", program.stage,
                          id.opcode == Opcode::kForward ? 'F' : 'B', id.micro_batch);
    }
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

}  // namespace agpcs
