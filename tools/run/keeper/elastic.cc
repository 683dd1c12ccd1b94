// SPDX-License-Identifier: Apache-2.0
#include "tools/run/keeper/elastic.h"

#include "ir/plan/lookup.h"
#include "runtime/job/checkpoint_folder.h"
#include "tools/run/processes/local.h"
#include "tools/run/rank.h"
#include "tools/run/replan.h"
#include "tools/run/report.h"
#include "tools/run/start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <future>
#include <numeric>
#include <optional>
#include <ostream>
#include <utility>

namespace agpcs {

Result<NextPlan> plan_without(const std::vector<int>& lost, const Plan& running,
                              CompilerReplanner& replanner, const RunOptions& options,
                              const std::atomic<bool>& cancel) {
  HardwareReport report;
  report.lost_ranks = lost;
  AGPCS_TRY(std::optional<Replan> found, replanner.replan(running, report, cancel));
  if (cancel) return Status(StatusCode::kCancelled, "planning was cancelled");
  if (!found) return Status(StatusCode::kInfeasible, "no plan does without them");
  const std::string label = fmt::format("without-{}", fmt::join(lost, "-"));
  AGPCS_TRY(std::string path, beside_plan_or_checkpoints(options, [&](const std::string& old_plan) {
              return write_beside(old_plan, label, found->plan, replanner.hardware_text());
            }));
  return NextPlan{std::move(found->plan), std::move(path), label};
}

// Ranks are matched by their devices, whose names stay the same.
Result<std::vector<int>> seats_of(const Plan& next, const Plan& running,
                                  const std::vector<int>& seats) {
  const std::vector<std::string> before = devices_of_ranks(running);
  std::vector<int> found;
  for (const std::string& device : devices_of_ranks(next)) {
    const auto at = std::find(before.begin(), before.end(), device);
    if (at == before.end()) return internal_error("no rank had device " + device);
    found.push_back(seats[static_cast<std::size_t>(at - before.begin())]);
  }
  return found;
}

void tell_going_on(const Status& status, const std::vector<int>& lost, const Plan& running,
                   const NextPlan& next, const RunOptions& options, Console console) {
  const std::vector<std::string> names = rank_names(running), devices = devices_of_ranks(running);
  std::vector<std::string> gone, gone_devices;
  for (const int rank : lost) {
    gone.push_back(names[static_cast<std::size_t>(rank)]);
    gone_devices.push_back(devices[static_cast<std::size_t>(rank)]);
  }
  console.err << fmt::format("warning: {}\n  training goes on without {}, by {}\n",
                             status.message(), fmt::join(gone, ", "), next.path);
  if (!options.json) return;
  const std::int64_t step = std::max<std::int64_t>(0, latest_step(next_resume(options)));
  print_lost(console, {lost, gone_devices, status.message(), next.path, step});
}

Status no_going_on(const Status& status, const Status& why) {
  return {why.code(),
          fmt::format("{}\n  there is no going on without: {}", status.message(), why.message())};
}

std::string next_resume(const RunOptions& options) {
  if (options.resume.empty()) return options.save;
  return latest_step(options.save) > latest_step(options.resume) ? options.save : options.resume;
}

GivenOptions options_of_ranks(const RunOptions& options) {
  GivenOptions of_ranks = options.given;
  of_ranks.remove("--local");
  of_ranks.remove("--elastic");
  return of_ranks;
}

void resume_by_plan(GivenOptions& options, const std::string& plan,
                    const std::string& checkpoints) {
  options.set("plan", {plan});
  options.set("--resume", {checkpoints});
}

Status run_elastic(const Plan& plan, const RunOptions& options, Console console) {
  AGPCS_TRY(const auto replanner, replanner_for(plan, options, console));
  GivenOptions of_ranks = options_of_ranks(options);
  NextPlan running{plan, options.plan, ""};
  std::vector<int> seats(static_cast<std::size_t>(plan.rank_count()));  // LOCAL_RANK, by rank
  std::iota(seats.begin(), seats.end(), 0);
  const std::atomic<bool> cancel{false};
  while (true) {
    const std::vector<std::string> names = rank_names(running.plan);
    std::vector<int> lost;
    const Status status =
        run_local(names, "agpcs-run", of_ranks.arguments(), options.bind, seats, &lost);
    if (status.ok() || lost.empty() || lost.size() == names.size()) return status;
    // Plan on a separate thread: planning lowers its thread's priority, which new ranks would
    // inherit.
    auto planning = std::async(std::launch::async, [&] {
      return plan_without(lost, running.plan, *replanner, options, cancel);
    });
    auto next = planning.get();
    if (!next.ok()) return no_going_on(status, next.status());
    tell_going_on(status, lost, running.plan, *next, options, console);
    resume_by_plan(of_ranks, next->path, next_resume(options));
    AGPCS_TRY(seats, seats_of(next->plan, running.plan, seats));
    running = std::move(*next);
  }
}

}  // namespace agpcs
