// SPDX-License-Identifier: Apache-2.0
// The options of agpcs-run.
#pragma once

#include "runtime/support/rate_schedule.h"
#include "tools/common/common.h"
#include "tools/run/processes/job.h"

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct RunOptions : JobOptions {
  std::string plan, model;
  bool local = false;
  std::int64_t steps = 20;
  std::uint64_t seed = 0;
  int threads = 0;                 ///< per rank; 0: this machine's cores divided among its ranks
  std::vector<std::string> data;   ///< PATH or INPUT=PATH
  std::string labels;              ///< PATH
  std::vector<std::string> scale;  ///< FACTOR or INPUT=FACTOR
  bool shuffle = false;
  bool fixed_batch = false;
  std::vector<std::string> validate;  ///< PATH or INPUT=PATH; empty: no validation
  std::int64_t validate_every = 0;    ///< steps; 0: only at the end
  bool keep_best = false;             ///< the checkpoint with the least validation loss
  int accumulate = 1;                 ///< batches of the plan in one step
  bool allow_nan = false;
  RateSchedule schedule;            ///< of the learning rate
  std::int64_t check_replicas = 0;  ///< steps between two checks; 0: only before the first step
  bool json = false;
  std::string save_parameters;  ///< folder, or .safetensors file; empty: do not save
  bool elastic = false;
  std::string cuda_graph = "auto";  ///< or "off"
  std::string trace;                ///< file; empty: none
  std::string trace_cluster;        ///< cluster file; empty: none
  std::string replan;               ///< cluster file; empty: the plan stays
  double replan_horizon = 3600;     ///< seconds
  int max_switches = 2;
  bool seed_given = false;      ///< given on the command line
  std::string save;             ///< folder of checkpoints; empty: none
  std::int64_t save_every = 0;  ///< steps; 0: only at the end
  int keep_checkpoints = 2;
  std::string resume;  ///< checkpoint, or folder of checkpoints; empty: begin at step 0
};

/// Parses the command line. Returns nullopt if the command is to go on, else the exit code.
std::optional<int> parse_run_options(const std::vector<std::string>& args, Console console,
                                     RunOptions& options);

}  // namespace agpcs
