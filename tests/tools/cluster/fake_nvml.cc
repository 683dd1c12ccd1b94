// SPDX-License-Identifier: Apache-2.0
// A libnvidia-ml for tests: two V100 with two NVLinks between them, and one more that is down. With
// FAKE_NVML_BROKEN set, the driver does not answer.
#include <cstdlib>
#include <cstring>

namespace {

struct Pci {
  char legacy[16];
  unsigned domain, bus, device, device_and_vendor, subsystem;
  char bus_id[32];
};
struct Memory {
  unsigned long long total, free, used;
};

int boards[] = {0, 1};

void place(int board, Pci* pci) {
  std::memset(pci, 0, sizeof *pci);
  pci->bus = 6 + static_cast<unsigned>(board);
  pci->device_and_vendor = 0x1db110de;
}

int number_of(const void* device) { return *static_cast<const int*>(device); }

}  // namespace

extern "C" {

int nvmlInit_v2() { return std::getenv("FAKE_NVML_BROKEN") == nullptr ? 0 : 9; }
int nvmlShutdown() { return 0; }
const char* nvmlErrorString(int) { return "Driver Not Loaded"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &boards[index];
  return 0;
}
int nvmlDeviceGetName(void*, char* name, unsigned length) {
  std::strncpy(name, "Tesla V100-SXM2-16GB", length);
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  memory->total = 16945512448ULL;
  return 0;
}
int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  place(number_of(device), pci);
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 7;
  *minor = 0;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(void*, unsigned* generation) {
  *generation = 3;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
int nvmlDeviceGetNvLinkState(void*, unsigned link, unsigned* up) {
  if (link > 2) return 2;  // invalid argument: there is no such link
  *up = link < 2 ? 1 : 0;
  return 0;
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned, Pci* pci) {
  place(1 - number_of(device), pci);
  return 0;
}

}  // extern "C"
