// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap_frame.h"

#include <string_view>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kLengthBytes = 4;
constexpr std::size_t kMaxFields = 8;

void append_length(std::string& out, std::size_t value) {
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xff));
}

std::size_t read_length(std::string_view bytes) {
  std::size_t value = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) {
    value |= static_cast<std::size_t>(static_cast<unsigned char>(bytes[i])) << (8 * i);
  }
  return value;
}

std::optional<Frame> decode(std::string_view body) {
  if (body.empty()) return std::nullopt;
  const auto kind = static_cast<std::uint8_t>(body[0]);
  if (kind == 0 || kind > static_cast<std::uint8_t>(kLastFrameKind)) return std::nullopt;
  Frame frame{static_cast<FrameKind>(kind), {}};
  body.remove_prefix(1);
  while (!body.empty()) {
    if (body.size() < kLengthBytes || frame.fields.size() == kMaxFields) return std::nullopt;
    const std::size_t length = read_length(body);
    body.remove_prefix(kLengthBytes);
    if (length > body.size()) return std::nullopt;
    frame.fields.emplace_back(body.substr(0, length));
    body.remove_prefix(length);
  }
  return frame;
}

}  // namespace

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
