// SPDX-License-Identifier: Apache-2.0
// --local: runs the ranks of a job as processes of this machine.
#pragma once

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Starts this program as `command` once for each rank of `names` ("rank 1 (volta/1)"), with
/// `args`, and waits for all. Rank 0 listens at `bind`, or at 127.0.0.1 if that is empty.
/// LOCAL_RANK is the rank's entry in `local_ranks`, or the rank itself if that list is empty.
///
/// When a rank fails, the others get a few seconds to stop by themselves; then they are killed.
/// SIGINT, SIGTERM and SIGHUP, unless ignored, ask all ranks to stop (SIGTERM); a second request
/// kills them. No rank outlives this call or this process.
///
/// The status names the rank that failed first, and then what the others report. It is kCancelled
/// if the ranks stopped on request. `lost`, if given, gets the ranks that were killed or no longer
/// answered; ranks that failed by themselves or only heard of a failure are not among them.
Status run_local(const std::vector<std::string>& names, const std::string& command,
                 const std::vector<std::string>& args, const std::string& bind,
                 const std::vector<int>& local_ranks = {}, std::vector<int>* lost = nullptr);

/// Checks that each rank that `option` ("--local") starts can read `path`, a `noun` ("plan").
/// Returns kUsage for standard input and for a pipe: only one process can read them, once.
Status check_all_can_read(std::string_view option, std::string_view noun, const std::string& path);

}  // namespace agpcs
