// SPDX-License-Identifier: Apache-2.0
// What every fuzz target has: one entry point, which takes any bytes, and a way to say that a
// property does not hold. libFuzzer calls the entry point (preset `fuzz`); in other builds
// corpus_main.cc calls it with every file of the corpus.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>

/// Takes any input; ends the process where a property does not hold. Always returns 0.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace agpcs::fuzz {

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Aborts with `what` and `detail` unless `holds`.
inline void require(bool holds, std::string_view what, std::string_view detail = {}) {
  if (holds) return;
  const std::string text = "fuzz: does not hold: " + std::string(what) + "\n" + std::string(detail);
  std::fprintf(stderr, "%s\n", text.c_str());
  std::abort();
}

}  // namespace agpcs::fuzz
