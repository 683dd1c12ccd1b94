// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/frame.h"

#include "ir/base/little_endian.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kLengthBytes = 4;

void append_length(std::string& out, std::size_t value) {
  append_little_endian(out, value, kLengthBytes);
}

std::size_t read_length(std::string_view bytes) {
  return little_endian(bytes.substr(0, kLengthBytes));
}

std::optional<Frame> decode(std::string_view body) {
  if (body.empty()) return std::nullopt;
  const auto kind = static_cast<std::uint8_t>(body[0]);
  if (kind == 0 || kind > static_cast<std::uint8_t>(kLastFrameKind)) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), {}};
  body.remove_prefix(1);
  while (!body.empty()) {
    if (body.size() < kLengthBytes || frame.fields.size() == kHelloFields) return std::nullopt;
    const std::size_t length = read_length(body);
    body.remove_prefix(kLengthBytes);
    if (length > body.size()) return std::nullopt;
    frame.fields.emplace_back(body.substr(0, length));
    body.remove_prefix(length);
  }
  return frame;
}

// Takes the next line, or all that is left, from `text`, and splits it at its first '='.
std::pair<std::string_view, std::string_view> take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(line.size() + 1, text.size()));
  const std::size_t equals = std::min(line.find('='), line.size());
  return {line.substr(0, equals), line.substr(std::min(equals + 1, line.size()))};
}

}  // namespace

std::string event_key(std::int64_t number) { return fmt::format("event/{}", number); }

std::string event_text(const BootstrapEvent& event) {
  return fmt::format("{} {} {}", event.lost ? "lost" : "said", event.rank, event.text);
}

std::optional<BootstrapEvent> parse_event(const std::string& text) {
  BootstrapEvent event;
  const std::size_t number = 5, end = text.find(' ', number);
  if (end == std::string::npos) return std::nullopt;
  const char *const from = text.data() + number, *const to = text.data() + end;
  const auto [stop, error] = std::from_chars(from, to, event.rank);
  if (error != std::errc() || stop != to) return std::nullopt;
  event.lost = text.compare(0, number, "lost ") == 0;
  event.text = text.substr(end + 1);
  return event;
}

std::string agreed_text(const std::vector<std::pair<std::string, std::string>>& agreed) {
  std::string text;
  for (const auto& [what, value] : agreed) text += fmt::format("{}={}\n", what, value);
  return text;
}

std::string agreed_difference(const std::string& theirs, const std::string& ours) {
  std::string_view left = theirs, right = ours;
  while (!left.empty() || !right.empty()) {
    const auto [what, value] = take_line(left);
    const auto [expected, expected_value] = take_line(right);
    if (what == expected && value == expected_value) continue;
    if (what == expected) {
      return fmt::format("has another {} than rank 0: {} against {}", what, value, expected_value);
    }
    return fmt::format("gives '{}={}' where rank 0 gives '{}={}': another AGPCS version", what,
                       value, expected, expected_value);
  }
  return {};
}

std::string encode(const Frame& frame) {
  std::string body(1, static_cast<char>(frame.kind));
  for (const std::string& field : frame.fields) {
    append_length(body, field.size());
    body += field;
  }
  std::string out;
  append_length(out, body.size());
  return out + body;
}

std::optional<Frame> FrameReader::next(std::size_t limit) {
  if (broken_ || bytes_.size() < kLengthBytes) return std::nullopt;
  const std::size_t length = read_length(bytes_);
  if (length > limit) {
    broken_ = true;
    return std::nullopt;
  }
  if (bytes_.size() < kLengthBytes + length) return std::nullopt;
  auto frame = decode(std::string_view(bytes_).substr(kLengthBytes, length));
  bytes_.erase(0, kLengthBytes + length);
  broken_ = !frame.has_value();
  return frame;
}

}  // namespace agpcs
