// SPDX-License-Identifier: Apache-2.0
// TCP sockets, as far as the bootstrap needs them.
#pragma once

#include "ir/fd.h"

#include <agpcs/status.h>

#include <chrono>
#include <string>

namespace agpcs {

/// Listens on `port` (0: any) of 127.0.0.1 or of all addresses, IPv4 and IPv6.
Result<Fd> listen_on(int port, bool local_only);
/// The port that a listening socket has.
int port_of(int fd);
/// Connects, trying again while there is no answer, until `deadline`. Of a name's addresses those
/// of IPv4 come first.
Result<Fd> connect_to(const std::string& address, int port,
                      std::chrono::steady_clock::time_point deadline);
/// Of an IP address, or a name that has one: AF_INET where there is one of IPv4, else AF_INET6.
/// kUnavailable says why there is none.
Result<int> family_of(const std::string& address);
/// "10.0.0.1:29500", "[::1]:29500".
std::string endpoint(const std::string& address, int port);
/// The IP address of this end of a connection.
std::string local_address_of(int fd);
void set_non_blocking(int fd);
/// Appends to `text` what can be read from `fd`, which does not block; closes it at its end.
void read_available(Fd& fd, std::string& text);
/// A pipe's two ends, for waking a thread in poll.
Status make_pipe(Fd& read_end, Fd& write_end);

}  // namespace agpcs
