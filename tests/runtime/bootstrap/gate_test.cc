// SPDX-License-Identifier: Apache-2.0
// The proof of the token, and the gate that asks for it.
#include "runtime/bootstrap/gate.h"

#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/refusals.h"
#include "runtime/bootstrap/socket.h"
#include "tests/runtime/bootstrap/serving_gate.h"
#include "tests/support/job_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;

ProofTalk talk_of(int connector, const std::string& theirs, const std::string& ours) {
  return {connector, false, theirs, ours};
}

TEST(Proof, EndsThatKnowTheTokenMeet) {
  ServingGate gate;
  const Fd fd = gate.connect();
  const auto end = prove(fd.get(), terms(), 7, soon());
  ASSERT_TRUE(end.ok()) << end.status().message();
  EXPECT_EQ(*end, ProofEnd::kProved);
  EXPECT_EQ(hear(fd, 7), "welcome");
  EXPECT_THAT(gate.ranks(), ElementsAre(7));
  EXPECT_THAT(gate.stop(), ElementsAre());
}

TEST(Proof, AnotherTokenJobOrListenerIsRefused) {
  ServingGate gate;
  const std::vector<ProofTerms> others = {
      {kWrongToken, "test", 3}, {kJobToken, "Test", 3}, {kJobToken, "test", 2}};
  for (const ProofTerms& other : others) {
    const Fd fd = gate.connect();
    const auto end = prove(fd.get(), other, 7, soon());
    ASSERT_TRUE(end.ok()) << end.status().message();
    EXPECT_EQ(*end, ProofEnd::kRefused);
    EXPECT_EQ(hear(fd, 1), "") << "a refused connection is closed";
  }
  EXPECT_THAT(gate.ranks(), ElementsAre());
  EXPECT_THAT(
      gate.stop(),
      ElementsAre("refused a connection from 127.0.0.1: its job token is wrong",
                  "refused 3 connections that did not prove the job token, from 1 address"));
}

// Answers one connector as a listener that does not know the token would, with `verdict`.
Result<ProofEnd> prove_to_impostor(const std::function<std::string()>& verdict) {
  const Fd listening = *listen_at("127.0.0.1");
  std::thread impostor([&] {
    ASSERT_TRUE(readable_before(listening.get(), soon()));
    const Caller caller = accept_from(listening.get());
    hear(caller.fd, kGreetingBytes);
    tell(caller.fd, std::string(kNonceBytes, 'n'));
    hear(caller.fd, kClaimBytes);
    tell(caller.fd, verdict());
    hear(caller.fd, 1);  // until the connector has gone
  });
  auto end = [&] {
    const Fd fd = *connect_to("127.0.0.1", port_of(listening.get()), soon());
    return prove(fd.get(), terms(), 7, soon());
  }();
  impostor.join();
  return end;
}

TEST(Proof, AListenerThatDoesNotKnowTheTokenIsFoundOut) {
  const auto end = prove_to_impostor([] { return kVerdictYes + std::string(kProofBytes, '\0'); });
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, ProofEnd::kImpostor);
}

TEST(Proof, AListenerThatSendsAProofBackIsFoundOut) {
  const Fd listening = *listen_at("127.0.0.1");
  std::thread mirror([&] {
    ASSERT_TRUE(readable_before(listening.get(), soon()));
    const Caller caller = accept_from(listening.get());
    const std::string greeting = hear(caller.fd, kGreetingBytes);
    tell(caller.fd, greeting.substr(kGreetingBytes - kNonceBytes));  // its own nonce
    tell(caller.fd, kVerdictYes + hear(caller.fd, kClaimBytes).substr(4));
    hear(caller.fd, 1);
  });
  {
    const Fd fd = *connect_to("127.0.0.1", port_of(listening.get()), soon());
    const auto end = prove(fd.get(), terms(), 3, soon());
    ASSERT_TRUE(end.ok());
    EXPECT_EQ(*end, ProofEnd::kImpostor);
  }
  mirror.join();
}

TEST(Proof, AListenerThatIsSilentOrLeavesIsToldApart) {
  const Fd listening = *listen_at("127.0.0.1");
  const Fd fd = *connect_to("127.0.0.1", port_of(listening.get()), soon());
  const auto late = prove(fd.get(), terms(), 7, steady_clock::now() + milliseconds(50));
  ASSERT_TRUE(late.ok());
  EXPECT_EQ(*late, ProofEnd::kLate);
  ASSERT_TRUE(readable_before(listening.get(), soon()));
  accept_from(listening.get()).fd.reset();
  const auto closed = prove(fd.get(), terms(), 7, soon());
  ASSERT_TRUE(closed.ok());
  EXPECT_EQ(*closed, ProofEnd::kClosed);
}

TEST(Proof, IsOfAllThatIsSaidBeforeAndOfTheEnd) {
  const std::string a(kNonceBytes, 'a'), b(kNonceBytes, 'b');
  const ProofOf us = ProofOf::kConnector;
  const ProofTalk talk = talk_of(7, a, b);
  const std::string proof = proof_of(terms(), us, talk);
  EXPECT_EQ(proof.size(), kProofBytes);
  EXPECT_TRUE(same_proof(proof, proof_of(terms(), us, talk)));
  const ProofTerms token = {kWrongToken, "test", 3}, job = {kJobToken, "tes", 3},
                   listener = {kJobToken, "test", 4};
  ProofTalk with_tls = talk;
  with_tls.tls = true;
  for (const std::string& other :
       {proof_of(terms(), ProofOf::kListener, talk),
        proof_of(terms(), ProofOf::kOtherListener, talk), proof_of(terms(), us, talk_of(8, a, b)),
        proof_of(terms(), us, talk_of(7, b, a)), proof_of(terms(), us, talk_of(7, a, a)),
        proof_of(terms(), us, with_tls), proof_of(token, us, talk), proof_of(job, us, talk),
        proof_of(listener, us, talk), tls_secret(terms(), talk), proof.substr(1)}) {
    EXPECT_FALSE(same_proof(proof, other));
  }
}

// The figure is that of Python's hmac over the same bytes.
TEST(Proof, IsTheHmacThatTheProtocolNames) {
  std::string hex;
  for (const char byte :
       proof_of({"0123456789abcdef0123456789abcdef", "job", 2}, ProofOf::kConnector,
                talk_of(1, std::string(kNonceBytes, '\x11'), std::string(kNonceBytes, '\x22')))) {
    constexpr const char* kDigits = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(byte) >> 4];
    hex += kDigits[static_cast<unsigned char>(byte) & 15];
  }
  EXPECT_EQ(hex, "6f3643ebf7c0076bbc9a0a6c91c89b07949513dbbfecebc54f9e28297c58a9c5");
}

TEST(Tokens, OfFewerThan128BitsAreWeak) {
  EXPECT_EQ(weakness_of(*random_token()), "");
  EXPECT_EQ(random_token()->size(), 32U);
  EXPECT_NE(*random_token(), *random_token());
  EXPECT_EQ(weakness_of("Wd3mSmdjd8ZC5vqxlk2Kzg"), "") << "16 bytes in base64, without padding";
  EXPECT_EQ(weakness_of(std::string(31, 'a')),
            "has 31 hexadecimal digits, at least 32 are needed: it must be of 128 random bits");
  EXPECT_EQ(weakness_of("secret"),
            "has 6 characters, at least 22 are needed: it must be of 128 random bits");
  EXPECT_EQ(weakness_of(""),
            "has 0 hexadecimal digits, at least 32 are needed: it must be of 128 random bits");
}

TEST(Gate, AReplayedProofIsRefused) {
  ServingGate gate;
  std::string greeting, claim;
  {
    const Fd fd = gate.connect();
    const std::string nonce = *random_bytes(kNonceBytes);
    greeting = greeting_of(false, nonce);
    tell(fd, greeting);
    claim = claim_of(terms(), talk_of(7, nonce, hear(fd, kNonceBytes)));
    tell(fd, claim);
    EXPECT_EQ(hear(fd, kVerdictBytes)[0], kVerdictYes);
  }
  const Fd again = gate.connect();
  tell(again, greeting);
  hear(again, kNonceBytes);
  tell(again, claim);
  EXPECT_EQ(hear(again, kVerdictBytes + 1), kVerdictNo + std::string(kProofBytes, '\0'));
  EXPECT_THAT(gate.ranks(), ElementsAre(7));
}

TEST(Gate, WhoSpeaksAnotherProtocolHearsNothing) {
  ServingGate gate;
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\x16\x03\x01\x02"),
        std::string(1, '\0'), std::string(kProofMagic.substr(0, 12)) + "1\n",
        std::string(kProofMagic) + 'x' + std::string(kNonceBytes, 'n')}) {
    const Fd fd = gate.connect();
    tell(fd, words);
    EXPECT_EQ(hear(fd, 1), "");
  }
  EXPECT_THAT(
      gate.stop(),
      ElementsAre("refused a connection from 127.0.0.1: it does not speak the protocol of "
                  "a job's ranks",
                  "refused 5 connections that did not prove the job token, from 1 address"));
}

TEST(Gate, WhoSaysNothingIsClosed) {
  ServingGate gate;
  const Fd fd = gate.connect();
  const auto begin = steady_clock::now();
  EXPECT_EQ(hear(fd, 1), "");
  EXPECT_GE(steady_clock::now() - begin, Gate::kPatience - milliseconds(1));
  EXPECT_THAT(gate.stop(), ElementsAre("refused a connection from 127.0.0.1: it did not prove the "
                                       "job token within 5000 ms"));
}

TEST(Gate, ACrowdKeepsNobodyOut) {
  ServingGate gate;
  std::vector<Fd> crowd;
  for (std::size_t i = 0; i < 2 * Gate::kMostStrangers; ++i) crowd.push_back(gate.connect());
  const Fd fd = gate.connect();
  const auto end = prove(fd.get(), terms(), 7, soon());
  ASSERT_TRUE(end.ok());
  EXPECT_EQ(*end, ProofEnd::kProved);
  gate.wait_for_refusals(static_cast<std::int64_t>(Gate::kMostStrangers));
}

TEST(Refusals, TellOfEachAddressOnceAndOfTenAMinute) {
  std::vector<std::string> said;
  const auto begin = steady_clock::now();
  {
    Refusals refusals([&](const std::string& line) { said.push_back(line); });
    for (int i = 0; i < 50; ++i) {
      refusals.add("10.0.0." + std::to_string(i % 25), "it left", begin);
    }
    EXPECT_EQ(said.size(), 10U);
    EXPECT_EQ(said.front(), "refused a connection from 10.0.0.0: it left");
    refusals.add("10.0.1.1", "it left", begin + std::chrono::minutes(1));
    EXPECT_EQ(said.size(), 11U);
    EXPECT_EQ(refusals.count(), 51);
  }
  EXPECT_EQ(said.back(),
            "refused 51 connections that did not prove the job token, from 26 addresses");
}

TEST(Refusals, OfWhichAllWereToldEndInSilence) {
  std::vector<std::string> said;
  {
    Refusals refusals([&](const std::string& line) { said.push_back(line); });
    refusals.add("10.0.0.1", "it left", steady_clock::now());
  }
  EXPECT_THAT(said, ElementsAre("refused a connection from 10.0.0.1: it left"));
}

}  // namespace
}  // namespace agpcs
