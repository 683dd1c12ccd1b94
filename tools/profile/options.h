// SPDX-License-Identifier: Apache-2.0
// What agpcs-profile was asked for.
#pragma once

#include "tools/common.h"
#include "tools/run_job.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct ProfileOptions : JobOptions {
  std::vector<std::string> files;  ///< models; with `merge` and `show` profiles
  bool merge = false, show = false;
  std::string kind, cluster;  ///< one of the two, unless profiles are merged or shown
  bool local = false;
  std::string output = "profile.yaml";
  std::vector<std::int64_t> samples;  ///< empty: kDefaultSamples as time and memory allow
  int threads = 0;                    ///< per rank; 0: this machine's cores divided among its ranks
  double seconds = 60;                ///< of operators, about
  double network_seconds = 30;        ///< of messages and all-reduces, about
  std::vector<std::pair<std::string, std::int64_t>> dims;
  std::vector<std::string> freeze;     ///< weights that are not trained
  std::optional<Loss> loss;            ///< nothing: the cluster file's
  std::optional<Optimizer> optimizer;  ///< nothing: the cluster file's
};

/// Parses the command line. Nothing when the command is to go on, else the exit code.
std::optional<int> parse_profile_options(const std::vector<std::string>& args, Console console,
                                         ProfileOptions& options);

}  // namespace agpcs
