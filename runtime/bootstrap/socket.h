// SPDX-License-Identifier: Apache-2.0
// The functions on TCP sockets that the bootstrap and the TCP transport need.
#pragma once

#include "ir/base/fd.h"

#include <agpcs/status.h>

#include <chrono>
#include <string>
#include <vector>

namespace agpcs {

/// Returns what strerror says. Ranks may be threads, so each call has a buffer of its own.
std::string error_text(int error);
/// Listens on `port` (0: any) of `address`, an IP address or a name of this machine. Empty: of all
/// its addresses, IPv4 and IPv6.
Result<Fd> listen_at(const std::string& address, int port = 0);
/// Tells whether `address` stands for all addresses of a machine: "0.0.0.0", or "::".
bool is_every_address(const std::string& address);
/// Returns the IP addresses of a name, those of IPv4 first, or an IP address itself. kUnavailable
/// says why there is none.
Result<std::vector<std::string>> addresses_of(const std::string& name);
/// A connection that came in, which does not block, and the IP address that it came from.
struct Caller {
  Fd fd;
  std::string address;
};
/// Takes the next connection. Without one, `fd` is -1 and errno says why.
Caller accept_from(int listening);
/// Returns the port of a listening socket.
int port_of(int fd);
/// Connects; tries again until `deadline` while there is no answer. If a name has several
/// addresses, it tries those of IPv4 first.
Result<Fd> connect_to(const std::string& address, int port,
                      std::chrono::steady_clock::time_point deadline);
/// Returns the family of an IP address, or of the addresses of a name: AF_INET if there is an IPv4
/// address, else AF_INET6. kUnavailable says why there is no address.
Result<int> family_of(const std::string& address);
/// Returns "10.0.0.1:29500", "[::1]:29500".
std::string endpoint(const std::string& address, int port);
/// Returns the IP address of this end of a connection, or at which a socket listens.
std::string local_address_of(int fd);
void set_non_blocking(int fd);
/// Waits until `fd` can be read. Returns false if that was not before `deadline`.
bool readable_before(int fd, std::chrono::steady_clock::time_point deadline);
/// Appends to `text` what can be read from `fd`, which must not block, and closes `fd` at its end.
void read_available(Fd& fd, std::string& text);
/// Makes a pipe, whose ends serve to wake a thread in poll.
Status make_pipe(Fd& read_end, Fd& write_end);

}  // namespace agpcs
