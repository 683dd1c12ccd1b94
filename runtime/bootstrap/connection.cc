// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/connection.h"

#include "runtime/bootstrap/sanitized.h"
#include "runtime/bootstrap/socket.h"

#include <algorithm>
#include <cerrno>
#include <poll.h>
#include <sys/socket.h>
#include <utility>

namespace agpcs {
namespace {

using Deadline = std::chrono::steady_clock::time_point;

// A connection that ends here may have had to give way to others; who cannot go on has been
// refused.
Result<ProofEnd> shake_hands(Tls& tls, int fd, Deadline deadline) {
  while (true) {
    switch (tls.shake_hands()) {
      case Tls::Step::kDone:
        return ProofEnd::kProved;
      case Tls::Step::kClosed:
        return ProofEnd::kClosed;
      case Tls::Step::kRefused:
        return ProofEnd::kImpostor;
      case Tls::Step::kWaits:
        if (!readable_before(fd, deadline)) return ProofEnd::kLate;
    }
  }
}

}  // namespace

void Connection::close() {
  tls_.reset();
  fd_.reset();
}

ssize_t Connection::read(const iovec* parts, int count) {
  return sanitized_receive(parts, count, [&] {
    return tls_ ? tls_->read(parts, count) : readv(fd_.get(), parts, count);
  });
}

ssize_t Connection::read(char* data, std::size_t bytes) {
  const iovec part{data, bytes};
  return read(&part, 1);
}

ssize_t Connection::write(const iovec* parts, int count) {
  return sanitized_send(parts, count, [&] {
    if (tls_) return tls_->write(parts, count);
    msghdr message{};
    message.msg_iov = const_cast<iovec*>(parts);
    message.msg_iovlen = static_cast<std::size_t>(count);
    return sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
  });
}

ssize_t Connection::write(const char* data, std::size_t bytes) {
  const iovec part{const_cast<char*>(data), bytes};
  return write(&part, 1);
}

void Connection::flush_before(Deadline deadline) {
  while (!flush()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd room{fd_.get(), POLLOUT, 0};
    if (left.count() <= 0 || poll(&room, 1, static_cast<int>(left.count())) == 0) return;
  }
}

Result<ProofEnd> prove(Connection& connection, const ProofTerms& terms, int connector,
                       Deadline deadline) {
  std::string secret;
  AGPCS_TRY(const ProofEnd proved, prove(connection.fd(), terms, connector, deadline, &secret));
  if (proved != ProofEnd::kProved || !terms.tls) return proved;
  AGPCS_TRY(auto tls, Tls::begin(connection.fd(), TlsEnd::kConnector, secret));
  AGPCS_TRY(const ProofEnd end, shake_hands(*tls, connection.fd(), deadline));
  if (end == ProofEnd::kProved) connection.encrypt(std::move(tls));
  return end;
}

std::string loss_text(int error) {
  if (error == EBADMSG) return "was lost: TLS refuses what came: it was changed on its way";
  return "was lost: " + error_text(error);
}

}  // namespace agpcs
