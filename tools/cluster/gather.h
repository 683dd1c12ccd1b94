// SPDX-License-Identifier: Apache-2.0
// Brings the hosts of a job together: one rank of each host reports, and rank 0 gets all.
#pragma once

#include "tools/cluster/hardware.h"
#include "tools/run/processes/launch.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Prints a host as text that `parse_host` reads, one fact a line.
std::string print_host(const FoundHost& host);
/// Reads what `print_host` printed. Errors: kInvalidInput with the line.
Result<FoundHost> parse_host(std::string_view text);

/// Meets the other ranks of the launcher's job, whose first rank on each host calls `find`. Rank 0
/// gets the hosts in the order of their first ranks; the others get none. Errors: those of
/// meeting, which name the ranks that are missing.
/// Then every rank calls `measure`, if there is one, with what it got.
using MeasureHosts = std::function<Status(Bootstrap& bootstrap, std::vector<FoundHost>& hosts)>;
Result<std::vector<FoundHost>> gather_hosts(const RankPlace& place, std::chrono::milliseconds limit,
                                            const std::function<FoundHost()>& find,
                                            const MeasureHosts& measure = nullptr);

}  // namespace agpcs
