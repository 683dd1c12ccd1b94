// SPDX-License-Identifier: Apache-2.0
#include "tools/run/command.h"
#include "tools/run/processes/blas_kernels.h"

int main(int argc, char** argv) {
  agpcs::use_better_kernels(argv);
  return agpcs::run_command("agpcs-run", argc, argv, agpcs::run_job_command);
}
