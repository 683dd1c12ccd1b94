// SPDX-License-Identifier: Apache-2.0
// Messages over TCP: of both kinds, withdrawn ones, and those whose elements are added.
#include "runtime/transport/tcp_peer.h"
#include "tests/runtime/transport/overheard.h"

#include <agpcs/tcp.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;

void run_connected(const std::function<void(Transport&)>& body) {
  run_two("127.0.0.1", [&](Bootstrap& bootstrap) {
    auto transport = connect_tcp(bootstrap);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    body(**transport);
  });
}

Buffer bytes_of(std::vector<std::uint8_t>& bytes) {
  return {bytes.data(), bytes.size(), DType::kUint8, false};
}

// Small messages come unasked, large ones do not: of one tag, both have an order of their own.
TEST(TcpMessages, OfBothKindsAndOneTagMeetTheirReceives) {
  const std::vector<std::size_t> sizes = {1, 100'000, 8192, 8193, 0, 3'000'000, 7, 20'000};
  run_connected([&](Transport& transport) {
    const int other = 1 - transport.rank();
    std::vector<std::vector<std::uint8_t>> buffers;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const auto value = static_cast<std::uint8_t>(transport.rank() == 0 ? i + 1 : 0);
      buffers.emplace_back(sizes[i], value);
    }
    Ticket last = 0;
    for (auto& buffer : buffers) {
      const auto ticket = transport.rank() == 0 ? transport.send(bytes_of(buffer), other, 5)
                                                : transport.recv(bytes_of(buffer), other, 5);
      ASSERT_TRUE(ticket.ok()) << ticket.status().message();
      last = *ticket;
    }
    const Stream stream = transport.rank() == 0 ? Stream::kSend : Stream::kRecv;
    EXPECT_EQ(transport.wait(stream, last, kLongWait).message(), "");
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const std::vector<std::uint8_t> expected(sizes[i], static_cast<std::uint8_t>(i + 1));
      EXPECT_TRUE(buffers[i] == expected) << sizes[i] << " bytes";
    }
  });
}

/// Both ends of a connection, which the test reads from itself.
struct PeersInTest {
  PeersInTest() {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    a.emplace(Fd(ends[0]), "a", epoll.get());
    b.emplace(Fd(ends[1]), "b", epoll.get());
    EXPECT_TRUE(a->watch().ok() && b->watch().ok());
  }
  const Fd epoll{epoll_create1(EPOLL_CLOEXEC)};
  std::optional<TcpPeer> a, b;
  std::vector<char> scratch = std::vector<char>(TcpPeer::kScratchBytes);
};

TEST(TcpMessages, SmallOnesOutliveTheirSender) {
  PeersInTest peers;
  std::string sent = "farewell", received(sent.size(), ' ');
  TcpTransfer leaving(Span{sent.data(), sent.size()}, 5),
      arriving(Span{received.data(), received.size()}, 5);
  EXPECT_TRUE(peers.a->send(leaving).ok());
  EXPECT_TRUE(leaving.finished());
  peers.a.reset();
  while (peers.b->read(peers.scratch)) {
  }
  EXPECT_TRUE(peers.b->recv(arriving).ok());
  EXPECT_TRUE(arriving.finished());
  EXPECT_EQ(received, sent);
  TcpTransfer another(Span{received.data(), received.size()}, 5);
  EXPECT_EQ(peers.b->recv(another).message(), "its connection at b was closed");
}

TEST(TcpMessages, WithdrawnOnesLeaveTheirMemoryAlone) {
  PeersInTest peers;
  std::string sent(100'000, 's'), received(sent.size(), ' ');
  TcpTransfer leaving(Span{sent.data(), sent.size()}, 5);
  {
    TcpTransfer arriving(Span{received.data(), received.size()}, 5);
    EXPECT_TRUE(peers.b->recv(arriving).ok());
    peers.b->withdraw(arriving);
  }
  EXPECT_TRUE(peers.a->send(leaving).ok());
  EXPECT_TRUE(peers.a->read(peers.scratch));  // hears that it is wanted, and sends
  while (peers.b->read(peers.scratch)) {
  }
  EXPECT_EQ(received, std::string(sent.size(), ' '));
  TcpTransfer another(Span{received.data(), received.size()}, 6);
  EXPECT_EQ(peers.b->recv(another).message(), "a message of 100000 bytes came that nobody awaits");
  peers.a->withdraw(leaving);
}

TEST(TcpMessages, WhatIsAskedForGoesBeforeMessagesThatWait) {
  PeersInTest peers;
  std::string large(10'000'000, 'l'), other(20'000, 'o'), got(20'000, ' ');
  TcpTransfer first(Span{large.data(), large.size()}, 1),
      second(Span{large.data(), large.size()}, 2);
  std::string to(large.size(), ' ');
  TcpTransfer first_in(Span{to.data(), to.size()}, 1), second_in(Span{to.data(), to.size()}, 2);
  TcpTransfer wanted(Span{got.data(), got.size()}, 3), answer(Span{other.data(), other.size()}, 3);
  EXPECT_TRUE(peers.b->send(answer).ok());
  EXPECT_TRUE(peers.b->recv(first_in).ok() && peers.b->recv(second_in).ok());
  EXPECT_TRUE(peers.a->send(first).ok() && peers.a->send(second).ok());
  EXPECT_TRUE(peers.a->read(peers.scratch));
  EXPECT_TRUE(peers.a->recv(wanted).ok());  // both messages wait for room
  while (!wanted.finished()) {
    ASSERT_TRUE(peers.b->read(peers.scratch) && peers.b->write());
    ASSERT_TRUE(peers.a->read(peers.scratch) && peers.a->write());
  }
  EXPECT_EQ(got, other);
  EXPECT_TRUE(first_in.finished());
  EXPECT_FALSE(second_in.finished());
  peers.a->fail({StatusCode::kCancelled, "the end"});
  peers.b->fail({StatusCode::kCancelled, "the end"});
  EXPECT_TRUE(second.finished() && second_in.finished());
}

/// Sends a message whose elements are added, in pieces of few bytes, with another message right
/// behind it. It is awaited before it comes, or after.
void add_in_pieces(std::size_t elements, std::size_t piece, bool awaited_first) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  const Fd epoll(epoll_create1(EPOLL_CLOEXEC)), far(ends[1]);
  Fd near(ends[0]);
  TcpPeer peer(std::move(near), "far", epoll.get());
  ASSERT_TRUE(peer.watch().ok());
  std::vector<std::int64_t> sent(elements), sum(elements, 5), expected(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    sent[i] = static_cast<std::int64_t>(i * 0x9e3779b97f4a7c15U >> 1);
    expected[i] = sent[i] + 5;
  }
  const std::size_t bytes = elements * sizeof(std::int64_t);
  const auto frame = [](std::uint64_t slot, std::uint64_t word) {
    std::string text(16, ' ');
    std::memcpy(text.data(), &slot, 8);
    std::memcpy(text.data() + 8, &word, 8);
    return text;
  };
  const std::string stream = frame(7, bytes) +
                             std::string(reinterpret_cast<const char*>(sent.data()), bytes) +
                             frame(8, 3) + "end";
  TcpTransfer added(Span{reinterpret_cast<char*>(sum.data()), bytes}, 7, DType::kInt64);
  std::string end(3, ' ');
  TcpTransfer behind(Span{end.data(), end.size()}, 8);
  if (awaited_first) {
    ASSERT_TRUE(peer.recv(added).ok());
  }
  std::vector<char> scratch(TcpPeer::kScratchBytes);
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    const std::string next = stream.substr(at, piece);
    ASSERT_EQ(send(far.get(), next.data(), next.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(next.size()));
    ASSERT_TRUE(peer.read(scratch));
  }
  if (!awaited_first) {
    ASSERT_TRUE(peer.recv(added).ok());
  }
  ASSERT_TRUE(peer.recv(behind).ok());
  EXPECT_TRUE(added.finished() && behind.finished());
  EXPECT_TRUE(sum == expected) << elements << " elements in pieces of " << piece;
  EXPECT_EQ(end, "end");
}

TEST(TcpMessages, AreAddedElementByElementHoweverTheyCome) {
  for (const std::size_t piece : {1, 7, 13, 4099}) {
    for (const std::size_t elements : {1, 1024, 1025, 20'000}) add_in_pieces(elements, piece, true);
    for (const std::size_t elements : {1, 1024}) add_in_pieces(elements, piece, false);
  }
  add_in_pieces(200'000, 100'000, true);  // more than the scratch memory
}

/// Elements in areas of `lengths`, over and over, with gaps of -1 between them.
struct Apart {
  Apart(const std::vector<std::int64_t>& elements, const std::vector<std::size_t>& lengths)
      : memory(2 * elements.size(), -1) {
    for (std::size_t at = 0, i = 0; at < elements.size(); ++i) {
      const std::size_t length = std::min(lengths[i % lengths.size()], elements.size() - at);
      std::int64_t* const to = memory.data() + 2 * at;
      areas.push_back({at * sizeof(std::int64_t), reinterpret_cast<char*>(to)});
      std::copy_n(elements.begin() + static_cast<std::ptrdiff_t>(at), length, to);
      at += length;
    }
    areas.push_back({elements.size() * sizeof(std::int64_t), nullptr});
  }
  Pieces pieces() const { return {areas, 0, areas.back().begin}; }

  std::vector<std::int64_t> memory;
  std::vector<Area> areas;
};

// Sends elements from many places to others, where they are put or added. The receive is posted
// before they come, or after.
void move_pieces(std::size_t elements, std::optional<DType> added_as, bool awaited_first) {
  PeersInTest peers;
  std::vector<std::int64_t> values(elements), sums(elements);
  for (std::size_t i = 0; i < elements; ++i) {
    values[i] = static_cast<std::int64_t>(1'000'000 + i);
    sums[i] = values[i] + (added_as ? 5 : 0);
  }
  const std::vector<std::size_t> lengths = {7, 2, 90};
  Apart sent(values, {1, 50, 3}), got(std::vector<std::int64_t>(elements, 5), lengths);
  TcpTransfer leaving(sent.pieces(), 5), arriving(got.pieces(), 5, added_as);
  if (awaited_first) {
    ASSERT_TRUE(peers.b->recv(arriving).ok());
  }
  ASSERT_TRUE(peers.a->send(leaving).ok());
  ASSERT_TRUE(peers.b->read(peers.scratch));
  if (!awaited_first) {
    ASSERT_TRUE(peers.b->recv(arriving).ok());
  }
  while (!arriving.finished()) {
    ASSERT_TRUE(peers.a->read(peers.scratch) && peers.a->write() && peers.b->read(peers.scratch));
  }
  EXPECT_TRUE(leaving.finished());
  EXPECT_TRUE(got.memory == Apart(sums, lengths).memory) << elements << " elements";
}

// Of fewer and of more pieces than the system takes at once; messages of both kinds.
TEST(TcpMessages, GoFromManyPlacesToOthers) {
  for (const std::size_t elements : {std::size_t{90}, std::size_t{1'025}, std::size_t{300'000}}) {
    for (const bool awaited_first : {true, false}) {
      move_pieces(elements, std::nullopt, awaited_first);
      move_pieces(elements, DType::kInt64, awaited_first);
    }
  }
}

TEST(TcpMessages, OfAnotherLengthThanAwaitedAreAnError) {
  for (const auto& [sent, awaited] :
       {std::pair<std::size_t, std::size_t>{100, 99}, {100'000, 99'999}, {100'000, 20'000}}) {
    run_connected([&, s = sent, a = awaited](Transport& transport) {
      std::vector<std::uint8_t> bytes(transport.rank() == 0 ? s : a);
      if (transport.rank() == 0) {
        const auto ticket = transport.send(bytes_of(bytes), 1, 5);
        if (!ticket.ok()) return;
        [[maybe_unused]] const Status status = transport.wait(Stream::kSend, *ticket, kLongWait);
        int value = 0;
        EXPECT_NE(receive_int(transport, 1, &value).message(), "");
        return;
      }
      const auto ticket = transport.recv(bytes_of(bytes), 0, 5);
      const Status status =
          ticket.ok() ? transport.wait(Stream::kRecv, *ticket, kLongWait) : ticket.status();
      EXPECT_THAT(status.message(), testing::AnyOf(HasSubstr("was sent where one of"),
                                                   HasSubstr("rank 0 went away")));
    });
  }
}

}  // namespace
}  // namespace agpcs
