// SPDX-License-Identifier: Apache-2.0
#include "tools/run/start.h"

#include "tools/run/checkpoint.h"

#include <fmt/format.h>

#include <filesystem>
#include <ostream>
#include <sstream>
#include <string>
#include <system_error>

namespace agpcs {
namespace {

namespace fs = std::filesystem;

constexpr const char* kKey = "training start";

// Tells whether training begins at step 0 despite --resume: a job that is restarted again and again
// with the same command has no checkpoint at first.
bool begins_here(const RunOptions& options) {
  std::error_code error;
  if (!fs::exists(options.resume, error)) return options.resume == options.save;
  return options.resume == options.save && !has_checkpoints(options.resume);
}

std::string text_of(const TrainingStart& start) {
  const BestResult best = start.best.value_or(BestResult{-1, 0});
  return fmt::format("{} {} {} {} {} {}", start.step, start.seed, start.saves ? 1 : 0,
                     start.save_every, best.step, best.loss);
}

Result<TrainingStart> parse_start(const std::string& text) {
  TrainingStart start;
  std::istringstream in(text);
  BestResult best;
  in >> start.step >> start.seed >> start.saves >> start.save_every >> best.step >> best.loss;
  if (best.step >= 0) start.best = best;
  if (in.fail()) return internal_error(fmt::format("rank 0 says '{}' of the start", text));
  return start;
}

}  // namespace

Result<TrainingStart> find_start(const RunOptions& options, const Plan& plan, Console console) {
  TrainingStart start;
  start.seed = options.seed;
  start.saves = !options.save.empty();
  start.save_every = options.save_every;
  if (options.resume.empty()) return start;
  if (begins_here(options)) {
    console.err << fmt::format("{}: no checkpoint yet: training begins at step 0\n",
                               options.resume);
    return start;
  }
  AGPCS_TRY(FoundCheckpoint found, find_checkpoint(options.resume));
  console.err << found.warnings;
  const std::optional<std::uint64_t> asked =
      options.seed_given ? std::optional(options.seed) : std::nullopt;
  AGPCS_RETURN_IF_ERROR(check_resumable(found, plan, options.accumulate, asked));
  start.step = found.checkpoint.step;
  start.seed = found.checkpoint.seed;
  if (options.keep_best) start.best = found.checkpoint.best;
  start.found = std::move(found);
  return start;
}

Result<TrainingStart> agree_on_start(const RunOptions& options, const Plan& plan,
                                     Bootstrap& bootstrap, Console console) {
  if (bootstrap.rank() == 0) {
    AGPCS_TRY(TrainingStart start, find_start(options, plan, console));
    AGPCS_RETURN_IF_ERROR(bootstrap.set(kKey, text_of(start)));
    return start;
  }
  AGPCS_TRY(const std::string text, bootstrap.get(kKey, milliseconds_of(options.timeout)));
  return parse_start(text);
}

}  // namespace agpcs
