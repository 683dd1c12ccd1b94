// SPDX-License-Identifier: Apache-2.0
// Jobs of ranks that are threads of the test, for tests of the bootstrap.
#pragma once

#include "runtime/bootstrap/frame.h"
#include "runtime/bootstrap/socket.h"

#include <agpcs/bootstrap.h>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {

/// A job whose ranks are threads; each may change its options before it joins.
class Job {
 public:
  explicit Job(int size) : size_(size), listening_(*listen_on(0, true)) {
    port_ = port_of(listening_.get());
  }
  int port() const { return port_; }

  BootstrapOptions options_of(int rank) {
    BootstrapOptions options;
    options.rank = rank;
    options.size = size_;
    options.port = port_;
    options.listen_fd = rank == 0 ? listening_.release() : -1;
    options.local_only = true;
    options.token = "secret";
    options.identity = "sha256:1";
    options.name = "host/" + std::to_string(rank);
    return options;
  }

  using Joined = Result<std::unique_ptr<Bootstrap>>;
  void run(
      const std::function<void(int rank, Joined joined)>& body,
      const std::function<void(BootstrapOptions&)>& change = [](BootstrapOptions&) {}) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size_; ++rank) {
      BootstrapOptions options = options_of(rank);
      change(options);
      threads.emplace_back([&body, options] { body(options.rank, Bootstrap::join(options)); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  int size_;
  Fd listening_;
  int port_ = 0;
};

#define ASSERT_JOINED(joined) ASSERT_TRUE((joined).ok()) << (joined).status().message()

/// What a rank with these options says first.
inline Frame hello_of(const BootstrapOptions& options) {
  return {
      FrameKind::kHello,
      {kBootstrapMagic, options.token, std::to_string(options.rank), std::to_string(options.size),
       options.identity, options.name, options.host, agreed_text(options.agreed)}};
}

inline void say(const Fd& fd, const std::string& bytes) {
  [[maybe_unused]] const auto sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

inline Fd connect_here(int port) {
  return *connect_to("127.0.0.1", port,
                     std::chrono::steady_clock::now() + std::chrono::seconds(60));
}

// A rank that does no more than say hello: its connection is a plain socket.
inline Fd half_rank(const BootstrapOptions& options) {
  Fd fd = connect_here(options.port);
  const std::string hello = encode(hello_of(options));
  say(fd, hello);
  return fd;
}

}  // namespace agpcs
