// SPDX-License-Identifier: Apache-2.0
// The smallest parts of ir: status, element types, generators, digest.
#include "ir/base/arena.h"
#include "ir/base/at.h"
#include "ir/base/largest_that_holds.h"
#include "ir/base/rng.h"
#include "ir/base/sha256.h"

#include <agpcs/digest.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory_resource>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

Result<int> half(int value) {
  if (value % 2 != 0) return invalid_input("odd");
  return value / 2;
}

Result<int> quarter(int value) {
  AGPCS_TRY(const int once, half(value));
  AGPCS_TRY(const int twice, half(once));
  return twice;
}

TEST(Status, TryReturnsTheFirstFailure) {
  EXPECT_EQ(*quarter(8), 2);
  EXPECT_EQ(quarter(6).status().message(), "odd");
}

TEST(Status, ExitCodesFollowTheHouse) {
  EXPECT_EQ(exit_code(StatusCode::kOk), 0);
  EXPECT_EQ(exit_code(StatusCode::kInvalidInput), 1);
  EXPECT_EQ(exit_code(StatusCode::kUsage), 2);
  EXPECT_EQ(exit_code(StatusCode::kInfeasible), 3);
  EXPECT_EQ(exit_code(StatusCode::kInternal), 70);
}

TEST(Types, NamesReadBack) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto type = static_cast<DType>(i);
    EXPECT_EQ(dtype_named(name_of(type)), type) << name_of(type);
  }
  EXPECT_EQ(dtype_named("float"), std::nullopt);
  for (const AllReduce algorithm : kAllReduces) {
    EXPECT_EQ(all_reduce_named(name_of(algorithm)), algorithm) << name_of(algorithm);
  }
  EXPECT_EQ(all_reduce_named("tree"), AllReduce::kTree);
  EXPECT_EQ(all_reduce_named("star"), std::nullopt);
  EXPECT_EQ(schedule_named("gpipe"), Schedule::kGPipe);
}

// Known answers of Random123 (Salmon et al.), kat_vectors: philox4x32, 10 rounds.
TEST(Philox, GivesThePublishedKnownAnswers) {
  using Words = std::array<std::uint32_t, 4>;
  EXPECT_EQ(philox(0, 0, 0), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(0xffffffffffffffff, 0xffffffffffffffff, 0xffffffffffffffff),
            (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

// SplitMix64 from seed 1234567, as published with the generator's reference code.
TEST(Rng, GivesTheReferenceSequence) {
  Rng rng(1234567);
  EXPECT_EQ(rng.next(), 6457827717110365317ULL);
  EXPECT_EQ(rng.next(), 3203168211198807973ULL);
  EXPECT_EQ(rng.next(), 9817491932198370423ULL);
}

TEST(Rng, AForkDependsOnItsNameAndNotOnOtherForks) {
  const Rng root(7);
  Rng a = root.fork("seed");
  Rng b = root.fork("refine");
  Rng again = root.fork("seed");
  const std::uint64_t first = a.next();
  EXPECT_NE(first, b.next());
  EXPECT_EQ(first, again.next());
}

TEST(Rng, BelowReachesEveryValueAndNoOther) {
  Rng rng(3);
  std::set<std::uint64_t> seen;
  for (int i = 0; i < 1000; ++i) seen.insert(rng.below(7));
  EXPECT_EQ(seen, (std::set<std::uint64_t>{0, 1, 2, 3, 4, 5, 6}));
  for (int i = 0; i < 1000; ++i) {
    const double u = rng.uniform();
    EXPECT_GE(u, 0);
    EXPECT_LT(u, 1);
  }
}

// Where this processor has instructions for it, they do what the portable code does.
TEST(Arena, GivesPiecesThatDoNotOverlap) {
  Arena arena;
  std::pmr::vector<std::pmr::vector<int>> lists(&arena);
  for (int i = 0; i < 100; ++i) {
    lists.emplace_back();
    for (int k = 0; k <= i; ++k) lists.back().push_back(100 * i + k);
  }
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k <= i; ++k) EXPECT_EQ(lists[at(i)][at(k)], 100 * i + k);
  }
  EXPECT_GE(arena.bytes(), 5050 * sizeof(int));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(arena.allocate(1, 64)) % 64, 0U);
}

TEST(Digest, IsTheSameWithAndWithoutTheProcessorsInstructions) {
  std::string text;
  for (int i = 0; i < 400; ++i, text += static_cast<char>(37 * i)) {
    EXPECT_EQ(digest_of(text), portable_digest_of(text)) << i;
  }
  Sha256 pieces;  // 63 bytes at a time, so that blocks are put together
  for (std::size_t at = 0; at < text.size(); at += 63) {
    pieces.update(text.data() + at, std::min<std::size_t>(63, text.size() - at));
  }
  EXPECT_EQ(pieces.digest(), portable_digest_of(text));
}

// FIPS 180-4 examples, and lengths around the padding boundary (values of coreutils' sha256sum).
TEST(Digest, IsSha256) {
  EXPECT_EQ(digest_of(""),
            "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(digest_of("abc"),
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(digest_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "sha256:248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(digest_of(std::string(55, 'a')),
            "sha256:9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(digest_of(std::string(56, 'a')),
            "sha256:b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(digest_of(std::string(63, 'a')),
            "sha256:7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34");
  EXPECT_EQ(digest_of(std::string(64, 'a')),
            "sha256:ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
  EXPECT_EQ(digest_of(std::string(65, 'a')),
            "sha256:635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0");
  EXPECT_EQ(digest_of(std::string(1000000, 'a')),
            "sha256:cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(LargestThatHolds, IsTheLastNumberThatDoesOrTheFirst) {
  std::vector<int> asked;
  const auto up_to = [&](int last) {
    return [&asked, last](int number) {
      asked.push_back(number);
      return number <= last;
    };
  };
  for (int last = 3; last < 12; ++last) {
    EXPECT_EQ(largest_that_holds(3, 12, up_to(last)), last);
  }
  EXPECT_EQ(largest_that_holds(3, 12, up_to(2)), 3);
  EXPECT_EQ(largest_that_holds(3, 12, up_to(50)), 11);
  asked.clear();
  EXPECT_EQ(largest_that_holds(3, 4, up_to(50)), 3);  // which the caller knows
  EXPECT_TRUE(asked.empty());
}

}  // namespace
}  // namespace agpcs
