// SPDX-License-Identifier: Apache-2.0
// What every transport promises of reduce-scatters, all-gathers and all-to-alls.
#include "tests/runtime/transport/conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using Parts = std::vector<std::int64_t>;

class TransportConformanceParts : public TransportConformance {};

INSTANTIATE_TEST_SUITE_P(All, TransportConformanceParts, ::testing::ValuesIn(worlds()),
                         [](const auto& world) { return world.param.name; });

std::size_t elements_of(const Parts& parts) {
  return static_cast<std::size_t>(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}));
}

/// Equal parts, unequal ones, some without elements, and all elements in the first, a middle and
/// the last rank's part.
std::vector<Parts> parts_of(int ranks, std::int64_t unit) {
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<Parts> all = {Parts(n, unit), Parts(n), Parts(n)};
  for (std::size_t i = 0; i < n; ++i) {
    all[1][i] = std::vector<std::int64_t>{5, 3, 4, 1, 7}[i] * unit + static_cast<std::int64_t>(i);
    all[2][i] = i % 2 == 0 ? 0 : 2 * unit + 1;
  }
  for (const std::size_t owner : {std::size_t{0}, n / 2, n - 1}) {
    all.emplace_back(n);
    all.back()[owner] = 3 * unit + 1;
  }
  return all;
}

template <typename T>
T encoded(DType type, int value) {
  if (type == DType::kFp16) return static_cast<T>(fp16_of(static_cast<float>(value)));
  if (type == DType::kBf16) return static_cast<T>(bf16_of(static_cast<float>(value)));
  return static_cast<T>(value);
}

/// Scatters the sum, spoils what belongs to other ranks, and gathers. Ranks hold value x (rank +
/// 1), as in `sums_exactly`.
template <typename T>
void scatters_and_gathers(Transport& transport, DType type, AllReduce algorithm,
                          const Parts& parts) {
  const int n = transport.size();
  const std::size_t elements = elements_of(parts);
  std::vector<T> values(elements), sums(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    const int value = static_cast<int>(i % 11) - 5;
    values[i] = encoded<T>(type, value * (transport.rank() + 1));
    sums[i] = encoded<T>(type, value * n * (n + 1) / 2);
  }
  wait_for(transport, Stream::kCollective,
           transport.reduce_scatter(buffer_of(values, type), parts, 0, algorithm));
  const auto me = static_cast<std::ptrdiff_t>(transport.rank());
  const auto begin = std::accumulate(parts.begin(), parts.begin() + me, std::int64_t{0}),
             end = begin + parts[static_cast<std::size_t>(me)];
  const std::string what = std::string(name_of(type)) + " by " + std::string(name_of(algorithm)) +
                           ", parts " + ::testing::PrintToString(parts);
  EXPECT_TRUE(std::equal(values.begin() + begin, values.begin() + end, sums.begin() + begin))
      << what;
  std::fill(values.begin(), values.begin() + begin, static_cast<T>(me + 1));
  std::fill(values.begin() + end, values.end(), static_cast<T>(me + 1));
  wait_for(transport, Stream::kCollective,
           transport.all_gather(buffer_of(values, type), parts, 0, algorithm));
  EXPECT_TRUE(values == sums) << what;
}

/// Gathers without a sum, so in any type: each element is the rank that it belongs to.
template <typename T>
void gathers_only(Transport& transport, DType type, AllReduce algorithm, const Parts& parts) {
  std::vector<T> values(elements_of(parts), static_cast<T>(transport.rank() % 2)), expected;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    expected.insert(expected.end(), static_cast<std::size_t>(parts[r]), static_cast<T>(r % 2));
  }
  wait_for(transport, Stream::kCollective,
           transport.all_gather(buffer_of(values, type), parts, 0, algorithm));
  EXPECT_EQ(values, expected) << name_of(type) << " by " << name_of(algorithm);
}

const std::vector<std::vector<int>>& layouts() {
  static const std::vector<std::vector<int>> all = {
      {0},          {0, 0},       {0, 1},          {0, 0, 1},       {0, 1, 0},      {0, 1, 1, 1},
      {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 2, 2}, {0, 0, 0, 1, 2}, {0, 1, 2, 0, 1}};
  return all;
}

TEST_P(TransportConformanceParts, EveryRankEndsWithItsPartAndThenWithAll) {
  for (const auto& hosts : layouts()) {
    const int ranks = static_cast<int>(hosts.size());
    run(ranks, [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), hosts));
      for (const AllReduce algorithm : kAllReduces) {
        for (const std::int64_t unit : {0, 333}) {
          for (const Parts& parts : parts_of(ranks, unit)) {
            scatters_and_gathers<std::int32_t>(transport, DType::kInt32, algorithm, parts);
          }
        }
      }
    });
  }
}

// Several segments a part, more of them than are asked for ahead.
TEST_P(TransportConformanceParts, LargePartsTravelInSegments) {
  run(3, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), {0, 0, 1}));
    for (const AllReduce algorithm : kAllReduces) {
      scatters_and_gathers<float>(transport, DType::kFp32, algorithm, {400'001, 0, 700'000});
    }
    for (const Parts& parts : {Parts{0, 5'000'001, 0}, Parts{2'500'000, 300'001, 1}}) {
      scatters_and_gathers<float>(transport, DType::kFp32, AllReduce::kRing, parts);
    }
  });
}

TEST_P(TransportConformanceParts, EveryTypeIsScatteredAndAnyIsGathered) {
  run(3, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), {0, 0, 1}));
    for (const AllReduce algorithm : kAllReduces) {
      for (const Parts& parts : {Parts{7, 7, 7}, Parts{5, 0, 12}}) {
        scatters_and_gathers<float>(transport, DType::kFp32, algorithm, parts);
        scatters_and_gathers<double>(transport, DType::kFp64, algorithm, parts);
        scatters_and_gathers<std::int64_t>(transport, DType::kInt64, algorithm, parts);
        scatters_and_gathers<std::int32_t>(transport, DType::kInt32, algorithm, parts);
        scatters_and_gathers<std::uint16_t>(transport, DType::kFp16, algorithm, parts);
        scatters_and_gathers<std::uint16_t>(transport, DType::kBf16, algorithm, parts);
        gathers_only<std::int16_t>(transport, DType::kInt16, algorithm, parts);
        gathers_only<std::int8_t>(transport, DType::kInt8, algorithm, parts);
        gathers_only<std::uint8_t>(transport, DType::kUint8, algorithm, parts);
        gathers_only<std::uint8_t>(transport, DType::kBool, algorithm, parts);
      }
    }
  });
}

TEST_P(TransportConformanceParts, PartsAndWholesAlternateWithoutWaits) {
  run(4, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), {0, 0, 1, 1}));
    const Parts parts = {100, 0, 1, 301};
    const std::int64_t rank = transport.rank();
    constexpr std::size_t kRounds = 9;
    std::vector<std::vector<std::int64_t>> scattered(kRounds), summed(kRounds), gathered(kRounds);
    Result<Ticket> last = Ticket{0};
    for (std::size_t i = 0; i < kRounds; ++i) {
      scattered[i].assign(402, rank + static_cast<std::int64_t>(i));
      summed[i].assign(402, rank);
      const AllReduce one = kAllReduces[i % 3], other = kAllReduces[i / 3];
      gathered[i].assign(402, rank);
      ASSERT_TRUE(
          transport.reduce_scatter(buffer_of(scattered[i], DType::kInt64), parts, 0, one).ok());
      ASSERT_TRUE(transport.all_reduce(buffer_of(summed[i], DType::kInt64), 0, other).ok());
      last = transport.all_gather(buffer_of(gathered[i], DType::kInt64), parts, 0, other);
    }
    wait_for(transport, Stream::kCollective, last);
    std::vector<std::int64_t> owners;
    for (std::size_t r = 0; r < parts.size(); ++r) {
      owners.insert(owners.end(), static_cast<std::size_t>(parts[r]), static_cast<std::int64_t>(r));
    }
    for (std::size_t i = 0; i < kRounds; ++i) {
      for (std::size_t at = 0; at < owners.size(); ++at) {
        if (owners[at] == rank) {
          ASSERT_EQ(scattered[i][at], 6 + 4 * static_cast<std::int64_t>(i));
        }
      }
      EXPECT_EQ(summed[i], std::vector<std::int64_t>(402, 6));
      EXPECT_EQ(gathered[i], owners);
    }
    const OperationTime time = transport.time_of(Stream::kCollective, *last);
    EXPECT_GT(time.begin, 0);
    EXPECT_GE(time.end, time.begin);
  });
}

/// Returns how many elements rank `from` of a test gives rank `to`.
std::int64_t given(int from, int to, std::int64_t unit) {
  if (from == to || (from + 2 * to) % 5 == 4) return 0;
  return unit * (1 + from) + 7 * to;
}

/// Exchanges values that say whose they are.
void exchanges_all(Transport& transport, int group, const std::vector<int>& ranks,
                   std::int64_t unit) {
  const auto value = [](int from, int to, std::int64_t i) { return 1000 * from + 100 * to + i; };
  const int me = transport.rank();
  Parts parts;
  for (const int rank : ranks) parts.push_back(given(me, rank, unit));
  for (const int rank : ranks) parts.push_back(given(rank, me, unit));
  std::vector<std::int64_t> values, expected;
  for (const int to : ranks) {
    for (std::int64_t i = 0; i < given(me, to, unit); ++i) values.push_back(value(me, to, i));
  }
  expected = values;
  for (const int from : ranks) {
    for (std::int64_t i = 0; i < given(from, me, unit); ++i) expected.push_back(value(from, me, i));
  }
  values.resize(expected.size(), -1);
  wait_for(transport, Stream::kCollective,
           transport.all_to_all(buffer_of(values, DType::kInt64), parts, group));
  EXPECT_TRUE(values == expected) << "rank " << me << " of " << ranks.size() << ", unit " << unit;
}

TEST_P(TransportConformanceParts, EachRankGetsFromEachWhatThatGivesIt) {
  for (const int size : {2, 3, 5}) {
    run(size, [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
      const std::vector<int> some = {0, size - 1};
      const bool in_some = transport.rank() == some[0] || transport.rank() == some[1];
      if (in_some) expect_ok(transport.open_group(1, some, one_host(transport)));
      // Several segments a part; none at all; parts of some ranks alone.
      for (const std::int64_t unit : {100'001, 0, 13}) {
        exchanges_all(transport, 0, all_of(transport), unit);
        if (in_some) exchanges_all(transport, 1, some, unit);
      }
    });
  }
}

// What passes of a team exchange does not wait for messages between stages, which come later.
TEST_P(TransportConformanceParts, AnExchangeOvertakesMessagesThatAreUnderWay) {
  run(2, [](Transport& transport) {
    expect_ok(transport.open_group(0, {0, 1}, one_host(transport)));
    const int other = 1 - transport.rank();
    std::vector<std::int64_t> in(5, -1), out(5, transport.rank());
    const auto awaited = transport.recv(buffer_of(in, DType::kInt64), other, 3);
    exchanges_all(transport, 0, {0, 1}, 20);
    const auto left = transport.send(buffer_of(out, DType::kInt64), other, 3);
    wait_for(transport, Stream::kSend, left);
    wait_for(transport, Stream::kRecv, awaited);
    EXPECT_EQ(in, std::vector<std::int64_t>(5, other));
  });
}

TEST_P(TransportConformanceParts, RefusesPartsThatDoNotGoBothWays) {
  run(2, [](Transport& transport) {
    std::vector<int> values(4);
    const Buffer buffer = buffer_of(values, DType::kInt32);
    expect_ok(transport.open_group(3, {0, 1}, {0, 0}));
    const auto said = [&](const Parts& parts) {
      return transport.all_to_all(buffer, parts, 3).status().message();
    };
    const std::string me = std::to_string(transport.rank());
    const bool first = transport.rank() == 0;
    EXPECT_EQ(said({4, 0}), "all_to_all: 2 parts for the 2 ranks 0,1 of group 3");
    EXPECT_EQ(said({1, 1, 1, 1}),
              "all_to_all: rank " + me + " has parts for itself, of 1 and 1 elements");
    EXPECT_EQ(said(first ? Parts{0, 1, 0, 1} : Parts{1, 0, 1, 0}),
              "all_to_all: the parts " + std::string(first ? "0,1,0,1" : "1,0,1,0") +
                  " have 2 elements, the buffer has 4 (16 bytes of int32)");
    EXPECT_EQ(transport.all_to_all(buffer, {0, 0, 0, 0}, 4).status().message(),
              "group 4 is not open");
  });
}

TEST_P(TransportConformanceParts, ATimeoutNamesTheCollectiveAndTheRankThatIsMissing) {
  for (const bool scatters : {true, false}) {
    run(2, [&](Transport& transport) {
      expect_ok(transport.open_group(0, {0, 1}, one_host(transport)));
      if (transport.rank() == 1) return stay_until_failure(transport, 0);
      std::vector<int> values(16);
      const Parts parts = {4, 12};
      const Buffer buffer = buffer_of(values, DType::kInt32);
      const auto ticket = scatters ? transport.reduce_scatter(buffer, parts, 0, AllReduce::kRing)
                                   : transport.all_gather(buffer, parts, 0, AllReduce::kTree);
      ASSERT_TRUE(ticket.ok());
      const Status status = transport.wait(Stream::kCollective, *ticket, milliseconds(50));
      EXPECT_EQ(status.code(), StatusCode::kTimeout);
      EXPECT_EQ(status.message(), std::string(scatters ? "reduce_scatter" : "all_gather") +
                                      " of 64 bytes over ranks 0,1, waiting for rank 1: timed out "
                                      "after 50 ms");
      transport.abort(status);
    });
  }
}

TEST_P(TransportConformanceParts, APeerThatLeavesIsNoticed) {
  run(3, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    if (transport.rank() == 2) return;  // leaves
    std::vector<int> sums(1'000'000), values(1'000'000);
    const Parts parts = {400'000, 100'000, 500'000};
    const auto scattered =
        transport.reduce_scatter(buffer_of(sums, DType::kInt32), parts, 0, AllReduce::kRing);
    const auto gathered =
        transport.all_gather(buffer_of(values, DType::kInt32), parts, 0, AllReduce::kTree);
    const Status status =
        gathered.ok() ? transport.wait(Stream::kCollective, *gathered, kLong) : gathered.status();
    EXPECT_EQ(status.code(), StatusCode::kPeerFailed) << status.message();
    transport.abort(status);
  });
}

TEST_P(TransportConformanceParts, RefusesPartsThatCannotBe) {
  run(2, [](Transport& transport) {
    std::vector<int> values(13);
    const Buffer buffer = buffer_of(values, DType::kInt32);
    expect_ok(transport.open_group(3, {0, 1}, {0, 0}));
    const auto said = [&](const Buffer& of, const Parts& parts, int group = 3,
                          AllReduce algorithm = AllReduce::kRing) {
      const std::string one =
          transport.reduce_scatter(of, parts, group, algorithm).status().message();
      std::string other = transport.all_gather(of, parts, group, algorithm).status().message();
      const auto at = other.find("all_gather");
      if (at != std::string::npos) other.replace(at, 10, "reduce_scatter");
      EXPECT_EQ(one, other);
      return one;
    };
    EXPECT_EQ(said(buffer, {13, 0}, 4), "group 4 is not open");
    EXPECT_EQ(said(buffer, {13}), "reduce_scatter: 1 parts for the 2 ranks 0,1 of group 3");
    EXPECT_EQ(said(buffer, {4, 4, 5}), "reduce_scatter: 3 parts for the 2 ranks 0,1 of group 3");
    EXPECT_EQ(said(buffer, {14, -1}), "reduce_scatter: the part of rank 1 has -1 elements, of 13");
    EXPECT_EQ(
        said(buffer, {6, 6}),
        "reduce_scatter: the parts 6,6 have 12 elements, the buffer has 13 (52 bytes of int32)");
    EXPECT_THAT(said(buffer, {7, 7}), HasSubstr("have 14 elements, the buffer has 13"));
    EXPECT_THAT(said({values.data(), 51, DType::kInt32, false}, {6, 6}),
                HasSubstr("have 12 elements, the buffer has 12 (51 bytes of int32)"));
    const std::int64_t most = std::numeric_limits<std::int64_t>::max();
    EXPECT_THAT(said(buffer, {most, most}), HasSubstr("the buffer has 13"));
    EXPECT_EQ(said(buffer, {13, 0}, 3, AllReduce::kFlow),
              "reduce_scatter: flow is not one of its algorithms: ring, hierarchical, tree");
    const Parts parts = {4, 0};
    EXPECT_EQ(
        transport
            .reduce_scatter({values.data(), 4, DType::kBool, false}, parts, 3, AllReduce::kRing)
            .status()
            .message(),
        "reduce_scatter: no sum of bool values");
  });
}

}  // namespace
}  // namespace agpcs
