// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string_view>
#include <sys/socket.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

struct AddressFree {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressFree>;

union SocketAddress {
  sockaddr any;
  sockaddr_in ipv4;
  sockaddr_in6 ipv6;
};

// Returns at least one address if there is no error. kInvalidInput: there can never be one.
Result<AddressList> resolve(const std::string& address, int port) {
  if (!address.empty() && address.front() == '[') {  // no name server would know such a name
    return invalid_input(
        fmt::format("cannot resolve '{}': an IPv6 address stands without brackets here", address));
  }
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int rc = getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (rc != 0) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("cannot resolve '{}': {}", address, gai_strerror(rc)));
  }
  return AddressList(list);
}

// Returns a name's addresses, those of IPv4 first. Ranks must reach each other by addresses of
// one kind; for names that have both kinds, the kind would otherwise depend on how each machine
// is set up.
std::vector<const addrinfo*> ipv4_first(const addrinfo& list) {
  std::vector<const addrinfo*> sorted;
  for (const addrinfo* at = &list; at != nullptr; at = at->ai_next) sorted.push_back(at);
  std::stable_partition(sorted.begin(), sorted.end(),
                        [](const addrinfo* at) { return at->ai_family == AF_INET; });
  return sorted;
}

constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS, from Linux 6.15: <netinet/tcp.h> may be older

// Bootstrap messages are short and leave at once. TCP resends what is lost, and waits twice as long
// each time, so that a network which was away for a while would seem away for twice as long. With
// these options it waits for a second at most; older kernels wait longer after six attempts.
void send_words_promptly(int fd) {
  const int on = 1, longest_ms = 1000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, kTcpRtoMaxMs, &longest_ms, sizeof longest_ms);
}

// Makes one attempt. Returns 0, or the errno of the failure.
int try_connect(const addrinfo& to, Clock::time_point deadline, Fd& connected) {
  Fd fd(socket(to.ai_family, to.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, to.ai_protocol));
  if (fd.get() < 0) return errno;
  if (connect(fd.get(), to.ai_addr, to.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd waiting{fd.get(), POLLOUT, 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (poll(&waiting, 1, static_cast<int>(std::clamp<long long>(left, 0, 5000))) <= 0) {
      return ETIMEDOUT;
    }
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return error;
  }
  send_words_promptly(fd.get());
  connected = std::move(fd);
  return 0;
}

constexpr int kBacklog = 256;  // connections that the system keeps until they are taken

// Returns 0, or the errno of the failure.
int try_listen(const sockaddr& address, socklen_t length, Fd& listening) {
  Fd fd(socket(address.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (fd.get() < 0) return errno;
  const int on = 1, off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  send_words_promptly(fd.get());  // accepted connections inherit the options
  const bool ipv6 = address.sa_family == AF_INET6;
  if (ipv6 && setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) {
    return EAFNOSUPPORT;
  }
  if (bind(fd.get(), &address, length) != 0 || listen(fd.get(), kBacklog) != 0) return errno;
  listening = std::move(fd);
  return 0;
}

// Listens on all addresses of IPv6, which takes IPv4 connections too, or of IPv4 alone.
int try_listen_everywhere(int family, int port, Fd& listening) {
  SocketAddress address{};
  if (family == AF_INET6) {
    address.ipv6.sin6_family = AF_INET6;
    address.ipv6.sin6_port = htons(static_cast<std::uint16_t>(port));
    address.ipv6.sin6_addr = in6addr_any;
    return try_listen(address.any, sizeof address.ipv6, listening);
  }
  address.ipv4.sin_family = AF_INET;
  address.ipv4.sin_port = htons(static_cast<std::uint16_t>(port));
  address.ipv4.sin_addr.s_addr = htonl(INADDR_ANY);
  return try_listen(address.any, sizeof address.ipv4, listening);
}

// Returns an address as people write it: IPv4 without the prefix that it has on an IPv6 socket.
std::string text_of(const sockaddr& address, socklen_t length) {
  char text[NI_MAXHOST] = "";
  if (getnameinfo(&address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view whole = text;
  const bool mapped =
      whole.substr(0, kMapped.size()) == kMapped && whole.find('.') != std::string_view::npos;
  return std::string(mapped ? whole.substr(kMapped.size()) : whole);
}

}  // namespace

std::string error_text(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof buffer);
}

Result<int> family_of(const std::string& address) {
  AGPCS_TRY(const AddressList list, resolve(address, 0));
  return ipv4_first(*list).front()->ai_family;
}

std::string endpoint(const std::string& address, int port) {
  const bool ipv6 = address.find(':') != std::string::npos;
  return ipv6 ? fmt::format("[{}]:{}", address, port) : fmt::format("{}:{}", address, port);
}

Result<std::vector<std::string>> addresses_of(const std::string& name) {
  AGPCS_TRY(const AddressList list, resolve(name, 0));
  std::vector<std::string> addresses;
  for (const addrinfo* at : ipv4_first(*list)) {
    addresses.push_back(text_of(*at->ai_addr, at->ai_addrlen));
  }
  return addresses;
}

bool is_every_address(const std::string& address) {
  return address == "0.0.0.0" || address == "::";
}

Result<Fd> listen_at(const std::string& address, int port) {
  Fd fd;
  int error = EAFNOSUPPORT;
  if (address.empty() || address == "::") {
    error = try_listen_everywhere(AF_INET6, port, fd);
    if (error == EAFNOSUPPORT || error == EADDRNOTAVAIL) {  // the machine has no IPv6
      error = try_listen_everywhere(AF_INET, port, fd);
    }
  } else {
    AGPCS_TRY(const AddressList list, resolve(address, port));
    const addrinfo& to = *ipv4_first(*list).front();
    error = try_listen(*to.ai_addr, to.ai_addrlen, fd);
  }
  if (error == 0) return fd;
  const std::string where = address.empty() ? fmt::format("on port {}", port)
                            : port == 0     ? "at " + address
                                            : "at " + endpoint(address, port);
  return Status(StatusCode::kUnavailable,
                fmt::format("cannot listen {}: {}", where, error_text(error)));
}

Caller accept_from(int listening) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* from = reinterpret_cast<sockaddr*>(&address);
  Fd fd(accept4(listening, from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd.get() < 0) return {};
  return {std::move(fd), text_of(*from, length)};
}

int port_of(int fd) {
  SocketAddress address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, &address.any, &length) != 0) return 0;
  return ntohs(address.any.sa_family == AF_INET6 ? address.ipv6.sin6_port : address.ipv4.sin_port);
}

Result<Fd> connect_to(const std::string& address, int port, Clock::time_point deadline) {
  Status last(StatusCode::kUnavailable, "no attempt was made");
  Fd pause_read, pause_write;  // nothing is ever written; polling it is a pause
  AGPCS_RETURN_IF_ERROR(make_pipe(pause_read, pause_write));
  while (true) {
    auto list = resolve(address, port);
    if (!list.ok()) last = list.status();
    if (last.code() == StatusCode::kInvalidInput) return last;
    for (const addrinfo* to : list.ok() ? ipv4_first(**list) : std::vector<const addrinfo*>()) {
      Fd fd;
      const int error = try_connect(*to, deadline, fd);
      if (error == 0) return fd;
      last = Status(StatusCode::kUnavailable, error_text(error));
    }
    if (Clock::now() >= deadline) break;
    pollfd pause{pause_read.get(), POLLIN, 0};
    poll(&pause, 1, 50);
  }
  return Status(last.code(),
                fmt::format("cannot connect to {}: {}", endpoint(address, port), last.message()));
}

std::string local_address_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  auto* at = reinterpret_cast<sockaddr*>(&address);
  if (getsockname(fd, at, &length) != 0) return {};
  return text_of(*at, length);
}

void set_non_blocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

bool readable_before(int fd, Clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd waiting{fd, POLLIN, 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::clamp<long long>(left, 0, 1 << 30)));
    if (ready >= 0 || errno != EINTR) return ready > 0;  // else a signal interrupted it
  }
}

void read_available(Fd& fd, std::string& text) {
  char buffer[4096];
  while (fd.get() >= 0) {
    const auto count = read(fd.get(), buffer, sizeof buffer);
    if (count < 0) return;
    if (count == 0) fd.reset();
    text.append(buffer, static_cast<std::size_t>(count));
  }
}

Status make_pipe(Fd& read_end, Fd& write_end) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) {
    return {StatusCode::kUnavailable, fmt::format("cannot make a pipe: {}", error_text(errno))};
  }
  read_end = Fd(ends[0]);
  write_end = Fd(ends[1]);
  return {};
}

}  // namespace agpcs
