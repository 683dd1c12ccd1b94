// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/transport/wire.h"

#include <memory>

namespace agpcs {

/// Returns a wire over `wire` that finds messages which are damaged, lost, repeated or out of
/// order. A header of 24 bytes goes before each message: its number among the messages of its
/// sender, receiver and slot, its length, and a checksum of both and of its bytes. A message that
/// does not fit its header fails with kUnavailable, which names the sender and both values. All
/// ranks of a job use a checked wire, or none does. Cost: a small message, and one pass over the
/// bytes at either end.
std::unique_ptr<Wire> make_checked_wire(std::unique_ptr<Wire> wire);

}  // namespace agpcs
