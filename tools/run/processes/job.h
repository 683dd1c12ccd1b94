// SPDX-License-Identifier: Apache-2.0
// A rank of a job, whatever the job does: joining, the transport, and the last word.
#pragma once

#include "tools/common.h"
#include "tools/run_launch.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace CLI {  // NOLINT(readability-identifier-naming): CLI11 names it
class App;
}

namespace agpcs {

struct JobOptions {
  std::string transport = "gloo";
  double timeout = 300;    ///< seconds
  double stall_limit = 6;  ///< seconds
  std::string address;     ///< by which the others reach this rank; empty: found out
  bool check_messages = false;
  /// Options that every rank must be given alike: name and value.
  std::vector<std::pair<std::string, std::string>> agreed;
};
/// Says why `text` is no number above 0 and up to a billion; empty: it is one.
std::string not_positive(const std::string& text);
/// Adds --timeout, --stall-limit and --address.
void add_job_options(CLI::App& app, JobOptions& options);

/// "rank 1 (volta/1)".
std::string rank_name(int rank, std::string_view device);

std::chrono::milliseconds milliseconds_of(double seconds);

using LastWord = std::function<void(const Status&)>;

/// Runs `work` as a rank and returns its exit code. What went wrong goes to the process that
/// started the rank, or to the console as `command`'s error.
int run_as_rank(const RankPlace& place, std::string_view command, Console console,
                const std::function<Status(const LastWord&)>& work);

/// Joins the job of ranks that give the same `identity` as the device `device`, does `work`, and
/// leaves. A failure names the rank that failed first, wherever that was. When another rank fails
/// while this one is deep in a computation, `last_word` is called with the failure and the process
/// ends there and then.
Status join_job(const JobOptions& options, const RankPlace& place, const std::string& device,
                const std::string& identity, const LastWord& last_word,
                const std::function<Status(Bootstrap&)>& work);

/// What `join_job` joins with.
BootstrapOptions bootstrap_options(const JobOptions& options, const RankPlace& place,
                                   const std::string& device, const std::string& identity);

/// The job's transport, for what is computed on `compute_stream` where that is NCCL's
/// (`NcclOptions::compute_stream`). Error: one that this program was built without.
Result<std::unique_ptr<Transport>> connect(Bootstrap& bootstrap, const JobOptions& options,
                                           const RankPlace& place, void* compute_stream = nullptr);

/// That no launcher started this process as one of `ranks` ranks.
Status no_launcher(int ranks);

}  // namespace agpcs
