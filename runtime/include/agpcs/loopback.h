// SPDX-License-Identifier: Apache-2.0
// Loopback is the transport for ranks that are threads of one process.
#pragma once

#include <agpcs/transport.h>

#include <memory>

namespace agpcs {

/// The place where the ranks of one job meet. It must outlive the transports that it hands out.
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
  /// Returns the transport of `rank` (0 to size - 1); call it once for each rank, from any thread.
  /// It does not wait for the other ranks. A rank leaves by destroying its transport: messages that
  /// others still expect from it then fail with kPeerFailed.
  std::unique_ptr<Transport> join(int rank);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace agpcs
