// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/listen_place.h"

#include "runtime/bootstrap/socket.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ifaddrs.h>
#include <memory>
#include <netdb.h>
#include <netinet/in.h>
#include <string_view>
#include <sys/socket.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct Interface {
  std::string name;
  std::vector<std::string> addresses;  // those of IPv4 first
};

bool is_ipv6(const std::string& address) { return address.find(':') != std::string::npos; }

// Link-local addresses hold on one network card only, so no other rank can be told of them.
std::string usable_address(const sockaddr* address) {
  const bool ipv6 = address != nullptr && address->sa_family == AF_INET6;
  if (!ipv6 && (address == nullptr || address->sa_family != AF_INET)) return {};
  char text[NI_MAXHOST] = "";
  const socklen_t length = ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  getnameinfo(address, length, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
  const std::string found = text;
  return found.find('%') == std::string::npos ? found : std::string();
}

std::vector<Interface> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(first, freeifaddrs);
  std::vector<Interface> found;
  for (const ifaddrs* at = first; at != nullptr; at = at->ifa_next) {
    const std::string name = at->ifa_name;
    auto of_name = std::find_if(found.begin(), found.end(),
                                [&](const Interface& known) { return known.name == name; });
    if (of_name == found.end()) of_name = found.insert(found.end(), {name, {}});
    std::string address = usable_address(at->ifa_addr);
    if (!address.empty()) of_name->addresses.push_back(std::move(address));
  }
  for (Interface& interface : found) {
    std::stable_partition(interface.addresses.begin(), interface.addresses.end(),
                          [](const std::string& address) { return !is_ipv6(address); });
  }
  return found;
}

// "lo (127.0.0.1, ::1), eth0 (10.0.0.7)"
std::string text_of(const std::vector<Interface>& interfaces) {
  std::vector<std::string> parts;
  for (const auto& [name, addresses] : interfaces) {
    if (!addresses.empty())
      parts.push_back(fmt::format("{} ({})", name, fmt::join(addresses, ", ")));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string nearest(const std::vector<std::string>& addresses, const std::string& like) {
  const auto wanted = like.empty() ? Result<std::vector<std::string>>(std::vector<std::string>())
                                   : addresses_of(like);
  if (!wanted.ok() || wanted->empty()) return addresses.front();
  const auto same =
      std::find_first_of(addresses.begin(), addresses.end(), wanted->begin(), wanted->end());
  if (same != addresses.end()) return *same;
  const auto of_kind = std::find_if(
      addresses.begin(), addresses.end(),
      [&](const std::string& address) { return is_ipv6(address) == is_ipv6(wanted->front()); });
  return of_kind != addresses.end() ? *of_kind : addresses.front();
}

// Tells whether this machine can listen at an address.
bool is_here(const std::string& address) { return listen_at(address).ok(); }

}  // namespace

bool is_loopback(const std::string& address) {
  return address.rfind("127.", 0) == 0 || address == "::1";
}

Result<std::string> address_of_bind(const std::string& bind, const std::string& like) {
  const std::vector<Interface> here = interfaces();
  const auto named = std::find_if(here.begin(), here.end(),
                                  [&](const Interface& known) { return known.name == bind; });
  if (named != here.end()) {
    if (!named->addresses.empty()) return nearest(named->addresses, like);
    return Status(StatusCode::kUsage,
                  fmt::format("interface {} has no address that other ranks can reach", bind));
  }
  const auto addresses = addresses_of(bind);
  if (addresses.ok()) {
    const auto usable = std::find_if(addresses->begin(), addresses->end(), is_here);
    if (usable != addresses->end()) return *usable;
  }
  return Status(StatusCode::kUsage,
                fmt::format("'{}' is neither an interface nor an address of this machine, which "
                            "has {}",
                            bind, text_of(here)));
}

Result<ListenPlace> place_of_service(const std::string& bind, const std::string& rendezvous,
                                     std::optional<bool> one_machine) {
  if (!bind.empty()) {
    AGPCS_TRY(std::string address, address_of_bind(bind, rendezvous));
    return ListenPlace{std::move(address), {}};
  }
  const auto everywhere = [&](const std::string& why) {
    return ListenPlace{{},
                       fmt::format("rank 0 listens at all addresses of its machine, for {}\n"
                                   "  hint: --bind ADDRESS or --bind INTERFACE says where",
                                   why)};
  };
  const auto addresses = addresses_of(rendezvous);
  if (addresses.status().code() == StatusCode::kInvalidInput) return addresses.status();
  if (!addresses.ok()) return everywhere(addresses.status().message());
  std::string local;
  for (const std::string& address : *addresses) {
    if (!is_loopback(address) && is_here(address)) return ListenPlace{address, {}};
    if (local.empty() && is_loopback(address)) local = address;
  }
  if (local.empty()) {
    return everywhere(fmt::format("'{}' is no address of it", rendezvous));
  }
  const bool meant = rendezvous == local || rendezvous == "localhost";
  if (one_machine.value_or(meant)) return ListenPlace{local, {}};
  return everywhere(
      fmt::format("'{}'{} there, which no other machine reaches", rendezvous,
                  rendezvous == local ? " is a loopback address" : fmt::format(" is {}", local)));
}

}  // namespace agpcs
