// SPDX-License-Identifier: Apache-2.0
// What `agpcs-cluster discover` finds on hosts, whoever says so: the driver, the kernel, or NCCL's
// topology file.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// Links from a GPU to one other end, of the same kind.
struct FoundLink {
  enum class To { kGpu, kSwitch };
  To to = To::kGpu;
  std::string target;  ///< PCI address of the other end
  int count = 1;
};

/// A figure that is 0, and a text that is empty, is unknown.
struct FoundGpu {
  std::string bus;             ///< PCI address, "0000:4e:00.0"
  int index = -1;              ///< the driver's number
  std::string vendor, device;  ///< of PCI, in hexadecimal: "10de", "1db1"
  std::string name;            ///< as the driver has it
  int sm = 0;                  ///< NVIDIA: 10 x major + minor of the compute capability
  std::string gfx;             ///< AMD: "90a", "942"
  int processors = 0;
  std::int64_t memory = 0;       ///< bytes, as the driver has them
  double pcie = 0;               ///< bytes/s in each direction, on the narrowest part of its way
  std::vector<FoundLink> links;  ///< NVLink or Infinity Fabric
};

struct FoundNic {
  std::string name;
  bool infiniband = false;
  bool rdma = false;     ///< InfiniBand, or RDMA over Ethernet
  double bandwidth = 0;  ///< bytes/s
};

struct FoundCpus {
  double cores = 0;      ///< logical ones, as far as the control groups let this process have them
  double peak = 0;       ///< FLOP/s in fp32 at the present clock
  double bandwidth = 0;  ///< bytes/s, measured
  std::int64_t memory = 0;  ///< bytes that are free
};

/// What messages over TCP reach.
struct MeasuredLink {
  double bandwidth = 0;  ///< bytes/s; 0: not measured
  double latency = 0;    ///< seconds
};

struct FoundHost {
  std::string name;
  std::vector<FoundGpu> gpus;
  std::vector<FoundNic> nics;
  FoundCpus cpus;
  MeasuredLink measured_nic;       ///< to other hosts, both NICs together
  MeasuredLink measured_within;    ///< between two processes of the host
  std::vector<std::string> notes;  ///< what could not be read, for the user
};

/// Returns the name that the catalog has for a GPU; nullopt where its PCI numbers and processors
/// leave open what it is.
std::optional<std::string> catalog_name(const FoundGpu& gpu);

/// Returns the nominal bytes/s, per direction, of one NVLink or Infinity Fabric link of a GPU; 0 if
/// it is unknown.
double link_bandwidth(const FoundGpu& gpu);

/// Returns the nominal bytes/s of `lanes` PCIe lanes of `gigatransfers`/s; 0 if there are no such
/// lanes.
double pcie_bandwidth(double gigatransfers, int lanes);

bool is_amd(const FoundGpu& gpu);

}  // namespace agpcs
