// SPDX-License-Identifier: Apache-2.0
// AGPCS_CHECK: an invariant of our own code. A failure is our bug: it prints a message and aborts
// with exit code 70.
#pragma once

#include <fmt/format.h>

#include <string>

namespace agpcs {
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);
}  // namespace agpcs

#define AGPCS_CHECK(condition, ...)                                                      \
  do {                                                                                   \
    if (!(condition)) {                                                                  \
      ::agpcs::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                    \
  } while (false)
