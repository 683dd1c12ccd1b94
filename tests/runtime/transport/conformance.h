// SPDX-License-Identifier: Apache-2.0
// What the conformance tests of transports share.
#pragma once

#include "runtime/support/half.h"
#include "tests/runtime/world.h"

#include <agpcs/transport.h>

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

namespace agpcs {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline constexpr milliseconds kLong = seconds(60);

template <typename T>
Buffer buffer_of(std::vector<T>& values, DType type) {
  return {values.data(), values.size() * sizeof(T), type, false};
}

inline std::vector<int> all_of(const Transport& transport) {
  std::vector<int> ranks(static_cast<std::size_t>(transport.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

inline std::vector<int> one_host(const Transport& transport) {
  return std::vector<int>(static_cast<std::size_t>(transport.size()), 0);
}

inline void expect_ok(const Status& status) { EXPECT_TRUE(status.ok()) << status.message(); }

inline void wait_for(Transport& transport, Stream stream, const Result<Ticket>& ticket) {
  ASSERT_TRUE(ticket.ok()) << ticket.status().message();
  expect_ok(transport.wait(stream, *ticket, kLong));
}

// A failure may show when the message is posted or when it is waited for.
inline Status receive(Transport& transport, std::vector<int>& values, int peer) {
  const auto ticket = transport.recv(buffer_of(values, DType::kInt32), peer, 999);
  return ticket.ok() ? transport.wait(Stream::kRecv, *ticket, kLong) : ticket.status();
}

// Waits for a message that `peer` never sends, and so for the end of the world.
inline void stay_until_failure(Transport& transport, int peer) {
  std::vector<int> never(1);
  EXPECT_FALSE(receive(transport, never, peer).ok());
}

class TransportConformance : public OverWorld {
 protected:
  void run(int ranks, const std::function<void(Transport&)>& body) { GetParam().run(ranks, body); }
};

// An algorithm over an open group, or an open flow.
struct Way {
  AllReduce algorithm = AllReduce::kRing;
  int number = 0;  // of the group, of the flow

  Result<Ticket> reduce(Transport& transport, const Buffer& buffer) const {
    return algorithm == AllReduce::kFlow ? transport.all_reduce_flow(buffer, number)
                                         : transport.all_reduce(buffer, number, algorithm);
  }
};

// Ranks hold value x (rank + 1); the sum over n ranks is value x n (n + 1) / 2, exact in every
// type.
template <typename T>
void sums_exactly(Transport& transport, DType type, Way way, const std::function<T(int)>& encode,
                  std::size_t elements) {
  const int n = transport.size();
  std::vector<T> values(elements), expected(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    const int value = static_cast<int>(i % 7) - 3;
    values[i] = encode(value * (transport.rank() + 1));
    expected[i] = encode(value * n * (n + 1) / 2);
  }
  wait_for(transport, Stream::kCollective, way.reduce(transport, buffer_of(values, type)));
  EXPECT_EQ(values, expected) << name_of(type) << ", " << elements << " elements, "
                              << name_of(way.algorithm);
}

inline void sums_all_types(Transport& transport, Way way, std::size_t elements) {
  const auto plain = [](auto zero) {
    using T = decltype(zero);
    return std::function<T(int)>([](int value) { return static_cast<T>(value); });
  };
  sums_exactly<float>(transport, DType::kFp32, way, plain(0.F), elements);
  sums_exactly<double>(transport, DType::kFp64, way, plain(0.0), elements);
  sums_exactly<std::int64_t>(transport, DType::kInt64, way, plain(std::int64_t{0}), elements);
  sums_exactly<std::int32_t>(transport, DType::kInt32, way, plain(std::int32_t{0}), elements);
  sums_exactly<std::uint16_t>(
      transport, DType::kFp16, way, [](int value) { return fp16_of(static_cast<float>(value)); },
      elements);
  sums_exactly<std::uint16_t>(
      transport, DType::kBf16, way, [](int value) { return bf16_of(static_cast<float>(value)); },
      elements);
}

}  // namespace agpcs
