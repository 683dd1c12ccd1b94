// SPDX-License-Identifier: Apache-2.0
// TCP sockets, as far as the bootstrap needs them.
#pragma once

#include <agpcs/status.h>

#include <chrono>
#include <string>

namespace agpcs {

/// A file descriptor that closes itself. -1: none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  ~Fd() { reset(); }
  int get() const { return fd_; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

/// Listens on `port` (0: any) of 127.0.0.1 or of all addresses.
Result<Fd> listen_on(int port, bool local_only);
/// The port that a listening socket has.
int port_of(int fd);
/// Connects, trying again while there is no answer, until `deadline`.
Result<Fd> connect_to(const std::string& address, int port,
                      std::chrono::steady_clock::time_point deadline);
/// Whether `address` is an IP address, or a name that has one. kUnavailable says why not.
Status check_resolves(const std::string& address);
/// The IP address of this end of a connection.
std::string local_address_of(int fd);
void set_non_blocking(int fd);
/// Appends to `text` what can be read from `fd`, which does not block; closes it at its end.
void read_available(Fd& fd, std::string& text);
/// A pipe's two ends, for waking a thread in poll.
Status make_pipe(Fd& read_end, Fd& write_end);

}  // namespace agpcs
