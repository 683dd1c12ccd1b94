// SPDX-License-Identifier: Apache-2.0
// Reads a plan with the installed library and says which rank runs which stage.
#include <agpcs/plan.h>

#include <cstddef>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: show_plan PLAN\n";
    return 2;
  }
  std::ifstream file(argv[1]);
  std::ostringstream text;
  if (!(text << file.rdbuf())) {
    std::cerr << argv[1] << ": error: cannot be read\n";
    return 1;
  }
  const agpcs::Result<agpcs::Plan> plan = agpcs::parse_plan(text.str(), argv[1]);
  if (!plan) {
    std::cerr << plan.status().message() << '\n';
    return agpcs::exit_code(plan.status().code());
  }
  std::cout << plan->model << ": " << plan->rank_count()
            << " ranks, micro-batches: " << plan->micro_batches << '\n';
  for (const agpcs::PlanStage& stage : plan->stages) {
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      std::cout << "rank " << stage.ranks[i] << " on " << stage.devices[i] << ": " << stage.name
                << ", " << stage.samples[i] << " samples of each micro-batch\n";
    }
  }
  return 0;
}
