// SPDX-License-Identifier: Apache-2.0
// All cryptography is OpenSSL's: what TLS takes of it is in tls.cc, all else here.
#include "runtime/bootstrap/proof.h"

#include "ir/base/check.h"
#include "ir/base/little_endian.h"
#include "runtime/bootstrap/socket.h"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include <cerrno>
#include <cstdint>
#include <sys/socket.h>

namespace agpcs {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

constexpr char kWantsTls = 't', kWantsNone = 'p';  // in a greeting
constexpr std::size_t kTokenBits = 128;
constexpr std::size_t kHexDigits = kTokenBits / 4;
constexpr std::size_t kBase64Digits = (kTokenBits + 5) / 6;

void append_number(std::string& out, int value) {
  append_little_endian(out, static_cast<std::uint64_t>(value), 4);
}

// Sends a message that is smaller than any socket's buffer.
bool say(int fd, std::string_view bytes) {
  const auto count = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  return count == static_cast<ssize_t>(bytes.size());
}

// Reads `bytes` bytes. Returns kProved once they are there, or how it ended.
ProofEnd hear(int fd, std::size_t bytes, Deadline deadline, std::string& heard) {
  heard.assign(bytes, '\0');
  for (std::size_t at = 0; at < bytes;) {
    const auto count = recv(fd, heard.data() + at, bytes - at, 0);
    if (count > 0) {
      at += static_cast<std::size_t>(count);
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      return ProofEnd::kClosed;
    } else if (!readable_before(fd, deadline)) {
      return ProofEnd::kLate;
    }
  }
  return ProofEnd::kProved;
}

std::string hmac(const std::string& key, std::string_view text) {
  std::string code(kProofBytes, '\0');
  unsigned length = 0;
  const unsigned char* made = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                                   reinterpret_cast<unsigned char*>(code.data()), &length);
  AGPCS_CHECK(made != nullptr && length == kProofBytes, "OpenSSL made an HMAC of {} bytes", length);
  return code;
}

// What is the connection's own, after what has a fixed length; the job comes last.
std::string said_by(const ProofTerms& terms, const ProofTalk& talk) {
  std::string text;
  append_number(text, talk.connector);
  append_number(text, terms.listener);
  return text + talk.connector_nonce + talk.listener_nonce + terms.job;
}

}  // namespace

Result<std::string> random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) == 1) {
    return bytes;
  }
  return Status(StatusCode::kUnavailable, "the system gives no random bytes");
}

Result<std::string> random_token() {
  AGPCS_TRY(const std::string bytes, random_bytes(kTokenBits / 8));
  std::string token;
  for (const char byte : bytes) token += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return token;
}

std::string weakness_of(const std::string& token) {
  const bool hex = token.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos;
  const std::size_t least = hex ? kHexDigits : kBase64Digits;
  if (token.size() >= least) return {};
  return fmt::format("has {} {}, at least {} are needed: it must be of {} random bits",
                     token.size(), hex ? "hexadecimal digits" : "characters", least, kTokenBits);
}

std::string derived_key(const std::string& token, std::string_view purpose) {
  return hmac(token, "agpcs-key-1\n" + std::string(purpose));
}

std::string proof_of(const ProofTerms& terms, ProofOf whose, const ProofTalk& talk) {
  return hmac(terms.token, std::string(kProofMagic) + static_cast<char>(whose) +
                               (talk.tls ? kWantsTls : kWantsNone) + said_by(terms, talk));
}

std::string tls_secret(const ProofTerms& terms, const ProofTalk& talk) {
  return hmac(terms.token, "agpcs-tls-1\n" + said_by(terms, talk));
}

std::string greeting_of(bool tls, std::string_view nonce) {
  return std::string(kProofMagic) + (tls ? kWantsTls : kWantsNone) + std::string(nonce);
}

bool same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string claim_of(const ProofTerms& terms, const ProofTalk& talk) {
  std::string claim;
  append_number(claim, talk.connector);
  return claim + proof_of(terms, ProofOf::kConnector, talk);
}

Result<ProofEnd> prove(int fd, const ProofTerms& terms, int connector, Deadline deadline,
                       std::string* secret) {
  ProofTalk talk{connector, terms.tls, {}, {}};
  AGPCS_TRY(talk.connector_nonce, random_bytes(kNonceBytes));
  std::string verdict;
  if (!say(fd, greeting_of(terms.tls, talk.connector_nonce))) return ProofEnd::kClosed;
  ProofEnd end = hear(fd, kNonceBytes, deadline, talk.listener_nonce);
  if (end != ProofEnd::kProved) return end;
  if (!say(fd, claim_of(terms, talk))) return ProofEnd::kClosed;
  end = hear(fd, kVerdictBytes, deadline, verdict);
  if (end != ProofEnd::kProved) return end;
  if (verdict[0] == kVerdictNo) return ProofEnd::kRefused;
  const bool other = verdict[0] == kVerdictOther;
  const std::string expected =
      proof_of(terms, other ? ProofOf::kOtherListener : ProofOf::kListener, talk);
  if (!same_proof(std::string_view(verdict).substr(1), expected)) return ProofEnd::kImpostor;
  if (secret != nullptr) *secret = tls_secret(terms, talk);
  return other ? ProofEnd::kOther : ProofEnd::kProved;
}

}  // namespace agpcs
