// SPDX-License-Identifier: Apache-2.0
#include "tools/run_job.h"

#include "tools/rank_process.h"
#include "tools/run_last_resort.h"

#ifdef AGPCS_RUN_GLOO
#include <agpcs/gloo.h>
#endif
#ifdef AGPCS_RUN_NCCL
#include <agpcs/nccl.h>
#endif
#include <agpcs/version.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <limits>
#include <unistd.h>

namespace agpcs {
namespace {

// This machine's name, where it is not the one that the cluster file gives it: of "volta/1"
// "volta".
std::string host_beside(const std::string& device) {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return {};
  const std::string host = name;
  return host == device.substr(0, device.find('/')) ? std::string() : host;
}

// A step frees what the next one needs again. By default glibc gives large blocks and the heap's
// end back to the system, and the next step's page faults bring them in again: how often depends on
// the heap's layout, so that steps are slower, and by how much is luck.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestHeapBlock = 32 << 20;  // the most that mallopt takes
  mallopt(M_MMAP_THRESHOLD, kLargestHeapBlock);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

}  // namespace

BootstrapOptions bootstrap_options(const JobOptions& options, const RankPlace& place,
                                   const std::string& device, const std::string& identity) {
  BootstrapOptions bootstrap;
  bootstrap.rank = place.rank;
  bootstrap.size = place.size;
  bootstrap.address = place.address;
  bootstrap.port = place.port;
  bootstrap.listen_fd = place.rank == 0 ? place.listen_fd : -1;
  bootstrap.local_only = place.local();
  bootstrap.token = place.token.empty() ? "one rank needs no secret" : place.token;
  bootstrap.identity = identity;
  bootstrap.agreed = options.agreed;
  bootstrap.agreed.insert(bootstrap.agreed.begin(), {"AGPCS version", std::string(version())});
  bootstrap.name = device;
  if (!place.local()) bootstrap.host = host_beside(device);
  bootstrap.stall_limit = milliseconds_of(options.stall_limit);
  bootstrap.join_limit = std::min(bootstrap.join_limit, milliseconds_of(options.timeout));
  return bootstrap;
}

std::string rank_name(int rank, std::string_view device) {
  return fmt::format("rank {} ({})", rank, device);
}

std::chrono::milliseconds milliseconds_of(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(seconds * 1000));
}

int run_as_rank(const RankPlace& place, std::string_view command, Console console,
                const std::function<Status(const LastWord&)>& work) {
  const auto say = [&](const Status& status) {
    if (!place.has_starter()) {
      finish(status, command, console);
    } else if (!status.ok()) {
      write_last_word(place.report_fd, status);
    }
  };
  const Status status = work(say);
  say(status);
  return exit_code(status.code());
}

Status join_job(const JobOptions& options, const RankPlace& place, const std::string& device,
                const std::string& identity, const LastWord& last_word,
                const std::function<Status(Bootstrap&)>& work) {
  keep_freed_memory();
  AGPCS_TRY(const auto bootstrap,
            Bootstrap::join(bootstrap_options(options, place, device, identity)));
  const auto end_now = [&](const Status& failure) {
    last_word(failure);
    _exit(exit_code(failure.code()));  // other threads are at work: no destructor may run
  };
  const LastResort last_resort(*bootstrap, end_now);
  Status status = work(*bootstrap);
  if (status.ok()) return status;
  if (status.code() != StatusCode::kPeerFailed) {
    const bool named = status.message().rfind("rank ", 0) == 0;
    bootstrap->report(
        named ? status
              : Status(status.code(),
                       fmt::format("{}: {}", rank_name(place.rank, device), status.message())));
  }
  return status;
}

Result<std::unique_ptr<Transport>> connect([[maybe_unused]] Bootstrap& bootstrap,
                                           const JobOptions& options,
                                           [[maybe_unused]] const RankPlace& place,
                                           [[maybe_unused]] void* compute_stream) {
#ifdef AGPCS_RUN_GLOO
  if (options.transport == "gloo") {
    GlooOptions gloo;
    gloo.address = options.address;
    gloo.check_messages = options.check_messages;
    return connect_gloo(bootstrap, gloo);
  }
#endif
#ifdef AGPCS_RUN_NCCL
  if (options.transport == "nccl") {
    NcclOptions nccl;
    nccl.device = place.local_rank;
    nccl.compute_stream = compute_stream;
    return connect_nccl(bootstrap, nccl);
  }
#endif
  return Status(StatusCode::kUnavailable,
                fmt::format("this program was built without the {} transport", options.transport));
}

Status no_launcher(int ranks) {
  return {StatusCode::kUsage,
          fmt::format("no launcher's variables are set (RANK, OMPI_COMM_WORLD_RANK or "
                      "SLURM_PROCID), so this process does not know which of {} ranks it is\n"
                      "  hint: add --local to start all ranks on this machine",
                      ranks)};
}

// CLI11's own check answers with its whole range, in three hundred digits. The bound keeps seconds
// within what a clock counts.
std::string not_positive(const std::string& text) {
  double value = 0;
  const bool good = CLI::detail::lexical_cast(text, value) && value > 0 && value <= 1e9;
  return good ? std::string()
              : fmt::format("'{}' is not a number above 0 and up to 1000000000", text);
}

void add_job_options(CLI::App& app, JobOptions& options) {
  const CLI::Validator positive(not_positive, "POSITIVE");
  app.add_option("--timeout", options.timeout, "seconds that one instruction may wait")
      ->capture_default_str()
      ->check(positive);
  app.add_option("--stall-limit", options.stall_limit,
                 "seconds of silence after which a rank counts as dead")
      ->capture_default_str()
      ->check(positive);
  app.add_option("--address", options.address,
                 "address by which the other ranks reach this one; default: found out");
}

}  // namespace agpcs
