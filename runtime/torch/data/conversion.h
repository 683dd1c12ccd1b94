// SPDX-License-Identifier: Apache-2.0
// The rules by which a file's elements become those of an input of another type.
#pragma once

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace agpcs {

/// What whole numbers of a file are multiplied by for a floating input: numerator / denominator. A
/// value is rounded once, so that bytes by 1/255 become what `x / 255` is in fp32.
struct Scale {
  double numerator = 1, denominator = 1;
};

/// Parses "0.5" or "1/255": two positive numbers. Returns nothing for any other text.
std::optional<Scale> parse_scale(std::string_view text);

/// How elements of type `from` become elements of type `to`.
struct Conversion {
  DType from = DType::kFp32, to = DType::kFp32;
  std::optional<Scale> scale;  ///< only from whole numbers to floating ones

  bool copies() const { return from == to; }
  void run(const std::byte* in, std::size_t elements, std::byte* out) const;
};

/// Finds the rule: with `scale` whole numbers become floating ones; without it elements stay as
/// they are, or become wider (int32 to int64, fp16 to fp32), which changes no value. Error: there
/// is no such rule. It begins with `file` and names both types, `input` and what to do.
Result<Conversion> find_conversion(DType from, DType to, const std::optional<Scale>& scale,
                                   const std::string& file, const std::string& input);

}  // namespace agpcs
