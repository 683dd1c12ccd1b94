// SPDX-License-Identifier: Apache-2.0
// Reads NCCL's and RCCL's topology file, which NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads.
#pragma once

#include "tools/cluster/hardware.h"

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// The hosts of a topology file, named "host", or "host-0", "host-1", ... where its processors are
/// of several (`host_hash`).
struct NcclTopology {
  std::vector<FoundHost> hosts;
  std::string warnings;  ///< ready to print; empty if there are none
};

/// Reads the text of a file. `file` is its name in messages. As NCCL does, it passes over elements
/// and attributes that it does not know. Where no GPU is marked (`<gpu>`), as in files for virtual
/// machines, every PCI device of a GPU's class is one.
/// Errors, all at once with their lines: text that is not XML, a document type (so that no entity
/// grows), elements nested deeper than any bus, numbers that are none, another root or version, no
/// GPU at all.
Result<NcclTopology> parse_nccl_topology(std::string_view text, const std::string& file);
Result<NcclTopology> read_nccl_topology(const std::string& path);

}  // namespace agpcs
