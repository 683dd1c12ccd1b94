// SPDX-License-Identifier: Apache-2.0
#include "tools/run_elastic.h"

#include "tools/run_local.h"
#include "tools/run_rank.h"
#include "tools/run_replan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <optional>
#include <ostream>
#include <utility>

namespace agpcs {
namespace {

// A plan without the lost ranks, and its file.
struct Next {
  Plan plan;
  std::string path;
};

Result<Next> plan_without(const std::vector<int>& lost, const Plan& running,
                          CompilerReplanner& replanner, const RunOptions& options) {
  HardwareReport report;
  report.lost_ranks = lost;
  const std::atomic<bool> cancel{false};
  AGPCS_TRY(std::optional<Replan> found, replanner.replan(running, report, cancel));
  if (!found) return Status(StatusCode::kInfeasible, "no plan does without them");
  AGPCS_TRY(std::string path,
            write_beside(options.plan, fmt::format("without-{}", fmt::join(lost, "-")), found->plan,
                         replanner.hardware_text()));
  return Next{std::move(found->plan), std::move(path)};
}

}  // namespace

std::vector<std::string> resumed_args(const std::vector<std::string>& args, const std::string& plan,
                                      const std::string& next, const std::string& checkpoints) {
  std::vector<std::string> made;
  bool replaced = false;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "--resume") {
      ++i;  // and what follows
    } else if (args[i].rfind("--resume=", 0) != 0) {
      const bool is_plan = !replaced && args[i] == plan;
      made.push_back(is_plan ? next : args[i]);
      replaced = replaced || is_plan;
    }
  }
  made.insert(made.end(), {"--resume", checkpoints});
  return made;
}

Status run_elastic(const Plan& plan, const RunOptions& options,
                   const std::vector<std::string>& args, Console console) {
  AGPCS_TRY(const auto replanner, replanner_for(plan, options, console));
  std::vector<std::string> ranks_args;
  std::copy_if(args.begin(), args.end(), std::back_inserter(ranks_args),
               [](const std::string& arg) { return arg != "--elastic"; });
  Next running{plan, options.plan};
  while (true) {
    const std::vector<std::string> names = rank_names(running.plan);
    std::vector<int> lost;
    const Status status = run_local(names, "agpcs-run", ranks_args, &lost);
    if (status.ok() || lost.empty() || lost.size() == names.size()) return status;
    auto next = plan_without(lost, running.plan, *replanner, options);
    if (!next.ok()) {
      return Status(status.code(), fmt::format("{}\n  there is no going on without: {}",
                                               status.message(), next.status().message()));
    }
    std::vector<std::string> gone;
    for (const int rank : lost) gone.push_back(names[static_cast<std::size_t>(rank)]);
    console.err << fmt::format("warning: {}\n  training goes on without {}, by {}\n",
                               status.message(), fmt::join(gone, ", "), next->path);
    ranks_args = resumed_args(ranks_args, running.path, next->path, options.save);
    running = std::move(*next);
  }
}

}  // namespace agpcs
