// SPDX-License-Identifier: Apache-2.0
// A gate under test, and what its strangers say and hear.
#pragma once

#include "runtime/bootstrap/gate.h"
#include "runtime/bootstrap/proof.h"
#include "runtime/bootstrap/socket.h"
#include "tests/support/job_token.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <poll.h>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {

inline ProofTerms terms(bool tls = false) { return {kJobToken, "test", 3, tls}; }
inline std::chrono::steady_clock::time_point soon() {
  return std::chrono::steady_clock::now() + std::chrono::seconds(60);
}

/// A gate that serves on a thread, and what it says and lets through.
class ServingGate {
 public:
  explicit ServingGate(bool tls = false) {
    Fd listening = *listen_at("127.0.0.1");
    port_ = port_of(listening.get());
    gate_.emplace(std::move(listening), terms(tls), [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      said_.push_back(line);
    });
    thread_ = std::thread([this] { run(); });
  }
  ~ServingGate() { stop(); }
  ServingGate(const ServingGate&) = delete;
  ServingGate& operator=(const ServingGate&) = delete;

  int port() const { return port_; }
  Fd connect() const { return *connect_to("127.0.0.1", port_, soon()); }
  /// Waits until it has refused `count` connections.
  void wait_for_refusals(std::int64_t count) const {
    while (refused_ < count && std::chrono::steady_clock::now() < limit_) std::this_thread::yield();
    EXPECT_GE(refused_, count);
  }
  /// Ends it, and returns what it has said.
  std::vector<std::string> stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
    gate_.reset();
    return said_;
  }
  std::vector<int> ranks() {
    const std::lock_guard lock(mutex_);
    return ranks_;
  }

 private:
  void run() {
    while (!over_) {
      std::vector<pollfd> fds;
      gate_->watch(fds);
      poll(fds.data(), fds.size(), 10);
      auto guests = gate_->turn(fds.data());
      const std::lock_guard lock(mutex_);
      for (Gate::Guest& guest : guests) {
        ranks_.push_back(guest.rank);
        EXPECT_EQ(guest.connection.write("welcome", 7), 7);
        guests_.push_back(std::move(guest));
      }
      refused_ = gate_->refused();
    }
  }
  const std::chrono::steady_clock::time_point limit_ = soon();
  int port_ = 0;
  std::optional<Gate> gate_;
  std::mutex mutex_;
  std::vector<std::string> said_;
  std::vector<int> ranks_;
  std::vector<Gate::Guest> guests_;
  std::atomic<std::int64_t> refused_{0};
  std::atomic<bool> over_{false};
  std::thread thread_;
};

inline void tell(const Fd& fd, const std::string& bytes) {
  ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

/// Reads `bytes` bytes, or fewer where the connection ends before.
inline std::string hear(const Fd& fd, std::size_t bytes) {
  std::string heard;
  char byte = 0;
  while (heard.size() < bytes && readable_before(fd.get(), soon()) &&
         recv(fd.get(), &byte, 1, 0) == 1) {
    heard.push_back(byte);
  }
  return heard;
}

}  // namespace agpcs
