// SPDX-License-Identifier: Apache-2.0
// TCP is the transport for processes that compute on CPUs: a connection between every two ranks,
// each of which begins with a proof by both ends that they know the job's token.
#pragma once

#include <agpcs/bootstrap.h>
#include <agpcs/transport.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>

namespace agpcs {

struct TcpOptions {
  /// The IP address or host name by which other ranks reach this one. Empty: that of `bind`, or the
  /// one by which this rank reaches rank 0.
  std::string address;
  /// The interface ("eth0") or address at which this rank listens, if that is not `address`: behind
  /// a translation of addresses. "0.0.0.0" and "::" are all addresses. Empty: `address` alone.
  std::string bind;
  std::chrono::milliseconds connect_limit{30000};
  /// Adds a checksum and a number to every message, so that a damaged, lost or repeated one is
  /// noticed. All ranks set it, or none.
  bool check_messages = false;
  /// Gets a line when a connection was refused that did not prove the token, as
  /// `BootstrapOptions::on_refused` does. Called on a thread of the transport, while ranks connect.
  std::function<void(const std::string&)> on_refused;
};

/// Connects this rank with all others. The ranks exchange their addresses through `bootstrap`,
/// which must outlive the transport. All ranks call it. A failure that the bootstrap hears of
/// aborts the transport; `abort` reports to the bootstrap. Errors: kUnavailable (no connection; the
/// message names both ranks, their addresses and what to check), or the job's failure.
Result<std::unique_ptr<Transport>> connect_tcp(Bootstrap& bootstrap,
                                               const TcpOptions& options = {});

}  // namespace agpcs
