// SPDX-License-Identifier: Apache-2.0
// What every transport promises, run on each of them.
#include "tests/runtime/transport/conformance.h"
#include "tests/support/fork_shared.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(All, TransportConformance, ::testing::ValuesIn(worlds()),
                         [](const auto& world) { return world.param.name; });

TEST_P(TransportConformance, KnowsItsRankAndSize) {
  run(3, [](Transport& transport) {
    EXPECT_EQ(transport.size(), 3);
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    std::vector<int> sum{1 << transport.rank()};
    wait_for(transport, Stream::kCollective,
             transport.all_reduce(buffer_of(sum, DType::kInt32), 0, AllReduce::kRing));
    EXPECT_EQ(sum.front(), 7);
  });
}

TEST_P(TransportConformance, DeliversMessagesOfOneTagInOrder) {
  run(2, [](Transport& transport) {
    constexpr int kMessages = 50;
    std::vector<std::vector<int>> values(kMessages, std::vector<int>(3, -1));
    Ticket last = 0;
    for (int i = 0; i < kMessages; ++i) {
      auto& value = values[static_cast<std::size_t>(i)];
      if (transport.rank() == 0) value.assign(3, i);
      const Buffer buffer = buffer_of(value, DType::kInt32);
      const auto ticket =
          transport.rank() == 0 ? transport.send(buffer, 1, 7) : transport.recv(buffer, 0, 7);
      ASSERT_TRUE(ticket.ok()) << ticket.status().message();
      EXPECT_EQ(*ticket, last + 1);
      last = *ticket;
    }
    const Stream stream = transport.rank() == 0 ? Stream::kSend : Stream::kRecv;
    expect_ok(transport.wait(stream, last, kLong));
    for (int i = 0; i < kMessages; ++i) {
      EXPECT_EQ(values[static_cast<std::size_t>(i)], std::vector<int>(3, i));
    }
  });
}

TEST_P(TransportConformance, TellsTagsApart) {
  if (GetParam().ordered_pairs) GTEST_SKIP() << GetParam().name << ": receives in the order sent";
  run(2, [](Transport& transport) {
    std::vector<int> a(1, 1), b(1, 2);
    if (transport.rank() == 0) {
      const auto first = transport.send(buffer_of(a, DType::kInt32), 1, 100);
      const auto second = transport.send(buffer_of(b, DType::kInt32), 1, 200);
      ASSERT_TRUE(first.ok());
      wait_for(transport, Stream::kSend, second);
    } else {
      a[0] = b[0] = 0;
      const auto second = transport.recv(buffer_of(b, DType::kInt32), 0, 200);
      const auto first = transport.recv(buffer_of(a, DType::kInt32), 0, 100);
      ASSERT_TRUE(second.ok());
      wait_for(transport, Stream::kRecv, first);
      EXPECT_EQ(a[0], 1);
      EXPECT_EQ(b[0], 2);
    }
  });
}

TEST_P(TransportConformance, SendsEverySizeFromEmptyToLarge) {
  run(2, [](Transport& transport) {
    for (const std::size_t elements : {0, 1, 2, 255, 4096, 100003, 3000000}) {
      std::vector<float> values(elements, transport.rank() == 0 ? 1.5F : 0.F);
      const Buffer buffer = buffer_of(values, DType::kFp32);
      if (transport.rank() == 0) {
        wait_for(transport, Stream::kSend, transport.send(buffer, 1, elements));
      } else {
        wait_for(transport, Stream::kRecv, transport.recv(buffer, 0, elements));
        EXPECT_EQ(values, std::vector<float>(elements, 1.5F)) << elements << " elements";
      }
    }
  });
}

TEST_P(TransportConformance, ExchangesInBothDirectionsAtOnce) {
  run(2, [](Transport& transport) {
    std::vector<int> out(500000, transport.rank() + 1), in(500000, 0);
    const int peer = 1 - transport.rank();
    const auto sent = transport.send(buffer_of(out, DType::kInt32), peer, 0);
    const auto received = transport.recv(buffer_of(in, DType::kInt32), peer, 0);
    wait_for(transport, Stream::kRecv, received);
    wait_for(transport, Stream::kSend, sent);
    EXPECT_EQ(in, std::vector<int>(500000, peer + 1));
  });
}

TEST_P(TransportConformance, RingSumsEveryTypeAndSize) {
  for (const int ranks : {1, 2, 3, 5}) {
    run(ranks, [](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
      for (const std::size_t elements : {0, 1, 2, 3, 17, 1000, 300001, 1500001}) {
        sums_all_types(transport, {AllReduce::kRing}, elements);
      }
    });
  }
}

TEST_P(TransportConformance, HierarchicalSumsOverHostsOfAnySize) {
  const std::vector<std::vector<int>> layouts{
      {0}, {0, 0}, {0, 1}, {0, 0, 1}, {0, 1, 1, 2, 2}, {0, 0, 1, 1}, {0, 1, 0, 1}};
  for (const auto& hosts : layouts) {
    run(static_cast<int>(hosts.size()), [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), hosts));
      for (const std::size_t elements : {0, 1, 5, 70000}) {
        sums_all_types(transport, {AllReduce::kHierarchical}, elements);
      }
    });
  }
}

TEST_P(TransportConformance, TreeSumsOverHostsOfAnySize) {
  const std::vector<std::vector<int>> layouts{{0},          {0, 0},          {0, 1},
                                              {0, 0, 0},    {0, 1, 2},       {0, 0, 1},
                                              {0, 1, 0, 1}, {0, 0, 1, 1, 2}, {0, 0, 0, 0, 0}};
  for (const auto& hosts : layouts) {
    run(static_cast<int>(hosts.size()), [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), hosts));
      for (const std::size_t elements : {0, 1, 2, 17, 70000, 300001}) {
        sums_all_types(transport, {AllReduce::kTree}, elements);
      }
    });
  }
}

// Areas that divide chunks and segments anywhere, with nothing in some of them.
TEST_P(TransportConformance, SumsAreasAsOneBuffer) {
  const std::vector<std::vector<std::size_t>> lengths = {{1, 1},
                                                         {0, 3, 0},
                                                         {17, 300'001, 5, 0, 1'500'001, 2},
                                                         {700'000, 700'000, 1, 1},
                                                         std::vector<std::size_t>(5'000, 67)};
  for (const int ranks : {1, 2, 4}) {
    run(ranks, [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
      for (const auto& of : lengths) {
        for (const AllReduce algorithm : {AllReduce::kRing, AllReduce::kTree}) {
          const auto value = [&](std::size_t i) {
            return 1.F / static_cast<float>(i % 1009 + 3 * (transport.rank() + 1));
          };
          std::vector<float> whole;
          std::vector<std::vector<float>> parts;
          std::vector<Buffer> areas;
          for (const std::size_t length : of) {
            parts.emplace_back(length);
            for (float& each : parts.back()) whole.push_back(each = value(whole.size()));
          }
          for (auto& part : parts) areas.push_back(buffer_of(part, DType::kFp32));
          wait_for(transport, Stream::kCollective,
                   transport.all_reduce(buffer_of(whole, DType::kFp32), 0, algorithm));
          wait_for(transport, Stream::kCollective, transport.all_reduce_areas(areas, 0, algorithm));
          const bool one_ring = algorithm == AllReduce::kRing && GetParam().name != "nccl";
          const float* expected = whole.data();
          for (const auto& part : parts) {
            for (const float sum : part) {
              if (one_ring) {
                ASSERT_EQ(sum, *expected) << "area of " << part.size();
              } else {
                ASSERT_FLOAT_EQ(sum, *expected) << "area of " << part.size();
              }
              ++expected;
            }
          }
        }
      }
    });
  }
}

TEST_P(TransportConformance, AlternatesAlgorithmsOnOneGroup) {
  run(5, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), {0, 0, 1, 1, 1}));
    for (int round = 0; round < 3; ++round) {
      for (const AllReduce algorithm : kAllReduces) sums_all_types(transport, {algorithm}, 40001);
    }
  });
}

TEST_P(TransportConformance, EveryMemberEndsWithTheSameBytes) {
  for (const AllReduce algorithm : kAllReduces) {
    std::vector<std::vector<float>> results(4);
    run(4, [&](Transport& transport) {
      expect_ok(transport.open_group(0, all_of(transport), {0, 0, 1, 1}));
      std::vector<float> values(10007);
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] =
            1.F / static_cast<float>(3 * i + 7 * static_cast<std::size_t>(transport.rank()) + 1);
      }
      wait_for(transport, Stream::kCollective,
               transport.all_reduce(buffer_of(values, DType::kFp32), 0, algorithm));
      results[static_cast<std::size_t>(transport.rank())] = values;
    });
    for (const auto& result : results) EXPECT_EQ(result, results[0]);
  }
}

TEST_P(TransportConformance, KeepsGroupsApart) {
  run(4, [](Transport& transport) {
    const int half = transport.rank() / 2;
    const std::vector<int> pair{2 * half, 2 * half + 1};
    expect_ok(transport.open_group(9, all_of(transport), one_host(transport)));
    expect_ok(transport.open_group(half, pair, one_host(transport)));
    std::vector<std::int64_t> in_pair{transport.rank()}, in_all{transport.rank()};
    const auto first =
        transport.all_reduce(buffer_of(in_pair, DType::kInt64), half, AllReduce::kRing);
    const auto second = transport.all_reduce(buffer_of(in_all, DType::kInt64), 9, AllReduce::kRing);
    ASSERT_TRUE(first.ok());
    wait_for(transport, Stream::kCollective, second);
    EXPECT_EQ(in_pair[0], 4 * half + 1);
    EXPECT_EQ(in_all[0], 6);
  });
}

TEST_P(TransportConformance, RunsStreamsConcurrently) {
  run(2, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    const int peer = 1 - transport.rank();
    constexpr int kRounds = 30;
    const auto stream = [&](const std::function<void(int)>& once) {
      return std::thread([once] {
        for (int i = 0; i < kRounds; ++i) once(i);
      });
    };
    std::thread sender = stream([&](int i) {
      std::vector<int> values(2000, i);
      wait_for(transport, Stream::kSend, transport.send(buffer_of(values, DType::kInt32), peer, 1));
    });
    std::thread receiver = stream([&](int i) {
      std::vector<int> values(2000, -1);
      wait_for(transport, Stream::kRecv, transport.recv(buffer_of(values, DType::kInt32), peer, 1));
      EXPECT_EQ(values, std::vector<int>(2000, i));
    });
    std::thread reducer = stream([&](int i) {
      std::vector<float> values(5000, static_cast<float>(i));
      wait_for(transport, Stream::kCollective,
               transport.all_reduce(buffer_of(values, DType::kFp32), 0, AllReduce::kRing));
      EXPECT_EQ(values, std::vector<float>(5000, static_cast<float>(2 * i)));
    });
    sender.join();
    receiver.join();
    reducer.join();
  });
}

// A send whose receiver is late holds up its own stream only.
TEST_P(TransportConformance, ReducesWhileAMessageWaits) {
  run(2, [](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    std::vector<int> message(100, 5);
    std::vector<float> sum(10, 1.F);
    const int peer = 1 - transport.rank();
    Result<Ticket> posted = Ticket{0};
    if (transport.rank() == 0) posted = transport.send(buffer_of(message, DType::kInt32), peer, 3);
    wait_for(transport, Stream::kCollective,
             transport.all_reduce(buffer_of(sum, DType::kFp32), 0, AllReduce::kRing));
    if (transport.rank() == 1) posted = transport.recv(buffer_of(message, DType::kInt32), peer, 3);
    wait_for(transport, transport.rank() == 0 ? Stream::kSend : Stream::kRecv, posted);
    EXPECT_EQ(sum, std::vector<float>(10, 2.F));
  });
}

TEST_P(TransportConformance, ATimeoutNamesTheOperationAndThePeer) {
  run(2, [](Transport& transport) {
    if (transport.rank() == 1) return stay_until_failure(transport, 0);
    std::vector<int> values(16);
    const auto ticket = transport.recv(buffer_of(values, DType::kInt32), 1, 1);
    ASSERT_TRUE(ticket.ok());
    const Status status = transport.wait(Stream::kRecv, *ticket, milliseconds(50));
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_EQ(status.message(), "recv from rank 1, 64 bytes: timed out after 50 ms");
    transport.abort(status);
  });
}

TEST_P(TransportConformance, ATimeoutOfAReductionNamesTheRankThatIsMissing) {
  run(2, [](Transport& transport) {
    expect_ok(transport.open_group(0, {0, 1}, one_host(transport)));
    std::vector<int> values(16);
    if (transport.rank() == 1) return stay_until_failure(transport, 0);
    const auto ticket = transport.all_reduce(buffer_of(values, DType::kInt32), 0, AllReduce::kRing);
    ASSERT_TRUE(ticket.ok());
    const Status status = transport.wait(Stream::kCollective, *ticket, milliseconds(100));
    EXPECT_EQ(status.code(), StatusCode::kTimeout);
    EXPECT_EQ(status.message(),
              "all_reduce of 64 bytes over ranks 0,1, waiting for rank 1: timed out after 100 ms");
    transport.abort(status);
  });
}

TEST_P(TransportConformance, AbortWakesEveryWaiterWithItsReason) {
  const ForkShared<SharedBarrier> opened(3);
  run(3, [&](Transport& transport) {
    expect_ok(transport.open_group(0, all_of(transport), one_host(transport)));
    opened->meet();
    // Ranks 1 and 2 wait for each other, and take no part in what rank 0 does.
    if (transport.rank() != 0) return stay_until_failure(transport, 3 - transport.rank());
    std::vector<int> a(1 << 16), b(4), c(4);  // a: so much that it only leaves when it is awaited
    const auto sent = transport.send(buffer_of(a, DType::kInt32), 1, 1);
    const auto received = transport.recv(buffer_of(b, DType::kInt32), 1, 1);
    const auto reduced = transport.all_reduce(buffer_of(c, DType::kInt32), 0, AllReduce::kRing);
    ASSERT_TRUE(sent.ok() && received.ok() && reduced.ok());
    const auto expect_reason = [&](Stream stream, Ticket ticket) {
      return std::thread([&transport, stream, ticket] {
        const Status status = transport.wait(stream, ticket, kLong);
        EXPECT_EQ(status.code(), StatusCode::kCancelled) << status.message();
        EXPECT_THAT(status.message(), HasSubstr("the user pressed Ctrl-C"));
      });
    };
    std::thread first = expect_reason(Stream::kSend, *sent);
    std::thread second = expect_reason(Stream::kRecv, *received);
    std::thread third = expect_reason(Stream::kCollective, *reduced);
    transport.abort({StatusCode::kCancelled, "the user pressed Ctrl-C"});
    transport.abort({StatusCode::kInternal, "a second reason does not count"});
    first.join();
    second.join();
    third.join();
    EXPECT_THAT(receive(transport, b, 1).message(), HasSubstr("the user pressed Ctrl-C"));
  });
}

TEST_P(TransportConformance, AnAbortReachesTheOtherRanks) {
  run(3, [](Transport& transport) {
    if (transport.rank() == 2) {
      transport.abort({StatusCode::kInternal, "rank 2 (test/2): backward mb=3: out of memory"});
      return;
    }
    // Rank 0 waits for rank 1, which waits for rank 0: only the notice can end it.
    std::vector<int> values(4);
    const Status status = receive(transport, values, 1 - transport.rank());
    EXPECT_EQ(status.code(), StatusCode::kPeerFailed);
    EXPECT_THAT(status.message(), HasSubstr("rank 2 (test/2): backward mb=3: out of memory"));
  });
}

TEST_P(TransportConformance, APeerThatGoesAwayIsNamed) {
  run(3, [](Transport& transport) {
    if (transport.rank() == 1) return;  // leaves
    std::vector<int> values(4);
    const Status status = receive(transport, values, 1);
    EXPECT_EQ(status.code(), StatusCode::kPeerFailed);
    EXPECT_THAT(status.message(), HasSubstr("rank 1 went away"));
  });
}

TEST_P(TransportConformance, RefusesWhatCannotBe) {
  run(2, [](Transport& transport) {
    std::vector<int> values(4);
    const Buffer buffer = buffer_of(values, DType::kInt32);
    EXPECT_EQ(transport.send(buffer, transport.rank(), 0).status().code(),
              StatusCode::kInvalidInput);
    EXPECT_EQ(transport.recv(buffer, 2, 0).status().message(),
              "rank " + std::to_string(transport.rank()) + " has no peer 2: there are 2 ranks");
    EXPECT_FALSE(transport.send(buffer, 1 - transport.rank(), std::uint64_t{1} << 62).ok());
    EXPECT_EQ(transport.all_reduce(buffer, 4, AllReduce::kRing).status().message(),
              "group 4 is not open");
    EXPECT_FALSE(transport.open_group(0, {1, 0}, {0, 0}).ok());
    EXPECT_FALSE(transport.open_group(0, {1 - transport.rank()}, {0, 0}).ok());
    EXPECT_FALSE(transport.open_group(70000, {0, 1}, {0, 0}).ok());
    expect_ok(transport.open_group(0, {0, 1}, {0, 0}));
    EXPECT_EQ(transport.open_group(0, {0, 1}, {0, 0}).message(), "group 0 is open already");
    EXPECT_EQ(transport.all_reduce({values.data(), 4, DType::kBool, false}, 0, AllReduce::kRing)
                  .status()
                  .message(),
              "all_reduce: no sum of bool values");
  });
}

}  // namespace
}  // namespace agpcs
