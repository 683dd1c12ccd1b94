// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/gloo_error.h"

#include "runtime/bootstrap/socket.h"

#include <fmt/format.h>

#include <algorithm>
#include <arpa/inet.h>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <system_error>

namespace agpcs {
namespace {

bool has(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

// Returns whether the cause says that the other end was there and has gone, or that nobody listens
// at its address.
bool says_closed(std::string_view cause) {
  constexpr std::string_view kWords[] = {"Connection reset", "Connection refused", "closed",
                                         "Broken pipe"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return has(cause, word); });
}

constexpr const char* kStranger =
    "something that is no rank of this job, such as a scan of ports, connected in its place: "
    "Gloo's connections do not ask for the job's token, so keep the job on a network that only "
    "its machines reach";

}  // namespace

std::string gloo_cause(std::string_view what, bool swapped_ports) {
  if (!what.empty() && what[0] == '[' && has(what, "] ")) what.remove_prefix(what.find("] ") + 2);
  while (!what.empty() && what.back() == '\n') what.remove_suffix(1);
  std::string text;
  while (true) {  // "[10.0.0.7]:24500"
    const std::size_t open = what.find('['), close = what.find("]:", open);
    if (close == std::string_view::npos) break;
    std::uint16_t port = 0;
    const auto [end, error] =
        std::from_chars(what.data() + close + 2, what.data() + what.size(), port);
    if (error != std::errc()) break;
    text += what.substr(0, open);
    const std::string address(what.substr(open + 1, close - open - 1));
    text += endpoint(address, swapped_ports ? ntohs(port) : port);
    what.remove_prefix(static_cast<std::size_t>(end - what.data()));
  }
  return text + std::string(what);
}

Status no_mesh(int rank, const std::string& address, const std::string& cause) {
  std::string why = cause;
  std::string hint =
      "every rank must be reachable by the address it gives out; choose another with --address";
  if (cause == "address family mismatch") {
    why = "some ranks give out an address of IPv4, others one of IPv6";
    hint = "give each rank one of the same kind with --address";
  } else if (says_closed(cause)) {
    hint = fmt::format("another rank ended, or {}", kStranger);
  }
  return {StatusCode::kUnavailable,
          fmt::format("rank {} at {} cannot connect with the other ranks: {}\n  hint: {}", rank,
                      address, why, hint)};
}

Status lost_peer(int peer, const std::string& cause) {
  std::string text = fmt::format("rank {} went away: {}", peer, cause);
  if (says_closed(cause)) {
    text += fmt::format("\n  hint: if rank {} still runs, {}", peer, kStranger);
  }
  return {StatusCode::kPeerFailed, std::move(text)};
}

}  // namespace agpcs
