// SPDX-License-Identifier: Apache-2.0
#include "tools/run/command.h"

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-run", argc, argv, agpcs::run_job_command);
}
