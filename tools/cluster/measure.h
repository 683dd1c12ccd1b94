// SPDX-License-Identifier: Apache-2.0
// Measures the links of hosts for `agpcs-cluster discover --measure`, by what measures networks for
// agpcs-profile (docs/reference/measuring.md), over TCP.
#pragma once

#include "tools/cluster/hardware.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <chrono>
#include <vector>

namespace agpcs {

struct MeasureOptions {
  double seconds = 10;  ///< for messages and all-reduces, about
  std::chrono::milliseconds limit{60000};
};

/// Measures messages between all ranks of a job. `local_rank` is this rank's number on its host;
/// the ranks of a host must follow one another. All ranks call it; the first rank of the job gets
/// what was measured in its `hosts`, in order: of each NIC by messages between hosts, and of each
/// host by messages between its ranks, where it has several. Errors: ranks
/// are in another order, or a measurement fails.
Status measure_links(Bootstrap& bootstrap, int local_rank, const MeasureOptions& options,
                     std::vector<FoundHost>& hosts);

/// Measures messages between two ends on this host alone.
Status measure_this_host(const MeasureOptions& options, FoundHost& host);

}  // namespace agpcs
