// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator_programs.h"

#include "codegen/stage_program.h"
#include "codegen/timetable.h"
#include "cost_model/step/precedence_graph.h"
#include "ir/base/all_values.h"
#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "ir/strategy/interleaved.h"
#include "planner/problem/hash.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace agpcs {
namespace {

/// The most instructions that are remembered; beyond, all programs are forgotten.
constexpr std::size_t kMostInstructions = std::size_t{1} << 21;

/// With the textbook's 1F1B, more micro-batches than these only repeat what each stage holds
/// between the filling and the draining of the pipeline.
std::int64_t enough_for_memory(const PipelineShape& shape) {
  const auto stages = static_cast<std::int64_t>(shape.alone.size());
  if (shape.interleaves) return shape.micro_batches;
  for (std::size_t s = 0; s < shape.in_flight.size(); ++s) {
    const std::int64_t textbook =
        textbook_in_flight(stages, static_cast<std::int64_t>(s), shape.micro_batches);
    if (shape.in_flight[s] != textbook) return shape.micro_batches;
  }
  return std::min<std::int64_t>(shape.micro_batches, (shape.parts_backward ? 3 : 2) * stages + 8);
}

void write_key(const PipelineShape& shape, std::vector<int>& key) {
  key.clear();
  key.push_back(static_cast<int>(shape.micro_batches));
  key.push_back(static_cast<int>(shape.alone.size()));
  key.push_back(shape.parts_backward ? 1 : shape.interleaves ? 1 + shape.round : 0);
  for (const std::int64_t number : shape.in_flight) key.push_back(static_cast<int>(number));
  for (const bool alone : shape.alone) key.push_back(alone ? 1 : 0);
  key.push_back(shape.clips ? 1 : 0);
  key.push_back(static_cast<int>(shape.bucket_stage.size()));
  key.insert(key.end(), shape.bucket_stage.begin(), shape.bucket_stage.end());
  for (std::size_t b = 0; b < shape.states.size(); ++b) {
    if (shape.states[b] == StateLevel::kWhole) continue;
    const std::size_t level = b * kStateLevels.size() + static_cast<std::size_t>(shape.states[b]);
    key.push_back(-1 - static_cast<int>(level));
  }
  for (const std::vector<BucketUse>& uses : shape.uses) {
    for (const BucketUse& use : uses) {
      key.push_back(use.bucket);
      key.push_back(use.filled);
    }
  }
  key.push_back(static_cast<int>(shape.sharers.size()));
  for (const auto& [bucket, stage] : shape.sharers) {
    key.push_back(bucket);
    key.push_back(stage);
  }
  for (const CutInfo& cut : *shape.cuts) {
    key.push_back(cut.from);
    key.push_back(cut.to);
    key.push_back(cut.has_gradient() ? 1 : 0);
  }
}

int programs_of(const PipelineShape& shape) {
  return shape.interleaves ? shape.round : static_cast<int>(shape.alone.size());
}

/// Returns a plan with everything that `Timetable` and `stage_program` read.
Plan plan_of(const PipelineShape& shape) {
  Plan plan;
  plan.training.optimizer.max_norm = shape.clips ? 1 : 0;
  plan.micro_batches = shape.micro_batches;
  plan.schedule = shape.parts_backward ? Schedule::kZeroBubble
                  : shape.interleaves  ? Schedule::kInterleaved
                                       : Schedule::k1F1B;
  for (const bool alone : shape.alone) {
    const int program = static_cast<int>(plan.stages.size()) % programs_of(shape);
    PlanStage stage;
    stage.ranks.push_back(2 * program);
    if (!alone) stage.ranks.push_back(2 * program + 1);
    stage.operators.emplace_back();
    plan.stages.push_back(std::move(stage));
  }
  for (const CutInfo& info : *shape.cuts) {
    Cut cut;
    cut.from = info.from;
    cut.to = info.to;
    CutTensor tensor;
    tensor.gradient = info.has_gradient();
    cut.tensors.push_back(std::move(tensor));
    plan.cuts.push_back(std::move(cut));
  }
  for (std::size_t b = 0; b < shape.bucket_stage.size(); ++b) {
    PlanBucket bucket;
    bucket.stage = shape.bucket_stage[b];
    bucket.state = shape.states[b];
    plan.buckets.push_back(std::move(bucket));
  }
  for (const auto& [bucket, stage] : shape.sharers) {
    plan.buckets[static_cast<std::size_t>(bucket)].shared_with.push_back(stage);
  }
  return plan;
}

}  // namespace

void PipelineShape::set_passes(const Strategy& strategy, const std::vector<CutInfo>& stage_cuts) {
  micro_batches = strategy.micro_batches;
  parts_backward = strategy.schedule == Schedule::kZeroBubble;
  interleaves = strategy.schedule == Schedule::kInterleaved;
  round = round_size(strategy);  // as many as there are stages if they are not
  in_flight.clear();
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    in_flight.push_back(most_in_flight(strategy, s));
  }
  cuts = &stage_cuts;
}

const PipelinePrograms& ProgramTable::find(PipelineShape& shape) {
  if (of_ == Of::kMemory) shape.micro_batches = enough_for_memory(shape);
  write_key(shape, key_);
  if (last_ != nullptr && last_->key == key_) return *last_;
  const std::uint64_t hash = hash_of(key_);
  const auto [begin, end] = known_.equal_range(hash);
  for (auto it = begin; it != end; ++it) {
    if (it->second->key == key_) return *(last_ = it->second.get());
  }
  if (remembered_ > kMostInstructions) {
    known_.clear();
    remembered_ = 0;
  }
  std::unique_ptr<PipelinePrograms> made = make(shape, of_);
  remembered_ += made->instructions;
  made->key = key_;
  return *(last_ = known_.emplace(hash, std::move(made))->second.get());
}

std::unique_ptr<PipelinePrograms> ProgramTable::make(const PipelineShape& shape, Of of) {
  auto made = std::make_unique<PipelinePrograms>();
  const Plan plan = plan_of(shape);
  const Timetable timetable(plan, shape.in_flight);
  const auto stages = static_cast<int>(plan.stages.size());
  std::vector<std::optional<ProgramMemory>> memory(plan.stages.size());
  const int programs = programs_of(shape);
  for (int stage = 0; stage < programs; ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    const std::span<const BucketUse> uses = s < shape.uses.size()
                                                ? std::span<const BucketUse>(shape.uses[s])
                                                : std::span<const BucketUse>();
    const Program program = stage_program(plan, timetable, stage, uses);
    made->instructions += program.instructions.size();
    for (int own = stage; own < stages && of == Of::kMemory; own += programs) {
      memory[static_cast<std::size_t>(own)] = ProgramMemory::of_stage(plan, program, own);
    }
    if (of == Of::kMemory) continue;
    Result<PrecedenceGraph> graph = precedence_graph(plan, program);
    AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
    made->programs.push_back(*std::move(graph));
  }
  if (of == Of::kMemory) {
    for (std::optional<ProgramMemory>& one : memory) made->memory.push_back(*std::move(one));
  }
  return made;
}

}  // namespace agpcs
