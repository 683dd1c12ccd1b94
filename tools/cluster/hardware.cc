// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/hardware.h"

#include <string_view>

namespace agpcs {
namespace {

struct PciRow {
  std::string_view vendor, device, name;
  int processors = 0;  // 0: any
};

// PCI numbers of the catalog's accelerators. Source: the PCI ID database, https://pci-ids.ucw.cz,
// in which one number may be several products; of those, only rows that tell them apart by their
// processors are here.
constexpr PciRow kPciRows[] = {
    {"10de", "15f8", "P100-PCIe-16GB"},
    {"10de", "15f9", "P100-SXM2-16GB"},
    {"10de", "1bb3", "P4"},
    {"10de", "1db1", "V100-SXM2-16GB"},
    {"10de", "1df5", "V100-SXM2-16GB"},
    {"10de", "1db4", "V100-PCIe-16GB"},
    {"10de", "1db5", "V100-SXM2-32GB"},
    {"10de", "1db6", "V100-PCIe-32GB"},
    {"10de", "1eb8", "T4"},
    {"10de", "1e04", "RTX-2080-Ti"},
    {"10de", "1e07", "RTX-2080-Ti"},
    {"10de", "1e02", "TITAN-RTX"},
    {"10de", "2236", "A10"},
    {"10de", "2237", "A10G"},
    {"10de", "20b7", "A30"},
    {"10de", "2235", "A40"},
    {"10de", "20b1", "A100-PCIe-40GB"},
    {"10de", "20f1", "A100-PCIe-40GB"},
    {"10de", "20b5", "A100-PCIe-80GB"},
    {"10de", "20b0", "A100-SXM4-40GB"},
    {"10de", "20b2", "A100-SXM4-80GB"},
    {"10de", "2230", "RTX-A6000"},
    {"10de", "2503", "RTX-3060-12GB"},
    {"10de", "2504", "RTX-3060-12GB"},
    {"10de", "2206", "RTX-3080-10GB"},
    {"10de", "2216", "RTX-3080-10GB"},
    {"10de", "2204", "RTX-3090"},
    {"10de", "27b8", "L4"},
    {"10de", "26b5", "L40"},
    {"10de", "26b9", "L40S"},
    {"10de", "26b1", "RTX-6000-Ada"},
    {"10de", "2786", "RTX-4070"},
    {"10de", "2782", "RTX-4070-Ti"},
    {"10de", "2704", "RTX-4080"},
    {"10de", "2684", "RTX-4090"},
    {"10de", "2331", "H100-PCIe-80GB"},
    {"10de", "2330", "H100-SXM5-80GB"},
    {"10de", "2321", "H100-NVL-94GB"},
    {"10de", "2335", "H200-SXM-141GB"},
    {"10de", "2342", "GH200-96GB"},
    {"10de", "2901", "B200"},
    {"10de", "2f04", "RTX-5070"},
    {"10de", "2c05", "RTX-5070-Ti"},
    {"10de", "2c02", "RTX-5080"},
    {"10de", "2b85", "RTX-5090"},
    {"1002", "738c", "MI100"},
    {"1002", "738e", "MI100"},
    {"1002", "740f", "MI210"},
    {"1002", "740c", "MI250", 104},  // with 110 processors it is MI250X
    {"1002", "74a1", "MI300X"},
};

}  // namespace

bool is_amd(const FoundGpu& gpu) { return gpu.vendor == "1002" || !gpu.gfx.empty(); }

std::optional<std::string> catalog_name(const FoundGpu& gpu) {
  for (const PciRow& row : kPciRows) {
    if (row.vendor != gpu.vendor || row.device != gpu.device) continue;
    if (row.processors != 0 && row.processors != gpu.processors) continue;
    return std::string(row.name);
  }
  // MI100 is the only product of its architecture.
  if (gpu.device.empty() && gpu.gfx == "908" && gpu.processors == 120) return "MI100";
  return std::nullopt;
}

double link_bandwidth(const FoundGpu& gpu) {
  if (gpu.gfx == "942") return 64e9;                      // MI300X: 7 links, 448 GB/s
  if (gpu.gfx == "90a") return 50e9;                      // MI210: 3 links, 150 GB/s
  if (gpu.gfx == "908" || gpu.gfx == "906") return 46e9;  // MI100: 3 links, 138 GB/s; MI50: 2, 92
  if (!gpu.gfx.empty() || gpu.sm < 60) return 0;
  if (gpu.sm < 70) return 20e9;        // P100: 4 links, 80 GB/s
  if (gpu.sm == 86) return 14.0625e9;  // GA102: 4 links, 56.25 GB/s
  if (gpu.sm < 100) return 25e9;       // V100 6, A100 12, H100 18 links
  return 50e9;                         // B200: 18 links, 900 GB/s
}

double pcie_bandwidth(double gigatransfers, int lanes) {
  if (!(gigatransfers > 0 && gigatransfers <= 128) || lanes < 1 || lanes > 32) return 0;
  // Generations 1 and 2 send 8 bits as 10, those after them 128 bits as 130.
  const double code = gigatransfers < 8 ? 0.8 : 128.0 / 130;
  return gigatransfers * 1e9 * code * lanes / 8;
}

}  // namespace agpcs
