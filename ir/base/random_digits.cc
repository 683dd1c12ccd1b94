// SPDX-License-Identifier: Apache-2.0
#include "ir/base/random_digits.h"

#include <fmt/format.h>

#include <cstdint>
#include <sys/random.h>

namespace agpcs {

std::string random_digits() {
  std::uint32_t number = 0;
  if (getrandom(&number, sizeof number, 0) < 0) return "";
  return fmt::format("{:08x}", number);
}

}  // namespace agpcs
