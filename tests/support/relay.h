// SPDX-License-Identifier: Apache-2.0
// A relay: what stands between two ends of a connection, passes all bytes on, and keeps them or
// changes them.
#pragma once

#include "runtime/bootstrap/socket.h"

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {

class Relay {
 public:
  /// Gets the bytes that one end said and how many it had said before; it may change them.
  using Change = std::function<void(std::string& bytes, std::size_t before, bool from_caller)>;
  /// Passes what comes to `port()` on to port `to` of this machine.
  explicit Relay(int to, Change change = {})
      : to_(to), change_(std::move(change)), listening_(*listen_at("127.0.0.1")) {
    set_non_blocking(listening_.get());
    thread_ = std::thread([this] { run(); });
  }
  ~Relay() {
    over_ = true;
    thread_.join();
  }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  int port() const { return port_of(listening_.get()); }
  /// All bytes that have passed so far, those of each direction of a connection in order.
  std::string passed() const {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const Pipe& pipe : pipes_) all += pipe.said[0] + pipe.said[1];
    return all;
  }

 private:
  struct Pipe {
    Fd ends[2];           // of the caller, of the callee
    std::string said[2];  // by each
  };

  void run() {
    while (!over_) {
      std::vector<pollfd> fds{{listening_.get(), POLLIN, 0}};
      for (const Pipe& pipe : pipes_) {
        for (const Fd& end : pipe.ends) fds.push_back({end.get(), POLLIN, 0});
      }
      poll(fds.data(), fds.size(), 10);
      std::size_t at = 1;
      for (Pipe& pipe : pipes_) {
        for (int from : {0, 1}) {
          if (fds[at++].revents != 0) pass(pipe, from);
        }
      }
      Caller caller = accept_from(listening_.get());
      if (caller.fd.get() < 0) continue;
      auto callee = connect_to("127.0.0.1", to_, std::chrono::steady_clock::now());
      if (!callee.ok()) continue;
      const std::lock_guard lock(mutex_);
      Pipe& pipe = pipes_.emplace_back();
      pipe.ends[0] = std::move(caller.fd);
      pipe.ends[1] = std::move(*callee);
    }
  }
  void pass(Pipe& pipe, int from) {
    char buffer[65536];
    const auto count = recv(pipe.ends[from].get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (count < 0) return;
    if (count == 0) {
      shutdown(pipe.ends[1 - from].get(), SHUT_WR);
      pipe.ends[from].reset();
      return;
    }
    std::string bytes(buffer, static_cast<std::size_t>(count));
    {
      const std::lock_guard lock(mutex_);
      if (change_) change_(bytes, pipe.said[from].size(), from == 0);
      pipe.said[from] += bytes;
    }
    for (std::size_t at = 0; at < bytes.size();) {
      pollfd room{pipe.ends[1 - from].get(), POLLOUT, 0};
      poll(&room, 1, 1000);
      const auto sent = send(pipe.ends[1 - from].get(), bytes.data() + at, bytes.size() - at,
                             MSG_NOSIGNAL | MSG_DONTWAIT);
      if (sent < 0 && errno != EAGAIN) return;
      if (sent > 0) at += static_cast<std::size_t>(sent);
      if (over_) return;
    }
  }

  const int to_;
  const Change change_;
  const Fd listening_;
  mutable std::mutex mutex_;  // of what the pipes' ends have said, and of the list
  std::list<Pipe> pipes_;
  std::atomic<bool> over_{false};
  std::thread thread_;
};

}  // namespace agpcs
