// SPDX-License-Identifier: Apache-2.0
// Runs one rank of a profiling job, which measures one device.
#pragma once

#include "ir/cluster/cluster.h"
#include "tools/common/common.h"
#include "tools/profile/options.h"
#include "tools/run/processes/job.h"
#include "tools/run/processes/launch.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// What a job is to measure.
struct ProfileJob {
  ProfileOptions options;
  Cluster cluster;  ///< has one device if this machine is measured alone
  Loss loss;
  Optimizer optimizer;
  std::string warnings;  ///< warnings of the cluster file, ready to print; empty if there are none

  /// Returns the devices of the cluster in its order, by rank: "a/0".
  std::vector<std::string> devices() const;
};

/// Reads the cluster file, if there is one.
Result<ProfileJob> make_profile_job(const ProfileOptions& options);

/// Joins the job as `place.rank`, measures, and leaves. Rank 0 gathers all results, writes the
/// profile either completely or not at all, and reports to `console`.
Status run_profile_rank(const ProfileJob& job, const RankPlace& place, Console console,
                        const LastWord& last_word);

}  // namespace agpcs
