// SPDX-License-Identifier: Apache-2.0
// TLS by OpenSSL, whose other uses are in proof.cc.
#include "runtime/bootstrap/tls.h"

#include "ir/base/check.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <sys/socket.h>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB
constexpr std::size_t kMostAtOnce = 8 * kRecordBytes;           // read or taken by one call
constexpr std::size_t kReadAhead = 8 * (kRecordBytes + 256);    // of records as they travel
constexpr std::string_view kIdentity = "agpcs";  // the secret differs, its name does not
constexpr unsigned char kAes128GcmSha256[2] = {0x13, 0x01};
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

struct Free {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
  void operator()(SSL_SESSION* session) const { SSL_SESSION_free(session); }
};

// Cuts parts of memory into records: a long part without a copy, short ones together.
class Records {
 public:
  Records(const iovec* parts, int count, std::array<char, kRecordBytes>& staging)
      : parts_(parts), end_(parts + count), staging_(staging) {}
  /// Returns the next record, at most `most` bytes; empty once there are no more.
  std::string_view next(std::size_t most) {
    most = std::min(most, kRecordBytes);
    if (parts_ != end_ && left().size() >= most) return take(most);
    std::size_t staged = 0;
    while (parts_ != end_ && staged < most) {
      const std::string_view part = take(most - staged);
      std::memcpy(staging_.data() + staged, part.data(), part.size());
      staged += part.size();
    }
    return {staging_.data(), staged};
  }

 private:
  std::string_view left() const {
    return {static_cast<const char*>(parts_->iov_base) + used_, parts_->iov_len - used_};
  }
  std::string_view take(std::size_t most) {
    const std::string_view taken = left().substr(0, most);
    used_ += taken.size();
    if (used_ == parts_->iov_len) {
      ++parts_;
      used_ = 0;
    }
    return taken;
  }

  const iovec* parts_;
  const iovec* end_;
  std::size_t used_ = 0;  // of the first part
  std::array<char, kRecordBytes>& staging_;
};

class OpensslTls final : public Tls {
 public:
  OpensslTls(int fd, std::string secret, std::int64_t records_a_key)
      : fd_(fd), secret_(std::move(secret)), records_a_key_(records_a_key) {}
  ~OpensslTls() override { ssl_.reset(); }  // while what it writes to is still there
  OpensslTls(const OpensslTls&) = delete;
  OpensslTls& operator=(const OpensslTls&) = delete;

  bool open(TlsEnd end);
  Step shake_hands() override;
  ssize_t read(const iovec* parts, int count) override;
  bool has_unread() const override {
    const std::lock_guard lock(mutex_);
    return SSL_has_pending(ssl_.get()) == 1;
  }
  ssize_t write(const iovec* parts, int count) override;
  int flush() override;

  /// OpenSSL asks for the secret.
  SSL_SESSION* session() const;
  /// OpenSSL writes what is to travel.
  void take_made(const char* data, std::size_t bytes) { made_.append(data, bytes); }

 private:
  Step step_of(int result);
  int read_some(char* data, std::size_t bytes);
  bool encrypt(std::string_view record);

  const int fd_;
  const std::string secret_;
  const std::int64_t records_a_key_;

  mutable std::mutex mutex_;  // OpenSSL's object is for one thread at a time
  std::unique_ptr<SSL, Free> ssl_;
  std::string made_;                 // encrypted
  std::int64_t records_of_key_ = 0;  // that the present key has encrypted

  // Of who reads.
  int read_error_ = 0;

  // Of who writes.
  std::string leaving_;   // was made
  std::size_t left_ = 0;  // bytes of it that have left
  std::array<char, kRecordBytes> staging_{};
};

OpensslTls& owner_of(SSL* ssl) { return *static_cast<OpensslTls*>(SSL_get_app_data(ssl)); }

int use_session(SSL* ssl, const EVP_MD* /*hash*/, const unsigned char** identity,
                std::size_t* identity_bytes, SSL_SESSION** session) {
  *identity = bytes_of(kIdentity);
  *identity_bytes = kIdentity.size();
  *session = owner_of(ssl).session();
  return *session != nullptr ? 1 : 0;
}

int find_session(SSL* ssl, const unsigned char* identity, std::size_t identity_bytes,
                 SSL_SESSION** session) {
  const std::string_view named(reinterpret_cast<const char*>(identity), identity_bytes);
  *session = named == kIdentity ? owner_of(ssl).session() : nullptr;
  return 1;  // without a session there is no handshake: this end has no certificate
}

int take_made(BIO* sink, const char* data, int bytes) {
  static_cast<OpensslTls*>(BIO_get_data(sink))->take_made(data, static_cast<std::size_t>(bytes));
  return bytes;
}

long control(BIO* /*sink*/, int command, long /*number*/, void* /*pointer*/) {  // NOLINT
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

// A place that OpenSSL writes to, and that always has room: what it holds then leaves in few calls.
BIO* new_sink(OpensslTls* owner) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "agpcs");
    if (made != nullptr) {
      BIO_meth_set_write(made, take_made);
      BIO_meth_set_ctrl(made, control);
    }
    return made;
  }();
  BIO* sink = method == nullptr ? nullptr : BIO_new(method);
  if (sink == nullptr) return nullptr;
  BIO_set_data(sink, owner);
  BIO_set_init(sink, 1);
  return sink;
}

// What all connections share. It lives as long as the process.
SSL_CTX* context() {
  static SSL_CTX* const shared = []() -> SSL_CTX* {
    SSL_CTX* made = SSL_CTX_new(TLS_method());
    if (made == nullptr) return nullptr;
    const bool fits = SSL_CTX_set_min_proto_version(made, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_max_proto_version(made, TLS1_3_VERSION) == 1 &&
                      SSL_CTX_set_ciphersuites(made, kSuite) == 1 &&
                      SSL_CTX_set_num_tickets(made, 0) == 1 &&
                      SSL_CTX_set_session_id_context(made, bytes_of(kIdentity),
                                                     static_cast<unsigned>(kIdentity.size())) == 1;
    if (!fits) {
      SSL_CTX_free(made);
      return nullptr;
    }
    SSL_CTX_clear_options(made, SSL_OP_ALLOW_NO_DHE_KEX);  // keys are exchanged, always
    SSL_CTX_set_session_cache_mode(made, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(made, SSL_VERIFY_PEER, nullptr);  // trusts nobody's certificate
    SSL_CTX_set_psk_use_session_callback(made, use_session);
    SSL_CTX_set_psk_find_session_callback(made, find_session);
    SSL_CTX_set_default_read_buffer_len(made, kReadAhead);
#ifdef SSL_OP_IGNORE_UNEXPECTED_EOF
    SSL_CTX_set_options(made, SSL_OP_IGNORE_UNEXPECTED_EOF);  // the protocols above say goodbye
#endif
    return made;
  }();
  return shared;
}

bool OpensslTls::open(TlsEnd end) {
  if (context() == nullptr) return false;
  ssl_.reset(SSL_new(context()));
  BIO* source = BIO_new_socket(fd_, BIO_NOCLOSE);
  BIO* sink = new_sink(this);
  if (!ssl_ || source == nullptr || sink == nullptr) {
    BIO_free(source);
    BIO_free(sink);
    return false;
  }
  SSL_set_bio(ssl_.get(), source, sink);
  SSL_set_app_data(ssl_.get(), this);
  if (end == TlsEnd::kConnector) {
    SSL_set_connect_state(ssl_.get());
  } else {
    SSL_set_accept_state(ssl_.get());
  }
  return true;
}

SSL_SESSION* OpensslTls::session() const {
  std::unique_ptr<SSL_SESSION, Free> made(SSL_SESSION_new());
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl_.get(), kAes128GcmSha256);
  const bool whole = made != nullptr && cipher != nullptr &&
                     SSL_SESSION_set1_master_key(
                         made.get(), reinterpret_cast<const unsigned char*>(secret_.data()),
                         secret_.size()) == 1 &&
                     SSL_SESSION_set_cipher(made.get(), cipher) == 1 &&
                     SSL_SESSION_set1_id_context(made.get(), bytes_of(kIdentity),
                                                 static_cast<unsigned>(kIdentity.size())) == 1 &&
                     SSL_SESSION_set_protocol_version(made.get(), TLS1_3_VERSION) == 1;
  return whole ? made.release() : nullptr;
}

Tls::Step OpensslTls::shake_hands() {
  Step step = Step::kRefused;
  {
    const std::lock_guard lock(mutex_);
    ERR_clear_error();
    step = step_of(SSL_do_handshake(ssl_.get()));
    if (step == Step::kDone) SSL_set_read_ahead(ssl_.get(), 1);
  }
  const int error = flush();
  return error == 0 || error == EAGAIN || step == Step::kRefused ? step : Step::kClosed;
}

// A handshake by certificate would end with success, too, if this end had or trusted one.
Tls::Step OpensslTls::step_of(int result) {
  if (result == 1) return SSL_session_reused(ssl_.get()) == 1 ? Step::kDone : Step::kRefused;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kWaits;
    case SSL_ERROR_ZERO_RETURN:
    case SSL_ERROR_SYSCALL:
      return Step::kClosed;
    default:
      return Step::kRefused;
  }
}

ssize_t OpensslTls::read(const iovec* parts, int count) {
  std::size_t got = 0;
  for (int i = 0; i < count && read_error_ == 0; ++i) {
    auto* const data = static_cast<char*>(parts[i].iov_base);
    std::size_t filled = 0;
    while (filled < parts[i].iov_len && got < kMostAtOnce) {
      const int more = read_some(data + filled, parts[i].iov_len - filled);
      if (more <= 0) {
        if (got > 0) return static_cast<ssize_t>(got);
        return more;
      }
      filled += static_cast<std::size_t>(more);
      got += static_cast<std::size_t>(more);
    }
  }
  if (got > 0 || read_error_ == 0) return static_cast<ssize_t>(got);
  errno = read_error_;
  return -1;
}

// Does what recv does. An error other than EAGAIN stays.
int OpensslTls::read_some(char* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  ERR_clear_error();
  errno = 0;
  const int most = static_cast<int>(std::min(bytes, kRecordBytes));
  const int got = SSL_read(ssl_.get(), data, most);
  if (got > 0) return got;
  const int from_system = errno;
  switch (SSL_get_error(ssl_.get(), got)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      if (from_system == 0) return 0;
      read_error_ = from_system;
      break;
    default:
      read_error_ = EBADMSG;
  }
  errno = read_error_;
  return -1;
}

ssize_t OpensslTls::write(const iovec* parts, int count) {
  int error = flush();
  Records records(parts, count, staging_);
  std::size_t taken = 0;
  while (error == 0 && taken < kMostAtOnce) {
    const std::string_view record = records.next(kRecordBytes);
    if (record.empty()) break;
    if (!encrypt(record)) error = EBADMSG;
    taken += record.size();
  }
  if (error == 0) {
    error = flush();
    if (error == EAGAIN) error = 0;  // what was taken waits
  }
  if (error == 0) return static_cast<ssize_t>(taken);
  errno = error;
  return -1;
}

bool OpensslTls::encrypt(std::string_view record) {
  const std::lock_guard lock(mutex_);
  ERR_clear_error();
  if (records_of_key_++ == records_a_key_) {
    records_of_key_ = 1;
    if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) return false;
  }
  const int bytes = static_cast<int>(record.size());
  return SSL_write(ssl_.get(), record.data(), bytes) == bytes;
}

int OpensslTls::flush() {
  while (true) {
    if (left_ == leaving_.size()) {
      left_ = 0;
      leaving_.clear();
      const std::lock_guard lock(mutex_);
      std::swap(leaving_, made_);
    }
    if (leaving_.empty()) return 0;
    const auto sent =
        ::send(fd_, leaving_.data() + left_, leaving_.size() - left_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      left_ += static_cast<std::size_t>(sent);
    } else if (errno != EINTR) {
      return errno;
    }
  }
}

}  // namespace

Result<std::unique_ptr<Tls>> Tls::begin(int fd, TlsEnd end, const std::string& secret,
                                        std::int64_t records_a_key) {
  auto tls = std::make_unique<OpensslTls>(fd, secret, records_a_key);
  if (tls->open(end)) return std::unique_ptr<Tls>(std::move(tls));
  return Status(StatusCode::kUnavailable,
                "OpenSSL offers no TLS 1.3 with TLS_AES_128_GCM_SHA256 here");
}

}  // namespace agpcs
