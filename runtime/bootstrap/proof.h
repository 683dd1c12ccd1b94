// SPDX-License-Identifier: Apache-2.0
// The proof with which every connection of a job begins: each end shows that it knows the job's
// token, and neither sends it.
//
//   connector -> listener: kProofMagic, its nonce
//   listener -> connector: its nonce
//   connector -> listener: its rank, its proof
//   listener -> connector: kVerdictYes and its proof, or kVerdictNo and zeros
//
// A proof is the HMAC-SHA256, by the token, of both nonces, both ranks, the job and which end it is
// of. So a proof that was overheard is worth nothing on another connection or to another listener.
// The connector proves itself first: who only looks for open ports learns nothing.
#pragma once

#include <agpcs/status.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {

inline constexpr std::string_view kProofMagic = "agpcs-proof-1\n";
inline constexpr std::size_t kNonceBytes = 32, kProofBytes = 32;
inline constexpr std::size_t kGreetingBytes = kProofMagic.size() + kNonceBytes;
inline constexpr std::size_t kClaimBytes = 4 + kProofBytes;    ///< a rank and its proof
inline constexpr std::size_t kVerdictBytes = 1 + kProofBytes;  ///< of the listener
inline constexpr char kVerdictYes = 'y', kVerdictNo = 'n';

/// What both ends of a connection know before it is made.
struct ProofTerms {
  std::string token;  ///< the job's secret
  std::string job;    ///< which job it is, and which of its planes
  int listener = 0;   ///< the rank that listens
};

/// Returns `count` bytes that nobody can foretell. kUnavailable: the system gives none.
Result<std::string> random_bytes(std::size_t count);
/// Returns a new token, of 128 random bits.
Result<std::string> random_token();
/// Returns why `token` may be guessed, ready to follow "the job token"; empty if it cannot.
std::string weakness_of(const std::string& token);

/// Returns a key for `purpose` from which nobody can tell the token.
std::string derived_key(const std::string& token, std::string_view purpose);

/// Returns the proof of the end that `of_connector` names, rank `connector` being the other end of
/// the listener's connection.
std::string proof_of(const ProofTerms& terms, bool of_connector, int connector,
                     std::string_view connector_nonce, std::string_view listener_nonce);
/// Compares in a time that does not depend on where they differ.
bool same_proof(std::string_view a, std::string_view b);
/// Returns the connector's third message.
std::string claim_of(const ProofTerms& terms, int connector, std::string_view connector_nonce,
                     std::string_view listener_nonce);

enum class ProofEnd : std::uint8_t {
  kProved,    ///< both know the token
  kRefused,   ///< the listener does not take this end's proof
  kImpostor,  ///< the listener takes it, and does not prove that it knows the token itself
  kClosed,    ///< the connection ended before that: the listener may have had too many strangers
  kLate,      ///< the listener had not answered at the deadline
};

/// Does the connector's part, as rank `connector`, over `fd`, which must not block.
Result<ProofEnd> prove(int fd, const ProofTerms& terms, int connector,
                       std::chrono::steady_clock::time_point deadline);

}  // namespace agpcs
