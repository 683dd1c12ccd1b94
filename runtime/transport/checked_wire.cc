// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/checked_wire.h"

#include "runtime/support/checksum.h"

#include <fmt/format.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

struct Header {
  std::uint64_t number = 0, bytes = 0, sum = 0;
};

std::uint64_t sum_of(const Header& header, const void* data) {
  return checksum(data, header.bytes, header.number * 31 + header.bytes);
}

class CheckedMessage final : public WireMessage {
 public:
  CheckedMessage(const void* data, std::size_t bytes, int peer, std::uint64_t number)
      : data_(data), peer_(peer), expected_{number, bytes, 0} {}

  Status post_send(Wire& wire, std::uint64_t slot) {
    header_ = expected_;
    header_.sum = sum_of(header_, data_);
    AGPCS_TRY(first_, wire.send(&header_, sizeof header_, peer_, slot));
    AGPCS_TRY(second_, wire.send(data_, expected_.bytes, peer_, slot));
    return {};
  }
  Status post_recv(Wire& wire, void* data, std::uint64_t slot) {
    receiving_ = true;
    AGPCS_TRY(first_, wire.recv(&header_, sizeof header_, peer_, slot));
    AGPCS_TRY(second_, wire.recv(data, expected_.bytes, peer_, slot));
    return {};
  }

  Status wait(Deadline deadline) override {
    AGPCS_RETURN_IF_ERROR(first_->wait(deadline));
    if (receiving_) AGPCS_RETURN_IF_ERROR(check_header());
    AGPCS_RETURN_IF_ERROR(second_->wait(deadline));
    return receiving_ ? check_bytes() : Status();
  }

 private:
  Status check_header() const {
    if (header_.number != expected_.number) {
      return damaged(fmt::format("its number is {}, expected {}: messages were lost or repeated",
                                 header_.number, expected_.number));
    }
    if (header_.bytes == expected_.bytes) return {};
    return damaged(fmt::format("it has {} bytes, expected {}", header_.bytes, expected_.bytes));
  }
  Status check_bytes() const {
    const std::uint64_t sum = sum_of(expected_, data_);
    if (sum == header_.sum) return {};
    return damaged(
        fmt::format("its checksum is {:016x}, that of its bytes {:016x}", header_.sum, sum));
  }
  Status damaged(const std::string& how) const {
    return {StatusCode::kUnavailable,
            fmt::format("message {} from rank {} is damaged: {}", expected_.number, peer_, how)};
  }

  const void* data_;
  const int peer_;
  const Header expected_;
  Header header_;
  bool receiving_ = false;
  std::unique_ptr<WireMessage> first_, second_;  // destroyed (withdrawn) before the header
};

class CheckedWire final : public Wire {
 public:
  explicit CheckedWire(std::unique_ptr<Wire> wire) : wire_(std::move(wire)) {}

  Result<std::unique_ptr<WireMessage>> send(const void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    auto message = std::make_unique<CheckedMessage>(data, bytes, peer, next(true, peer, slot));
    AGPCS_RETURN_IF_ERROR(message->post_send(*wire_, slot));
    return std::unique_ptr<WireMessage>(std::move(message));
  }
  Result<std::unique_ptr<WireMessage>> recv(void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    auto message = std::make_unique<CheckedMessage>(data, bytes, peer, next(false, peer, slot));
    AGPCS_RETURN_IF_ERROR(message->post_recv(*wire_, data, slot));
    return std::unique_ptr<WireMessage>(std::move(message));
  }
  void cancel(const Status& reason) override { wire_->cancel(reason); }
  void announce(const Status& reason) override { wire_->announce(reason); }

 private:
  std::uint64_t next(bool sending, int peer, std::uint64_t slot) {
    const std::lock_guard lock(mutex_);
    return numbers_[{sending, peer, slot}]++;
  }

  std::unique_ptr<Wire> wire_;
  std::mutex mutex_;
  std::map<std::tuple<bool, int, std::uint64_t>, std::uint64_t> numbers_;
};

}  // namespace

std::unique_ptr<Wire> make_checked_wire(std::unique_ptr<Wire> wire) {
  return std::make_unique<CheckedWire>(std::move(wire));
}

}  // namespace agpcs
