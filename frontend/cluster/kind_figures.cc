// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/kind_figures.h"

#include "frontend/cluster/port.h"

#include <cstddef>

namespace agpcs {
namespace {

void link_to_host(const AcceleratorKind& hardware, DeviceKind& kind) {
  if (!kind.host_link.given()) kind.host_link = host_link_of(hardware);
}

void slow_by_messages(const AcceleratorKind& hardware, DeviceKind& kind) {
  if (!kind.overlap.is_none() || kind.memory_bandwidth <= 0) return;
  kind.overlap.compute_seconds_per_byte = hardware.message_traffic / kind.memory_bandwidth;
}

}  // namespace

void add_catalog_figures(Cluster& cluster, const std::vector<const AcceleratorKind*>& hardware) {
  for (const Device& device : cluster.devices) {
    const auto kind = static_cast<std::size_t>(device.kind);
    if (cluster.hosts[static_cast<std::size_t>(device.host)].memory_bytes == 0) continue;
    if (hardware[kind] != nullptr) link_to_host(*hardware[kind], cluster.kinds[kind]);
  }
  for (std::size_t i = 0; i < hardware.size(); ++i) {
    if (hardware[i] != nullptr) slow_by_messages(*hardware[i], cluster.kinds[i]);
  }
}

}  // namespace agpcs
