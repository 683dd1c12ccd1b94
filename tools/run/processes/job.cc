// SPDX-License-Identifier: Apache-2.0
#include "tools/run/processes/job.h"

#include "ir/base/named.h"
#include "runtime/bootstrap/listen_place.h"
#include "runtime/bootstrap/socket.h"
#include "tools/run/processes/last_resort.h"
#include "tools/run/processes/rank_process.h"

#ifdef AGPCS_RUN_GLOO
#include <agpcs/gloo.h>
#endif
#ifdef AGPCS_RUN_NCCL
#include <agpcs/nccl.h>
#endif
#include <agpcs/tcp.h>
#include <agpcs/version.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <limits>
#include <unistd.h>

namespace agpcs {
namespace {

struct TransportEntry {
  TransportKind value;
  std::string_view name, help;
  bool threads;  // ranks are threads of one process
};
constexpr std::array<TransportEntry, 4> kTransports = {{
    {TransportKind::kTcp, "tcp", "processes over TCP, closed to strangers", false},
    {TransportKind::kGloo, "gloo", "processes over Gloo's TCP, which admits strangers", false},
    {TransportKind::kLoopback, "loopback", "threads of this process", true},
    {TransportKind::kNccl, "nccl", "GPUs", false},
}};
static_assert(is_in_order(kTransports));

// Returns this machine's name if it differs from the one in the cluster file ("volta" for
// "volta/1"), else "".
std::string host_beside(const std::string& device) {
  char name[256] = "";
  if (gethostname(name, sizeof name - 1) != 0) return {};
  const std::string host = name;
  return host == device.substr(0, device.find('/')) ? std::string() : host;
}

// Makes glibc keep freed memory, because a step frees what the next one needs again. By default
// glibc returns large blocks and the heap's end to the system, and the next step's page faults
// bring them back. How often depends on the heap's layout, so steps would be slower by an
// unpredictable amount. The programs link tcmalloc where it is found, which keeps freed memory by
// itself, and needs little more than what lives; glibc's heap grows to up to 1.5 times that.
void keep_freed_memory() {
#ifdef __GLIBC__
  constexpr int kLargestHeapBlock = 32 << 20;  // the maximum that mallopt accepts
  mallopt(M_MMAP_THRESHOLD, kLargestHeapBlock);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
#endif
}

// Threads of the job call it.
void warn(const std::string& line) { fmt::print(stderr, "warning: {}\n", line); }

}  // namespace

std::string_view name_of(TransportKind transport) { return entry_of(kTransports, transport).name; }

void add_transport_option(CLI::App& app, TransportKind& transport, bool threads) {
  std::vector<TransportEntry> offered;
  for (const TransportEntry& entry : kTransports) {
    if (threads || !entry.threads) offered.push_back(entry);
  }
  const auto take = [&transport](const std::string& name) {
    transport = value_named(kTransports, name).value_or(transport);
  };
  app.add_option_function<std::string>("--transport", take, help_of(offered))
      ->default_str(std::string(name_of(transport)))
      ->check(CLI::IsMember(names_in(offered)));
}

BootstrapOptions bootstrap_options(const JobOptions& options, const RankPlace& place,
                                   const std::string& device, const std::string& identity) {
  BootstrapOptions bootstrap;
  bootstrap.rank = place.rank;
  bootstrap.size = place.size;
  bootstrap.address = place.address;
  bootstrap.port = place.port;
  bootstrap.listen_fd = place.rank == 0 ? place.listen_fd : -1;
  bootstrap.bind = options.bind;
  bootstrap.tls = options.tls;
  bootstrap.one_machine = place.one_machine;
  bootstrap.token = place.token.empty() ? "one rank needs no secret" : place.token;
  bootstrap.identity = identity;
  bootstrap.agreed = options.agreed;
  bootstrap.agreed.insert(bootstrap.agreed.begin(), {"AGPCS version", std::string(version())});
  bootstrap.name = device;
  if (!place.local()) bootstrap.host = host_beside(device);
  bootstrap.stall_limit = milliseconds_of(options.stall_limit);
  bootstrap.on_warning = warn;
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
    _exit(exit_code(failure.code()));  // other threads still run, so no destructor may run
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

std::string torch_device([[maybe_unused]] TransportKind transport,
                         [[maybe_unused]] const RankPlace& place) {
#ifdef AGPCS_RUN_NCCL
  if (transport == TransportKind::kNccl) {
    return fmt::format("cuda:{}", nccl_device(place.local_rank));
  }
#endif
  return "cpu";
}

Result<std::unique_ptr<Transport>> connect(Bootstrap& bootstrap, const JobOptions& options,
                                           [[maybe_unused]] const RankPlace& place,
                                           [[maybe_unused]] void* compute_stream) {
  if (options.transport == TransportKind::kTcp) {
    TcpOptions tcp;
    tcp.address = options.address;
    tcp.bind = options.bind;
    tcp.check_messages = options.check_messages;
    tcp.on_refused = warn;
    return connect_tcp(bootstrap, tcp);
  }
#ifdef AGPCS_RUN_GLOO
  if (options.transport == TransportKind::kGloo) {
    GlooOptions gloo;
    gloo.address = options.address;
    if (!options.bind.empty() && options.address.empty()) {  // Gloo listens where it is reached
      AGPCS_TRY(gloo.address, address_of_bind(options.bind, bootstrap.local_address()));
      if (is_every_address(gloo.address)) gloo.address.clear();
    }
    gloo.check_messages = options.check_messages;
    return connect_gloo(bootstrap, gloo);
  }
#endif
#ifdef AGPCS_RUN_NCCL
  if (options.transport == TransportKind::kNccl) {
    NcclOptions nccl;
    nccl.device = nccl_device(place.local_rank);
    nccl.compute_stream = compute_stream;
    return connect_nccl(bootstrap, nccl);
  }
#endif
  return Status(
      StatusCode::kUnavailable,
      fmt::format("this program was built without the {} transport", name_of(options.transport)));
}

Status no_launcher(int ranks) {
  return {StatusCode::kUsage,
          fmt::format("no launcher's variables are set (RANK, OMPI_COMM_WORLD_RANK or "
                      "SLURM_PROCID), so this process does not know which of {} ranks it is\n"
                      "  hint: add --local to start all ranks on this machine",
                      ranks)};
}

// Returns the message for a number that is not positive. CLI11's own check prints its whole range,
// with three hundred digits. The upper bound keeps seconds within a clock's range.
std::string not_positive(const std::string& text) {
  double value = 0;
  const bool good = CLI::detail::lexical_cast(text, value) && value > 0 && value <= 1e9;
  return good ? std::string()
              : fmt::format("'{}' is not a number above 0 and up to 1000000000", text);
}

std::string objection_to_transport(const JobOptions& options) {
  const bool gloo = options.transport == TransportKind::kGloo;
  if (gloo && !options.bind.empty() && !options.address.empty()) {
    return "--transport gloo listens at --address: it takes no --bind beside it";
  }
  if (options.tls && gloo) return "--tls needs --transport tcp: Gloo's connections know no TLS";
  if (options.tls && options.transport == TransportKind::kNccl) {
    return "--tls needs --transport tcp: NCCL's own sockets encrypt nothing";
  }
  return {};
}

// Returns why this machine cannot listen at `bind`; empty if it can.
std::string not_here(const std::string& bind) {
  return address_of_bind(bind, {}).status().message();
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
  app.add_option("--bind", options.bind,
                 "interface or address to listen at; default: the address that the job uses")
      ->check(CLI::Validator([](const std::string& bind) { return not_here(bind); }, "BIND"));
  app.add_flag("--tls", options.tls, "tcp: encrypt all connections of the job, by TLS 1.3");
}

}  // namespace agpcs
