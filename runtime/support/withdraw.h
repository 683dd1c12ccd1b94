// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>

namespace agpcs {

/// Prepares freeing memory that a failed exchange may still read or write: aborts `transport` with
/// `failure`, and returns `failure` once no operation touches memory any more.
Status withdraw(Transport& transport, Status failure, std::chrono::milliseconds limit);

}  // namespace agpcs
