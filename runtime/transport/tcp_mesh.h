// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/bootstrap/connection.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>
#include <agpcs/tcp.h>

#include <string>
#include <vector>

namespace agpcs {

/// A connection with another rank, which has proved the job's token. The one with oneself is empty.
struct TcpLink {
  Connection connection;
  std::string where;  ///< the other end: "10.0.0.1:46175"
};

/// Connects this rank with every other one: with the lower ranks, which listen, and through a gate
/// for the higher ones. Returns a link for each rank. Errors: as `connect_tcp`.
Result<std::vector<TcpLink>> connect_mesh(Bootstrap& bootstrap, const TcpOptions& options);

}  // namespace agpcs
