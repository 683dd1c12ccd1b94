// SPDX-License-Identifier: Apache-2.0
#include "runtime/support/text_agreement.h"

#include "ir/base/check.h"
#include "runtime/support/withdraw.h"

#include <agpcs/digest.h>
#include <agpcs/plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string_view>

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

Status sum(const Comparison& among, std::vector<std::int64_t>& words) {
  const Buffer buffer{words.data(), words.size() * sizeof(std::int64_t), DType::kInt64, false};
  AGPCS_TRY(const Ticket ticket, among.transport.all_reduce(buffer, among.group, AllReduce::kRing));
  const Status summed = among.transport.wait(Stream::kCollective, ticket, among.limit);
  return summed.ok() ? summed : withdraw(among.transport, summed, among.limit);
}

// Sends the text of `from` to all members: the others add zeros to it.
Result<std::string> spread(const Comparison& among, std::size_t from, std::string text) {
  if (among.member != from) text.clear();
  std::vector<std::int64_t> words = {static_cast<std::int64_t>(text.size())};
  AGPCS_RETURN_IF_ERROR(sum(among, words));
  text.resize(static_cast<std::size_t>(words.front()), '\0');
  words.assign(text.size() / sizeof words[0] + 1, 0);
  std::memcpy(words.data(), text.data(), text.size());
  AGPCS_RETURN_IF_ERROR(sum(among, words));
  std::memcpy(text.data(), words.data(), text.size());
  return text;
}

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string difference(const Comparison& among, const std::string& first, const std::string& own) {
  const auto theirs = lines_of(first), ours = lines_of(own);
  const auto spell = [](const auto& lines, std::size_t i) {
    return i < lines.size() ? fmt::format("'{}'", lines[i]) : std::string("nothing there");
  };
  std::size_t i = 0;
  while (i < theirs.size() && i < ours.size() && theirs[i] == ours[i]) ++i;
  return fmt::format("rank {} has {}, rank {} {}", among.ranks[among.member], spell(ours, i),
                     among.ranks.front(), spell(theirs, i));
}

}  // namespace

Result<std::vector<std::string>> gather_digests(const Comparison& among, const std::string& own) {
  // Every rank writes its digest in its place among zeros, so the sum holds all digests.
  const Digest words = words_of(own);
  std::vector<std::int64_t> all(among.ranks.size() * kWords, 0);
  std::copy(words.begin(), words.end(),
            all.begin() + static_cast<std::ptrdiff_t>(among.member * kWords));
  AGPCS_RETURN_IF_ERROR(sum(among, all));
  std::vector<std::string> digests;
  for (std::size_t i = 0; i < among.ranks.size(); ++i) {
    digests.push_back(text_of(all.data() + i * kWords));
  }
  return digests;
}

Status agree_on_text(const Comparison& among, const std::string& text) {
  AGPCS_TRY(const auto digests, gather_digests(among, digest_of(text)));
  const auto differs =
      std::find_if(digests.begin(), digests.end(), [&](auto& d) { return d != digests.front(); });
  if (differs == digests.end()) return {};
  const auto who = static_cast<std::size_t>(differs - digests.begin());
  AGPCS_TRY(const std::string first, spread(among, 0, text));
  const std::string said = among.member == who ? difference(among, first, text) : std::string();
  AGPCS_TRY(const std::string found, spread(among, who, said));
  return invalid_input(found);
}

}  // namespace agpcs
