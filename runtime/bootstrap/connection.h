// SPDX-License-Identifier: Apache-2.0
// Connection: a connection between two ends of a job, plain or encrypted.
#pragma once

#include "ir/base/fd.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/tls.h"

#include <agpcs/status.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <sys/types.h>
#include <sys/uio.h>
#include <utility>

namespace agpcs {

/// As of a socket, one thread may read while another one writes.
class Connection {
 public:
  Connection() = default;
  /// `fd` does not block.
  Connection(Fd fd, std::unique_ptr<Tls> tls = nullptr)  // NOLINT(google-explicit-constructor)
      : fd_(std::move(fd)), tls_(std::move(tls)) {}

  int fd() const { return fd_.get(); }
  bool is_open() const { return fd_.get() >= 0; }
  void close();
  /// From now on all goes through `tls`, which has shaken hands over this connection.
  void encrypt(std::unique_ptr<Tls> tls) { tls_ = std::move(tls); }

  /// Does what readv does.
  ssize_t read(const iovec* parts, int count);
  ssize_t read(char* data, std::size_t bytes);
  /// Tells whether there may be more to read although poll does not say so.
  bool has_unread() const { return tls_ != nullptr && tls_->has_unread(); }

  /// Does what writev does, without SIGPIPE. What an encrypted one took may still have to wait for
  /// room.
  ssize_t write(const iovec* parts, int count);
  ssize_t write(const char* data, std::size_t bytes);
  /// Sends what waits for room. Returns false if it still does.
  bool flush() { return tls_ == nullptr || tls_->flush() != EAGAIN; }
  /// Sends what waits for room, until `deadline` at most.
  void flush_before(std::chrono::steady_clock::time_point deadline);

 private:
  Fd fd_;
  std::unique_ptr<Tls> tls_;  // null: plain
};

/// Does the connector's part of the proof over a plain `connection`, and then, if `terms` say so,
/// of TLS, by which the connection is encrypted.
Result<ProofEnd> prove(Connection& connection, const ProofTerms& terms, int connector,
                       std::chrono::steady_clock::time_point deadline);

/// Returns what `error`, an errno of a connection, says of it: "was lost: Broken pipe".
std::string loss_text(int error);

}  // namespace agpcs
