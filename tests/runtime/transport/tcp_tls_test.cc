// SPDX-License-Identifier: Apache-2.0
// The TCP transport with TLS: what its connections show to who stands between two ranks.
#include "tests/runtime/transport/overheard.h"
#include "tests/support/relay.h"

#include <agpcs/tcp.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

/// A bootstrap by which rank 1 finds rank 0 at the other end of a relay.
class Diverted final : public Overheard {
 public:
  Diverted(Bootstrap& real, std::optional<Relay>& relay, Relay::Change change)
      : Overheard(
            real, [](const std::string&, const std::string&) {}, [](const std::string&) {}),
        relay_(relay),
        change_(std::move(change)) {}
  Result<std::string> get(const std::string& key, std::chrono::milliseconds limit) override {
    AGPCS_TRY(std::string value, Overheard::get(key, limit));
    if (key != "tcp/0" || rank() == 0) return value;
    int port = 0;
    std::from_chars(value.data(), value.data() + value.size(), port);
    relay_.emplace(port, change_);
    return std::to_string(relay_->port()) + value.substr(value.find(' '));
  }

 private:
  std::optional<Relay>& relay_;
  const Relay::Change change_;
};

/// Runs `body` on two ranks that a relay connects, and returns what passed it.
std::string run_diverted(bool tls, const std::function<void(Transport&)>& body,
                         const Relay::Change& change = {}) {
  std::optional<Relay> relay;
  run_two(
      "127.0.0.1",
      [&](Bootstrap& real) {
        Diverted bootstrap(real, relay, change);
        auto transport = connect_tcp(bootstrap);
        ASSERT_TRUE(transport.ok()) << transport.status().message();
        body(**transport);
        EXPECT_TRUE(real.barrier("end", kLongWait).ok());
      },
      tls);
  return relay->passed();
}

/// Gradients that anybody would know again: 0, 1, 2, ...
std::vector<float> gradients() {
  std::vector<float> values(100'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
  return values;
}

/// The bytes of some of them, in the middle.
std::string bytes_of_some() {
  const std::vector<float> values = gradients();
  std::string bytes(64, ' ');
  std::memcpy(bytes.data(), &values[50'000], bytes.size());
  return bytes;
}

void send_gradients(Transport& transport) {
  std::vector<float> values = transport.rank() == 0 ? gradients() : std::vector<float>(100'000);
  const Buffer buffer{values.data(), values.size() * sizeof(float), DType::kFp32, false};
  const bool sends = transport.rank() == 0;
  const auto ticket = sends ? transport.send(buffer, 1, 0) : transport.recv(buffer, 0, 0);
  ASSERT_TRUE(ticket.ok()) << ticket.status().message();
  const Stream stream = sends ? Stream::kSend : Stream::kRecv;
  EXPECT_EQ(transport.wait(stream, *ticket, kLongWait).message(), "");
  EXPECT_TRUE(values == gradients());
}

TEST(TcpTls, TheWireCarriesNoPlainGradients) {
  const std::string plain = run_diverted(false, send_gradients);
  EXPECT_THAT(plain.find(bytes_of_some()), Not(std::string::npos))
      << "what the relay looks for passes it without TLS";
  const std::string encrypted = run_diverted(true, send_gradients);
  EXPECT_GT(encrypted.size(), gradients().size() * sizeof(float));
  EXPECT_EQ(encrypted.find(bytes_of_some().substr(0, 8)), std::string::npos);
}

// Without TLS, who stands between changes gradients and nobody notices.
TEST(TcpTls, BytesThatAreChangedEndTheJobAndReachNoGradient) {
  std::atomic<bool> changed{false};
  const auto change = [&](std::string& bytes, std::size_t before, bool /*from_caller*/) {
    if (before > 100'000 && !changed.exchange(true)) bytes[bytes.size() / 2] ^= 1;
  };
  run_diverted(
      true,
      [&](Transport& transport) {
        std::vector<float> values(100'000);
        const Buffer buffer{values.data(), values.size() * sizeof(float), DType::kFp32, false};
        const bool sends = transport.rank() == 0;
        const auto ticket = sends ? transport.send(buffer, 1, 0) : transport.recv(buffer, 0, 0);
        ASSERT_TRUE(ticket.ok()) << ticket.status().message();
        const Status status =
            transport.wait(sends ? Stream::kSend : Stream::kRecv, *ticket, kLongWait);
        if (sends) return;
        EXPECT_THAT(status.message(),
                    StartsWith("recv from rank 0, 400000 bytes: rank 0 went away: "
                               "its connection at 127.0.0.1:"));
        EXPECT_THAT(status.message(), HasSubstr("was lost: TLS refuses what came: it was changed "
                                                "on its way"));
      },
      change);
  EXPECT_TRUE(changed);
}

// As over plain TCP: what was sent arrives though its sender has gone.
TEST(TcpTls, MessagesOutliveTheirSender) {
  std::vector<std::uint8_t> values(8000, 7);
  constexpr int kMessages = 400;  // more than the system's buffers take at once
  run_two(
      "127.0.0.1",
      [&](Bootstrap& bootstrap) {
        auto transport = connect_tcp(bootstrap);
        ASSERT_TRUE(transport.ok()) << transport.status().message();
        std::vector<std::uint8_t> got(values.size());
        Ticket last = 0;
        for (int i = 0; i < kMessages; ++i) {
          Transport& own = **transport;
          const Buffer buffer{bootstrap.rank() == 0 ? values.data() : got.data(), values.size(),
                              DType::kUint8, false};
          const auto ticket =
              bootstrap.rank() == 0 ? own.send(buffer, 1, 0) : own.recv(buffer, 0, 0);
          ASSERT_TRUE(ticket.ok()) << ticket.status().message();
          last = *ticket;
          if (bootstrap.rank() == 1) {
            ASSERT_EQ(own.wait(Stream::kRecv, last, kLongWait).message(), "");
          }
        }
        if (bootstrap.rank() == 0) {
          EXPECT_EQ((*transport)->wait(Stream::kSend, last, kLongWait).message(), "");
        }
        EXPECT_TRUE(bootstrap.rank() == 0 || got == values);
        transport->reset();
        EXPECT_TRUE(bootstrap.barrier("end", kLongWait).ok());
      },
      true);
}

}  // namespace
}  // namespace agpcs
