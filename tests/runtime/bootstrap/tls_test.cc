// SPDX-License-Identifier: Apache-2.0
// TLS: between two ends, at a gate, and of a whole bootstrap.
#include "runtime/bootstrap/tls.h"

#include "runtime/bootstrap/connection.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/socket.h"
#include "tests/runtime/bootstrap/job.h"
#include "tests/runtime/bootstrap/serving_gate.h"
#include "tests/support/job_token.h"
#include "tests/support/relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const std::string kSecret(32, 's');

/// Both ends of a connection within the test.
struct Ends {
  explicit Ends(const std::string& of_listener = kSecret, std::int64_t records_a_key = 1 << 22) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    connector_fd = Fd(fds[0]);
    listener_fd = Fd(fds[1]);
    connector = *Tls::begin(fds[0], TlsEnd::kConnector, kSecret, records_a_key);
    listener = *Tls::begin(fds[1], TlsEnd::kListener, of_listener, records_a_key);
  }
  void shake_hands() {
    EXPECT_EQ(connector->shake_hands(), Tls::Step::kWaits);
    EXPECT_EQ(listener->shake_hands(), Tls::Step::kWaits);
    EXPECT_EQ(connector->shake_hands(), Tls::Step::kDone);
    EXPECT_EQ(listener->shake_hands(), Tls::Step::kDone);
  }

  Fd connector_fd, listener_fd;
  std::unique_ptr<Tls> connector, listener;  // gone before their sockets
};

ssize_t write(Tls& tls, const std::string& text) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  return tls.write(&part, 1);
}

/// Reads what there is.
std::string read(Tls& tls) {
  std::string text;
  while (true) {
    char buffer[20000];
    const iovec part{buffer, sizeof buffer};
    const auto count = tls.read(&part, 1);
    if (count <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

TEST(Tls, EndsOfOneSecretMeet) {
  Ends ends;
  ends.shake_hands();
  EXPECT_EQ(write(*ends.connector, "ping"), 4);
  EXPECT_EQ(write(*ends.listener, "pong"), 4);
  EXPECT_EQ(read(*ends.listener), "ping");
  EXPECT_EQ(read(*ends.connector), "pong");
  EXPECT_EQ(errno, EAGAIN);
}

TEST(Tls, EndsOfTwoSecretsDoNot) {
  Ends ends(std::string(32, 't'));
  EXPECT_EQ(ends.connector->shake_hands(), Tls::Step::kWaits);
  EXPECT_EQ(ends.listener->shake_hands(), Tls::Step::kRefused);
  EXPECT_EQ(ends.connector->shake_hands(), Tls::Step::kRefused);
}

TEST(Tls, AnEndThatIsNoTlsIsRefusedAndOneThatLeavesIsKnown) {
  Ends ends;
  tell(ends.connector_fd, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(ends.listener->shake_hands(), Tls::Step::kRefused);
  Ends others;
  others.connector.reset();
  others.connector_fd.reset();
  EXPECT_EQ(others.listener->shake_hands(), Tls::Step::kClosed);
}

TEST(Tls, TheEndOfAConnectionIsRead) {
  Ends ends;
  ends.shake_hands();
  EXPECT_EQ(write(*ends.connector, "last"), 4);
  ends.connector.reset();
  ends.connector_fd.reset();
  char buffer[16];
  const iovec part{buffer, sizeof buffer};
  EXPECT_EQ(ends.listener->read(&part, 1), 4);
  EXPECT_EQ(ends.listener->read(&part, 1), 0);
  EXPECT_EQ(ends.listener->read(&part, 1), 0);
}

TEST(Tls, PartsOfAnySizesArriveInOrder) {
  Ends ends;
  ends.shake_hands();
  std::string sent, received;
  for (const std::size_t bytes : {1, 16, 8192, 16383, 16384, 16385, 50000, 0, 7}) {
    std::string first(bytes, 'a'), second(bytes / 2 + 1, 'b');
    iovec parts[2] = {{first.data(), first.size()}, {second.data(), second.size()}};
    const std::string both = first + second;
    const auto taken = ends.connector->write(parts, 2);
    ASSERT_GT(taken, 0);
    sent += both.substr(0, static_cast<std::size_t>(taken));
    received += read(*ends.listener);
  }
  EXPECT_EQ(ends.connector->flush(), 0);
  EXPECT_EQ(received + read(*ends.listener), sent);
}

// Two threads an end, as the TCP transport has them; the keys change every third record.
TEST(Tls, OneThreadReadsWhileAnotherWritesAndKeysChange) {
  Ends ends(kSecret, 3);
  ends.shake_hands();
  constexpr std::size_t kBytes = 4'000'000;
  std::string sent(kBytes, ' ');
  for (std::size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<char>(i * i / 977);
  const auto write_all = [&](Tls& tls, int fd) {
    for (std::size_t at = 0; at < kBytes || tls.flush() == EAGAIN;) {
      pollfd room{fd, POLLOUT, 0};
      poll(&room, 1, 1000);
      const iovec part{sent.data() + at, std::min<std::size_t>(kBytes - at, 100'000)};
      if (const auto taken = tls.write(&part, 1); taken > 0) at += static_cast<std::size_t>(taken);
    }
  };
  const auto read_all = [&](Tls& tls, int fd) {
    std::string received;
    while (received.size() < kBytes) {
      pollfd bytes{fd, POLLIN, 0};
      if (!tls.has_unread()) poll(&bytes, 1, 1000);
      received += read(tls);
    }
    EXPECT_TRUE(received == sent);
  };
  std::thread threads[] = {
      std::thread([&] { write_all(*ends.connector, ends.connector_fd.get()); }),
      std::thread([&] { write_all(*ends.listener, ends.listener_fd.get()); }),
      std::thread([&] { read_all(*ends.connector, ends.connector_fd.get()); }),
      std::thread([&] { read_all(*ends.listener, ends.listener_fd.get()); })};
  for (std::thread& thread : threads) thread.join();
}

TEST(Tls, WhatHasNoRoomWaitsForIt) {
  Ends ends;
  ends.shake_hands();
  const std::string block(100'000, 'x');
  std::size_t taken = 0;
  while (true) {
    const auto more = write(*ends.connector, block);
    if (more < 0) break;
    taken += static_cast<std::size_t>(more);
  }
  EXPECT_EQ(errno, EAGAIN);
  EXPECT_EQ(ends.connector->flush(), EAGAIN);
  std::string received;
  while (received.size() < taken) {
    received += read(*ends.listener);
    [[maybe_unused]] const int error = ends.connector->flush();
  }
  EXPECT_EQ(received, std::string(taken, 'x'));
  EXPECT_EQ(ends.connector->flush(), 0);
}

TEST(TlsChannel, SendsWhatWaitsBeforeItsDeadline) {
  Ends ends;
  ends.shake_hands();
  Connection connection(std::move(ends.connector_fd), std::move(ends.connector));
  const std::string block(100'000, 'x');
  std::size_t taken = 0;
  while (true) {
    const auto more = connection.write(block.data(), block.size());
    if (more < 0) break;
    taken += static_cast<std::size_t>(more);
  }
  EXPECT_FALSE(connection.flush());
  connection.flush_before(std::chrono::steady_clock::now());
  EXPECT_FALSE(connection.flush()) << "nobody has read yet";
  std::string received;
  std::thread reader([&] {
    while (received.size() < taken) {
      pollfd bytes{ends.listener_fd.get(), POLLIN, 0};
      poll(&bytes, 1, 1000);
      received += read(*ends.listener);
    }
  });
  connection.flush_before(soon());
  EXPECT_TRUE(connection.flush());
  connection.close();
  reader.join();
  EXPECT_TRUE(received == std::string(taken, 'x'));
}

TEST(Tls, BytesThatAreChangedOnTheirWayAreRefused) {
  Ends ends, others;
  ends.shake_hands();
  others.shake_hands();
  EXPECT_EQ(write(*ends.connector, std::string(1000, 'x')), 1000);
  std::string record = hear(ends.listener_fd, 1022);
  record[500] = static_cast<char>(record[500] ^ 1);
  tell(ends.connector_fd, record);
  char buffer[16];
  const iovec part{buffer, sizeof buffer};
  EXPECT_EQ(ends.listener->read(&part, 1), -1);
  EXPECT_EQ(errno, EBADMSG);
  EXPECT_EQ(ends.listener->read(&part, 1), -1) << "and nothing more is taken";
  EXPECT_EQ(errno, EBADMSG);
  EXPECT_EQ(loss_text(EBADMSG), "was lost: TLS refuses what came: it was changed on its way");
  // A record twice.
  EXPECT_EQ(write(*others.connector, "once"), 4);
  record = hear(others.listener_fd, 26);
  tell(others.connector_fd, record + record);
  EXPECT_EQ(others.listener->read(&part, 1), 4);
  EXPECT_EQ(others.listener->read(&part, 1), -1);
  EXPECT_EQ(errno, EBADMSG);
}

Result<ProofEnd> proved_at(int port, Connection& connection, const ProofTerms& terms) {
  connection = Connection(*connect_to("127.0.0.1", port, soon()));
  return prove(connection, terms, 7, soon());
}

/// What a proof at `port` comes to, "" if there was an error.
std::string end_at(int port, const ProofTerms& terms) {
  Connection connection;
  const auto end = proved_at(port, connection, terms);
  if (!end.ok()) return end.status().message();
  return std::array{
      "proved", "refused", "other", "impostor", "closed", "late"}[static_cast<std::size_t>(*end)];
}

std::string hear_all(Connection& connection, std::size_t bytes) {
  std::string heard;
  char buffer[64];
  while (heard.size() < bytes) {
    if (!connection.has_unread() && !readable_before(connection.fd(), soon())) break;
    const auto count = connection.read(buffer, bytes - heard.size());
    if (count < 0 && errno == EAGAIN) continue;
    if (count <= 0) break;
    heard.append(buffer, static_cast<std::size_t>(count));
  }
  return heard;
}

TEST(TlsGate, LetsThoseInWhoKnowTheToken) {
  ServingGate gate(true);
  Connection connection;
  const auto end = proved_at(gate.port(), connection, terms(true));
  ASSERT_TRUE(end.ok()) << end.status().message();
  EXPECT_EQ(*end, ProofEnd::kProved);
  EXPECT_EQ(hear_all(connection, 7), "welcome");
  EXPECT_THAT(gate.ranks(), ElementsAre(7));
  EXPECT_THAT(gate.stop(), ElementsAre());
}

TEST(TlsGate, RefusesAnotherToken) {
  ServingGate gate(true);
  EXPECT_EQ(end_at(gate.port(), {kWrongToken, "test", 3, true}), "refused");
  EXPECT_THAT(gate.stop(),
              ElementsAre("refused a connection from 127.0.0.1: its job token is wrong"));
}

TEST(TlsGate, TellsThoseWhoKnowTheTokenThatOneEndOnlyWantsTls) {
  ServingGate with(true), without;
  EXPECT_EQ(end_at(with.port(), terms(false)), "other");
  EXPECT_EQ(end_at(without.port(), terms(true)), "other");
  EXPECT_EQ(end_at(with.port(), {kWrongToken, "test", 3, false}), "refused");
  EXPECT_THAT(with.stop().front(),
              "refused a connection from 127.0.0.1: it wants no TLS, and this job has it");
  EXPECT_THAT(without.stop(), ElementsAre("refused a connection from 127.0.0.1: it wants TLS, and "
                                          "this job has none"));
  EXPECT_THAT(with.ranks(), ElementsAre());
}

// Who takes TLS out of a greeting makes the proof worthless.
TEST(TlsGate, NobodyOnTheWayTakesTlsAway) {
  ServingGate gate(true);
  const Relay relay(gate.port(), [](std::string& bytes, std::size_t before, bool from_caller) {
    if (from_caller && before == 0) bytes[kProofMagic.size()] = 'p';
  });
  EXPECT_EQ(end_at(relay.port(), terms(true)), "refused");
  EXPECT_THAT(gate.ranks(), ElementsAre());
}

// What stands between passes the proof on, and then speaks for itself.
TEST(TlsGate, WhoPassesAProofOnIsNotLetIn) {
  ServingGate gate(true);
  std::string noise = *random_bytes(512);
  const Relay relay(gate.port(), [&](std::string& bytes, std::size_t before, bool from_caller) {
    if (from_caller && before == kGreetingBytes + kClaimBytes) bytes = noise;
  });
  EXPECT_NE(end_at(relay.port(), terms(true)), "proved");
  EXPECT_THAT(gate.stop(), ElementsAre("refused a connection from 127.0.0.1: TLS with it failed "
                                       "after its proof: that was passed on, or changed"));
  EXPECT_THAT(gate.ranks(), ElementsAre());
}

TEST(TlsGate, WhoPassesAVerdictOnIsFoundOut) {
  ServingGate gate(true);
  const Relay relay(gate.port(), [](std::string& bytes, std::size_t before, bool from_caller) {
    if (!from_caller && before == kNonceBytes + kVerdictBytes) bytes.back() ^= 1;
  });
  EXPECT_EQ(end_at(relay.port(), terms(true)), "impostor");
  EXPECT_THAT(gate.ranks(), ElementsAre());
}

TEST(TlsGate, WhoProvesTheTokenAndSaysNothingMoreIsClosed) {
  ServingGate gate(true);
  const Fd fd = gate.connect();
  const auto end = prove(fd.get(), terms(true), 7, soon());
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, ProofEnd::kProved);
  EXPECT_EQ(hear(fd, 1), "");
  EXPECT_THAT(gate.ranks(), ElementsAre());
  EXPECT_THAT(gate.stop(), ElementsAre("refused a connection from 127.0.0.1: it did not begin TLS "
                                       "after its proof within 5000 ms"));
}

// A rank may be slow, and it cannot come again once it has proved itself: it believes that it is
// in.
TEST(TlsGate, WhoHasProvedTheTokenIsNotGivenUpForACrowd) {
  ServingGate gate(true);
  Fd fd = gate.connect();
  std::string secret;
  const auto end = prove(fd.get(), terms(true), 7, soon(), &secret);
  ASSERT_TRUE(end.ok());
  ASSERT_EQ(*end, ProofEnd::kProved);
  std::vector<Fd> crowd;
  for (std::size_t i = 0; i < 2 * Gate::kMostStrangers; ++i) crowd.push_back(gate.connect());
  gate.wait_for_refusals(static_cast<std::int64_t>(Gate::kMostStrangers));
  auto tls = *Tls::begin(fd.get(), TlsEnd::kConnector, secret);
  Tls::Step step = tls->shake_hands();
  while (step == Tls::Step::kWaits && readable_before(fd.get(), soon())) step = tls->shake_hands();
  ASSERT_EQ(step, Tls::Step::kDone);
  Connection connection(std::move(fd), std::move(tls));
  EXPECT_EQ(hear_all(connection, 7), "welcome");
  EXPECT_THAT(gate.ranks(), ElementsAre(7));
}

/// What passes between the two ranks of a job, of which one says `words`.
std::string passed_of_a_job(bool tls, const std::string& words) {
  Job job(2);
  const Relay relay(job.port());
  job.run(
      [&](int rank, Job::Joined joined) {
        ASSERT_JOINED(joined);
        EXPECT_EQ((*joined)->tls(), tls);
        if (rank == 1) {
          EXPECT_TRUE((*joined)->set("words", words).ok());
        }
        const auto heard = (*joined)->get("words", std::chrono::seconds(60));
        ASSERT_TRUE(heard.ok()) << heard.status().message();
        EXPECT_EQ(*heard, words);
        EXPECT_TRUE((*joined)->barrier("end", std::chrono::seconds(60)).ok());
      },
      [&](BootstrapOptions& options) {
        options.tls = tls;
        if (options.rank == 1) options.port = relay.port();
      });
  return relay.passed();
}

TEST(TlsBootstrap, TheWireCarriesNoPlainBytes) {
  std::string words;
  for (int i = 0; words.size() < 65536; ++i) words += "word " + std::to_string(i) + ", ";
  words.resize(65536);
  const std::string plain = passed_of_a_job(false, words);
  for (const char* known : {"word 77, ", "sha256:1", "host/1", "barrier/end", "agpcs-bootstrap-"}) {
    EXPECT_THAT(plain, HasSubstr(known)) << "what the relay looks for passes it without TLS";
  }
  const std::string encrypted = passed_of_a_job(true, words);
  EXPECT_GT(encrypted.size(), 2 * words.size());
  for (const char* known : {"word ", "sha256:1", "host/1", "barrier", "agpcs-bootstrap-"}) {
    EXPECT_THAT(encrypted, Not(HasSubstr(known)));
  }
}

/// What both ranks of a job say whose rank 0 has TLS or not, and whose rank 1 the other.
std::vector<std::string> said_of_two_minds(bool of_rank_0) {
  std::vector<std::string> said(2);
  Job(2).run(
      [&](int rank, Job::Joined joined) {
        EXPECT_FALSE(joined.ok());
        said[static_cast<std::size_t>(rank)] = joined.status().message();
      },
      [&](BootstrapOptions& options) { options.tls = (options.rank == 0) == of_rank_0; });
  return said;
}

TEST(TlsBootstrap, OneWithAndOneWithoutSaySo) {
  const std::string hint =
      "\n  hint: with --tls everything is encrypted, so all ranks need it, or none";
  for (const bool tls : {true, false}) {
    const std::string both = tls ? "no against yes" : "yes against no";
    const std::string said = "rank 1 has another --tls than rank 0: " + both + hint;
    EXPECT_THAT(said_of_two_minds(tls), ElementsAre(said, "rank 0 refused this rank: " + said));
  }
}

TEST(TlsBootstrap, ARankThatIsLostIsNamed) {
  std::barrier both_are_in(2);
  Job(2).run(
      [&](int rank, Job::Joined joined) {
        ASSERT_JOINED(joined);
        both_are_in.arrive_and_wait();
        if (rank == 1) return (*joined)->report({StatusCode::kInternal, "disk on fire"});
        EXPECT_EQ((*joined)->wait_for_failure(std::chrono::seconds(60)).message(),
                  "rank 1 (host/1): disk on fire");
      },
      [](BootstrapOptions& options) { options.tls = true; });
}

}  // namespace
}  // namespace agpcs
