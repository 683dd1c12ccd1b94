// SPDX-License-Identifier: Apache-2.0
#include "tools/run/command.h"

#include "tools/run/keeper/elastic.h"
#include "tools/run/keeper/keeper.h"
#include "tools/run/options.h"
#include "tools/run/processes/launch.h"
#include "tools/run/processes/local.h"
#include "tools/run/rank.h"
#include "tools/run/safetensors.h"
#include "tools/run/save.h"

#include <csignal>
#include <string_view>

namespace agpcs {
namespace {

/// Checks that files that several processes read are not pipes.
Status check_files(const RunOptions& options) {
  if (!options.local && !options.elastic) return {};
  const std::string_view option = options.local ? "--local" : "--elastic";
  AGPCS_RETURN_IF_ERROR(check_all_can_read(option, "plan", options.plan));
  return check_all_can_read(option, "model", options.model);
}

}  // namespace

int run_job_command(const std::vector<std::string>& args, Console console) {
  RunOptions options;
  if (const auto code = parse_run_options(args, console, options)) return *code;
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is then a write error, not a death
  const auto plan = read_plan(options.plan);
  if (!plan.ok()) return finish(plan.status(), "agpcs-run", console);
  if (!options.save_parameters.empty() && !is_safetensors(options.save_parameters)) {
    const Status made = make_save_folder(options.save_parameters);
    if (!made.ok()) return finish(made, "agpcs-run", console);
  }
  if (options.transport == TransportKind::kLoopback && options.elastic) {
    return finish({StatusCode::kUsage,
                   "--elastic needs ranks that are processes\n"
                   "  hint: --transport tcp, or nccl"},
                  "agpcs-run", console);
  }
  if (options.transport == TransportKind::kLoopback) {
    return finish(run_loopback(*plan, options, console), "agpcs-run", console);
  }
  if (const Status files = check_files(options); !files.ok()) {
    return finish(files, "agpcs-run", console);
  }
  if (options.local && options.elastic) {
    return finish(run_elastic(*plan, options, console), "agpcs-run", console);
  }
  if (options.local) {
    return finish(run_local(rank_names(*plan), "agpcs-run", options_of_ranks(options).arguments(),
                            options.bind),
                  "agpcs-run", console);
  }
  const auto place = rank_place(process_environment());
  if (!place.ok()) return finish(place.status(), "agpcs-run", console);
  if (!place->has_value()) return finish(no_launcher(plan->rank_count()), "agpcs-run", console);
  if (options.elastic) {
    return finish(run_keeper(*plan, options, **place, console), "agpcs-run", console);
  }
  return run_as_rank(**place, "agpcs-run", console, [&](const LastWord& last_word) {
    return run_rank(*plan, options, **place, console, last_word);
  });
}

}  // namespace agpcs
