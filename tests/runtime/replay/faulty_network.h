// SPDX-License-Identifier: Apache-2.0
// An in-memory network that does harm, once, at a chosen message of a chosen rank. Messages are
// copied into queues, as TCP does, so that a sender is done before its receiver asks.
#pragma once

#include "runtime/transport/wire.h"

#include <agpcs/transport.h>

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

namespace agpcs {

enum class FaultKind {
  kNone,
  kDrop,       ///< the message never arrives; those behind it do
  kSever,      ///< neither it nor any later one between the two ranks arrives: a stuck connection
  kDelay,      ///< it arrives 20 ms late
  kDuplicate,  ///< it arrives twice
  kTruncate,   ///< its last byte is missing
  kCorrupt,    ///< one of its bits is another
  kStop,       ///< from this message on the rank is heard of no more, and hears nothing
  kDie,        ///< from this message on the rank is gone, and the others are told
};
const char* name_of(FaultKind kind);

struct Fault {
  FaultKind kind = FaultKind::kNone;
  int rank = 0;
  bool collective = false;  ///< counts the messages of collectives, else those between two ranks
  std::size_t message = 0;  ///< of those that the rank sends, from 0
};
std::ostream& operator<<(std::ostream& out, const Fault& fault);

class FaultyNetwork {
 public:
  FaultyNetwork(int size, Fault fault);
  ~FaultyNetwork();
  FaultyNetwork(const FaultyNetwork&) = delete;
  FaultyNetwork& operator=(const FaultyNetwork&) = delete;

  /// The transport of `rank`; it does not outlive the network. `checked`: with checksums.
  std::unique_ptr<Transport> join(int rank, bool checked);
  /// How many messages `rank` has sent.
  std::size_t sent(int rank, bool collective) const;

  class State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace agpcs
