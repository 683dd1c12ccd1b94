// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/command.h"
#include "tools/run/processes/blas_kernels.h"

int main(int argc, char** argv) {
  agpcs::use_better_kernels(argv);
  return agpcs::run_command("agpcs-profile", argc, argv, agpcs::profile_command);
}
