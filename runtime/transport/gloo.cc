// SPDX-License-Identifier: Apache-2.0
// The Gloo wire: unbound buffers over a full mesh of TCP pairs. No exception of Gloo leaves this
// file.
#include "runtime/bootstrap/socket.h"
#include "runtime/transport/bootstrapped.h"
#include "runtime/transport/gloo_error.h"
#include "runtime/transport/wire.h"

#include <agpcs/gloo.h>

#include <gloo/common/error.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <netinet/in.h>
#include <stdexcept>
#include <sys/socket.h>
#include <unordered_set>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;

// Returns whether this version of Gloo prints ports in the network's byte order: 1 as 256.
bool swaps_ports() {
  sockaddr_storage address{};
  auto& ipv4 = reinterpret_cast<sockaddr_in&>(address);
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(1);
  return gloo::transport::tcp::Address(address).str().find("]:256") != std::string::npos;
}

std::string cause_of(const std::exception& error) {
  static const bool swapped = swaps_ports();
  return gloo_cause(error.what(), swapped);
}

class GlooWire;

class GlooMessage final : public WireMessage {
 public:
  using Unbound = gloo::transport::UnboundBuffer;
  GlooMessage(GlooWire& wire, int peer, bool sending, std::unique_ptr<Unbound> buffer);
  ~GlooMessage() override;
  GlooMessage(const GlooMessage&) = delete;
  GlooMessage& operator=(const GlooMessage&) = delete;

  Status wait(Deadline deadline) override;
  void wake() {
    if (sending_) {
      buffer_->abortWaitSend();
    } else {
      buffer_->abortWaitRecv();
    }
  }

 private:
  GlooWire& wire_;
  const int peer_;
  const bool sending_;
  std::unique_ptr<Unbound> buffer_;
  bool done_ = false;
};

// Gloo cannot send empty messages. Both ends know that there is nothing to move.
class EmptyMessage final : public WireMessage {
 public:
  Status wait(Deadline /*deadline*/) override { return {}; }
};

class GlooWire final : public Wire {
 public:
  GlooWire(Bootstrap& bootstrap, std::shared_ptr<gloo::Context> context)
      : bootstrap_(bootstrap), context_(std::move(context)) {}

  Result<std::unique_ptr<WireMessage>> send(const void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    return post(const_cast<void*>(data), bytes, peer, slot, true);  // Gloo only reads it
  }
  Result<std::unique_ptr<WireMessage>> recv(void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot) override {
    return post(data, bytes, peer, slot, false);
  }
  void cancel(const Status& reason) override {
    const std::lock_guard lock(mutex_);
    if (!cancelled_.ok()) return;
    cancelled_ = reason;
    for (GlooMessage* message : under_way_) message->wake();
  }
  void announce(const Status& reason) override { bootstrap_.report(reason); }

  /// Returns the error to report for a lost connection with `peer`.
  Status lost(int peer, const std::exception& error) const {
    const Status reason = cancelled();
    if (!reason.ok()) return reason;
    const Status failure = reason_of_loss(bootstrap_);
    if (!failure.ok()) return failure;
    return lost_peer(peer, cause_of(error));
  }
  Status cancelled() const {
    const std::lock_guard lock(mutex_);
    return cancelled_;
  }
  void add(GlooMessage& message) {
    const std::lock_guard lock(mutex_);
    under_way_.insert(&message);
    if (!cancelled_.ok()) message.wake();
  }
  void remove(GlooMessage& message) {
    const std::lock_guard lock(mutex_);
    under_way_.erase(&message);
  }
  /// Orders what follows after Gloo's last use of released memory. Gloo's thread releases memory by
  /// a count that is read without a barrier (std::weak_ptr::expired), but while it holds the pair's
  /// mutex. Destroying a buffer that is never used takes this mutex here.
  void order_after_last_use(int peer) {
    context_->getPair(peer)->createSendBuffer(0, nullptr, 0).reset();
  }

 private:
  Result<std::unique_ptr<WireMessage>> post(void* data, std::size_t bytes, int peer,
                                            std::uint64_t slot, bool sending) {
    const Status reason = cancelled();
    if (!reason.ok()) return reason;
    if (bytes == 0) return std::unique_ptr<WireMessage>(std::make_unique<EmptyMessage>());
    try {
      auto buffer = context_->createUnboundBuffer(data, bytes);
      if (sending) {
        buffer->send(peer, slot);
      } else {
        buffer->recv(peer, slot);
      }
      return std::unique_ptr<WireMessage>(
          std::make_unique<GlooMessage>(*this, peer, sending, std::move(buffer)));
    } catch (const std::exception& error) {
      return lost(peer, error);
    }
  }

  Bootstrap& bootstrap_;
  std::shared_ptr<gloo::Context> context_;
  mutable std::mutex mutex_;
  Status cancelled_;
  std::unordered_set<GlooMessage*> under_way_;
};

GlooMessage::GlooMessage(GlooWire& wire, int peer, bool sending, std::unique_ptr<Unbound> buffer)
    : wire_(wire), peer_(peer), sending_(sending), buffer_(std::move(buffer)) {
  wire_.add(*this);
}

GlooMessage::~GlooMessage() {
  wire_.remove(*this);
  if (done_) return;
  buffer_.reset();  // withdraws it once Gloo's thread has let go of it
  wire_.order_after_last_use(peer_);
}

Status GlooMessage::wait(Deadline deadline) {
  // The limit is rounded up: Gloo must not give up before the deadline, or its timeout would look
  // like a lost peer.
  const auto left = std::chrono::ceil<milliseconds>(deadline - std::chrono::steady_clock::now());
  const milliseconds limit = std::max(left, milliseconds(0));
  try {
    const bool done =
        sending_ ? buffer_->waitSend(nullptr, limit) : buffer_->waitRecv(nullptr, limit);
    done_ = done;
    return done ? Status() : wire_.cancelled();
  } catch (const std::exception& error) {
    const bool late = std::chrono::steady_clock::now() >= deadline;
    if (late && wire_.cancelled().ok()) return {StatusCode::kTimeout, "timed out"};
    return wire_.lost(peer_, error);
  }
}

// The key-value store that Gloo's rendezvous needs, over the job's bootstrap.
class BootstrapStore final : public gloo::rendezvous::Store {
 public:
  BootstrapStore(Bootstrap& bootstrap, milliseconds limit) : bootstrap_(bootstrap), limit_(limit) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    check(bootstrap_.set("gloo/" + key, std::string(data.begin(), data.end())));
  }
  std::vector<char> get(const std::string& key) override {
    auto value = bootstrap_.get("gloo/" + key, limit_);
    check(value.status());
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, limit_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& limit) override {
    for (const std::string& key : keys) check(bootstrap_.get("gloo/" + key, limit).status());
  }

 private:
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
  }
  Bootstrap& bootstrap_;
  milliseconds limit_;
};

std::shared_ptr<gloo::Context> connect_mesh(Bootstrap& bootstrap, const std::string& address,
                                            milliseconds limit) {
  const auto family = family_of(address);  // Gloo does not check its own look-up
  if (!family.ok()) throw std::runtime_error(family.status().message());
  if (const std::string why = unreachable(address); !why.empty()) throw std::runtime_error(why);
  gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  attributes.ai_family = *family;
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(bootstrap.rank(), bootstrap.size());
  context->setTimeout(limit / 5);  // Gloo waits five times as long for a connection
  BootstrapStore store(bootstrap, limit);
  context->connectFullMesh(store, device);
  return context;
}

}  // namespace

Result<std::unique_ptr<Transport>> connect_gloo(Bootstrap& bootstrap, const GlooOptions& options) {
  if (bootstrap.tls()) {
    return invalid_input("the job's connections are to be encrypted, and Gloo's know no TLS");
  }
  const std::string address = options.address.empty() ? bootstrap.local_address() : options.address;
  try {
    std::unique_ptr<Wire> wire = std::make_unique<GlooWire>(
        bootstrap, connect_mesh(bootstrap, address, options.connect_limit));
    return bootstrapped_transport(std::move(wire), bootstrap, options.check_messages);
  } catch (const std::exception& error) {
    const Status failure = bootstrap.failure();
    if (!failure.ok()) return failure;
    return no_mesh(bootstrap.rank(), address, cause_of(error));
  }
}

}  // namespace agpcs
