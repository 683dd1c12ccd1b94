// SPDX-License-Identifier: Apache-2.0
#include "runtime/transport/bootstrapped.h"

#include "runtime/transport/checked_wire.h"
#include "runtime/transport/wire_transport.h"

#include <chrono>
#include <utility>

namespace agpcs {

std::unique_ptr<Transport> bootstrapped_transport(std::unique_ptr<Wire> wire, Bootstrap& bootstrap,
                                                  bool check_messages) {
  if (check_messages) wire = make_checked_wire(std::move(wire));
  auto transport =
      std::make_unique<WireTransport>(std::move(wire), bootstrap.rank(), bootstrap.size(),
                                      [&bootstrap] { bootstrap.on_failure(nullptr); });
  bootstrap.on_failure(
      [raw = transport.get()](const Status& failure) { raw->abort_quietly(failure); });
  return transport;
}

Status reason_of_loss(Bootstrap& bootstrap) {
  return bootstrap.wait_for_failure(std::chrono::milliseconds(1000));
}

std::string unreachable(const std::string& address) {
  if (address.find('%') == std::string::npos) return {};
  return "it is a link-local address, which holds on one network card only";
}

}  // namespace agpcs
