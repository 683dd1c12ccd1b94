// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan_agreement.h"

#include "ir/check.h"
#include "runtime/flat_program.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr std::string_view kPrefix = "sha256:";
constexpr std::size_t kWords = 4;
using Digest = std::array<std::int64_t, kWords>;

Digest words_of(const std::string& digest) {
  AGPCS_CHECK(digest.size() == kPrefix.size() + 16 * kWords, "digest '{}'", digest);
  Digest words{};
  for (std::size_t i = 0; i < kWords; ++i) {
    const std::string part = digest.substr(kPrefix.size() + 16 * i, 16);
    words[i] = static_cast<std::int64_t>(std::stoull(part, nullptr, 16));
  }
  return words;
}

std::string text_of(const std::int64_t* words) {
  std::string text(kPrefix);
  for (std::size_t i = 0; i < kWords; ++i) {
    text += fmt::format("{:016x}", static_cast<std::uint64_t>(words[i]));
  }
  return text;
}

// Before memory that a failed collective may still write to is freed.
Status withdraw(Transport& transport, const Status& failure, std::chrono::milliseconds limit) {
  [[maybe_unused]] const Status known = transport.wait(Stream::kCollective, 0, limit);
  return failure;
}

}  // namespace

Status agree_on_plan(const Plan& plan, Transport& transport, std::chrono::milliseconds limit) {
  const auto size = static_cast<std::size_t>(transport.size());
  std::vector<int> ranks(size);
  std::iota(ranks.begin(), ranks.end(), 0);
  AGPCS_RETURN_IF_ERROR(transport.open_group(world_group(plan), ranks, hosts_of_ranks(plan)));

  // Every rank writes its digest in its place among zeros: the sum holds all of them.
  const std::string own = digest_of(print_plan(plan));
  const Digest words = words_of(own);
  std::vector<std::int64_t> all(size * kWords, 0);
  const auto place = static_cast<std::size_t>(transport.rank()) * kWords;
  std::copy(words.begin(), words.end(), all.begin() + static_cast<std::ptrdiff_t>(place));
  const Buffer buffer{all.data(), all.size() * sizeof(std::int64_t), DType::kInt64, false};
  AGPCS_TRY(const Ticket ticket, transport.all_reduce(buffer, world_group(plan), AllReduce::kRing));
  const Status summed = transport.wait(Stream::kCollective, ticket, limit);
  if (!summed.ok()) {
    transport.abort(summed);
    return withdraw(transport, summed, limit);
  }

  for (std::size_t rank = 0; rank < size; ++rank) {
    const std::int64_t* theirs = all.data() + rank * kWords;
    if (std::equal(words.begin(), words.end(), theirs)) continue;
    return invalid_input(
        fmt::format("rank {} holds another plan: {} there, {} here", rank, text_of(theirs), own));
  }
  return {};
}

}  // namespace agpcs
