// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/sysfs.h"

#include "tools/run/processes/machine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

namespace agpcs {
namespace {

namespace fs = std::filesystem;

/// Returns the first line of a file; empty if there is none.
std::string line_of(const fs::path& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

/// Returns the lines "key value" of a file.
std::map<std::string, std::uint64_t> properties_of(const fs::path& path) {
  std::map<std::string, std::uint64_t> properties;
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string key;
    std::uint64_t value = 0;
    if (words >> key >> value) properties[key] = value;
  }
  return properties;
}

/// Returns the entries of a folder, numbers by value.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(at->path());
  }
  std::sort(entries.begin(), entries.end(), [](const fs::path& a, const fs::path& b) {
    const std::string x = a.filename().string(), y = b.filename().string();
    return x.size() != y.size() ? x.size() < y.size() : x < y;
  });
  return entries;
}

/// Returns "90a" for the version 90010, and "908" for 90008.
std::string gfx_of(std::uint64_t version) {
  return fmt::format("{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100);
}

/// The part of a DRM card that belongs to a GPU.
struct Card {
  std::int64_t memory = 0;
  double pcie = 0;
};

std::map<std::string, Card> cards_of(const fs::path& root) {
  std::map<std::string, Card> cards;
  for (const fs::path& card : entries_of(root / "sys/class/drm")) {
    const std::string name = card.filename().string();
    if (name.rfind("card", 0) != 0 || name.find('-') != std::string::npos) continue;
    const fs::path device = card / "device";
    std::ifstream events(device / "uevent");
    std::string line, bus;
    while (std::getline(events, line)) {
      if (line.rfind("PCI_SLOT_NAME=", 0) == 0) bus = line.substr(14);
    }
    const double speed = std::strtod(line_of(device / "max_link_speed").c_str(), nullptr);
    const int width = std::atoi(line_of(device / "max_link_width").c_str());
    cards[bus] = {std::atoll(line_of(device / "mem_info_vram_total").c_str()),
                  pcie_bandwidth(speed, width)};
  }
  return cards;
}

constexpr std::uint64_t kXgmi = 11;  // HSA_IOLINKTYPE_XGMI

/// Adds the links of a node of kfd to other GPUs, whose addresses are in `buses` by node.
void add_xgmi(const fs::path& node, const std::map<std::uint64_t, std::string>& buses,
              FoundGpu& gpu) {
  for (const char* folder : {"io_links", "p2p_links"}) {
    for (const fs::path& link : entries_of(node / folder)) {
      auto properties = properties_of(link / "properties");
      const auto to = buses.find(properties["node_to"]);
      if (properties["type"] != kXgmi || to == buses.end()) continue;
      // The kernel has the bandwidth of one link and of all of them; old ones have neither.
      const std::uint64_t one = properties["min_bandwidth"], all = properties["max_bandwidth"];
      const int count = one > 0 && all >= one ? static_cast<int>(all / one) : 1;
      gpu.links.push_back({FoundLink::To::kGpu, to->second, count});
    }
  }
}

/// Returns bytes/s for "200 Gb/sec (4X HDR)".
double rate_of(const std::string& text) { return std::strtod(text.c_str(), nullptr) * 1e9 / 8; }

/// Adds RDMA ports that are up. Returns whether there is one.
bool add_rdma(const fs::path& root, FoundHost& host) {
  bool found = false;
  for (const fs::path& device : entries_of(root / "sys/class/infiniband")) {
    for (const fs::path& port : entries_of(device / "ports")) {
      if (line_of(port / "state").find("ACTIVE") == std::string::npos) continue;
      FoundNic nic;
      nic.name = device.filename().string();
      nic.rdma = true;
      nic.infiniband = line_of(port / "link_layer") == "InfiniBand";
      nic.bandwidth = rate_of(line_of(port / "rate"));
      found = found || nic.bandwidth > 0;
      host.nics.push_back(std::move(nic));
    }
  }
  return found;
}

// The bandwidth of copying by all cores at once, in bytes that are read and written.
double copy_bandwidth(int threads) {
  using Clock = std::chrono::steady_clock;
  constexpr std::size_t kBytes = std::size_t{32} << 20;
  constexpr int kRounds = 6;
  std::vector<std::vector<char>> from(static_cast<std::size_t>(threads)), to = from;
  double seconds = 0;
  for (int round = 0; round <= kRounds; ++round) {  // the first one allocates
    const auto start = Clock::now();
    std::vector<std::thread> copies;
    for (std::size_t i = 0; i < from.size(); ++i) {
      copies.emplace_back([&, i] {
        from[i].resize(kBytes, 1);
        to[i].resize(kBytes);
        std::memcpy(to[i].data(), from[i].data(), kBytes);
      });
    }
    for (std::thread& copy : copies) copy.join();
    if (round > 0) seconds += std::chrono::duration<double>(Clock::now() - start).count();
  }
  return 2.0 * kRounds * kBytes * threads / std::max(seconds, 1e-9);
}

}  // namespace

void add_amd_gpus(FoundHost& host, const std::string& root) {
  constexpr std::uint64_t kAmd = 0x1002;
  const fs::path base = root.empty() ? "/" : root;
  const std::vector<fs::path> nodes = entries_of(base / "sys/class/kfd/kfd/topology/nodes");
  std::map<std::uint64_t, std::string> buses;
  for (const fs::path& node : nodes) {
    auto properties = properties_of(node / "properties");
    if (properties["simd_count"] == 0 || properties["vendor_id"] != kAmd) continue;  // a CPU
    const std::uint64_t at = properties["location_id"];
    buses[std::strtoull(node.filename().c_str(), nullptr, 10)] = fmt::format(
        "{:04x}:{:02x}:{:02x}.{:x}", properties["domain"], at >> 8 & 0xff, at >> 3 & 0x1f, at & 7);
  }
  const std::map<std::string, Card> cards = cards_of(base);
  int index = 0;
  for (const fs::path& node : nodes) {
    const auto bus = buses.find(std::strtoull(node.filename().c_str(), nullptr, 10));
    if (bus == buses.end()) continue;
    auto properties = properties_of(node / "properties");
    FoundGpu gpu;
    gpu.bus = bus->second;
    gpu.index = index++;
    gpu.vendor = "1002";
    gpu.device = fmt::format("{:04x}", properties["device_id"]);
    gpu.name = line_of(node / "name");
    gpu.gfx = gfx_of(properties["gfx_target_version"]);
    const std::uint64_t each = std::max<std::uint64_t>(properties["simd_per_cu"], 1);
    gpu.processors = static_cast<int>(properties["simd_count"] / each);
    gpu.memory =
        static_cast<std::int64_t>(properties_of(node / "mem_banks/0/properties")["size_in_bytes"]);
    if (const auto card = cards.find(gpu.bus); card != cards.end()) {
      if (card->second.memory > 0) gpu.memory = card->second.memory;
      gpu.pcie = card->second.pcie;
    }
    add_xgmi(node, buses, gpu);
    host.gpus.push_back(std::move(gpu));
  }
}

void add_nics(FoundHost& host, const std::string& root) {
  const fs::path base = root.empty() ? "/" : root;
  if (add_rdma(base, host)) return;
  FoundNic fastest;
  for (const fs::path& interface : entries_of(base / "sys/class/net")) {
    std::error_code error;
    if (!fs::exists(interface / "device", error)) continue;  // a bridge, say
    if (line_of(interface / "operstate") == "down") continue;
    const double speed = std::strtod(line_of(interface / "speed").c_str(), nullptr);  // Mbit/s
    FoundNic nic;
    nic.name = interface.filename().string();
    nic.bandwidth = speed > 0 ? speed * 1e6 / 8 : 0;  // virtual ones say -1
    if (fastest.name.empty() || nic.bandwidth > fastest.bandwidth) fastest = std::move(nic);
  }
  if (!fastest.name.empty()) host.nics.push_back(std::move(fastest));
}

FoundCpus cpus_of_this_host() {
  FoundCpus cpus;
  cpus.cores = std::max(1U, std::thread::hardware_concurrency());
  if (const double quota = cpu_quota(); quota > 0) cpus.cores = std::min(cpus.cores, quota);
  const VectorUnit vectors = vector_unit();
  cpus.peak = cpus.cores * vectors.floats * vectors.operations * core_clock();
  cpus.memory = free_memory();
  cpus.bandwidth = copy_bandwidth(std::clamp(static_cast<int>(cpus.cores), 1, 64));
  return cpus;
}

}  // namespace agpcs
