// SPDX-License-Identifier: Apache-2.0
// Compares what all ranks must hold alike, before they rely on it.
#pragma once

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <string>
#include <vector>

namespace agpcs {

/// The members of an open group that compare something, this rank's place among them, and the
/// longest wait.
struct Comparison {
  Transport& transport;
  int group = 0;
  const std::vector<int>& ranks;
  std::size_t member = 0;
  std::chrono::milliseconds limit{300000};
};

/// Gathers the digests (`digest_of`) of all members in one all-reduce. All members call it.
Result<std::vector<std::string>> gather_digests(const Comparison& among, const std::string& own);

/// Returns Ok if all members pass the same text. Otherwise all members get an error with the first
/// line in which the first deviating member differs from the first member: "rank 2 has 'gradient w
/// fp32 10', rank 0 'gradient w fp32 12'". All members call it.
Status agree_on_text(const Comparison& among, const std::string& text);

}  // namespace agpcs
