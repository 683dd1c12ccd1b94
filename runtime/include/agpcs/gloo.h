// SPDX-License-Identifier: Apache-2.0
// Gloo is the transport for processes that compute on CPUs: TCP connections between all ranks.
#pragma once

#include <agpcs/bootstrap.h>
#include <agpcs/transport.h>

#include <chrono>
#include <memory>
#include <string>

namespace agpcs {

struct GlooOptions {
  /// The IP address or host name by which other ranks reach this one. Empty: the address by which
  /// this rank reaches rank 0.
  std::string address;
  std::chrono::milliseconds connect_limit{30000};
  /// Adds a checksum and a number to every message, so that a damaged, lost or repeated one is
  /// noticed. All ranks set it, or none.
  bool check_messages = false;
};

/// Connects this rank with all others. The ranks exchange their addresses through `bootstrap`,
/// which must outlive the transport. All ranks call it. A failure that the bootstrap hears of
/// aborts the transport; `abort` reports to the bootstrap. Errors: kUnavailable (no connection; the
/// message says what to check), kInvalidInput (a job with TLS, which Gloo does not know), or the
/// job's failure.
Result<std::unique_ptr<Transport>> connect_gloo(Bootstrap& bootstrap,
                                                const GlooOptions& options = {});

}  // namespace agpcs
