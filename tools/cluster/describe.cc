// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/describe.h"

#include "frontend/cluster/catalog/catalog.h"
#include "frontend/cluster/file.h"
#include "tools/cluster/fabric.h"

#include <agpcs/version.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>

namespace agpcs {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;
constexpr double kAlike = 0.01;  // figures that differ by no more are the same

bool alike(double a, double b) { return std::abs(a - b) <= kAlike * std::max(a, b); }

std::string gigabytes(double bytes) { return fmt::format("{:.6g}GB/s", bytes / 1e9); }
std::string gigabits(double bytes) { return fmt::format("{:.6g}Gbit/s", bytes * 8 / 1e9); }
/// Returns memory in GiB, rounded down: a plan must not need more.
std::string gibibytes(std::int64_t bytes) {
  return fmt::format("{:g}GiB",
                     std::max(0.1, std::floor(static_cast<double>(bytes) / kGiB * 10) / 10));
}

/// Returns `text` as a name that cluster.yaml takes.
std::string name_of_text(std::string_view text) {
  std::string name;
  for (const char c : text) {
    const bool fits = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '_' || c == '.' || c == '-';
    name += fits ? c : '-';
  }
  return name.empty() ? "host" : name;
}

/// Gives hosts names that cluster.yaml takes, each its own.
std::vector<FoundHost> with_names(std::vector<FoundHost> hosts) {
  std::set<std::string> taken;
  for (FoundHost& host : hosts) {
    const std::string base = name_of_text(host.name);
    host.name = base;
    for (int i = 1; !taken.insert(host.name).second; ++i) host.name = fmt::format("{}-{}", base, i);
  }
  return hosts;
}

/// Returns "0-3, 6" for ascending numbers.
std::string ranges(const std::vector<int>& numbers) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    parts.push_back(end == i + 1 ? fmt::format("{}", numbers[i])
                                 : fmt::format("{}-{}", numbers[i], numbers[end - 1]));
    i = end;
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string kind_name(const FoundGpu& gpu) {
  if (const std::optional<std::string> known = catalog_name(gpu)) return *known;
  if (!gpu.device.empty())
    return name_of_text(fmt::format("unknown-{}-{}", gpu.vendor, gpu.device));
  if (!gpu.gfx.empty()) return name_of_text(fmt::format("unknown-gfx{}", gpu.gfx));
  return gpu.sm > 0 ? fmt::format("unknown-sm{}", gpu.sm) : "unknown-gpu";
}

/// Returns the network of the catalog with this kind and bandwidth whose name contains `like`.
const NetworkKind* network_like(const std::string& kind, double bandwidth, std::string_view like) {
  for (const NetworkKind& network : catalog().networks) {
    if (network.kind == kind && network.name.find(like) != std::string::npos &&
        alike(network.bandwidth, bandwidth)) {
      return &network;
    }
  }
  return nullptr;
}

constexpr double kLeastMicros = 0.5;          // of a latency: what check takes for possible
constexpr double kDefaultPortLatency = 5e-6;  // of an interconnect that the file does not name

class ClusterWriter {
 public:
  Description write(const std::vector<FoundHost>& hosts, const std::string& name,
                    const std::string& origin) {
    for (const FoundHost& host : hosts) add_kinds(host);
    std::string text = fmt::format(
        "# Written by agpcs-cluster discover {} from {}.\n"
        "# Review it like code; agpcs-cluster check says what is implausible.\n"
        "name: {}\n",
        version(), origin, name_of_text(name));
    if (!kinds_.empty()) text += "\ndevice_kinds:\n" + kinds_;
    text += "\nhosts:\n";
    for (const FoundHost& host : hosts) text += host_text(host, hosts.size() > 1);
    if (hosts.size() > 1) text += "\nnetwork: {topology: switch}\n";
    return {std::move(text), std::move(warnings_)};
  }

 private:
  void warn(const std::string& host, const std::string& what, const std::string& hint) {
    warnings_ +=
        fmt::format("agpcs-cluster: warning: host '{}': {}\n  hint: {}\n", host, what, hint);
  }

  void add_kinds(const FoundHost& host) {
    for (const std::string& note : host.notes) {
      warnings_ += fmt::format("agpcs-cluster: warning: host '{}': {}\n", host.name, note);
    }
    if (host.gpus.empty()) return add_cpus(host);
    for (const FoundGpu& gpu : host.gpus) {
      const std::string name = kind_name(gpu);
      if (!seen_.insert(name).second) continue;
      const AcceleratorKind* const known = catalog().find_accelerator(name);
      const std::string memory =
          gpu.memory > 0 ? fmt::format("memory: {}", gibibytes(gpu.memory)) : "";
      if (known == nullptr) {
        add_unknown(host, gpu, name, memory);
      } else if (gpu.memory > 0 && static_cast<double>(gpu.memory) < known->memory) {
        kinds_ += fmt::format("  {}: {{{}}}  # as its driver has it\n", name, memory);
      }
    }
  }

  void add_unknown(const FoundHost& host, const FoundGpu& gpu, const std::string& name,
                   const std::string& memory) {
    std::vector<std::string> facts;
    if (!gpu.name.empty()) facts.push_back(fmt::format("'{}'", gpu.name));
    if (!gpu.device.empty()) facts.push_back(fmt::format("PCI {}:{}", gpu.vendor, gpu.device));
    if (gpu.sm > 0) facts.push_back(fmt::format("sm {}", gpu.sm));
    if (!gpu.gfx.empty()) facts.push_back(fmt::format("gfx{}", gpu.gfx));
    if (gpu.processors > 0) facts.push_back(fmt::format("{} processors", gpu.processors));
    if (facts.empty()) facts.emplace_back("of which nothing is said");
    const std::string what = one_line(fmt::format("{}", fmt::join(facts, ", ")));
    kinds_ += fmt::format(
        "  {}:  # {}\n"
        "    hardware: {}  # a name that agpcs-plan kinds lists; or give memory, memory_bandwidth "
        "and peak instead\n",
        name, what, kHardwareToFillIn);
    if (!memory.empty()) kinds_ += fmt::format("    {}  # as its driver has it\n", memory);
    warn(host.name,
         fmt::format("the catalog cannot tell which accelerator '{}' is ({})", name, what),
         fmt::format("fill in 'hardware' of '{}': agpcs-plan kinds lists the names", name));
  }

  static std::string one_line(std::string text) {
    for (char& c : text) {
      if (static_cast<unsigned char>(c) < ' ') c = ' ';
    }
    return text;
  }

  // CPUs of hosts that differ are kinds of their own.
  void add_cpus(const FoundHost& host) {
    const FoundCpus& cpus = host.cpus;
    const std::string figures = fmt::format(
        "{{memory: {}, memory_bandwidth: {}, peak: {{fp32: {:.4g}GFLOPS}}}}  # {:g} cores",
        gibibytes(cpus.memory), fmt::format("{:.3g}GB/s", cpus.bandwidth / 1e9), cpus.peak / 1e9,
        cpus.cores);
    const auto [at, fresh] =
        cpus_.try_emplace(figures, cpus_.empty() ? "cpu" : fmt::format("cpu-{}", cpus_.size()));
    if (fresh) kinds_ += fmt::format("  {}: {}\n", at->second, figures);
    cpu_of_[host.name] = at->second;
  }

  std::string host_text(const FoundHost& host, bool several) {
    std::string text =
        fmt::format("  - name: {}\n    devices: {}\n", host.name, devices_text(host));
    if (!host.gpus.empty()) text += interconnect_text(host);
    if (host.gpus.empty() && host.measured_within.bandwidth > 0) {
      text += fmt::format("    interconnect: {}  # as measured between two processes of the host\n",
                          measured_text("tcp", host.measured_within, 2));
    }
    return text + nic_text(host, several);
  }

  /// `parts`: links on the way that share the latency.
  static std::string measured_text(const std::string& kind, const MeasuredLink& link, int parts) {
    return fmt::format("{{kind: {}, bandwidth: {:.3g}GB/s, latency: {:.3g}us}}", kind,
                       link.bandwidth / 1e9, std::max(link.latency / parts * 1e6, kLeastMicros));
  }

  /// The NIC by what was measured. A message also passes the ports of both devices, whose latency
  /// the file has or takes by default.
  static std::string measured_nic_text(const FoundHost& host, const std::string& nominal) {
    MeasuredLink nic = host.measured_nic;
    const double port = host.gpus.empty() && host.measured_within.bandwidth > 0
                            ? host.measured_within.latency / 2
                            : kDefaultPortLatency;
    nic.latency -= 2 * port;
    return fmt::format("    nic: {}  # as measured over TCP; nominal: {}\n",
                       measured_text("ethernet", nic, 2), nominal);
  }

  std::string devices_text(const FoundHost& host) {
    if (host.gpus.empty()) return fmt::format("{{kind: {}, count: 1}}", cpu_of_[host.name]);
    std::vector<std::pair<std::string, int>> groups;
    for (const FoundGpu& gpu : host.gpus) {
      const std::string name = kind_name(gpu);
      if (groups.empty() || groups.back().first != name) groups.emplace_back(name, 0);
      ++groups.back().second;
    }
    std::vector<std::string> parts;
    for (const auto& [kind, count] : groups) {
      parts.push_back(fmt::format("{{kind: {}, count: {}}}", kind, count));
    }
    const std::string list = fmt::format("{}", fmt::join(parts, ", "));
    return parts.size() == 1 ? list : fmt::format("[{}]", list);
  }

  std::string interconnect_text(const FoundHost& host) {
    const Fabric fabric = fabric_of(host.gpus);
    const bool amd = is_amd(host.gpus.front());
    const std::string kind = amd ? "xgmi" : "nvlink", people = amd ? "Infinity Fabric" : "NVLink";
    if (!fabric.joins_all || fabric.least_port == 0) {
      if (fabric.any) warn_of_islands(host, fabric, people);
      return pcie_text(host);
    }
    warn_of_fabric(host, fabric, people);
    const NetworkKind* const named = named_fabric(host, kind, fabric);
    const std::string figures = named != nullptr ? named->name
                                                 : fmt::format("{{kind: {}, bandwidth: {}{}}}",
                                                               kind, gigabytes(fabric.least_port),
                                                               amd ? "" : latency_of("nvlink2"));
    return fmt::format("    interconnect: {}  # {}{}, {} of each GPU\n", figures, people,
                       fabric.switched ? " through switches" : "", gigabytes(fabric.least_port));
  }

  static std::string latency_of(std::string_view network) {
    const NetworkKind* const found = catalog().find_network(network);
    if (found == nullptr || found->latency < 0) return "";
    return fmt::format(", latency: {:g}us", found->latency * 1e6);
  }

  // Returns the network of the catalog that the first GPU's kind has and that has the bandwidth.
  static const NetworkKind* named_fabric(const FoundHost& host, const std::string& kind,
                                         const Fabric& fabric) {
    const AcceleratorKind* const known = catalog().find_accelerator(kind_name(host.gpus.front()));
    if (known == nullptr) return nullptr;
    const NetworkKind* found = nullptr;
    for (const std::string& name : known->links) {
      const NetworkKind* const network = catalog().find_network(name);
      if (network == nullptr || network->kind != kind) continue;
      if (!alike(network->bandwidth, fabric.least_port)) continue;
      const bool of_switch = name.find("switch") != std::string::npos;
      if (found == nullptr || of_switch == fabric.switched) found = network;
    }
    return found;
  }

  void warn_of_islands(const FoundHost& host, const Fabric& fabric, const std::string& people) {
    if (fabric.joins_all) {
      return warn(host.name,
                  fmt::format("it has {}, but the bandwidth of a link of '{}' is not known", people,
                              kind_name(host.gpus.front())),
                  "the file has PCIe; give the interconnect's kind and bandwidth");
    }
    std::vector<std::string> islands;
    for (const std::vector<int>& island : fabric.islands) {
      islands.push_back(fmt::format("{{{}}}", ranges(island)));
    }
    warn(host.name,
         fmt::format(
             "{} joins its GPUs only within {}; a host of cluster.yaml has one interconnect, "
             "so the file has PCIe for all, and {} of each GPU are lost",
             people, fmt::join(islands, ", "), gigabytes(fabric.most_port)),
         "or describe each group as a host of its own, whose nic is what joins the groups");
  }

  void warn_of_fabric(const FoundHost& host, const Fabric& fabric, const std::string& people) {
    const char* const hint = "agpcs-profile measures each pair; a profile comes before the file";
    if (!fabric.switched && fabric.linked_pairs < fabric.pairs) {
      warn(host.name,
           fmt::format(
               "{} of {} pairs of its GPUs have no {} of their own ({} and {}, for one); the "
               "file has a port of {} for each GPU to all others",
               fabric.pairs - fabric.linked_pairs, fabric.pairs, people, fabric.first,
               fabric.second, gigabytes(fabric.least_port)),
           hint);
    }
    if (!fabric.switched && !alike(fabric.least_pair, fabric.most_pair)) {
      warn(
          host.name,
          fmt::format("pairs of its GPUs have from {} to {} of {}; in the file all pairs are alike",
                      gigabytes(fabric.least_pair), gigabytes(fabric.most_pair), people),
          hint);
    }
    if (!alike(fabric.least_port, fabric.most_port)) {
      warn(host.name,
           fmt::format("its GPUs have from {} to {} of {}; the file has the least for all",
                       gigabytes(fabric.least_port), gigabytes(fabric.most_port), people),
           hint);
    }
  }

  std::string pcie_text(const FoundHost& host) {
    double least = 0, most = 0;
    for (const FoundGpu& gpu : host.gpus) {
      if (gpu.pcie == 0) continue;
      least = least == 0 ? gpu.pcie : std::min(least, gpu.pcie);
      most = std::max(most, gpu.pcie);
    }
    if (least == 0) {
      return "    # interconnect: its PCIe speed is not known, so that it is PCIe 3.0 x16 as it is "
             "mostly reached\n";
    }
    if (!alike(least, most)) {
      warn(host.name,
           fmt::format("its GPUs have PCIe of {} to {}; the file has the least for all",
                       gigabytes(least), gigabytes(most)),
           "give hosts of one kind of slot, or a profile");
    }
    const NetworkKind* const named = network_like("pcie", least, "pcie");
    return fmt::format("    interconnect: {}  # nominal; messages reach about 0.8 of it\n",
                       named != nullptr ? named->name
                                        : fmt::format("{{kind: pcie, bandwidth: {}{}}}",
                                                      gigabytes(least), latency_of("pcie3x16")));
  }

  std::string nic_text(const FoundHost& host, bool several) {
    const bool infiniband =
        std::any_of(host.nics.begin(), host.nics.end(),
                    [](const FoundNic& nic) { return nic.infiniband && nic.bandwidth > 0; });
    double sum = 0, most = 0;
    int count = 0;
    bool rdma = true;
    for (const FoundNic& nic : host.nics) {
      if (nic.bandwidth == 0 || nic.infiniband != infiniband) continue;
      sum += nic.bandwidth;
      most = std::max(most, nic.bandwidth);
      rdma = rdma && nic.rdma;
      ++count;
    }
    if (count == 0) return silent_nic_text(host, several);
    const std::string kind = infiniband ? "ib" : "ethernet";
    const NetworkKind* const named = network_like(kind, most,
                                                  infiniband ? "ib-"
                                                  : rdma     ? "roce-"
                                                             : "ethernet-");
    const double reached = host.measured_nic.bandwidth;
    if (reached > 0 && !infiniband && !rdma) return measured_nic_text(host, gigabits(sum));
    if (reached > 0) {
      warn(host.name,
           fmt::format("TCP reaches {:.3g}GB/s over its NICs of {}; the file has the nominal "
                       "bandwidth, because RDMA does not pass TCP",
                       reached / 1e9, gigabits(sum)),
           "agpcs-profile with the transport of the job measures what that reaches");
    }
    const bool same = alike(sum, count * most);
    if (named != nullptr && same) {
      if (count == 1) return fmt::format("    nic: {}\n", named->name);
      return fmt::format("    nic: {{kind: {}, count: {}}}  # one message has {} at most\n",
                         named->name, count, gigabits(most));
    }
    const std::string latency = named != nullptr ? latency_of(named->name) : "";
    return fmt::format("    nic: {{kind: {}, bandwidth: {}{}}}{}\n", kind, gigabits(sum), latency,
                       count == 1 ? ""
                                  : fmt::format("  # {} NICs together; one message has {} at most",
                                                count, gigabits(most)));
  }

  std::string silent_nic_text(const FoundHost& host, bool several) {
    if (host.measured_nic.bandwidth > 0) return measured_nic_text(host, "not known");
    if (host.nics.empty() && !several) return "";
    const std::string what =
        host.nics.empty()
            ? "no NIC was found"
            : fmt::format("the speed of its NICs ({}) is not known", host.nics.size());
    warn(host.name, what,
         several ? "give the host a nic: among several hosts each needs one"
                 : "give the host a nic before it is one of several");
    return fmt::format("    # nic: {}; such as nic: ib-hdr\n", what);
  }

  std::string kinds_, warnings_;
  std::set<std::string> seen_;
  std::map<std::string, std::string> cpus_, cpu_of_;  // figures -> kind, host -> kind
};

}  // namespace

Description describe_cluster(const std::vector<FoundHost>& hosts, const std::string& name,
                             const std::string& origin) {
  return ClusterWriter().write(with_names(hosts), name, origin);
}

}  // namespace agpcs
