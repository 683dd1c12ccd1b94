// SPDX-License-Identifier: Apache-2.0
// Validates a job's model between steps, and knows the best result so far.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/job/checkpoint.h"
#include "tools/run/options.h"
#include "tools/run/report.h"

#include <agpcs/status.h>
#include <agpcs/trainer.h>
#include <agpcs/transport.h>

#include <cstdint>
#include <optional>

namespace agpcs {

/// Every rank has one. All ranks take the same decisions, for they get the same sums.
class Validation {
 public:
  /// `best`: the best result of the job so far. `report` is rank 0's, and nullptr on the others.
  Validation(const RunOptions& options, const Graph& graph, std::optional<BestResult> best,
             RunReport* report)
      : options_(options), graph_(graph), best_(best), report_(report) {}

  /// Validates the state before the next step, if it is due: every so many steps, and with `last`
  /// in any case. All ranks call it between two steps.
  Status run(Trainer& trainer, Transport& transport, bool last);
  const std::optional<BestResult>& best() const { return best_; }

 private:
  /// Gives the replicas of a stage the running statistics of the first one, which are those that
  /// checkpoints have. Training does not read them.
  Status share_statistics(Executor& executor, Transport& transport) const;

  const RunOptions& options_;
  const Graph& graph_;
  std::optional<BestResult> best_;
  RunReport* report_;
  std::int64_t validated_ = -1;  // step of the last validation
};

}  // namespace agpcs
