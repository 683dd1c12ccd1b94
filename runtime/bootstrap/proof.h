// SPDX-License-Identifier: Apache-2.0
// The proof with which every connection of a job begins: each end shows that it knows the job's
// token, and neither sends it.
//
//   connector -> listener: kProofMagic, 't' if it wants TLS or 'p', its nonce
//   listener -> connector: its nonce
//   connector -> listener: its rank, its proof
//   listener -> connector: kVerdictYes or kVerdictOther and its proof, or kVerdictNo and zeros
//
// A proof is the HMAC-SHA256, by the token, of both nonces, both ranks, the job, whether the
// connector wants TLS, and whose and which verdict's proof it is. So a proof that was overheard is
// worth nothing on another connection or to another listener, and nobody can take TLS out of the
// greeting. The connector proves itself first: who only looks for open ports learns nothing.
//
// Where both want TLS, its handshake follows the verdict (tls.h).
#pragma once

#include <agpcs/status.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {

inline constexpr std::string_view kProofMagic = "agpcs-proof-2\n";
inline constexpr std::size_t kNonceBytes = 32, kProofBytes = 32;
inline constexpr std::size_t kGreetingBytes = kProofMagic.size() + 1 + kNonceBytes;
inline constexpr std::size_t kClaimBytes = 4 + kProofBytes;    ///< a rank and its proof
inline constexpr std::size_t kVerdictBytes = 1 + kProofBytes;  ///< of the listener
inline constexpr char kVerdictYes = 'y', kVerdictNo = 'n';
inline constexpr char kVerdictOther = 'o';  ///< the token is right, but one end only wants TLS

/// What both ends of a connection know before it is made.
struct ProofTerms {
  std::string token;  ///< the job's secret
  std::string job;    ///< which job it is, and which of its planes
  int listener = 0;   ///< the rank that listens
  bool tls = false;   ///< whether TLS follows the proof
};

/// Returns `count` bytes that nobody can foretell. kUnavailable: the system gives none.
Result<std::string> random_bytes(std::size_t count);
/// Returns a new token, of 128 random bits.
Result<std::string> random_token();
/// Returns why `token` may be guessed, ready to follow "the job token"; empty if it cannot.
std::string weakness_of(const std::string& token);

/// Returns a key for `purpose` from which nobody can tell the token.
std::string derived_key(const std::string& token, std::string_view purpose);

/// What both ends of a connection have said before the first proof.
struct ProofTalk {
  int connector = 0;  ///< the rank that connects
  bool tls = false;   ///< whether it wants TLS
  std::string connector_nonce, listener_nonce;
};
/// Whose proof: the connector's, or the listener's with one of two verdicts.
enum class ProofOf : char { kConnector = 'c', kListener = 'l', kOtherListener = 'o' };

std::string proof_of(const ProofTerms& terms, ProofOf whose, const ProofTalk& talk);
/// Returns the secret of the TLS that follows the proof.
std::string tls_secret(const ProofTerms& terms, const ProofTalk& talk);
/// Returns the connector's first message.
std::string greeting_of(bool tls, std::string_view nonce);
/// Compares in a time that does not depend on where they differ.
bool same_proof(std::string_view a, std::string_view b);
/// Returns the connector's second message.
std::string claim_of(const ProofTerms& terms, const ProofTalk& talk);

enum class ProofEnd : std::uint8_t {
  kProved,    ///< both know the token
  kRefused,   ///< the listener does not take this end's proof
  kOther,     ///< both know the token, but only one of them wants TLS
  kImpostor,  ///< the listener takes it, and does not prove that it knows the token itself
  kClosed,    ///< the connection ended before that: the listener may have had too many strangers
  kLate,      ///< the listener had not answered at the deadline
};

/// Does the connector's part, as rank `connector`, over `fd`, which must not block. `secret`, if
/// given, gets that of the TLS which follows.
Result<ProofEnd> prove(int fd, const ProofTerms& terms, int connector,
                       std::chrono::steady_clock::time_point deadline,
                       std::string* secret = nullptr);

}  // namespace agpcs
