// SPDX-License-Identifier: Apache-2.0
// Loaded into a command by LD_PRELOAD. The commands never set a locale; programs that load the same
// code as a library do.
#include <clocale>

__attribute__((constructor)) static void take_locale_of_environment() {
  std::setlocale(LC_ALL, "");
}
