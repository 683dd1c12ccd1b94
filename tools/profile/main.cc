// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/command.h"

int main(int argc, char** argv) {
  return agpcs::run_command("agpcs-profile", argc, argv, agpcs::profile_command);
}
