// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/command.h"

#include "frontend/cluster/file.h"
#include "frontend/cluster/profile_file.h"
#include "tools/profile/fits.h"
#include "tools/profile/kineto/kineto.h"
#include "tools/profile/options.h"
#include "tools/profile/rank.h"
#include "tools/profile/report.h"
#include "tools/run/processes/local.h"

#include <fmt/format.h>

#include <csignal>
#include <optional>
#include <ostream>
#include <utility>

namespace agpcs {
namespace {

Status merge_files(const ProfileOptions& options, Console console) {
  AGPCS_TRY(Profile all, read_profile(options.files.front()));
  for (std::size_t i = 1; i < options.files.size(); ++i) {
    AGPCS_TRY(const Profile next, read_profile(options.files[i]));
    AGPCS_TRY(all, merge_profiles(std::move(all), next));
  }
  AGPCS_RETURN_IF_ERROR(write_file(options.output, print_profile(all), console));
  if (options.output != "-") console.out << fmt::format("wrote {}\n", options.output);
  return {};
}

Status show(const ProfileOptions& options, Console console) {
  AGPCS_TRY(const Profile profile, read_profile(options.files.front()));
  console.out << profile_report(profile);
  if (options.files.size() == 1) {
    AGPCS_TRY(const Calibrated fitted, fit_devices(profile));
    console.out << expected_errors_report(profile, Cluster()) << fits_report(fitted.fits);
    return {};
  }
  AGPCS_TRY(ClusterFile file, read_cluster(options.files.back()));
  AGPCS_TRY(const Calibrated fitted, fit_profile(std::move(file.cluster), profile));
  console.out << expected_errors_report(profile, fitted.cluster);
  console.out << fits_report(fitted.fits);
  return {};
}

/// Makes a profile from a trace.
Status from_kineto(const ProfileOptions& options, Console console) {
  AGPCS_TRY(const KinetoTrace trace, read_kineto_trace(options.kineto));
  std::optional<TrainingModel> model;
  if (!options.files.empty()) {
    Loss loss = options.loss.value_or(Loss());
    loss.by_shape = !options.loss;
    AGPCS_TRY(model, read_training_model(options.files.front(), options, loss));
    if (!model->warnings.empty()) console.err << model->warnings << "\n";
  }
  const std::int64_t samples = options.samples.empty() ? 0 : options.samples.front();
  AGPCS_TRY(KinetoProfile made, profile_of_trace(trace, model ? &model->graph : nullptr,
                                                 {options.kind, samples, options.optimizer}));
  Profile profile;
  profile.devices.push_back(std::move(made.device));
  seal_profile(profile);
  AGPCS_RETURN_IF_ERROR(verify_profile(profile));
  AGPCS_TRY(const Calibrated fitted, fit_devices(profile));
  AGPCS_RETURN_IF_ERROR(write_file(options.output, print_profile(profile), console));
  console.err << made.warnings;
  std::ostream& report = options.output == "-" ? console.err : console.out;
  report << made.report << profile_report(profile) << fits_report(fitted.fits);
  if (options.output != "-") report << fmt::format("\nwrote {}\n", options.output);
  return {};
}

/// Checks that files that every rank reads are not pipes.
Status check_files(const ProfileOptions& options) {
  if (!options.cluster.empty()) {
    AGPCS_RETURN_IF_ERROR(check_all_can_read("--local", "cluster file", options.cluster));
  }
  for (const std::string& model : options.files) {
    AGPCS_RETURN_IF_ERROR(check_all_can_read("--local", "model", model));
  }
  return {};
}

int measure(const ProfileOptions& options, Console console) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is then a write error, not a death
  const auto place = rank_place(process_environment());
  // If one device is measured alone, a launcher's variables are ignored.
  const bool started =
      place.ok() && place->has_value() && (!options.cluster.empty() || (*place)->local());
  const bool starts = options.kind.empty() ? options.local : !started;
  const auto job = make_profile_job(options);
  if (!job.ok()) return finish(job.status(), kProfileCommand, console);
  const std::vector<std::string> names = job->devices();
  if (starts) {
    if (const Status files = check_files(options); !files.ok()) {
      return finish(files, kProfileCommand, console);
    }
    std::vector<std::string> ranks;
    for (std::size_t i = 0; i < names.size(); ++i) {
      ranks.push_back(rank_name(static_cast<int>(i), names[i]));
    }
    GivenOptions of_ranks = options.given;
    of_ranks.remove("--local");
    return finish(run_local(ranks, kProfileCommand, of_ranks.arguments(), options.bind),
                  kProfileCommand, console);
  }
  if (!place.ok()) return finish(place.status(), kProfileCommand, console);
  if (!started)
    return finish(no_launcher(static_cast<int>(names.size())), kProfileCommand, console);
  return run_as_rank(**place, kProfileCommand, console, [&](const LastWord& last_word) {
    return run_profile_rank(*job, **place, console, last_word);
  });
}

}  // namespace

int profile_command(const std::vector<std::string>& args, Console console) {
  ProfileOptions options;
  if (const auto code = parse_profile_options(args, console, options)) return *code;
  if (options.merge) return finish(merge_files(options, console), kProfileCommand, console);
  if (!options.kineto.empty())
    return finish(from_kineto(options, console), kProfileCommand, console);
  if (options.show) return finish(show(options, console), kProfileCommand, console);
  return measure(options, console);
}

}  // namespace agpcs
