// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/transport/wire.h"

#include <cstdint>
#include <memory>

namespace agpcs {

/// `Wire::recv_and_add` for a wire that has to have the whole message first: it is received to
/// memory of its own, and added from there when it is waited for.
Result<std::unique_ptr<WireMessage>> recv_then_add(Wire& wire, const Buffer& to, int peer,
                                                   std::uint64_t slot);

}  // namespace agpcs
