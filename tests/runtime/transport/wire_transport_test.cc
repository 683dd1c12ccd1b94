// SPDX-License-Identifier: Apache-2.0
// What the threads of a wire transport do where memory or threads are short.
#include "runtime/transport/wire_transport.h"

#include <agpcs/loopback.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <iterator>
#include <memory>
#include <new>
#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr std::chrono::milliseconds kLong = std::chrono::seconds(60);

class MessageWithoutMemory final : public WireMessage {
 public:
  Status wait(Deadline /*deadline*/) override { throw std::bad_alloc(); }
};

class WireWithoutMemory final : public Wire {
 public:
  using Posted = Result<std::unique_ptr<WireMessage>>;
  Posted send(const void* /*data*/, std::size_t /*bytes*/, int /*peer*/,
              std::uint64_t /*slot*/) override {
    return std::unique_ptr<WireMessage>(std::make_unique<MessageWithoutMemory>());
  }
  Posted recv(void* /*data*/, std::size_t /*bytes*/, int /*peer*/,
              std::uint64_t /*slot*/) override {
    throw std::bad_alloc();
  }
  void cancel(const Status& /*reason*/) override {}
  void announce(const Status& /*reason*/) override {}
};

TEST(WireTransport, AnAllReduceThatFindsNoMemoryFails) {
  WireTransport transport(std::make_unique<WireWithoutMemory>(), 0, 2);
  ASSERT_TRUE(transport.open_group(0, {0, 1}, {0, 0}).ok());
  std::vector<float> values(8);
  const auto ticket =
      transport.all_reduce({values.data(), 32, DType::kFp32, false}, 0, AllReduce::kRing);
  ASSERT_TRUE(ticket.ok()) << ticket.status().message();
  EXPECT_THAT(transport.wait(Stream::kCollective, *ticket, kLong).message(),
              ::testing::EndsWith(": out of memory"));
}

TEST(WireTransport, AMessageThatFindsNoMemoryFails) {
  WireTransport transport(std::make_unique<WireWithoutMemory>(), 0, 2);
  std::vector<float> values(8);
  const auto ticket = transport.send({values.data(), 32, DType::kFp32, false}, 1, 0);
  ASSERT_TRUE(ticket.ok()) << ticket.status().message();
  EXPECT_EQ(transport.wait(Stream::kSend, *ticket, kLong).message(),
            "send to rank 1, 32 bytes: out of memory");
}

auto threads_of_process() {
  using Entries = std::filesystem::directory_iterator;
  return std::distance(Entries("/proc/self/task"), Entries());
}

// Where there are no more threads, the transport is not made: no step ends for lack of one.
TEST(WireTransport, MessagesNeedNoMoreThreads) {
  LoopbackHub hub(2);
  const auto sender = hub.join(0), receiver = hub.join(1);
  const auto before = threads_of_process();
  std::vector<float> values(8);
  const Buffer buffer{values.data(), 32, DType::kFp32, false};
  const auto sent = sender->send(buffer, 1, 0);
  const auto received = receiver->recv(buffer, 0, 0);
  ASSERT_TRUE(sent.ok() && received.ok());
  EXPECT_TRUE(sender->wait(Stream::kSend, *sent, kLong).ok());
  EXPECT_TRUE(receiver->wait(Stream::kRecv, *received, kLong).ok());
  EXPECT_EQ(threads_of_process(), before);
}

}  // namespace
}  // namespace agpcs
