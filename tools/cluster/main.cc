// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/command.h"

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-cluster", argc, argv, agpcs::cluster_command);
}
