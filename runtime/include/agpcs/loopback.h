// SPDX-License-Identifier: Apache-2.0
// Loopback: the transport for ranks that are threads of one process.
#pragma once

#include <agpcs/transport.h>

#include <memory>

namespace agpcs {

/// The place where the ranks of one job meet. It outlives the transports that it hands out.
///
///     LoopbackHub hub(2);
///     std::thread other([&] { auto transport = hub.join(1); ... });
///     auto transport = hub.join(0);
class LoopbackHub {
 public:
  explicit LoopbackHub(int size);
  ~LoopbackHub();
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

  int size() const;
  /// The transport of `rank` (0 to size - 1), once each. Any thread; does not wait for the others.
  /// Destroying it is leaving: messages that others still expect from it fail with kPeerFailed.
  std::unique_ptr<Transport> join(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace agpcs
