// SPDX-License-Identifier: Apache-2.0
// Frames of the bootstrap's protocol: what is cut out of a byte stream does not depend on how the
// stream arrives, stays within its limit, and is what `encode` writes.
#include "runtime/bootstrap/frame.h"
#include "tests/fuzz/fuzz.h"

#include <algorithm>
#include <string>
#include <vector>

namespace agpcs {
namespace {

struct Cut {
  std::string frames;  // as `encode` writes them
  bool broken = false;
};

/// Feeds `stream` in pieces of `piece` bytes. As the service does, the first frame may be small
/// only.
Cut cut(std::string_view stream, std::size_t piece) {
  FrameReader reader;
  Cut result;
  std::size_t limit = kMaxHelloBytes;
  for (std::size_t at = 0; at < stream.size() && !reader.broken(); at += piece) {
    const std::size_t size = std::min(piece, stream.size() - at);
    reader.append(stream.data() + at, size);
    while (const auto frame = reader.next(limit)) {
      const std::string bytes = encode(*frame);
      fuzz::require(bytes.size() <= limit + 4, "a frame is within its limit");
      result.frames += bytes;
      limit = kMaxFrameBytes;
    }
  }
  result.broken = reader.broken();
  return result;
}

}  // namespace
}  // namespace agpcs

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace agpcs;
  const std::string_view stream = fuzz::text_of(data, size);
  const Cut whole = cut(stream, size + 1);
  const Cut bytewise = cut(stream, 1);
  fuzz::require(whole.frames == bytewise.frames && whole.broken == bytewise.broken,
                "frames do not depend on how the stream arrives");
  fuzz::require(stream.substr(0, whole.frames.size()) == whole.frames,
                "frames are written as they are read");
  return 0;
}
