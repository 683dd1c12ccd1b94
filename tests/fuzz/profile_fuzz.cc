// SPDX-License-Identifier: Apache-2.0
// Profile files: an error that says something, or a profile that is written and read back the same.
#include "frontend/cluster/profile_file.h"
#include "tests/fuzz/fuzz.h"

#include <optional>
#include <string>
#include <string_view>

namespace agpcs {
namespace {

/// `text` with the digest that its measurements have: no fuzzer finds one. Nothing where `message`
/// is about something else.
std::optional<std::string> with_right_digest(std::string text, std::string_view message) {
  constexpr std::string_view kIs = "the digest is ", kBut = ", but that of the measurements is ";
  const std::size_t is = message.find(kIs), but = message.find(kBut);
  if (is == std::string_view::npos || but == std::string_view::npos) return std::nullopt;
  const std::string_view wrong = message.substr(is + kIs.size(), but - is - kIs.size());
  std::string_view right = message.substr(but + kBut.size());
  right = right.substr(0, right.find('\n'));
  const std::size_t at = wrong.empty() ? std::string::npos : text.find(wrong);
  if (at == std::string::npos) return std::nullopt;
  return text.replace(at, wrong.size(), right);
}

void expect_round_trip(const Profile& profile) {
  const Status sound = verify_profile(profile);
  fuzz::require(sound.ok(), "a profile holds its invariants", sound.message());
  const std::string text = print_profile(profile);
  const Result<Profile> again = parse_profile(text, "p.yaml");
  fuzz::require(again.ok(), "what is written can be read",
                again.ok() ? "" : again.status().message() + "\n" + text);
  fuzz::require(print_profile(*again) == text, "what is written reads back the same", text);
  fuzz::require(again->digest == profile.digest, "and has the same digest", text);
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace agpcs;
  std::string text(fuzz::text_of(data, size));
  Result<Profile> profile = parse_profile(text, "p.yaml");
  if (!profile.ok()) {
    fuzz::require(profile.status().code() == StatusCode::kInvalidInput, "the input is at fault",
                  profile.status().message());
    const auto corrected = with_right_digest(text, profile.status().message());
    if (corrected) profile = parse_profile(*corrected, "p.yaml");
  }
  if (profile.ok()) expect_round_trip(*profile);
  return 0;
}
