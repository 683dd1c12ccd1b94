// SPDX-License-Identifier: Apache-2.0
// The options of agpcs-profile.
#pragma once

#include "tools/common/common.h"
#include "tools/run/processes/job.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// The command, as it names itself in messages.
inline constexpr char kProfileCommand[] = "agpcs-profile";

struct ProfileOptions : JobOptions, ModelChoices {
  std::vector<std::string> files;  ///< models, or profiles with `merge` and `show`
  bool merge = false, show = false;
  bool quick = false;  ///< models of the program's own (quick/quick.h) in place of the user's
  std::string kineto;  ///< a trace of torch.profiler to make a profile of; empty: none
  std::string kind, cluster;  ///< exactly one of the two, where something is measured here
  bool local = false;
  std::string output = "profile.yaml";
  std::vector<std::int64_t> samples;  ///< empty: kDefaultSamples, as far as time and memory allow
  std::vector<std::int64_t> teams;    ///< numbers of members, ascending; `DeviceOptions::teams`
  int threads = 0;                    ///< per rank; 0: this machine's cores divided among its ranks
  double seconds = 60;                ///< for operators, about
  double network_seconds = 30;        ///< for messages and all-reduces, about
  std::optional<Loss> loss;           ///< absent: the cluster file's
  std::optional<Optimizer> optimizer;  ///< absent: the cluster file's
};

/// Parses the command line. Returns nullopt if the command is to go on, else the exit code.
std::optional<int> parse_profile_options(const std::vector<std::string>& args, Console console,
                                         ProfileOptions& options);

}  // namespace agpcs
