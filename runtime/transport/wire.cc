// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/wire.h"

#include "runtime/support/sum.h"

#include <utility>

namespace agpcs {
namespace {

// Is received to memory of its own, and added from there when it is waited for.
class AddedMessage final : public WireMessage {
 public:
  explicit AddedMessage(const Buffer& to)
      : to_(to), received_(std::make_unique_for_overwrite<char[]>(to.bytes)) {}

  Status post(Wire& wire, int peer, std::uint64_t slot) {
    AGPCS_TRY(message_, wire.recv(received_.get(), to_.bytes, peer, slot));
    return {};
  }
  Status wait(Deadline deadline) override {
    AGPCS_RETURN_IF_ERROR(message_->wait(deadline));
    if (!std::exchange(added_, true)) {
      add_into(to_.data, received_.get(), to_.bytes / size_of(to_.type), to_.type);
    }
    return {};
  }

 private:
  const Buffer to_;
  const std::unique_ptr<char[]> received_;
  bool added_ = false;
  std::unique_ptr<WireMessage> message_;  // destroyed (withdrawn) before the memory
};

}  // namespace

Result<std::unique_ptr<WireMessage>> Wire::recv_and_add(const Buffer& to, int peer,
                                                        std::uint64_t slot) {
  auto message = std::make_unique<AddedMessage>(to);
  AGPCS_RETURN_IF_ERROR(message->post(*this, peer, slot));
  return std::unique_ptr<WireMessage>(std::move(message));
}

}  // namespace agpcs
