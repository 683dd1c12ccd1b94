// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/data/conversion.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace agpcs {
namespace {

// Calls `f` with a value of the C++ type of `type`.
template <typename F>
void with_value_of(DType type, F&& f) {
  switch (type) {
    case DType::kFp32:
      return f(float{});
    case DType::kFp64:
      return f(double{});
    case DType::kFp16:
      return f(c10::Half{});
    case DType::kBf16:
      return f(c10::BFloat16{});
    case DType::kInt64:
      return f(std::int64_t{});
    case DType::kInt32:
      return f(std::int32_t{});
    case DType::kInt16:
      return f(std::int16_t{});
    case DType::kInt8:
      return f(std::int8_t{});
    case DType::kUint8:
    case DType::kBool:
      return f(std::uint8_t{});
  }
}

template <typename To>
To rounded(double value) {
  if constexpr (std::is_same_v<To, double>) {
    return value;
  } else {
    return static_cast<To>(static_cast<float>(value));
  }
}

bool is_whole(DType type) { return !is_floating(type) && type != DType::kBool; }

// Tells whether `to` has every value of `from`.
bool widens(DType from, DType to) {
  if (is_whole(from) && is_whole(to)) {
    return to != DType::kUint8 && (size_of(from) < size_of(to));
  }
  const bool half = from == DType::kFp16 || from == DType::kBf16;
  return (half && to == DType::kFp32) ||
         (is_floating(from) && from != DType::kFp64 && to == DType::kFp64);
}

std::optional<double> parse_positive(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  if (!std::isfinite(value) || value <= 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<Scale> parse_scale(std::string_view text) {
  const std::size_t slash = text.find('/');
  const auto numerator = parse_positive(text.substr(0, slash));
  const auto denominator =
      slash == std::string_view::npos ? std::optional(1.0) : parse_positive(text.substr(slash + 1));
  if (!numerator || !denominator) return std::nullopt;
  return Scale{*numerator, *denominator};
}

void Conversion::run(const std::byte* in, std::size_t elements, std::byte* out) const {
  with_value_of(from, [&](auto value) {
    with_value_of(to, [&](auto converted) {
      for (std::size_t i = 0; i < elements; ++i) {
        std::memcpy(&value, in + i * sizeof value, sizeof value);
        using To = decltype(converted);
        if constexpr (std::is_integral_v<To>) {
          converted = static_cast<To>(value);
        } else {
          const auto number = static_cast<double>(value);
          converted = rounded<To>(scale ? number * scale->numerator / scale->denominator : number);
        }
        std::memcpy(out + i * sizeof converted, &converted, sizeof converted);
      }
    });
  });
}

Result<Conversion> find_conversion(DType from, DType to, const std::optional<Scale>& scale,
                                   const std::string& file, const std::string& input) {
  const std::string types =
      fmt::format("{}: holds {}, input '{}' is {}", file, name_of(from), input, name_of(to));
  if (scale) {
    if (is_whole(from) && is_floating(to)) return Conversion{from, to, scale};
    return invalid_input(
        types + "\n  hint: --scale turns whole numbers into floating ones; leave it out here");
  }
  if (from == to || widens(from, to)) return Conversion{from, to, {}};
  if (is_whole(from) && is_floating(to)) {
    return invalid_input(
        fmt::format("{}\n  hint: --scale {}=1/255 turns bytes into 0 to 1, --scale {}=1 leaves "
                    "numbers as they are; or save it with numpy's astype",
                    types, input, input));
  }
  return invalid_input(types + "\n  hint: save it with numpy's astype");
}

}  // namespace agpcs
