// SPDX-License-Identifier: Apache-2.0
// What tests of connections between ranks share: two ranks that are threads, and a bootstrap
// through which a test sees what they tell each other.
#pragma once

#include "runtime/bootstrap/socket.h"
#include "tests/support/job_token.h"

#include <agpcs/bootstrap.h>
#include <agpcs/transport.h>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {

/// A bootstrap that forwards to another one.
class Overheard : public Bootstrap {
 public:
  using Heard = std::function<void(const std::string& key, const std::string& value)>;
  Overheard(Bootstrap& real, Heard heard, std::function<void(const std::string& key)> before_get)
      : real_(real), heard_(std::move(heard)), before_get_(std::move(before_get)) {}
  int rank() const override { return real_.rank(); }
  int size() const override { return real_.size(); }
  bool tls() const override { return real_.tls(); }
  std::string local_address() const override { return real_.local_address(); }
  std::string key_for(const std::string& purpose) const override { return real_.key_for(purpose); }
  Status set(const std::string& key, const std::string& value) override {
    heard_(key, value);
    return real_.set(key, value);
  }
  Result<std::string> get(const std::string& key, std::chrono::milliseconds limit) override {
    before_get_(key);
    return real_.get(key, limit);
  }
  Status barrier(const std::string& name, std::chrono::milliseconds limit) override {
    return real_.barrier(name, limit);
  }
  Result<BootstrapEvent> event(std::int64_t number, std::chrono::milliseconds limit) override {
    return real_.event(number, limit);
  }
  Status say(const std::string& text) override { return real_.say(text); }
  void report(const Status& failure) override { real_.report(failure); }
  Status failure() const override { return real_.failure(); }
  Status wait_for_failure(std::chrono::milliseconds /*limit*/) override { return real_.failure(); }
  void on_failure(std::function<void(const Status&)> listener) override {
    real_.on_failure(std::move(listener));
  }

 private:
  Bootstrap& real_;
  Heard heard_;
  std::function<void(const std::string&)> before_get_;
};

/// Runs `body` as each of two ranks, whose rank 0 is at `address`.
inline void run_two(const std::string& address, const std::function<void(Bootstrap&)>& body,
                    bool tls = false) {
  auto listening = listen_at("");
  ASSERT_TRUE(listening.ok()) << listening.status().message();
  const int port = port_of(listening->get()), listen_fd = listening->release();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      BootstrapOptions options;
      options.rank = rank;
      options.size = 2;
      options.address = address;
      options.port = port;
      options.listen_fd = rank == 0 ? listen_fd : -1;
      options.token = kJobToken;
      options.tls = tls;
      auto bootstrap = Bootstrap::join(options);
      ASSERT_TRUE(bootstrap.ok()) << bootstrap.status().message();
      body(**bootstrap);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline constexpr std::chrono::milliseconds kLongWait{60000};

inline Status receive_int(Transport& transport, int peer, int* value) {
  const auto ticket = transport.recv({value, sizeof *value, DType::kInt32, false}, peer, 0);
  return ticket.ok() ? transport.wait(Stream::kRecv, *ticket, kLongWait) : ticket.status();
}

/// Sends a number from rank 0 to rank 1, and back.
inline void exchange_numbers(Transport& transport) {
  int sent = 10 + transport.rank(), received = 0;
  const int other = 1 - transport.rank();
  const auto ticket = transport.send({&sent, sizeof sent, DType::kInt32, false}, other, 0);
  ASSERT_TRUE(ticket.ok()) << ticket.status().message();
  EXPECT_EQ(receive_int(transport, other, &received).message(), "");
  EXPECT_EQ(received, 10 + other);
  EXPECT_EQ(transport.wait(Stream::kSend, *ticket, kLongWait).message(), "");
}

}  // namespace agpcs
