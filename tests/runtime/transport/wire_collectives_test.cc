// SPDX-License-Identifier: Apache-2.0
// What a member of a collective sends and receives, in which order sums are made, and whether
// random groups and parts end as they should.
#include "runtime/transport/wire_collectives.h"

#include "ir/base/rng.h"
#include "tests/runtime/transport/log_wire.h"

#include <agpcs/loopback.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);

RankGroup group_of(const std::vector<int>& ranks, const std::vector<int>& hosts, int rank) {
  return *make_rank_group(0, ranks, hosts, rank, static_cast<int>(hosts.size()));
}

/// What the middle one of three ranks does.
std::string log_of(Collective kind, AllReduce algorithm, const Parts& parts,
                   std::size_t width = 4) {
  LogWire wire;
  WireCollectives collectives(wire, 1);
  std::size_t elements = 0;
  for (const std::int64_t part : parts) elements += static_cast<std::size_t>(part);
  std::vector<char> values(elements * width);
  const DType type = width == 4 ? DType::kInt32 : DType::kInt64;
  const Status status =
      collectives.run(group_of({0, 1, 2}, {0, 0, 1}, 1),
                      {kind, algorithm, {values.data(), values.size(), type, false}, &parts});
  EXPECT_TRUE(status.ok()) << status.message();
  return wire.take();
}

// In the last step a member adds to its own part, so it begins with that of the member before it.
TEST(WireCollectives, AReduceScatterIsTheFirstHalfOfARing) {
  EXPECT_EQ(log_of(Collective::kReduceScatter, AllReduce::kRing, {5, 3, 4}),
            "add 16 from 0\nadd 12 from 0\n"
            "send 20 to 2\n"
            "got from 0\nsend 16 to 2\n"
            "got from 0\n"
            "sent to 2\nsent to 2\n");
}

TEST(WireCollectives, AnAllGatherIsTheSecondHalfOfARing) {
  EXPECT_EQ(log_of(Collective::kAllGather, AllReduce::kRing, {5, 3, 4}),
            "recv 20 from 0\nrecv 16 from 0\n"
            "send 12 to 2\n"
            "got from 0\nsend 20 to 2\n"
            "got from 0\n"
            "sent to 2\nsent to 2\n");
}

TEST(WireCollectives, PartsWithoutElementsAreNotSent) {
  EXPECT_EQ(log_of(Collective::kReduceScatter, AllReduce::kRing, {0, 3, 0}),
            "add 12 from 0\ngot from 0\n");
  EXPECT_EQ(log_of(Collective::kAllGather, AllReduce::kTree, {3, 0, 0}),
            "recv 12 from 0\ngot from 0\n");
  EXPECT_EQ(log_of(Collective::kAllGather, AllReduce::kHierarchical, {0, 0, 0}), "");
}

TEST(WireCollectives, ALeaderGetsTheWholeBufferAndAMemberItsPart) {
  EXPECT_EQ(log_of(Collective::kReduceScatter, AllReduce::kHierarchical, {5, 3, 4}),
            "send 48 to 0\nsent to 0\nrecv 12 from 0\ngot from 0\n");
  EXPECT_EQ(log_of(Collective::kAllGather, AllReduce::kHierarchical, {5, 3, 4}),
            "send 12 to 0\nsent to 0\nrecv 48 from 0\ngot from 0\n");
}

// All belongs to rank 2. A segment leaves before the next one comes.
TEST(WireCollectives, ALongPartIsPassedOnSegmentBySegment) {
  const std::int64_t elements = (std::int64_t{3} << 20) / 4;
  EXPECT_EQ(log_of(Collective::kReduceScatter, AllReduce::kRing, {0, 0, elements}),
            "add 1048576 from 0\nadd 1048576 from 0\nadd 1048576 from 0\n"
            "got from 0\nsend 1048576 to 2\n"
            "got from 0\nsend 1048576 to 2\n"
            "got from 0\nsend 1048576 to 2\n"
            "sent to 2\nsent to 2\nsent to 2\n");
}

// Chunks are of four elements, whatever the areas.
TEST(WireCollectives, ASegmentMayLieInSeveralAreas) {
  LogWire wire;
  WireCollectives collectives(wire, 1);
  std::vector<float> values(12);
  const std::vector<Buffer> areas = {{values.data(), 12, DType::kFp32, false},
                                     {nullptr, 0, DType::kFp32, false},
                                     {values.data() + 6, 12, DType::kFp32, false},
                                     {values.data() + 3, 24, DType::kFp32, false}};
  const Status status =
      collectives.run(group_of({0, 1, 2}, {0, 0, 0}, 1), {Collective::kAllReduce,
                                                          AllReduce::kRing,
                                                          {nullptr, 48, DType::kFp32, false},
                                                          nullptr,
                                                          &areas});
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(wire.take(),
            "add 16 from 0\nadd 16 from 0\nrecv 16 from 0\nrecv 16 from 0\n"
            "send 16 to 2\n"
            "got from 0\nsend 16 to 2\ngot from 0\nsend 16 to 2\ngot from 0\nsend 16 to 2\n"
            "got from 0\n"
            "sent to 2\nsent to 2\nsent to 2\nsent to 2\n");
}

TEST(WireCollectives, OnlyContiguousHostsHaveARingOfLeaders) {
  EXPECT_TRUE(group_of({0, 1, 2, 3}, {4, 4, 1, 1}, 0).hosts_are_contiguous());
  EXPECT_FALSE(group_of({0, 1, 2}, {4, 1, 4}, 0).hosts_are_contiguous());
}

/// Runs `body` for each rank over loopback.
void on_ranks(int ranks, const std::function<void(Transport&)>& body) {
  LoopbackHub hub(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] { body(*hub.join(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
}

// Chunk c begins at member c: ((v[c] + v[c + 1]) + ...). Fractions show another order.
TEST(WireCollectives, ARingAddsFromTheMemberThatAChunkBeginsAt) {
  constexpr int kRanks = 4;
  constexpr std::size_t kElements = 1003;
  const auto value = [](int rank, std::size_t i) {
    return 1.F / static_cast<float>(3 * i + 7 * static_cast<std::size_t>(rank) + 1);
  };
  on_ranks(kRanks, [&](Transport& transport) {
    ASSERT_TRUE(transport.open_group(0, {0, 1, 2, 3}, {0, 0, 0, 0}).ok());
    std::vector<float> values(kElements), expected(kElements);
    for (std::size_t i = 0; i < kElements; ++i) {
      values[i] = value(transport.rank(), i);
      // Chunks have 251, 251, 251 and 250 elements.
      const int chunk = static_cast<int>(i / 251);
      expected[i] = value(chunk, i);
      for (int r = 1; r < kRanks; ++r) expected[i] += value((chunk + r) % kRanks, i);
    }
    const auto ticket = transport.all_reduce({values.data(), 4 * kElements, DType::kFp32, false}, 0,
                                             AllReduce::kRing);
    ASSERT_TRUE(transport.wait(Stream::kCollective, *ticket, kLong).ok());
    EXPECT_EQ(values, expected);
  });
}

/// A random group of `size` ranks, and parts of a buffer.
struct Draw {
  std::vector<int> ranks, hosts;
  Parts parts;
  AllReduce algorithm = AllReduce::kRing;
  std::size_t elements = 0;
};

Draw drawn(Rng& rng, int size) {
  Draw draw;
  for (int rank = 0; rank < size; ++rank) {
    draw.hosts.push_back(static_cast<int>(rng.below(3)));
    if (rng.below(3) > 0) draw.ranks.push_back(rank);
  }
  if (rng.below(2) == 0) std::sort(draw.hosts.begin(), draw.hosts.end());
  const std::uint64_t most = std::vector<std::uint64_t>{2, 50, 40'000}[rng.below(3)];
  for (std::size_t i = 0; i < draw.ranks.size(); ++i) {
    draw.parts.push_back(rng.below(3) == 0 ? 0 : static_cast<std::int64_t>(rng.below(most)));
    draw.elements += static_cast<std::size_t>(draw.parts.back());
  }
  draw.algorithm = kAllReduces[rng.below(3)];
  return draw;
}

// Scatters and gathers random numbers, beside an all-reduce of them, over one random group after
// the other.
TEST(WireCollectives, ScatteredAndGatheredSumsAreThoseOfAnAllReduce) {
  constexpr int kRanks = 6, kDraws = 150;
  std::vector<Draw> draws;
  Rng rng(17);
  while (draws.size() < kDraws) {
    draws.push_back(drawn(rng, kRanks));
    if (draws.back().ranks.empty()) draws.pop_back();
  }
  on_ranks(kRanks, [&](Transport& transport) {
    for (std::size_t d = 0; d < draws.size(); ++d) {
      const Draw& draw = draws[d];
      const auto me = std::find(draw.ranks.begin(), draw.ranks.end(), transport.rank());
      if (me == draw.ranks.end()) continue;
      const int group = static_cast<int>(d);
      ASSERT_TRUE(transport.open_group(group, draw.ranks, draw.hosts).ok());
      Rng own(1000 * d + static_cast<std::uint64_t>(transport.rank()));
      std::vector<std::int64_t> scattered(draw.elements);
      for (std::int64_t& value : scattered) value = static_cast<std::int64_t>(own.below(1 << 30));
      std::vector<std::int64_t> summed = scattered;
      const auto buffer_of = [](std::vector<std::int64_t>& values) {
        return Buffer{values.data(), 8 * values.size(), DType::kInt64, false};
      };
      const auto done = [&](const Result<Ticket>& ticket) {
        ASSERT_TRUE(ticket.ok()) << ticket.status().message();
        const Status status = transport.wait(Stream::kCollective, *ticket, kLong);
        ASSERT_TRUE(status.ok()) << status.message();
      };
      const Buffer buffer = buffer_of(scattered);
      const auto first = transport.reduce_scatter(buffer, draw.parts, group, draw.algorithm);
      ASSERT_TRUE(first.ok()) << first.status().message();
      done(transport.all_reduce(buffer_of(summed), group, draw.algorithm));
      std::int64_t* part = scattered.data();
      for (auto i = draw.ranks.begin(); i != me; ++i)
        part += draw.parts[static_cast<std::size_t>(i - draw.ranks.begin())];
      const std::int64_t* end =
          part + draw.parts[static_cast<std::size_t>(me - draw.ranks.begin())];
      const std::string what = fmt::format("draw {}: {} over ranks {} on hosts {}, parts {}", d,
                                           name_of(draw.algorithm), fmt::join(draw.ranks, ","),
                                           fmt::join(draw.hosts, ","), fmt::join(draw.parts, ","));
      EXPECT_TRUE(std::equal(part, part + (end - part), summed.data() + (part - scattered.data())))
          << what;
      std::fill(scattered.data(), part, -1);
      std::fill(part + (end - part), scattered.data() + scattered.size(), -1);
      done(transport.all_gather(buffer, draw.parts, group, draw.algorithm));
      EXPECT_TRUE(scattered == summed) << what;
    }
  });
}

}  // namespace
}  // namespace agpcs
