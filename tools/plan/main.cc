// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/command.h"

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-plan", argc, argv, agpcs::plan_command);
}
