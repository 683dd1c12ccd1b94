// SPDX-License-Identifier: Apache-2.0
#include "ir/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace agpcs {

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  fmt::print(stderr, "agpcs: bug: {}:{}: {}: {}\n", file, line, condition, message);
  std::fflush(nullptr);
#ifdef AGPCS_FUZZ
  std::abort();  // a fuzzer detects and reports an abort
#else
  std::_Exit(70);
#endif
}

}  // namespace agpcs
