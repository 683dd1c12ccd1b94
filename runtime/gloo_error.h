// SPDX-License-Identifier: Apache-2.0
// What Gloo's messages mean, in words of ours.
#pragma once

#include <agpcs/status.h>

#include <string>
#include <string_view>

namespace agpcs {

/// Gloo's message without the place in its sources that it begins with, and with addresses as they
/// are written everywhere else. `swapped_ports`: it prints ports in the network's byte order.
std::string gloo_cause(std::string_view what, bool swapped_ports);

/// Rank `rank` cannot connect with the others, by `cause` (of `gloo_cause`): kUnavailable, with
/// what may have happened.
Status no_mesh(int rank, const std::string& address, const std::string& cause);

/// The connection with rank `peer` was lost, and nobody has said why: kPeerFailed.
Status lost_peer(int peer, const std::string& cause);

}  // namespace agpcs
