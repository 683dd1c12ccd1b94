// SPDX-License-Identifier: Apache-2.0
// agpcs-train-policy: trains the policy of the refiner `dqn`.
#include "tools/common.h"
#include "tools/train_policy.h"

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-train-policy", argc, argv, agpcs::train_policy_command);
}
