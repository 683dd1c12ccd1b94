// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ir/base/fd.h"

#include <cerrno>
#include <cstring>
#include <netinet/in.h>
#include <string>
#include <sys/socket.h>

namespace agpcs {

/// Why this machine cannot serve at ::1; empty when it can.
inline std::string no_ipv6() {
  const Fd fd(socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const auto* const any = reinterpret_cast<const sockaddr*>(&address);
  if (fd.get() >= 0 && bind(fd.get(), any, sizeof address) == 0) return {};
  return std::string("this machine has no ::1: ") + std::strerror(errno);
}

}  // namespace agpcs
