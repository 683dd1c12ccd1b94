// SPDX-License-Identifier: Apache-2.0
// What joins the GPUs of a host: NVLink, Infinity Fabric or PCIe.
#pragma once

#include "tools/cluster/hardware.h"

#include <string>
#include <vector>

namespace agpcs {

/// The links of a host's GPUs as one switch with a port for each. Figures are bytes/s in each
/// direction; 0: unknown.
struct Fabric {
  bool any = false;                      ///< some GPU has a link to another one
  bool joins_all = false;                ///< all GPUs reach each other by links
  bool switched = false;                 ///< links lead to switches
  double least_port = 0, most_port = 0;  ///< the sum of a GPU's links
  double least_pair = 0, most_pair = 0;  ///< between GPUs that have links of their own
  int pairs = 0, linked_pairs = 0;
  int first = -1, second = -1;            ///< a pair without a link of its own
  std::vector<std::vector<int>> islands;  ///< GPUs that reach each other by links
};

/// Reads the links of `gpus`. Links to devices that are not among them do not count.
Fabric fabric_of(const std::vector<FoundGpu>& gpus);

}  // namespace agpcs
