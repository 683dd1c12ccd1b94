// SPDX-License-Identifier: Apache-2.0
// interleave_plan PLAN ROUND: prints a plan of the same stages with an interleaved schedule, in
// which they go round over the ranks of the first ROUND of them. Its predictions are placeholders.
#include "codegen/stage_program.h"
#include "codegen/timetable.h"
#include "ir/base/read_file.h"

#include <agpcs/plan.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace agpcs {
namespace {

Result<std::string> interleaved(const std::string& path, int round) {
  AGPCS_TRY(const std::string text, read_file(path, {"plan"}));
  AGPCS_TRY(Plan plan, parse_plan(text, path));
  plan.schedule = Schedule::kInterleaved;
  for (std::size_t s = static_cast<std::size_t>(round); s < plan.stages.size(); ++s) {
    const PlanStage& first = plan.stages[s - static_cast<std::size_t>(round)];
    plan.stages[s].ranks = first.ranks;
    plan.stages[s].devices = first.devices;
    plan.stages[s].samples = first.samples;
    plan.stages[s].odd = first.odd;
  }
  const std::vector<std::int64_t> in_flight(plan.stages.size(), plan.micro_batches);
  const Timetable timetable(plan, in_flight);
  plan.programs.clear();
  for (int stage = 0; stage < plan.round_size(); ++stage) {
    plan.programs.push_back(stage_program(plan, timetable, stage));
  }
  plan.expect.clear();
  for (const std::string& name : expectation_names(plan)) {
    plan.expect.push_back({name, 1, std::string(expectation_unit(name))});
  }
  AGPCS_RETURN_IF_ERROR(verify_plan(plan));
  return print_plan(plan);
}

}  // namespace
}  // namespace agpcs

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const auto made = agpcs::interleaved(argv[1], std::atoi(argv[2]));
  if (made.ok()) return std::fputs(made->c_str(), stdout) < 0 ? 1 : 0;
  std::fprintf(stderr, "interleave_plan: %s\n", made.status().message().c_str());
  return 1;
}
