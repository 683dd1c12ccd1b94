// SPDX-License-Identifier: Apache-2.0
#include "runtime/socket.h"

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
#include <sys/socket.h>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;

// strerror with a buffer of its own: ranks may be threads.
std::string error_text(int error) {
  char buffer[128];
  return strerror_r(error, buffer, sizeof buffer);
}

struct AddressFree {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressFree>;

Result<AddressList> resolve(const std::string& address, int port) {
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

constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS, from Linux 6.15: <netinet/tcp.h> may be older

// What is said here is short, and leaves at once. What is lost TCP sends again, waiting twice as
// long each time, so that a network which was away for a while would seem to be so for twice as
// long. Not here: it waits for a second at most, on older kernels for more after six times.
void send_words_promptly(int fd) {
  const int on = 1, longest_ms = 1000;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, kTcpRtoMaxMs, &longest_ms, sizeof longest_ms);
}

// One attempt. Returns 0, or the errno of the failure.
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

}  // namespace

Status check_resolves(const std::string& address) { return resolve(address, 0).status(); }

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Fd::release() { return std::exchange(fd_, -1); }

void Fd::reset() {
  if (fd_ >= 0) close(release());
}

Result<Fd> listen_on(int port, bool local_only) {
  Fd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.get() >= 0) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  send_words_promptly(fd.get());  // connections that are accepted have it from here
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(local_only ? INADDR_LOOPBACK : INADDR_ANY);
  if (fd.get() < 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(fd.get(), 256) != 0) {
    return Status(StatusCode::kUnavailable,
                  fmt::format("cannot listen on port {}: {}", port, error_text(errno)));
  }
  return fd;
}

int port_of(int fd) {
  sockaddr_in address{};
  socklen_t length = sizeof address;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) return 0;
  return ntohs(address.sin_port);
}

Result<Fd> connect_to(const std::string& address, int port, Clock::time_point deadline) {
  Status last(StatusCode::kUnavailable, "no attempt was made");
  Fd pause_read, pause_write;  // nothing is ever written: polling it is waiting
  AGPCS_RETURN_IF_ERROR(make_pipe(pause_read, pause_write));
  while (true) {
    auto list = resolve(address, port);
    if (!list.ok()) last = list.status();
    for (const addrinfo* to = list.ok() ? list->get() : nullptr; to != nullptr; to = to->ai_next) {
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
                fmt::format("cannot connect to {}:{}: {}", address, port, last.message()));
}

std::string local_address_of(int fd) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  char text[NI_MAXHOST] = "";
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0) {
    getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, text, sizeof text, nullptr, 0,
                NI_NUMERICHOST);
  }
  return text;
}

void set_non_blocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

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
