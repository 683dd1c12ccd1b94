// SPDX-License-Identifier: Apache-2.0
// One rank of a profiling job: one device.
#pragma once

#include "ir/cluster.h"
#include "tools/common.h"
#include "tools/profile_options.h"
#include "tools/run_job.h"
#include "tools/run_launch.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// What is to be measured.
struct ProfileJob {
  ProfileOptions options;
  Cluster cluster;  ///< of one device where this machine is measured alone
  Loss loss;
  Optimizer optimizer;
  std::string warnings;  ///< of the cluster file; ready to print, empty when none

  /// By rank, "a/0": the devices of the cluster in its order.
  std::vector<std::string> devices() const;
};

/// Reads the cluster file, if there is one.
Result<ProfileJob> make_profile_job(const ProfileOptions& options);

/// Joins the job as `place.rank`, measures, and leaves. Rank 0 gathers all, writes the profile
/// whole or not at all, and reports to `console`.
Status run_profile_rank(const ProfileJob& job, const RankPlace& place, Console console,
                        const LastWord& last_word);

}  // namespace agpcs
