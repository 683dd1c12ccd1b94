// SPDX-License-Identifier: Apache-2.0
// What ranks must hold alike, compared over them before they rely on it.
#pragma once

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <string>
#include <vector>

namespace agpcs {

/// The members of an open group that compare something, this rank's place among them, and their
/// longest wait.
struct Comparison {
  Transport& transport;
  int group = 0;
  const std::vector<int>& ranks;
  std::size_t member = 0;
  std::chrono::milliseconds limit{300000};
};

/// The digests (`digest_of`) of all members, in one all-reduce. All members call it.
Result<std::vector<std::string>> gather_digests(const Comparison& among, const std::string& own);

/// Ok when all members pass the same text; else all get the first line in which the first member
/// that differs differs from the first one: "rank 2 has 'gradient w fp32 10', rank 0 'gradient w
/// fp32 12'". All members call it.
Status agree_on_text(const Comparison& among, const std::string& text);

}  // namespace agpcs
