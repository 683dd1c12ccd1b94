// SPDX-License-Identifier: Apache-2.0
// The programs of pipelines, from codegen, resolved for the engine. Pipelines of one shape share
// them.
#pragma once

#include "cost_model/step/flat_step.h"
#include "ir/strategy/program_memory.h"
#include "ir/strategy/state_parts.h"
#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluator_stages.h"

#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs {

/// Everything on which the programs of a pipeline depend.
struct PipelineShape {
  bool clips = false;  ///< the optimizer clips gradients
  std::int64_t micro_batches = 1;
  std::vector<std::int64_t> in_flight;  ///< by stage: micro-batches between their passes
  bool parts_backward = false;
  bool interleaves = false;
  int round = 1;  ///< over how many device groups stages go round, if they are interleaved
  const std::vector<CutInfo>* cuts = nullptr;
  std::vector<bool> alone;         ///< by stage: it has one replica, which reduces nothing
  std::vector<int> bucket_stage;   ///< by bucket: the first of its stages
  std::vector<StateLevel> states;  ///< by bucket: what its ranks divide
  /// By stage: where backward passes need parameters that are divided; may be left out.
  std::vector<std::vector<BucketUse>> uses;
  std::vector<std::pair<int, int>> sharers;  ///< a bucket and another of its stages, ascending
  /// Sets what passes and messages depend on. `stage_cuts` must outlive the shape.
  void set_passes(const Strategy& strategy, const std::vector<CutInfo>& stage_cuts);
};

/// The programs of a pipeline, for the engine or for the memory model.
struct PipelinePrograms {
  std::vector<int> key;
  std::vector<PrecedenceGraph> programs;  ///< as in a plan
  std::vector<ProgramMemory> memory;      ///< by stage
  std::size_t instructions = 0;
};

/// Looks up the programs of a pipeline by its shape, or makes them: for the engine or, in less
/// time, for the memory model alone.
class ProgramTable {
 public:
  enum class Of : std::uint8_t { kStep, kMemory };
  explicit ProgramTable(Of of) : of_(of) {}
  /// Returns the programs of this shape. They stay valid until the next call. Memory may be that of
  /// fewer micro-batches, with the same peaks. It does not depend on `alone`, `bucket_stage`,
  /// `states`, `uses` and `sharers`.
  const PipelinePrograms& find(PipelineShape& shape);
  /// Makes the programs of exactly this shape.
  static std::unique_ptr<PipelinePrograms> make(const PipelineShape& shape, Of of);

 private:
  Of of_;
  std::vector<int> key_;
  const PipelinePrograms* last_ = nullptr;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<PipelinePrograms>> known_;
  std::size_t remembered_ = 0;  // number of instructions in `known_`
};

}  // namespace agpcs
