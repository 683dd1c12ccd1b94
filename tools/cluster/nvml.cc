// SPDX-License-Identifier: Apache-2.0
#include "tools/cluster/nvml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <memory>

namespace agpcs {
namespace {

// What is used of NVML's interface, with the layout of its version 2 (nvml.h).
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlPci {
  char bus_id_legacy[16];
  unsigned domain, bus, device;
  unsigned device_and_vendor;  // the device in the upper half
  unsigned subsystem;
  char bus_id[32];
};
constexpr unsigned kMostNvLinks = 18;
constexpr unsigned kVirtualSwitch = 0xfffffff;  // the domain of a switch that a guest does not see
constexpr int kSwitchType = 2;                  // NVML_NVLINK_DEVICE_TYPE_SWITCH

/// The functions of the library. One that an old driver lacks is null.
struct Nvml {
  int (*init)();
  int (*shutdown)();
  const char* (*error_string)(int);
  int (*count)(unsigned*);
  int (*handle)(unsigned, NvmlDevice*);
  int (*name)(NvmlDevice, char*, unsigned);
  int (*memory)(NvmlDevice, NvmlMemory*);
  int (*pci)(NvmlDevice, NvmlPci*);
  int (*capability)(NvmlDevice, int*, int*);
  int (*generation)(NvmlDevice, unsigned*);
  int (*width)(NvmlDevice, unsigned*);
  int (*link_state)(NvmlDevice, unsigned, unsigned*);
  int (*link_remote)(NvmlDevice, unsigned, NvmlPci*);
  int (*link_type)(NvmlDevice, unsigned, int*);
};

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};

template <typename Function>
void find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
}

Nvml functions_of(void* library) {
  Nvml nvml{};
  find(library, "nvmlInit_v2", nvml.init);
  find(library, "nvmlShutdown", nvml.shutdown);
  find(library, "nvmlErrorString", nvml.error_string);
  find(library, "nvmlDeviceGetCount_v2", nvml.count);
  find(library, "nvmlDeviceGetHandleByIndex_v2", nvml.handle);
  find(library, "nvmlDeviceGetName", nvml.name);
  find(library, "nvmlDeviceGetMemoryInfo", nvml.memory);
  find(library, "nvmlDeviceGetPciInfo_v3", nvml.pci);
  find(library, "nvmlDeviceGetCudaComputeCapability", nvml.capability);
  find(library, "nvmlDeviceGetMaxPcieLinkGeneration", nvml.generation);
  find(library, "nvmlDeviceGetMaxPcieLinkWidth", nvml.width);
  find(library, "nvmlDeviceGetNvLinkState", nvml.link_state);
  find(library, "nvmlDeviceGetNvLinkRemotePciInfo_v2", nvml.link_remote);
  find(library, "nvmlDeviceGetNvLinkRemoteDeviceType", nvml.link_type);
  return nvml;
}

/// Returns the PCI address as the kernel writes it: "0000:06:00.0".
std::string address_of(const NvmlPci& pci) {
  return fmt::format("{:04x}:{:02x}:{:02x}.0", pci.domain, pci.bus, pci.device);
}

double pcie_of(const Nvml& nvml, NvmlDevice device) {
  constexpr std::array<double, 7> kGigatransfers = {0, 2.5, 5, 8, 16, 32, 64};
  unsigned generation = 0, width = 0;
  if (nvml.generation == nullptr || nvml.width == nullptr) return 0;
  if (nvml.generation(device, &generation) != 0 || nvml.width(device, &width) != 0) return 0;
  if (generation >= kGigatransfers.size()) return 0;
  return pcie_bandwidth(kGigatransfers[generation], static_cast<int>(std::min(width, 64U)));
}

/// Tells whether the far end of a link is a switch.
bool is_switch(const Nvml& nvml, NvmlDevice device, unsigned link, const NvmlPci& remote) {
  int type = 0;
  if (remote.domain == kVirtualSwitch) return true;
  return nvml.link_type != nullptr && nvml.link_type(device, link, &type) == 0 &&
         type == kSwitchType;
}

/// Adds the NVLinks that are up.
void add_links(const Nvml& nvml, NvmlDevice device, FoundGpu& gpu) {
  if (nvml.link_state == nullptr || nvml.link_remote == nullptr) return;
  for (unsigned link = 0; link < kMostNvLinks; ++link) {
    unsigned up = 0;
    NvmlPci remote{};
    if (nvml.link_state(device, link, &up) != 0 || up == 0) continue;
    if (nvml.link_remote(device, link, &remote) != 0) continue;
    const std::string target = address_of(remote);
    const auto same = std::find_if(gpu.links.begin(), gpu.links.end(),
                                   [&](const FoundLink& l) { return l.target == target; });
    if (same != gpu.links.end()) {
      ++same->count;
      continue;
    }
    const bool to_switch = is_switch(nvml, device, link, remote);
    gpu.links.push_back({to_switch ? FoundLink::To::kSwitch : FoundLink::To::kGpu, target, 1});
  }
}

FoundGpu gpu_of(const Nvml& nvml, NvmlDevice device, int index) {
  FoundGpu gpu;
  gpu.index = index;
  gpu.vendor = "10de";
  NvmlPci pci{};
  if (nvml.pci != nullptr && nvml.pci(device, &pci) == 0) {
    gpu.bus = address_of(pci);
    gpu.device = fmt::format("{:04x}", pci.device_and_vendor >> 16);
  }
  std::array<char, 96> name{};
  if (nvml.name != nullptr && nvml.name(device, name.data(), name.size() - 1) == 0) {
    gpu.name = name.data();
  }
  NvmlMemory memory{};
  if (nvml.memory != nullptr && nvml.memory(device, &memory) == 0) {
    gpu.memory = static_cast<std::int64_t>(memory.total);
  }
  int major = 0, minor = 0;
  if (nvml.capability != nullptr && nvml.capability(device, &major, &minor) == 0) {
    gpu.sm = 10 * major + minor;
  }
  gpu.pcie = pcie_of(nvml, device);
  add_links(nvml, device, gpu);
  return gpu;
}

/// Returns why something failed, in the library's words.
std::string reason(const Nvml& nvml, int error) {
  const char* const text = nvml.error_string == nullptr ? nullptr : nvml.error_string(error);
  return text == nullptr ? fmt::format("error {}", error) : text;
}

}  // namespace

void add_nvidia_gpus(FoundHost& host, const std::string& library) {
  const std::unique_ptr<void, CloseLibrary> loaded(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL));
  if (loaded == nullptr) return;
  const Nvml nvml = functions_of(loaded.get());
  if (nvml.init == nullptr || nvml.shutdown == nullptr || nvml.count == nullptr ||
      nvml.handle == nullptr) {
    host.notes.push_back(
        fmt::format("{} lacks functions of NVML 2, so that no NVIDIA GPU is "
                    "listed",
                    library));
    return;
  }
  if (const int error = nvml.init(); error != 0) {
    host.notes.push_back(
        fmt::format("NVIDIA's driver does not answer, so that none of its GPUs is "
                    "listed: {}",
                    reason(nvml, error)));
    return;
  }
  unsigned count = 0;
  if (const int error = nvml.count(&count); error != 0) {
    host.notes.push_back(fmt::format("NVIDIA's driver does not say how many GPUs there are: {}",
                                     reason(nvml, error)));
    count = 0;
  }
  for (unsigned i = 0; i < count; ++i) {
    NvmlDevice device = nullptr;
    if (const int error = nvml.handle(i, &device); error != 0) {
      host.notes.push_back(
          fmt::format("GPU {} does not answer and is not listed: {}", i, reason(nvml, error)));
      continue;
    }
    host.gpus.push_back(gpu_of(nvml, device, static_cast<int>(i)));
  }
  nvml.shutdown();
}

}  // namespace agpcs
