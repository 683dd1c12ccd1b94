// SPDX-License-Identifier: Apache-2.0
// Jobs of ranks that are threads of the test, for tests of the bootstrap.
#pragma once

#include "runtime/bootstrap/frame.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/server.h"
#include "runtime/bootstrap/socket.h"
#include "tests/support/job_token.h"

#include <agpcs/bootstrap.h>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <future>
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
  explicit Job(int size) : size_(size), listening_(*listen_at("127.0.0.1")) {
    port_ = port_of(listening_.get());
  }
  int port() const { return port_; }

  BootstrapOptions options_of(int rank) {
    BootstrapOptions options;
    options.rank = rank;
    options.size = size_;
    options.port = port_;
    options.listen_fd = rank == 0 ? listening_.release() : -1;
    options.one_machine = true;
    options.token = kJobToken;
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

/// What a rank with these options says first, once it has proved the token.
inline Frame hello_of(const BootstrapOptions& options) {
  return {FrameKind::kHello,
          {kBootstrapMagic, std::to_string(options.rank), std::to_string(options.size),
           options.identity, options.name, options.host, agreed_text(options.agreed)}};
}

inline void say(const Fd& fd, const std::string& bytes) {
  [[maybe_unused]] const auto sent = send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

inline Fd connect_here(int port) {
  return *connect_to("127.0.0.1", port,
                     std::chrono::steady_clock::now() + std::chrono::seconds(60));
}

/// A connection that has proved the token of `options` and then says `hello`.
inline Fd half_rank_that_says(const BootstrapOptions& options, const Frame& hello) {
  Fd fd = connect_here(options.port);
  const auto end = prove(fd.get(), bootstrap_terms(options), options.rank,
                         std::chrono::steady_clock::now() + std::chrono::seconds(60));
  EXPECT_TRUE(end.ok() && *end == ProofEnd::kProved);
  say(fd, encode(hello));
  return fd;
}

/// A rank that does no more than say hello: its connection is a plain socket. It waits for rank 0,
/// so it is there once that has joined.
inline std::future<Fd> half_rank(const BootstrapOptions& options) {
  return std::async(std::launch::async,
                    [options] { return half_rank_that_says(options, hello_of(options)); });
}

}  // namespace agpcs
