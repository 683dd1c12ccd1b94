// SPDX-License-Identifier: Apache-2.0
// What any job does for one of its ranks: joining, the transport, and the last word.
#pragma once

#include "tools/common/common.h"
#include "tools/common/given_options.h"
#include "tools/run/processes/launch.h"

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>

#include <chrono>
#include <cstdint>
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

enum class TransportKind : std::uint8_t { kTcp, kGloo, kLoopback, kNccl };
std::string_view name_of(TransportKind transport);  ///< "tcp", "gloo", "loopback", "nccl"

struct JobOptions {
  TransportKind transport = TransportKind::kTcp;
  double timeout = 300;    ///< seconds
  double stall_limit = 6;  ///< seconds
  std::string address;  ///< address by which the others reach this rank; empty: found automatically
  std::string bind;     ///< interface or address to listen at; empty: the one that the job uses
  bool tls = false;     ///< encrypt all connections of the job
  bool check_messages = false;
  GivenOptions given;  ///< as the user gave them, for the processes that this one starts
  /// Options that must be equal on every rank: name and value.
  std::vector<std::pair<std::string, std::string>> agreed;
};
/// Returns why `text` is not a number above 0 and up to a billion; empty if it is one.
std::string not_positive(const std::string& text);
/// Adds --transport; `threads`: with the transports whose ranks are threads of one process.
void add_transport_option(CLI::App& app, TransportKind& transport, bool threads);
/// Adds --timeout, --stall-limit, --address, --bind and --tls.
void add_job_options(CLI::App& app, JobOptions& options);

/// Returns what is wrong with these options beside --transport, or an empty text.
std::string objection_to_transport(const JobOptions& options);

/// Returns "rank 1 (volta/1)".
std::string rank_name(int rank, std::string_view device);

std::chrono::milliseconds milliseconds_of(double seconds);

using LastWord = std::function<void(const Status&)>;

/// Runs `work` as a rank and returns its exit code. A failure goes to the process that started the
/// rank, or to the console as an error of `command`.
int run_as_rank(const RankPlace& place, std::string_view command, Console console,
                const std::function<Status(const LastWord&)>& work);

/// Joins the job of the ranks that give the same `identity`, as the device `device`; does `work`;
/// and leaves. A failure names the rank that failed first, wherever it ran. If another rank fails
/// while this one is in a long computation, `last_word` is called with the failure and the process
/// ends at once.
Status join_job(const JobOptions& options, const RankPlace& place, const std::string& device,
                const std::string& identity, const LastWord& last_word,
                const std::function<Status(Bootstrap&)>& work);

/// Returns the options with which `join_job` joins.
BootstrapOptions bootstrap_options(const JobOptions& options, const RankPlace& place,
                                   const std::string& device, const std::string& identity);

/// Returns LibTorch's name of the device that a rank computes on: "cpu", or over NCCL "cuda:1".
std::string torch_device(TransportKind transport, const RankPlace& place);

/// Connects the job's transport. If that is NCCL's, computation runs on `compute_stream`
/// (`NcclOptions::compute_stream`). Error: a transport that this program was built without.
Result<std::unique_ptr<Transport>> connect(Bootstrap& bootstrap, const JobOptions& options,
                                           const RankPlace& place, void* compute_stream = nullptr);

/// Checks that no launcher started this process as one of `ranks` ranks.
Status no_launcher(int ranks);

}  // namespace agpcs
