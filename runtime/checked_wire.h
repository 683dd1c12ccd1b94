// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/wire.h"

#include <memory>

namespace agpcs {

/// A wire over `wire` that finds messages which are damaged, lost, repeated or out of order. Before
/// each goes a header of 24 bytes: its number among those of its sender, receiver and slot, its
/// length, and a checksum of both and of its bytes. A message that does not fit its header ends
/// with kUnavailable, which names the sender and both values. All ranks of a job use one, or none.
/// Cost: a small message and one pass over the bytes at either end.
std::unique_ptr<Wire> make_checked_wire(std::unique_ptr<Wire> wire);

}  // namespace agpcs
