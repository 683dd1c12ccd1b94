// SPDX-License-Identifier: Apache-2.0
// The programs of pipelines of one shape, from codegen, resolved for the engine.
#pragma once

#include "cost_model/flat_step.h"
#include "ir/program_memory.h"
#include "planner/evaluator_stages.h"

#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace agpcs {

/// What the programs of a pipeline depend on.
struct PipelineShape {
  std::int64_t micro_batches = 1;
  Schedule schedule = Schedule::k1F1B;
  const std::vector<CutInfo>* cuts = nullptr;
  std::vector<bool> alone;        ///< by stage: one replica, which reduces nothing
  std::vector<int> bucket_stage;  ///< by bucket
};

struct PipelinePrograms {
  std::vector<int> key;
  std::vector<PrecedenceGraph> programs;  ///< by stage; none where only memory is asked for
  std::vector<ProgramMemory> memory;
};

class ProgramTable {
 public:
  enum class Of : std::uint8_t { kStep, kMemory };
  explicit ProgramTable(Of of) : of_(of) {}
  /// The result stays until the next call.
  const PipelinePrograms& find(const PipelineShape& shape);

 private:
  std::unique_ptr<PipelinePrograms> make(const PipelineShape& shape);

  Of of_;
  std::vector<int> key_;
  const PipelinePrograms* last_ = nullptr;
  std::unordered_multimap<std::uint64_t, std::unique_ptr<PipelinePrograms>> known_;
  std::size_t remembered_ = 0;  // instructions
};

}  // namespace agpcs
