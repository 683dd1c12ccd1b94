// SPDX-License-Identifier: Apache-2.0
// --local: the ranks of a job as processes of this machine.
#pragma once

#include <agpcs/status.h>

#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Starts this program again as `command`, once a rank of `names` ("rank 1 (volta/1)"), with `args`
/// less --local, and waits for all. LOCAL_RANK is that of `local_ranks`, by rank, or without these
/// the rank. When one fails the others get a few seconds to stop by themselves, then they are
/// killed. SIGINT, SIGTERM and SIGHUP, where they are not ignored, ask all to stop (SIGTERM); a
/// second request kills them. No rank outlives this call, nor this process. The status names the
/// rank that failed first, and tells what the others say; kCancelled when they stopped on request.
/// `lost`, if given, gets the ranks that were killed, or did not answer any more: not those that
/// failed by themselves, or only heard of it.
Status run_local(const std::vector<std::string>& names, const std::string& command,
                 const std::vector<std::string>& args, const std::vector<int>& local_ranks = {},
                 std::vector<int>* lost = nullptr);

/// Every rank that `option` ("--local") starts reads `path`, a `noun` ("plan"). kUsage where that
/// is standard input or a pipe: one process can read it, once.
Status check_all_can_read(std::string_view option, std::string_view noun, const std::string& path);

}  // namespace agpcs
