// SPDX-License-Identifier: Apache-2.0
// Frames of the bootstrap's protocol: a length (4 bytes, little-endian), a kind (1 byte), then
// strings, each after its length (4 bytes). Anything else is refused.
#pragma once

#include <agpcs/bootstrap.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

enum class FrameKind : std::uint8_t {
  kHello = 1,  ///< rank -> service: magic, rank, size, identity, name, host, agreed
  kSet,        ///< rank -> service: key, value
  kGet,        ///< rank -> service: key; answered by kValue, perhaps much later
  kPing,       ///< both ways
  kFail,       ///< rank -> service: message; in a job that outlives ranks: what the rank says
  kBye,        ///< rank -> service
  kWelcome,    ///< service -> rank: admitted; name of rank 0
  kReady,      ///< service -> rank: every rank has joined
  kRefused,    ///< service -> rank: reason; then the connection ends
  kValue,      ///< service -> rank: key, value
  kFailed,     ///< service -> rank: message of the job's first failure
};
inline constexpr FrameKind kLastFrameKind = FrameKind::kFailed;

/// Name and version of the protocol, whose frames come after the proof of the token (proof.h). In
/// every version a hello begins with magic and rank.
inline constexpr char kBootstrapProtocol[] = "agpcs-bootstrap-";
inline constexpr char kBootstrapMagic[] = "agpcs-bootstrap-3";
inline constexpr std::size_t kHelloFields = 7;  ///< no frame has more
inline constexpr std::size_t kMaxKeyBytes = 256;
inline constexpr std::size_t kMaxValueBytes = 65536;
/// Largest body from a rank that is not admitted yet, and from an admitted one.
inline constexpr std::size_t kMaxHelloBytes = 2048;
inline constexpr std::size_t kMaxFrameBytes = kMaxValueBytes + 4096;

struct Frame {
  FrameKind kind = FrameKind::kPing;
  std::vector<std::string> fields;
};

std::string encode(const Frame& frame);

/// An event is stored as a value: `event_key` is the key of event `number`, `event_text` the value.
std::string event_key(std::int64_t number);
std::string event_text(const BootstrapEvent& event);
std::optional<BootstrapEvent> parse_event(const std::string& text);

/// Returns what ranks must agree on as one field, with a line "what=value" for each.
std::string agreed_text(const std::vector<std::pair<std::string, std::string>>& agreed);
/// Returns how two such fields differ, or an empty string if they are equal: "has another AGPCS
/// version than rank 0: 0.1.0 against 0.2.0".
std::string agreed_difference(const std::string& theirs, const std::string& ours);

/// Cuts frames out of a byte stream.
class FrameReader {
 public:
  void append(const char* data, std::size_t bytes) { bytes_.append(data, bytes); }
  /// Returns the next whole frame, if there is one. `broken()` is true once the bytes are not a
  /// frame, or a frame would be larger than `limit`.
  std::optional<Frame> next(std::size_t limit);
  bool broken() const { return broken_; }

 private:
  std::string bytes_;
  bool broken_ = false;
};

}  // namespace agpcs
