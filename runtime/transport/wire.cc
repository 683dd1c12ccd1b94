// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/wire.h"

#include "runtime/support/sum.h"

#include <cstring>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

// Travels by way of memory of its own. What comes is put in its place when it is waited for.
class PackedMessage final : public WireMessage {
 public:
  explicit PackedMessage(const Pieces& pieces)
      : pieces_(pieces), packed_(std::make_unique_for_overwrite<char[]>(pieces.bytes())) {}

  Status post_send(Wire& wire, int peer, std::uint64_t slot) {
    in_place_ = true;
    move([](char* packed, Span piece) { std::memcpy(packed, piece.data, piece.bytes); });
    AGPCS_TRY(message_, wire.send(packed_.get(), pieces_.bytes(), peer, slot));
    return {};
  }
  Status post_recv(Wire& wire, std::optional<DType> added_as, int peer, std::uint64_t slot) {
    added_as_ = added_as;
    AGPCS_TRY(message_, wire.recv(packed_.get(), pieces_.bytes(), peer, slot));
    return {};
  }
  Status wait(Deadline deadline) override {
    AGPCS_RETURN_IF_ERROR(message_->wait(deadline));
    if (std::exchange(in_place_, true)) return {};
    if (added_as_) {
      move([type = *added_as_](const char* packed, Span piece) {
        add_into(piece.data, packed, piece.bytes / size_of(type), type);
      });
    } else {
      move([](const char* packed, Span piece) { std::memcpy(piece.data, packed, piece.bytes); });
    }
    return {};
  }

 private:
  template <typename Move>
  void move(const Move& one) {
    char* packed = packed_.get();
    pieces_.each(0, pieces_.bytes(), [&](Span piece) {
      one(packed, piece);
      packed += piece.bytes;
      return true;
    });
  }

  const Pieces pieces_;
  const std::unique_ptr<char[]> packed_;
  std::optional<DType> added_as_;
  bool in_place_ = false;
  std::unique_ptr<WireMessage> message_;  // destroyed (withdrawn) before the memory
};

Result<std::unique_ptr<WireMessage>> recv_packed(Wire& wire, const Pieces& to,
                                                 std::optional<DType> added_as, int peer,
                                                 std::uint64_t slot) {
  auto message = std::make_unique<PackedMessage>(to);
  AGPCS_RETURN_IF_ERROR(message->post_recv(wire, added_as, peer, slot));
  return std::unique_ptr<WireMessage>(std::move(message));
}

}  // namespace

Result<std::unique_ptr<WireMessage>> Wire::send_pieces(const Pieces& from, int peer,
                                                       std::uint64_t slot) {
  if (const char* data = from.together()) return send(data, from.bytes(), peer, slot);
  auto message = std::make_unique<PackedMessage>(from);
  AGPCS_RETURN_IF_ERROR(message->post_send(*this, peer, slot));
  return std::unique_ptr<WireMessage>(std::move(message));
}

Result<std::unique_ptr<WireMessage>> Wire::recv_pieces(const Pieces& to, int peer,
                                                       std::uint64_t slot) {
  if (char* data = to.together()) return recv(data, to.bytes(), peer, slot);
  return recv_packed(*this, to, std::nullopt, peer, slot);
}

Result<std::unique_ptr<WireMessage>> Wire::recv_and_add(const Pieces& to, DType type, int peer,
                                                        std::uint64_t slot) {
  return recv_packed(*this, to, type, peer, slot);
}

}  // namespace agpcs
