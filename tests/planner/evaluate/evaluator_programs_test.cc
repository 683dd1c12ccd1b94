// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/evaluator_programs.h"

#include "ir/base/at.h"
#include "ir/base/rng.h"
#include "ir/plan/lookup.h"
#include "planner/evaluate/evaluator_stages.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace agpcs {
namespace {

/// Cuts between neighbours, and some that skip stages; some send no gradient back.
std::vector<CutInfo> random_cuts(Rng& rng, int stages) {
  std::vector<CutInfo> cuts;
  for (int from = 0; from < stages; ++from) {
    for (int to = from + 1; to < stages; ++to) {
      if (to > from + 1 && rng.below(4) > 0) continue;
      CutInfo cut;
      cut.from = from;
      cut.to = to;
      cut.forward.rows = true;
      cut.back.rows = rng.below(4) > 0;
      cuts.push_back(cut);
    }
  }
  return cuts;
}

StageMemory random_memory(Rng& rng) {
  StageMemory m;
  for (std::int64_t* const bytes : {&m.in_flight, &m.received, &m.sent, &m.gradients_received,
                                    &m.gradients_sent, &m.received_and_free, &m.forward_peak,
                                    &m.backward_peak, &m.put_off, &m.input_peak, &m.weight_peak}) {
    *bytes = rng.below(3) == 0 ? 0 : static_cast<std::int64_t>(rng.below(1000));
  }
  return m;
}

TEST(ProgramTable, MemoryOfFewerMicroBatchesHasTheSamePeaks) {
  Rng rng(1);
  ProgramTable table(ProgramTable::Of::kMemory);
  int fewer = 0;
  for (int round = 0; round < 150; ++round) {
    const int stages = 1 + static_cast<int>(rng.below(12));
    const std::vector<CutInfo> cuts = random_cuts(rng, stages);
    PipelineShape shape;
    shape.cuts = &cuts;
    shape.alone.assign(at(stages), true);
    const auto all = static_cast<std::int64_t>(1 + rng.below(8 * at(stages) + 40));
    shape.micro_batches = all;
    shape.parts_backward = round % 2 == 1;
    Rng chosen(static_cast<std::uint64_t>(round));
    shape.in_flight.clear();
    for (int s = 0; s < stages; ++s) {
      shape.in_flight.push_back(textbook_in_flight(stages, s, all));
      if (round % 3 == 0)
        shape.in_flight.back() =
            1 + static_cast<std::int64_t>(chosen.below(static_cast<std::uint64_t>(all)));
    }
    std::sort(shape.in_flight.rbegin(), shape.in_flight.rend());
    const PipelinePrograms& found = table.find(shape);
    fewer += shape.micro_batches < all ? 1 : 0;
    shape.micro_batches = all;
    const auto whole = ProgramTable::make(shape, ProgramTable::Of::kMemory);
    for (std::size_t stage = 0; stage < at(stages); ++stage) {
      for (int i = 0; i < 30; ++i) {
        const StageMemory m = random_memory(rng);
        EXPECT_EQ(found.memory[stage].peak_bytes(m), whole->memory[stage].peak_bytes(m))
            << "round " << round << " stage " << stage << " of " << stages << ", " << all
            << " micro-batches";
      }
    }
  }
  EXPECT_GT(fewer, 50);
}

}  // namespace
}  // namespace agpcs
