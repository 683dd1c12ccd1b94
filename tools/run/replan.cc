// SPDX-License-Identifier: Apache-2.0
#include "tools/run/replan.h"

#include "ir/plan/lookup.h"
#include "tools/common/calibrated_cluster.h"
#include "tools/common/common.h"

#include <fmt/format.h>

#include <filesystem>
#include <system_error>
#include <utility>

namespace agpcs {
namespace {

/// Adds the file to an error's message, unless the message already names it.
Status about(const std::string& path, const Status& status) {
  const bool named = status.message().find(": error: ") != std::string::npos;
  return named ? status : Status(status.code(), path + ": error: " + status.message());
}

/// Calls `write_new_file`. Returns false if the file exists.
Result<bool> write_new(const std::string& path, const std::string& text) {
  const std::error_code error = write_new_file(path, text);
  if (error == std::errc::file_exists) return false;
  if (!error) return true;
  return invalid_input(fmt::format("{}: cannot be written: {}", path, error.message()));
}

constexpr int kMostNames = 1000;

/// Returns the name, without ".plan", of a file beside "net.plan": "net.LABEL", "net.LABEL-2", ...
std::string name_beside(const std::filesystem::path& old, const std::string& label, int number) {
  const std::string base = fmt::format("{}.{}", (old.parent_path() / old.stem()).string(), label);
  return number == 1 ? base : fmt::format("{}-{}", base, number);
}

Status too_many(const std::filesystem::path& old, const std::string& label) {
  return invalid_input(
      fmt::format("{}.plan: there are {} such files", name_beside(old, label, 1), kMostNames));
}

}  // namespace

Result<std::unique_ptr<CompilerReplanner>> replanner_for(const Plan& plan,
                                                         const RunOptions& options,
                                                         Console console) {
  if (options.replan.empty()) return std::unique_ptr<CompilerReplanner>();
  AGPCS_RETURN_IF_ERROR(refuse_interleaved(plan, "re-planning"));
  AGPCS_TRY(CalibratedCluster calibrated,
            read_calibrated_cluster(options.replan, [&] { return plan.training.precision; }));
  if (!calibrated.file.warnings.empty()) console.err << calibrated.file.warnings << '\n';
  AGPCS_TRY(TrainingModel model, read_planned_model(options.model, plan));
  auto made =
      make_compiler_replanner(plan, std::move(model.graph), std::move(calibrated.file.cluster));
  if (!made.ok()) return about(options.replan, made.status());
  return made;
}

Result<std::string> write_proposal(const std::string& old_plan, std::int64_t step, const Plan& plan,
                                   const std::string& hardware) {
  return write_beside(old_plan, fmt::format("replan-{}", step), plan, hardware);
}

Result<std::string> write_beside(const std::string& old_plan, const std::string& label,
                                 const Plan& plan, const std::string& hardware) {
  const std::filesystem::path old = old_plan == "-" ? plan.model + ".plan" : old_plan;
  for (int i = 1; i <= kMostNames; ++i) {
    const std::string name = name_beside(old, label, i);
    AGPCS_TRY(const bool made, write_new(name + ".plan", print_plan(plan)));
    if (!made) continue;
    AGPCS_RETURN_IF_ERROR(write_new(name + ".hardware.txt", hardware).status());
    return name + ".plan";
  }
  return too_many(old, label);
}

Result<std::string> beside_plan_or_checkpoints(
    const RunOptions& options,
    const std::function<Result<std::string>(const std::string& old_plan)>& write) {
  auto path = write(options.plan);
  if (path.ok()) return path;
  const std::filesystem::path plan = options.plan;
  return write((options.save / plan.filename()).string());
}

Result<std::string> keep_beside(const std::string& old_plan, const std::string& label,
                                const std::string& text, Console console) {
  for (int i = 1; i <= kMostNames; ++i) {
    const std::string path = name_beside(old_plan, label, i) + ".plan";
    std::error_code error;
    if (!std::filesystem::exists(path, error)) {
      // Another rank may write the same file at this moment.
      AGPCS_RETURN_IF_ERROR(write_file(path, text, console));
      return path;
    }
    const auto there = InputFile::open(path, "plan");
    if (!there.ok() || there->size() != static_cast<std::int64_t>(text.size())) continue;
    const auto read = there->read_all({"plan"});
    if (read.ok() && *read == text) return path;
  }
  return too_many(old_plan, label);
}

}  // namespace agpcs
