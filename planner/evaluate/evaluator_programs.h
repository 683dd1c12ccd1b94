// SPDX-License-Identifier: Apache-2.0
// The programs of pipelines, from codegen, resolved for the engine. Pipelines of one shape share
// them.
#pragma once

#include "cost_model/step/flat_step.h"
#include "ir/strategy/program_memory.h"
#include "planner/evaluate/evaluator_stages.h"

#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// Everything on which the programs of a pipeline depend.
struct PipelineShape {
  std::int64_t micro_batches = 1;
  Schedule schedule = Schedule::k1F1B;
  const std::vector<CutInfo>* cuts = nullptr;
  std::vector<bool> alone;        ///< by stage: it has one replica, which reduces nothing
  std::vector<int> bucket_stage;  ///< by bucket: its stage
};

/// The programs of a pipeline, for the engine and for the memory model.
struct PipelinePrograms {
  std::vector<int> key;
  std::vector<PrecedenceGraph> programs;  ///< by stage; empty if only memory is asked for
  std::vector<ProgramMemory> memory;
};

/// Looks up the programs of a pipeline by its shape, or makes them.
class ProgramTable {
 public:
  enum class Of : std::uint8_t { kStep, kMemory };
  explicit ProgramTable(Of of) : of_(of) {}
  /// Returns the programs of this shape. They stay valid until the next call.
  const PipelinePrograms& find(const PipelineShape& shape);

 private:
  std::unique_ptr<PipelinePrograms> make(const PipelineShape& shape);

  Of of_;
  std::vector<int> key_;
  const PipelinePrograms* last_ = nullptr;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<PipelinePrograms>> known_;
  std::size_t remembered_ = 0;  // number of instructions in `known_`
};

}  // namespace agpcs
