// SPDX-License-Identifier: Apache-2.0
// Writes cluster.yaml for the hosts that were found.
#pragma once

#include "tools/cluster/hardware.h"

#include <string>
#include <vector>

namespace agpcs {

struct Description {
  std::string text;      ///< cluster.yaml, short and commented
  std::string warnings;  ///< what is unknown, and what the file cannot hold; ready to print
};

/// Describes hosts. `origin` says where the figures come from, for the first comment. Accelerators
/// and networks of the catalog are called by name; an accelerator that is not known becomes a kind
/// whose `hardware` is to be filled in (kHardwareToFillIn), which no plan is made with.
///
/// A host of cluster.yaml has one interconnect, a switch with a port for each device, and one NIC:
/// * NVLink or Infinity Fabric that joins all GPUs, directly or over others, is the interconnect;
///   its port is the sum of a GPU's links. If some GPUs are not joined, it is PCIe for all.
/// * The NIC is all NICs of the host together; of InfiniBand and Ethernet, the InfiniBand.
/// What is lost thereby is a warning with both figures.
/// Needs: at least one host. A host without GPU is described by its CPUs, as one device.
Description describe_cluster(const std::vector<FoundHost>& hosts, const std::string& name,
                             const std::string& origin);

}  // namespace agpcs
