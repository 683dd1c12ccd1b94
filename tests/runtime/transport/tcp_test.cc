// SPDX-License-Identifier: Apache-2.0
// What is the TCP transport's alone: strangers at its listeners, and addresses.
#include "runtime/bootstrap/gate.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/socket.h"
#include "tests/runtime/transport/overheard.h"
#include "tests/support/ipv6.h"
#include "tests/support/listeners.h"

#include <agpcs/tcp.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <barrier>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <poll.h>
#include <set>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::steady_clock;
using testing::ElementsAre;
using testing::EndsWith;
using testing::Pair;

void tell(const Fd& fd, const std::string& bytes) {
  [[maybe_unused]] const auto sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Reads up to `bytes` bytes, and no more than come within `limit`.
std::string hear(const Fd& fd, std::size_t bytes, std::chrono::milliseconds limit = kLongWait) {
  std::string heard;
  char byte = 0;
  while (heard.size() < bytes && readable_before(fd.get(), steady_clock::now() + limit) &&
         recv(fd.get(), &byte, 1, 0) == 1) {
    heard.push_back(byte);
  }
  return heard;
}

/// The strangers that come to a rank's listener before the other rank does, and what they heard.
class Crowd {
 public:
  Crowd(int port, bool tls) : port_(port), tls_(tls) {}

  void come() {
    for (int i = 0; i < 10; ++i) {
      scan();
      say_garbage(i);
      say_hello_of_tls();
      prove_with_a_guess();
      replay();
      hold();
    }
  }
  /// A flood, until the crowd leaves.
  void flood() {
    flood_ = std::thread([this] {
      while (!over_) {
        const auto fd = connect_to("127.0.0.1", port_, steady_clock::now());
        if (fd.ok()) tell(*fd, std::string(kProofMagic));
      }
    });
  }
  /// Ends the flood, and returns all that the strangers heard.
  std::string leave() {
    over_ = true;
    if (flood_.joinable()) flood_.join();
    for (const Fd& fd : held_) heard_ += hear(fd, 4096, std::chrono::milliseconds(0));
    return heard_;
  }
  /// How many connections were made, but for the flood.
  static constexpr std::size_t kCame = 60;

 private:
  Fd connect() const { return *connect_to("127.0.0.1", port_, steady_clock::now() + kLongWait); }
  void scan() { connect().reset(); }
  void say_garbage(int seed) {
    const Fd fd = connect();
    tell(fd, seed % 2 == 0 ? "GET / HTTP/1.1\r\n\r\n" : *random_bytes(1000));
    heard_ += hear(fd, 4096);
  }
  void prove_with_a_guess() {
    const Fd fd = connect();
    const auto end =
        prove(fd.get(), {kWrongToken, "tcp/", 0, tls_}, 1, steady_clock::now() + kLongWait);
    EXPECT_TRUE(end.ok() && *end == ProofEnd::kRefused);
  }
  // Says again what it said to an earlier challenge.
  void replay() {
    const Fd fd = connect();
    const std::string own(kNonceBytes, 'n');
    tell(fd, greeting_of(tls_, own));
    const std::string nonce = hear(fd, kNonceBytes);
    EXPECT_EQ(nonce.size(), kNonceBytes);
    if (overheard_.empty()) {
      overheard_ = claim_of({kJobToken, "tcp/", 0, tls_}, {1, tls_, own, nonce});
    }
    tell(fd, overheard_);
    EXPECT_EQ(hear(fd, 4096), kVerdictNo + std::string(kProofBytes, '\0'));
  }
  void say_hello_of_tls() {
    const Fd fd = connect();
    const auto tls = Tls::begin(fd.get(), TlsEnd::kConnector, std::string(kProofBytes, 's'));
    EXPECT_EQ((*tls)->shake_hands(), Tls::Step::kWaits);
    heard_ += hear(fd, 4096);
  }
  void hold() { held_.push_back(connect()); }

  const int port_;
  const bool tls_;
  std::string heard_, overheard_;
  std::vector<Fd> held_;
  std::atomic<bool> over_{false};
  std::thread flood_;
};

/// Runs two ranks whose listeners strangers meet first, and returns what the ranks said of them.
std::vector<std::string> run_among_strangers(bool tls,
                                             const std::function<void(Transport&)>& body) {
  std::array<std::promise<int>, 2> ports;
  std::mutex mutex;
  std::vector<std::string> said;
  run_two(
      "127.0.0.1",
      [&](Bootstrap& real) {
        std::optional<Crowd> crowd;
        Overheard bootstrap(
            real,
            [&](const std::string& key, const std::string& value) {  // the listener is open
              if (key != "tcp/" + std::to_string(real.rank()) || real.rank() != 0) return;
              int port = 0;
              std::from_chars(value.data(), value.data() + value.size(), port);
              ports[0].set_value(port);
            },
            [&](const std::string& key) {
              if (key != "tcp/0") return;  // rank 1 is about to connect
              crowd.emplace(ports[0].get_future().get(), tls);
              crowd->come();
              crowd->flood();
            });
        TcpOptions options;
        options.on_refused = [&](const std::string& line) {
          const std::lock_guard lock(mutex);
          said.push_back(line);
        };
        auto transport = connect_tcp(bootstrap, options);
        EXPECT_TRUE(transport.ok()) << transport.status().message();
        if (crowd) {
          EXPECT_EQ(crowd->leave(), "") << "strangers heard something";
        }
        if (transport.ok()) body(**transport);
      },
      tls);
  return said;
}

class TcpStrangersFirst : public testing::TestWithParam<bool> {};

TEST_P(TcpStrangersFirst, KeepNoRankOut) {
  const auto said = run_among_strangers(GetParam(), exchange_numbers);
  ASSERT_EQ(said.size(), 2U);
  EXPECT_THAT(said[0], testing::StartsWith("refused a connection from 127.0.0.1: it "));
  EXPECT_THAT(said[1], testing::ContainsRegex("^refused [0-9]+ connections that did not prove the "
                                              "job token, from 1 address$"));
  EXPECT_GE(std::stoul(said[1].substr(8)), Crowd::kCame - 10);  // those that hold may not count yet
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutTls, TcpStrangersFirst, testing::Bool(),
                         [](const auto& param) { return param.param ? "tls" : "plain"; });

TEST(TcpStrangers, FindNoListenerOnceRanksAreConnected) {
  std::atomic<int> port{0};
  std::barrier connected(2);
  run_two("127.0.0.1", [&](Bootstrap& real) {
    Overheard bootstrap(
        real,
        [&](const std::string& key, const std::string& value) {
          int number = 0;
          std::from_chars(value.data(), value.data() + value.size(), number);
          if (key == "tcp/0") port = number;
        },
        [](const std::string& /*key*/) {});
    auto transport = connect_tcp(bootstrap);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    connected.arrive_and_wait();
    EXPECT_THAT(connect_to("127.0.0.1", port, steady_clock::now()).status().message(),
                EndsWith("Connection refused"));
    exchange_numbers(**transport);
  });
}

TEST(TcpStrangers, AListenerThatIsNoRankIsNamed) {
  Gate stranger(*listen_at("127.0.0.1"), {kWrongToken, "tcp/", 0}, {});
  std::vector<pollfd> fds;
  stranger.watch(fds);
  const std::string place = std::to_string(port_of(fds[0].fd));
  std::atomic<bool> over{false};
  std::thread serving([&] {
    while (!over) {
      fds.clear();
      stranger.watch(fds);
      poll(fds.data(), fds.size(), 10);
      stranger.turn(fds.data());
    }
  });
  run_two("127.0.0.1", [&](Bootstrap& real) {
    if (real.rank() == 0) {  // as if it had told of another's port
      EXPECT_TRUE(real.set("tcp/job", "job").ok());
      EXPECT_TRUE(real.set("tcp/0", place + " 127.0.0.1").ok());
      EXPECT_TRUE(real.barrier("end", kLongWait).ok());
      return;
    }
    EXPECT_EQ(
        connect_tcp(real).status().message(),
        "rank 1 at 127.0.0.1 cannot connect with the other ranks: rank 0 at 127.0.0.1:" + place +
            ": what listens there does not know the job token: it is no rank of this job\n"
            "  hint: every rank must be reachable by the address it gives out; choose another "
            "with --address, and with --bind where it listens, if that is at another one");
    EXPECT_TRUE(real.barrier("end", kLongWait).ok());
  });
  over = true;
  serving.join();
}

TEST(TcpConnect, ARankThatDoesNotComeIsNamed) {
  run_two("127.0.0.1", [](Bootstrap& bootstrap) {
    if (bootstrap.rank() == 0) {
      TcpOptions options;
      options.connect_limit = std::chrono::milliseconds(100);
      EXPECT_THAT(
          connect_tcp(bootstrap, options).status().message(),
          testing::ContainsRegex("^rank 0 at 127.0.0.1 cannot connect with the other ranks: "
                                 "rank 1 did not connect to 127.0.0.1:[0-9]+ within 100 ms"));
    }
    EXPECT_TRUE(bootstrap.barrier("end", kLongWait).ok());
  });
}

TEST(TcpConnect, AddressesThatOthersCannotUseAreRefused) {
  for (const auto& [address, why] :
       {std::pair<std::string, std::string>{
            "fe80::1%lo", "it is a link-local address, which holds on one network card only"},
        {"192.0.2.1", "cannot listen at 192.0.2.1: Cannot assign requested address"}}) {
    run_two("127.0.0.1", [&](Bootstrap& bootstrap) {
      TcpOptions options;
      options.address = address;
      EXPECT_EQ(connect_tcp(bootstrap, options).status().message(),
                "rank " + std::to_string(bootstrap.rank()) + " at " + address +
                    " cannot connect with the other ranks: " + why +
                    "\n  hint: every rank must be reachable by the address it gives out; choose "
                    "another with --address, and with --bind where it listens, if that is at "
                    "another one");
    });
  }
}

/// What rank 0 tells the others of its place, but for the port, and what the process listens at
/// while its ranks connect, but for the service.
std::pair<std::string, std::set<std::string>> places_of(const TcpOptions& options) {
  std::string told;
  std::set<std::string> listeners;
  run_two("127.0.0.1", [&](Bootstrap& real) {
    Overheard bootstrap(
        real,
        [&](const std::string& key, const std::string& value) {
          if (key != "tcp/0") return;
          told = value.substr(value.find(' ') + 1);
          const std::string port = value.substr(0, value.find(' '));
          for (const std::string& at : listeners_of(getpid())) {
            if (at.substr(at.find(' ') + 1) == port) listeners.insert(at.substr(0, at.find(' ')));
          }
        },
        [](const std::string& /*key*/) {});
    auto transport = connect_tcp(bootstrap, options);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    exchange_numbers(**transport);
  });
  return {told, listeners};
}

TEST(TcpListeners, AreAtTheAddressThatIsGivenOut) {
  TcpOptions options;
  EXPECT_THAT(places_of(options), Pair("127.0.0.1", ElementsAre("127.0.0.1")));
  options.address = "127.0.0.9";
  EXPECT_THAT(places_of(options), Pair("127.0.0.9", ElementsAre("127.0.0.9")));
}

TEST(TcpListeners, AreAtBindWhichIsGivenOutWithoutAnAddress) {
  TcpOptions options;
  options.bind = "127.0.0.9";
  EXPECT_THAT(places_of(options), Pair("127.0.0.9", ElementsAre("127.0.0.9")));
  options.bind = "0.0.0.0";
  EXPECT_THAT(places_of(options), Pair("127.0.0.1", ElementsAre("0.0.0.0")));
  options.address = "127.0.0.8";  // as behind a translation of addresses
  EXPECT_THAT(places_of(options), Pair("127.0.0.8", ElementsAre("0.0.0.0")));
}

TEST(TcpListeners, AreNotMadeAtABindOfAnotherMachine) {
  run_two("127.0.0.1", [](Bootstrap& bootstrap) {
    TcpOptions options;
    options.bind = "198.51.100.7";
    EXPECT_THAT(connect_tcp(bootstrap, options).status().message(),
                testing::StartsWith("'198.51.100.7' is neither an interface nor an address of this "
                                    "machine, which has "));
  });
}

TEST(TcpIpv6, RanksExchangeMessages) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  run_two("::1", [](Bootstrap& bootstrap) {
    auto transport = connect_tcp(bootstrap);
    ASSERT_TRUE(transport.ok()) << transport.status().message();
    exchange_numbers(**transport);
  });
}

}  // namespace
}  // namespace agpcs
