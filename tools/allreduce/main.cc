// SPDX-License-Identifier: Apache-2.0
#include "tools/allreduce/command.h"

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-allreduce", argc, argv, agpcs::allreduce_command);
}
