// SPDX-License-Identifier: Apache-2.0
// Translates Gloo's messages into ours.
#pragma once

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Returns Gloo's message without the source location at its start, and with addresses in their
/// usual notation. `swapped_ports`: Gloo prints ports in the network's byte order.
std::string gloo_cause(std::string_view what, bool swapped_ports);

/// Returns the error that rank `rank` cannot connect with the others because of `cause` (from
/// `gloo_cause`): kUnavailable, with what may have happened.
Status no_mesh(int rank, const std::string& address, const std::string& cause);

/// Returns the error that the connection with rank `peer` was lost and nobody has said why:
/// kPeerFailed.
Status lost_peer(int peer, const std::string& cause);

}  // namespace agpcs
