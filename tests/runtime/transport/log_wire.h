// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/transport/wire.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

namespace agpcs {

/// Says what is posted and waited for; every message is done at once.
class LogWire final : public Wire {
 public:
  Result<std::unique_ptr<WireMessage>> send(const void* /*data*/, std::size_t bytes, int peer,
                                            std::uint64_t /*slot*/) override {
    return post(fmt::format("send {} to {}", bytes, peer), fmt::format("sent to {}", peer));
  }
  Result<std::unique_ptr<WireMessage>> recv(void* /*data*/, std::size_t bytes, int peer,
                                            std::uint64_t /*slot*/) override {
    return post(fmt::format("recv {} from {}", bytes, peer), fmt::format("got from {}", peer));
  }
  Result<std::unique_ptr<WireMessage>> recv_and_add(const Pieces& to, DType /*type*/, int peer,
                                                    std::uint64_t /*slot*/) override {
    return post(fmt::format("add {} from {}", to.bytes(), peer), fmt::format("got from {}", peer));
  }
  void cancel(const Status& /*reason*/) override {}
  void announce(const Status& /*reason*/) override {}

  std::string take() { return std::exchange(log_, ""); }

 private:
  class Done final : public WireMessage {
   public:
    Done(std::string& log, std::string text) : log_(log), text_(std::move(text)) {}
    Status wait(Deadline /*deadline*/) override {
      log_ += text_ + "\n";
      return {};
    }

   private:
    std::string& log_;
    std::string text_;
  };
  std::unique_ptr<WireMessage> post(const std::string& posted, std::string waited) {
    log_ += posted + "\n";
    return std::make_unique<Done>(log_, std::move(waited));
  }
  std::string log_;
};

}  // namespace agpcs
