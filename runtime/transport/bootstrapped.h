// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/transport/wire.h"

#include <agpcs/bootstrap.h>
#include <agpcs/transport.h>

#include <memory>
#include <string>

namespace agpcs {

/// Returns the transport over `wire` of the job that `bootstrap` joined: a failure that the
/// bootstrap hears of aborts it. `check_messages`: over a checked wire.
std::unique_ptr<Transport> bootstrapped_transport(std::unique_ptr<Wire> wire, Bootstrap& bootstrap,
                                                  bool check_messages);

/// Returns the job's failure, which may be the reason that a connection was lost and on its way:
/// often the peer left because a third rank failed. Waits for it a short time. Ok: there is none.
Status reason_of_loss(Bootstrap& bootstrap);

/// Returns why other ranks cannot connect to `address`; empty if they may.
std::string unreachable(const std::string& address);

}  // namespace agpcs
