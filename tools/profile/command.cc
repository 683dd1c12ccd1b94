// SPDX-License-Identifier: Apache-2.0
#include "tools/profile_command.h"

#include "frontend/cluster_file.h"
#include "frontend/profile_file.h"
#include "tools/profile_fits.h"
#include "tools/profile_options.h"
#include "tools/profile_rank.h"
#include "tools/profile_report.h"
#include "tools/run_local.h"

#include <fmt/format.h>

#include <csignal>
#include <ostream>
#include <utility>

namespace agpcs {
namespace {

constexpr const char* kName = "agpcs-profile";

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
    console.out << fits_report(fitted.fits);
    return {};
  }
  AGPCS_TRY(ClusterFile file, read_cluster(options.files.back()));
  AGPCS_TRY(const Calibrated fitted, fit_profile(std::move(file.cluster), profile));
  console.out << fits_report(fitted.fits);
  return {};
}

/// What every rank reads is no pipe.
Status check_files(const ProfileOptions& options) {
  if (!options.cluster.empty()) {
    AGPCS_RETURN_IF_ERROR(check_all_can_read("--local", "cluster file", options.cluster));
  }
  for (const std::string& model : options.files) {
    AGPCS_RETURN_IF_ERROR(check_all_can_read("--local", "model", model));
  }
  return {};
}

int measure(const ProfileOptions& options, const std::vector<std::string>& args, Console console) {
  std::signal(SIGPIPE, SIG_IGN);  // a reader that leaves is an error of the write, not a death
  const auto place = rank_place(process_environment());
  // Where one device is measured alone, a launcher's variables mean nothing.
  const bool started =
      place.ok() && place->has_value() && (!options.cluster.empty() || (*place)->local());
  const bool starts = options.kind.empty() ? options.local : !started;
  const auto job = make_profile_job(options);
  if (!job.ok()) return finish(job.status(), kName, console);
  const std::vector<std::string> names = job->devices();
  if (starts) {
    if (const Status files = check_files(options); !files.ok()) {
      return finish(files, kName, console);
    }
    std::vector<std::string> ranks;
    for (std::size_t i = 0; i < names.size(); ++i) {
      ranks.push_back(rank_name(static_cast<int>(i), names[i]));
    }
    return finish(run_local(ranks, kName, args), kName, console);
  }
  if (!place.ok()) return finish(place.status(), kName, console);
  if (!started) return finish(no_launcher(static_cast<int>(names.size())), kName, console);
  return run_as_rank(**place, kName, console, [&](const LastWord& last_word) {
    return run_profile_rank(*job, **place, console, last_word);
  });
}

}  // namespace

int profile_command(const std::vector<std::string>& args, Console console) {
  ProfileOptions options;
  if (const auto code = parse_profile_options(args, console, options)) return *code;
  if (options.merge) return finish(merge_files(options, console), kName, console);
  if (options.show) return finish(show(options, console), kName, console);
  return measure(options, args, console);
}

}  // namespace agpcs
