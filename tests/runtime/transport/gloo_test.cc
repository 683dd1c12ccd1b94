// SPDX-License-Identifier: Apache-2.0
// What is Gloo's alone: strangers at its listeners, its messages, IPv6.
#include "runtime/bootstrap/socket.h"
#include "runtime/transport/gloo_error.h"
#include "tests/runtime/transport/overheard.h"
#include "tests/support/ipv6.h"

#include <agpcs/bootstrap.h>
#include <agpcs/gloo.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <csignal>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::steady_clock;
using testing::EndsWith;

const std::string kStranger =
    "something that is no rank of this job, such as a scan of ports, connected in its place: "
    "Gloo's connections do not ask for the job's token, so keep the job on a network that only its "
    "machines reach";

TEST(GlooCause, HasNoPlaceInGloosSources) {
  EXPECT_EQ(gloo_cause("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer", false),
            "Connection closed by peer");
  EXPECT_EQ(gloo_cause("[enforce fail at ../gloo/x.cc:1] rv == 0. no\n", true), "rv == 0. no");
}

TEST(GlooCause, WritesAddressesAsEverybodyElseDoes) {
  const std::string what = "[pair.cc:1] Read error [127.0.0.1]:24500: Connection reset by peer";
  EXPECT_EQ(gloo_cause(what, true), "Read error 127.0.0.1:46175: Connection reset by peer");
  EXPECT_EQ(gloo_cause(what, false), "Read error 127.0.0.1:24500: Connection reset by peer");
  EXPECT_EQ(gloo_cause("[pair.cc:1] connect [fd00::2]:256 to [10.0.0.7]:24500$3", true),
            "connect [fd00::2]:1 to 10.0.0.7:46175$3");
  EXPECT_EQ(gloo_cause("[pair.cc:1] Connect timeout [none]", true), "Connect timeout [none]");
  EXPECT_EQ(gloo_cause("", true), "");
  EXPECT_EQ(gloo_cause("[x]:", true), "[x]:");
}

TEST(GlooErrors, ALostConnectionMayBeAStrangers) {
  for (const char* cause :
       {"Read error 10.0.0.7:4242: Connection reset by peer",
        "connect 10.0.0.7:4242: Connection refused", "Connection closed by peer 10.0.0.7:4242"}) {
    EXPECT_EQ(no_mesh(1, "10.0.0.2", cause).message(),
              "rank 1 at 10.0.0.2 cannot connect with the other ranks: " + std::string(cause) +
                  "\n  hint: another rank ended, or " + kStranger);
    EXPECT_EQ(lost_peer(2, cause).message(), "rank 2 went away: " + std::string(cause) +
                                                 "\n  hint: if rank 2 still runs, " + kStranger);
  }
}

TEST(GlooErrors, OthersAreOfAddresses) {
  EXPECT_EQ(no_mesh(1, "10.0.0.2", "Connect timeout 10.0.0.7:4242").message(),
            "rank 1 at 10.0.0.2 cannot connect with the other ranks: Connect timeout "
            "10.0.0.7:4242\n"
            "  hint: every rank must be reachable by the address it gives out; choose another with "
            "--address");
  EXPECT_EQ(lost_peer(2, "Read timeout").message(), "rank 2 went away: Read timeout");
}

/// The port in an address as Gloo's ranks exchange it; 0 where `value` is something else that they
/// exchange.
int port_in(const std::string& value) {
  sockaddr_in address{};
  if (value.size() >= sizeof(sockaddr_storage)) {
    std::memcpy(&address, value.data(), sizeof address);
  }
  return address.sin_family == AF_INET ? ntohs(address.sin_port) : 0;
}

/// A connection to `port`, whose listener has taken it: it takes one, and closes.
Fd take_place_at(int port) {
  const auto deadline = steady_clock::now() + kLongWait;
  Fd stranger = *connect_to("127.0.0.1", port, deadline);
  const std::string closed =
      "cannot connect to 127.0.0.1:" + std::to_string(port) + ": Connection refused";
  while (connect_to("127.0.0.1", port, steady_clock::now()).status().message() != closed) {
    if (steady_clock::now() < deadline) continue;
    ADD_FAILURE() << "Gloo did not take the stranger within a minute";
    break;
  }
  return stranger;
}

/// One for each of two ranks, in the other one's place before that connects.
class Strangers {
 public:
  /// Rank `rank` listens on `port`.
  void come(int rank, int port) {
    const auto at = static_cast<std::size_t>(rank);
    listener_[at] = port;
    stranger_[at] = take_place_at(listener_[at]);
    come_.count_down();
  }
  /// Until both have come.
  void wait() { come_.wait(); }
  int listener(int rank) const { return listener_[static_cast<std::size_t>(rank)]; }
  void leave(int rank) { stranger_[static_cast<std::size_t>(rank)].reset(); }

 private:
  std::array<int, 2> listener_{};
  std::array<Fd, 2> stranger_;
  std::latch come_{2};
};

TEST(GlooStrangers, AreNamedAsWhatMayHaveTakenARanksPlace) {
  std::signal(SIGPIPE, SIG_IGN);  // Gloo writes to connections that peers have closed
  Strangers strangers;
  std::atomic<int> refused = 0, lost = 0;
  std::barrier done(2);
  run_two("127.0.0.1", [&](Bootstrap& real) {
    const int rank = real.rank(), other = 1 - rank;
    Overheard bootstrap(
        real,
        [&](const std::string& /*key*/, const std::string& value) {
          if (const int port = port_in(value); port != 0) strangers.come(rank, port);
        },
        [&](const std::string& key) {
          if (key == "gloo/" + std::to_string(other)) strangers.wait();
        });
    auto transport = connect_gloo(bootstrap);
    if (!transport.ok()) {  // it connects, the other one listens
      EXPECT_EQ(transport.status().message(),
                "rank " + std::to_string(rank) +
                    " at 127.0.0.1 cannot connect with the other ranks: connect 127.0.0.1:" +
                    std::to_string(strangers.listener(other)) +
                    ": Connection refused\n  hint: another rank ended, or " + kStranger);
      ++refused;
    } else {
      const std::string port = std::to_string(strangers.listener(other));
      strangers.leave(rank);
      int value = 0;
      EXPECT_THAT(
          receive_int(**transport, other, &value).message(),
          EndsWith("rank " + std::to_string(other) +
                   " went away: Connection closed by peer 127.0.0.1:" + port +
                   "\n  hint: if rank " + std::to_string(other) + " still runs, " + kStranger));
      ++lost;
    }
    done.arrive_and_wait();
  });
  EXPECT_EQ(refused, 1);
  EXPECT_EQ(lost, 1);
}

TEST(GlooIpv6, RanksExchangeMessages) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  run_two("::1", [](Bootstrap& bootstrap) {
    EXPECT_EQ(bootstrap.local_address(), "::1");
    auto transport = connect_gloo(bootstrap);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    exchange_numbers(**transport);
  });
}

TEST(GlooIpv6, AddressesOfTwoKindsAreRefused) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  run_two("127.0.0.1", [](Bootstrap& bootstrap) {
    GlooOptions options;
    options.address = bootstrap.rank() == 0 ? "127.0.0.1" : "::1";
    EXPECT_EQ(connect_gloo(bootstrap, options).status().message(),
              "rank " + std::to_string(bootstrap.rank()) + " at " + options.address +
                  " cannot connect with the other ranks: some ranks give out an address of IPv4, "
                  "others one of IPv6\n"
                  "  hint: give each rank one of the same kind with --address");
  });
}

TEST(GlooIpv6, ALinkLocalAddressIsRefused) {
  run_two("127.0.0.1", [](Bootstrap& bootstrap) {
    GlooOptions options;
    options.address = "fe80::1%lo";
    EXPECT_EQ(
        connect_gloo(bootstrap, options).status().message(),
        "rank " + std::to_string(bootstrap.rank()) +
            " at fe80::1%lo cannot connect with the other ranks: it is a link-local address, "
            "which holds on one network card only\n"
            "  hint: every rank must be reachable by the address it gives out; choose another "
            "with --address");
  });
}

}  // namespace
}  // namespace agpcs
