// SPDX-License-Identifier: Apache-2.0
// Where a rank listens: at the address that its job uses, and at no other.
#pragma once

#include <agpcs/status.h>

#include <optional>
#include <string>

namespace agpcs {

/// Returns the IP address that `bind` stands for: an interface ("eth0"), or an IP address or name
/// of this machine; "0.0.0.0" and "::" stand for all addresses. An interface with several addresses
/// gives the one that `like` (an IP address or name, may be empty) also has, else one of the same
/// kind, else one of IPv4. kUsage: `bind` is nothing of this machine; the message says what it has.
Result<std::string> address_of_bind(const std::string& bind, const std::string& like);

struct ListenPlace {
  std::string address;  ///< empty: all
  std::string warning;  ///< why all, if nobody asked for that; else empty
};

/// Returns where rank 0's service listens: at `bind`, or if that is empty at the address that
/// `rendezvous`, by which ranks look for it, has on this machine.
///
/// Other machines may know that name by another address: behind a translation of addresses, or
/// where this machine calls itself 127.0.1.1. Then it listens at all addresses, with a warning.
/// `one_machine`: whether all ranks run on this machine, if that is known. If it is not, a loopback
/// address is believed where `rendezvous` itself is one, or "localhost".
Result<ListenPlace> place_of_service(const std::string& bind, const std::string& rendezvous,
                                     std::optional<bool> one_machine);

/// Tells whether only this machine reaches `address`, an IP address.
bool is_loopback(const std::string& address);

}  // namespace agpcs
