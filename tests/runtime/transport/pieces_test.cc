// SPDX-License-Identifier: Apache-2.0
#include "ir/base/rng.h"
#include "runtime/transport/wire.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace agpcs {
namespace {

/// A buffer in areas of random lengths, which lie apart in memory and in another order.
struct Scattered {
  explicit Scattered(Rng& rng) {
    std::vector<std::size_t> lengths(1 + rng.below(9));
    for (std::size_t& length : lengths) bytes += length = 1 + rng.below(12);
    memory.assign(2 * bytes, '.');
    std::size_t begin = 0, behind = memory.size();
    for (const std::size_t length : lengths) {
      behind -= 2 * length;
      areas.push_back({begin, memory.data() + behind});
      for (std::size_t i = 0; i < length; ++i) {
        memory[behind + i] = static_cast<char>('a' + (begin + i) % 26);
      }
      begin += length;
    }
    areas.push_back({bytes, nullptr});
  }
  std::string memory;
  std::vector<Area> areas;
  std::size_t bytes = 0;
};

std::string text_of(const Pieces& pieces, std::size_t from, std::size_t to, std::size_t* count) {
  std::string text;
  *count = 0;
  pieces.each(from, to, [&](Span piece) {
    text.append(piece.data, piece.bytes);
    ++*count;
    return true;
  });
  return text;
}

TEST(Pieces, AreTheBytesOfABufferInOrder) {
  Rng rng(5);
  for (int draw = 0; draw < 3000; ++draw) {
    Scattered buffer(rng);
    const std::size_t from = rng.below(buffer.bytes);
    const std::size_t to = from + 1 + rng.below(buffer.bytes - from);
    const Pieces pieces(buffer.areas, from, to);
    ASSERT_EQ(pieces.bytes(), to - from);
    const std::size_t begin = rng.below(to - from + 1);
    const std::size_t end = begin + rng.below(to - from - begin + 1);
    std::string expected;
    for (std::size_t i = from + begin; i < from + end; ++i) {
      expected += static_cast<char>('a' + i % 26);
    }
    std::size_t count = 0;
    ASSERT_EQ(text_of(pieces, begin, end, &count), expected);
    const auto inner = std::count_if(buffer.areas.begin(), buffer.areas.end(), [&](const Area& a) {
      return a.begin > from + begin && a.begin < from + end;
    });
    ASSERT_EQ(count, end > begin ? static_cast<std::size_t>(inner) + 1 : 0);
  }
}

TEST(Pieces, LieTogetherIfOneAreaHasThem) {
  std::string memory = "abc..de";
  const std::vector<Area> areas = {{0, memory.data()}, {3, memory.data() + 5}, {5, nullptr}};
  EXPECT_EQ(Pieces(areas, 1, 3).together(), memory.data() + 1);
  EXPECT_EQ(Pieces(areas, 3, 5).together(), memory.data() + 5);
  EXPECT_EQ(Pieces(areas, 2, 4).together(), nullptr);
}

TEST(Pieces, AreNoLongerCountedWhenNobodyWantsMore) {
  std::string memory = "abc";
  const std::vector<Area> areas = {
      {0, memory.data()}, {1, memory.data() + 2}, {2, memory.data() + 1}, {3, nullptr}};
  std::string text;
  Pieces(areas, 0, 3).each(0, 3, [&](Span piece) {
    text.append(piece.data, piece.bytes);
    return text.size() < 2;
  });
  EXPECT_EQ(text, "ac");
}

}  // namespace
}  // namespace agpcs
