// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/kernels/measured_kernels.h"

#include "cost_model/kernel/convolution.h"
#include "cost_model/kernel/operator.h"
#include "cost_model/step/cost_table.h"
#include "frontend/cluster/file.h"
#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>

namespace agpcs {
namespace {

struct ListedDevice {
  std::string_view name, kind;  // as lists have it, and as the catalog has it
};
constexpr ListedDevice kDevices[] = {
    {"v100_pcie", "V100-PCIe-32GB"}, {"t4", "T4"}, {"NVIDIA H200", "H200-SXM-141GB"}};
constexpr const char* kClasses[] = {"linear", "bmm",  "conv",    "add",
                                    "relu",   "gelu", "softmax", "ln"};

const ListedDevice* find_device(std::string_view name) {
  const auto found = std::find_if(std::begin(kDevices), std::end(kDevices),
                                  [&](const ListedDevice& device) { return device.name == name; });
  return found == std::end(kDevices) ? nullptr : found;
}

/// Mixes the bits of a shape; odd numbers are held aside.
std::uint64_t hash_of(const std::array<double, 7>& shape) {
  std::uint64_t hash = 14695981039346656037ULL;
  for (const double extent : shape) {
    hash = (hash ^ static_cast<std::uint64_t>(extent)) * 1099511628211ULL;
  }
  hash = (hash ^ (hash >> 29)) * 0xbf58476d1ce4e5b9ULL;
  return hash ^ (hash >> 32);
}

std::vector<MeasuredKernel> read_kernels(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);  // the header
  std::vector<MeasuredKernel> kernels;
  while (std::getline(in, line)) {
    kernels.push_back(measured_kernel(line));
  }
  return kernels;
}

const DeviceKind& kind_measured(const std::string& device) {
  static const auto kKinds = [] {
    std::map<std::string, DeviceKind, std::less<>> kinds;
    for (const auto& [name, kind] : kDevices) kinds.emplace(name, cluster_measured(name).kinds[0]);
    return kinds;
  }();
  return kKinds.at(device);
}

struct Memory {
  OpClass op_class;
  double tensors;  // read and written
};

Memory memory_of(const std::string& kernel_class) {
  if (kernel_class == "add") return {OpClass::kElementwise, 3};
  if (kernel_class == "softmax") return {OpClass::kSoftmax, 2};
  if (kernel_class == "ln") return {OpClass::kNormalization, 2};
  return {OpClass::kElementwise, 2};
}

Product product_of(const MeasuredSet& set, const MeasuredKernel& kernel) {
  const auto& s = kernel.shape;
  if (set.kernel_class == "linear") return {1, s[0] * s[1], s[2], s[3]};
  return {s[0], s[1], s[2], s[3]};
}

Convolution convolution_of(const MeasuredKernel& kernel) {
  const auto& s = kernel.shape;
  const double size = s[4], out = (size + 2 * s[6] - s[3]) / s[5] + 1;
  return {s[0], 1, s[1], s[2], size, size, out, out, s[3], s[3], s[5], 1};
}

double bytes_of(const Convolution& c) {
  return 4 * (c.images * (c.height_in * c.width_in * c.channels_in +
                          c.height_out * c.width_out * c.channels_out) +
              c.kernel_height * c.kernel_width * c.channels_in * c.channels_out);
}

double operations_of(const Convolution& c) {
  return 2 * c.images * c.height_out * c.width_out * c.channels_out * c.channels_in *
         c.kernel_height * c.kernel_width;
}

}  // namespace

bool MeasuredSet::is_product() const {
  return kernel_class == "linear" || kernel_class == "bmm" || kernel_class == "conv";
}

std::vector<MeasuredSet> read_measured_kernels(const std::string& folder) {
  std::vector<MeasuredSet> sets;
  for (const ListedDevice& device : kDevices) {
    for (const char* kernel_class : kClasses) {
      const std::string name(device.name);
      const auto file = std::filesystem::path(folder) / (name + "_" + kernel_class + ".csv");
      if (!std::filesystem::exists(file)) continue;
      sets.push_back({name, kernel_class, read_kernels(file)});
    }
  }
  return sets;
}

bool is_measured_device(std::string_view name) { return find_device(name) != nullptr; }

bool is_measured_class(std::string_view name) {
  return std::find(std::begin(kClasses), std::end(kClasses), name) != std::end(kClasses);
}

MeasuredKernel measured_kernel(const std::string& row) {
  MeasuredKernel kernel;
  auto& s = kernel.shape;
  std::sscanf(row.c_str(), "%lf,%lf,%lf,%lf,%lf,%lf,%lf,%lf", &kernel.seconds, &s[0], &s[1], &s[2],
              &s[3], &s[4], &s[5], &s[6]);
  kernel.seconds *= 1e-3;
  kernel.held_aside = hash_of(s) % 2 == 1;
  return kernel;
}

Cluster cluster_measured(std::string_view device) {
  const ListedDevice* const found = find_device(device);
  AGPCS_CHECK(found != nullptr, "no kind for '{}'", device);
  const auto file = parse_cluster(
      fmt::format("hosts: [{{name: a, devices: {{kind: {}}}}}]\ntraining: {{batch: 1}}\n",
                  found->kind),
      "catalog");
  AGPCS_CHECK(file.ok(), "{}", file.status().message());
  return file->cluster;
}

double predicted_seconds(const MeasuredSet& set, const MeasuredKernel& kernel,
                         const KernelParameters& parameters) {
  const DeviceKind& kind = kind_measured(set.device);
  const KernelDevice device = *kernel_device(kind, parameters, Precision::kFp32);
  double seconds = 0;
  if (set.kernel_class == "conv") {
    seconds =
        convolution_seconds(device, parameters, convolution_of(kernel), ConvolutionPass::kForward);
  } else if (set.is_product()) {
    seconds = product_seconds(device, parameters, product_of(set, kernel));
  } else {
    const Memory memory = memory_of(set.kernel_class);
    seconds = 4 * kernel.shape[0] * kernel.shape[1] * memory.tensors *
              stream_traffic(memory.op_class, parameters) / device.bandwidth;
  }
  return kind.launch_overhead + seconds;
}

double roofline_seconds(const MeasuredSet& set, const MeasuredKernel& kernel) {
  const DeviceKind& kind = kind_measured(set.device);
  const double peak = kind.peak_flops.at(Precision::kFp32);
  const auto roof = [&](OpClass op_class, double flops, double bytes) {
    const double efficiency = default_efficiency(op_class);
    const bool arithmetic = bound_by_arithmetic(op_class);
    return kind.launch_overhead +
           std::max(flops / (peak * (arithmetic ? efficiency : 1)),
                    bytes / (kind.memory_bandwidth * (arithmetic ? 1 : efficiency)));
  };
  if (set.kernel_class == "conv") {
    const Convolution c = convolution_of(kernel);
    return roof(OpClass::kConvolution, operations_of(c), bytes_of(c));
  }
  if (set.is_product()) {
    const Product product = product_of(set, kernel);
    return roof(OpClass::kMatmul, product.operations(), 4 * product.elements());
  }
  const Memory memory = memory_of(set.kernel_class);
  return roof(memory.op_class, 0, 4 * kernel.shape[0] * kernel.shape[1] * memory.tensors);
}

}  // namespace agpcs
