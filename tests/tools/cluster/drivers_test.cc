// SPDX-License-Identifier: Apache-2.0
// Drivers and kernels that tests make up in, cluster.yaml out.
#include "tests/support/temp_folder.h"
#include "tools/cluster/describe.h"
#include "tools/cluster/gather.h"
#include "tools/cluster/nvml.h"
#include "tools/cluster/sysfs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Returns the description from its kinds or hosts on.
std::string described(const FoundHost& host) {
  const Description description = describe_cluster({host}, "lab", "a test");
  return description.text.substr(description.text.find("\n\n") + 2);
}

class Sysfs : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  /// Writes GPU `node` with a link to `peer`.
  void write_gpu(int node, int peer) const {
    const std::string folder = "sys/class/kfd/kfd/topology/nodes/" + std::to_string(node);
    write(folder + "/name", "aldebaran\n");
    write(folder + "/properties",
          "simd_count 416\nsimd_per_cu 4\nvendor_id 4098\ndevice_id 29711\ngfx_target_version "
          "90010\ndomain 0\nlocation_id " +
              std::to_string((0x40 + node) << 8) + "\n");
    write(folder + "/mem_banks/0/properties", "heap_type 1\nsize_in_bytes 68702699520\n");
    write(folder + "/io_links/0/properties", "type 2\nnode_from 1\nnode_to 0\n");
    write(folder + "/io_links/1/properties", "type 11\nnode_to " + std::to_string(peer) +
                                                 "\nmin_bandwidth 50000\nmax_bandwidth 150000\n");
  }

  const TempFolder temp_;
  const std::string root_ = temp_.path().string();
  FoundHost host_ = [] {
    FoundHost host;
    host.name = "a";
    return host;
  }();
};

TEST(Nvml, DescribesTheGpusOfTheDriver) {
  FoundHost host;
  host.name = "a";
  add_nvidia_gpus(host, FAKE_NVML);
  EXPECT_THAT(host.notes, ElementsAre());
  EXPECT_EQ(described(host),
            "device_kinds:\n"
            "  V100-SXM2-16GB: {memory: 15.7GiB}  # as its driver has it\n"
            "\n"
            "hosts:\n"
            "  - name: a\n"
            "    devices: {kind: V100-SXM2-16GB, count: 2}\n"
            "    interconnect: {kind: nvlink, bandwidth: 50GB/s, latency: 3.4us}  # NVLink, 50GB/s "
            "of each GPU\n");
}

TEST(Nvml, ThatDoesNotAnswerIsANote) {
  FoundHost host;
  setenv("FAKE_NVML_BROKEN", "1", 1);
  add_nvidia_gpus(host, FAKE_NVML);
  unsetenv("FAKE_NVML_BROKEN");
  EXPECT_THAT(host.notes, ElementsAre("NVIDIA's driver does not answer, so that none of its GPUs "
                                      "is listed: Driver Not Loaded"));
  EXPECT_TRUE(host.gpus.empty());
}

TEST(Nvml, ThatIsNotInstalledHasNoGpus) {
  FoundHost host;
  add_nvidia_gpus(host, "libno-such-driver.so.1");
  EXPECT_TRUE(host.gpus.empty());
  EXPECT_TRUE(host.notes.empty());
}

TEST(Nvml, OfAnotherLibraryIsANote) {
  FoundHost host;
  add_nvidia_gpus(host, "libm.so.6");
  EXPECT_THAT(host.notes, ElementsAre(HasSubstr("lacks functions of NVML 2")));
}

TEST_F(Sysfs, DescribesAmdsGpus) {
  write("sys/class/kfd/kfd/topology/nodes/0/properties", "cpu_cores_count 64\nsimd_count 0\n");
  write_gpu(1, 2);
  write_gpu(2, 1);
  write("sys/class/drm/card0/device/uevent", "DRIVER=amdgpu\nPCI_SLOT_NAME=0000:41:00.0\n");
  write("sys/class/drm/card0/device/mem_info_vram_total", "68702699520\n");
  write("sys/class/drm/card0/device/max_link_speed", "16.0 GT/s PCIe\n");
  write("sys/class/drm/card0/device/max_link_width", "16\n");
  add_amd_gpus(host_, root_);
  EXPECT_EQ(described(host_),
            "device_kinds:\n"
            "  MI210: {memory: 63.9GiB}  # as its driver has it\n"
            "\n"
            "hosts:\n"
            "  - name: a\n"
            "    devices: {kind: MI210, count: 2}\n"
            "    interconnect: xgmi-mi210  # Infinity Fabric, 150GB/s of each GPU\n");
  EXPECT_EQ(host_.gpus[0].bus, "0000:41:00.0");
  EXPECT_GT(host_.gpus[0].pcie, 31e9);
}

TEST_F(Sysfs, TakesRdmaPortsThatAreUp) {
  for (const char* port : {"mlx5_0", "mlx5_1", "mlx5_2"}) {
    const std::string folder = "sys/class/infiniband/" + std::string(port) + "/ports/1/";
    write(folder + "state", port == std::string("mlx5_2") ? "1: DOWN\n" : "4: ACTIVE\n");
    write(folder + "link_layer", "InfiniBand\n");
    write(folder + "rate", "200 Gb/sec (4X HDR)\n");
  }
  add_nics(host_, root_);
  EXPECT_THAT(
      described(host_),
      HasSubstr("    nic: {kind: ib-hdr, count: 2}  # one message has 200Gbit/s at most\n"));
}

TEST_F(Sysfs, TakesTheFastestInterfaceWithADevice) {
  for (const auto& [name, speed] : {std::pair("eno1", "1000"), {"eno2", "25000"}, {"eno3", "-1"}}) {
    write("sys/class/net/" + std::string(name) + "/speed", std::string(speed) + "\n");
    write("sys/class/net/" + std::string(name) + "/operstate", "up\n");
    write("sys/class/net/" + std::string(name) + "/device/vendor", "0x8086\n");
  }
  write("sys/class/net/docker0/speed", "100000\n");
  add_nics(host_, root_);
  EXPECT_THAT(described(host_), HasSubstr("    nic: ethernet-25g\n"));
}

TEST_F(Sysfs, WithoutAnythingHasNothing) {
  add_amd_gpus(host_, root_);
  add_nics(host_, root_);
  EXPECT_TRUE(host_.gpus.empty());
  EXPECT_TRUE(host_.nics.empty());
}

TEST(Cpus, HaveFigures) {
  const FoundCpus cpus = cpus_of_this_host();
  EXPECT_GT(cpus.cores, 0);
  EXPECT_GT(cpus.bandwidth, 0);
  EXPECT_GT(cpus.memory, 0);
}

TEST(Report, OfAHostIsReadAsItWasPrinted) {
  FoundHost host;
  host.name = "a";
  add_nvidia_gpus(host, FAKE_NVML);
  host.nics.push_back({"mlx5_0", true, true, 25e9});
  host.cpus = {4, 1e12, 2e10, 1 << 30};
  host.notes = {"a \"note\"\n"};
  const Result<FoundHost> read = parse_host(print_host(host));
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(print_host(*read), print_host(host));
  EXPECT_FALSE(parse_host("{}").ok());
  EXPECT_FALSE(parse_host("[").ok());
}

TEST(Describe, GivesHostsNamesThatTheFileTakesEachItsOwn) {
  FoundHost host;
  host.name = "node 7";
  host.cpus = {2, 1e11, 1e10, std::int64_t{4} << 30};
  host.nics.push_back({"eth0", false, false, 1.25e9});
  const Description description = describe_cluster({host, host}, "lab", "a test");
  EXPECT_EQ(description.text.substr(description.text.find("device_kinds")),
            "device_kinds:\n"
            "  cpu: {memory: 4GiB, memory_bandwidth: 10GB/s, peak: {fp32: 100GFLOPS}}  # 2 cores\n"
            "\n"
            "hosts:\n"
            "  - name: node-7\n"
            "    devices: {kind: cpu, count: 1}\n"
            "    nic: ethernet-10g\n"
            "  - name: node-7-1\n"
            "    devices: {kind: cpu, count: 1}\n"
            "    nic: ethernet-10g\n"
            "\n"
            "network: {topology: switch}\n");
}

}  // namespace
}  // namespace agpcs
