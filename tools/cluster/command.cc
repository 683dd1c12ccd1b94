// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/command.h"

#include "frontend/cluster/plausible.h"
#include "ir/base/diagnostics.h"
#include "ir/base/units.h"
#include "tools/cluster/describe.h"
#include "tools/cluster/gather.h"
#include "tools/cluster/measure.h"
#include "tools/cluster/nccl_topo.h"
#include "tools/cluster/nvml.h"
#include "tools/cluster/sysfs.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <ostream>
#include <unistd.h>

namespace agpcs {
namespace {

constexpr char kName[] = "agpcs-cluster";
constexpr char kExamples[] =
    "  agpcs-cluster discover                                        this host\n"
    "  srun --ntasks-per-node 1 agpcs-cluster discover               the hosts of a job\n"
    "  srun --ntasks-per-node 1 agpcs-cluster discover --measure     and what their links reach\n"
    "  agpcs-cluster discover --from-nccl-topo topo.xml -o -         from a file of NCCL\n"
    "  agpcs-cluster check cluster.yaml\n"
    "\n"
    "Exit codes: 0 ok, 1 input wrong or implausible, 2 usage, 70 our bug\n";
const std::vector<std::string> kCommands = {"discover", "check"};

struct Arguments {
  std::string topology, output = "cluster.yaml", name = "cluster", file;
  bool force = false, measure = false;
  double seconds = 10;
  int timeout = 60;
};

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "host";
  return name.data();
}

/// Gives GPUs the links that the topology file has for their PCI addresses, and the host its NICs
/// if it has none.
void take_topology(FoundHost& host, const NcclTopology& topology) {
  bool any = false;
  for (const FoundHost& other : topology.hosts) {
    for (const FoundGpu& from : other.gpus) {
      const auto gpu = std::find_if(host.gpus.begin(), host.gpus.end(),
                                    [&](const FoundGpu& g) { return g.bus == from.bus; });
      if (gpu == host.gpus.end()) continue;
      gpu->links = from.links;
      if (from.pcie > 0) gpu->pcie = from.pcie;
      any = true;
    }
    if (any && host.nics.empty()) host.nics = other.nics;
    if (any) return;
  }
  host.notes.emplace_back(
      "NCCL_TOPO_DUMP_FILE names a topology of other GPUs, which does not count");
}

/// Describes this host: what the drivers and the kernel say, and the topology file of NCCL where
/// the environment names one that is there.
FoundHost find_host(const Environment& environment) {
  FoundHost host;
  host.name = host_name();
  add_nvidia_gpus(host);
  add_amd_gpus(host);
  add_nics(host);
  if (host.gpus.empty()) {
    host.cpus = cpus_of_this_host();
    return host;
  }
  const std::optional<std::string> dump = environment("NCCL_TOPO_DUMP_FILE");
  std::error_code error;
  if (!dump || dump->empty() || !std::filesystem::exists(*dump, error)) return host;
  const Result<NcclTopology> topology = read_nccl_topology(*dump);
  if (topology.ok()) {
    take_topology(host, *topology);
  } else {
    host.notes.push_back(
        fmt::format("NCCL_TOPO_DUMP_FILE does not count: {}", topology.status().message()));
  }
  return host;
}

Status write_description(const Arguments& a, const std::vector<FoundHost>& hosts,
                         const std::string& origin, Console console) {
  const Description description = describe_cluster(hosts, a.name, origin);
  console.err << description.warnings;
  if (a.output == "-" || a.force) {
    AGPCS_RETURN_IF_ERROR(write_file(a.output, description.text, console));
  } else if (const std::error_code error = write_new_file(a.output, description.text)) {
    if (error == std::errc::file_exists) {
      return invalid_input(
          fmt::format("{}: error: the file is there already\n  hint: --force "
                      "replaces it, -o names another",
                      a.output));
    }
    return invalid_input(fmt::format("{}: error: cannot write it: {}", a.output, error.message()));
  }
  std::size_t gpus = 0;
  for (const FoundHost& host : hosts) gpus += host.gpus.size();
  std::ostream& report = a.output == "-" ? console.err : console.out;
  report << fmt::format("{} with {}", plural(static_cast<std::int64_t>(hosts.size()), "host"),
                        gpus == 0 ? "no GPU; its CPUs are described as a device"
                                  : plural(static_cast<std::int64_t>(gpus), "GPU"));
  report << (a.output == "-" ? "\n" : fmt::format(": wrote {}\n", a.output));
  return {};
}

/// Says which links of a host are not measured.
void note_unmeasured(FoundHost& host) {
  if (host.gpus.empty()) return;
  host.notes.emplace_back(
      "--measure does not measure links between GPUs, which take NCCL: agpcs-profile --transport "
      "nccl does");
}

/// Measures what a host alone can show: messages between two of its processes, where CPUs compute.
Status measure_alone(const MeasureOptions& options, FoundHost& host) {
  note_unmeasured(host);
  host.notes.emplace_back(
      "--measure cannot measure the NIC of a host alone: start discover on all hosts by torchrun, "
      "mpirun or srun");
  return host.gpus.empty() ? measure_this_host(options, host) : Status();
}

Status discover(const Arguments& a, Console console) {
  if (!a.topology.empty()) {
    if (a.measure) {
      return {StatusCode::kUsage,
              "--measure measures hosts, not a file: it takes no --from-nccl-topo"};
    }
    AGPCS_TRY(const NcclTopology topology, read_nccl_topology(a.topology));
    if (!topology.warnings.empty()) console.err << topology.warnings << '\n';
    const std::string file = std::filesystem::path(a.topology).filename().string();
    return write_description(a, topology.hosts, file, console);
  }
  const Environment environment = process_environment();
  AGPCS_TRY(const std::optional<RankPlace> place, rank_place(environment));
  const auto find = [&] { return find_host(environment); };
  const MeasureOptions options = {a.seconds, std::chrono::seconds(a.timeout)};
  if (!place || place->size == 1) {
    FoundHost host = find();
    if (a.measure) AGPCS_RETURN_IF_ERROR(measure_alone(options, host));
    return write_description(a, {host}, "this host", console);
  }
  MeasureHosts measure;
  if (a.measure) {
    measure = [&](Bootstrap& bootstrap, std::vector<FoundHost>& hosts) {
      for (FoundHost& host : hosts) note_unmeasured(host);
      return measure_links(bootstrap, place->local_rank, options, hosts);
    };
  }
  AGPCS_TRY(const std::vector<FoundHost> hosts,
            gather_hosts(*place, std::chrono::seconds(a.timeout), find, measure));
  if (place->rank != 0) return {};
  return write_description(a, hosts, fmt::format("the hosts of {}", place->launcher), console);
}

Status check(const Arguments& a, Console console) {
  AGPCS_TRY(const std::string text, read_input(a.file, {"cluster file", std::int64_t{16} << 20}));
  AGPCS_TRY(const PlausibleCluster found, check_plausible(text, a.file));
  if (!found.warnings.empty()) console.err << found.warnings << '\n';
  console.out << fmt::format("{}: plausible: {}, {}, {}\n", a.file, plural(found.hosts, "host"),
                             plural(found.devices, "device"), plural(found.kinds, "kind"));
  return {};
}

CLI::App* add_discover(CLI::App& app, Arguments& a) {
  CLI::App* command = app.add_subcommand(
      "discover", "write cluster.yaml: of this host, or of all hosts under a launcher");
  command->add_option("--from-nccl-topo", a.topology,
                      "describe the server in a topology file of NCCL or RCCL instead");
  command->add_flag("--measure", a.measure,
                    "measure the links between hosts, and between processes of a host, over TCP");
  command->add_option("--seconds", a.seconds, "how long to measure, about (default: 10)")
      ->check(CLI::Range(0.1, 3600.0));
  command->add_option("-o,--output", a.output, "- is standard output (default: cluster.yaml)");
  command->add_flag("--force", a.force, "replace the output if it is there already");
  command->add_option("--name", a.name, "the cluster's name (default: cluster)");
  command->add_option("--timeout", a.timeout, "seconds in which all ranks must meet (default: 60)")
      ->check(CLI::Range(1, 86400));
  return command;
}

bool is_unknown_command(const std::string& word) {
  return word.rfind('-', 0) != 0 &&
         std::find(kCommands.begin(), kCommands.end(), word) == kCommands.end();
}

}  // namespace

int cluster_command(const std::vector<std::string>& args, Console console) {
  Arguments a;
  CLI::App app("Describes clusters: finds what hosts have, and checks descriptions.", kName);
  add_help(app, kExamples);
  app.require_subcommand(1);
  const CLI::App* const discover_app = add_discover(app, a);
  CLI::App* const check_app = app.add_subcommand(
      "check", "say which figures of a cluster file are implausible; exit code 1 when some are");
  check_app->add_option("file", a.file, "cluster file; - is standard input")->required();
  if (!args.empty() && is_unknown_command(args[0])) {
    return usage_error(kName, fmt::format("unknown command '{}'", args[0]),
                       did_you_mean(args[0], kCommands, "commands"), console);
  }
  if (const std::optional<int> code = parse_arguments(app, args, console)) return *code;
  return finish(discover_app->parsed() ? discover(a, console) : check(a, console), kName, console);
}

}  // namespace agpcs
