// SPDX-License-Identifier: Apache-2.0
// agpcs-train-policy: trains the policy of the refiner `dqn`, or the policies that schedule an
// all-reduce.
#include "tools/common/common.h"
#include "tools/train_policy/flow_policy.h"
#include "tools/train_policy/policy.h"

#include <algorithm>

namespace {

/// Chooses the task by --task. The parser of the default task reports a wrong value.
int train(const std::vector<std::string>& args, agpcs::Console console) {
  const auto task = std::find(args.begin(), args.end(), "--task");
  const bool named = task != args.end() && task + 1 != args.end() && task[1] == "allreduce";
  if (named || std::find(args.begin(), args.end(), "--task=allreduce") != args.end()) {
    return agpcs::train_flow_policy_command(args, console);
  }
  return agpcs::train_policy_command(args, console);
}

}  // namespace

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-train-policy", argc, argv, train);
}
