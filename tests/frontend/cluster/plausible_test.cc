// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/plausible.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

std::string verdict(const std::string& text) {
  const Result<PlausibleCluster> found = check_plausible(text, "c.yaml");
  return found.ok() ? "plausible" : found.status().message();
}

/// Two hosts of two devices, `kind` being a flow map, `inter` and `nic` links.
std::string cluster(const std::string& kind, const std::string& inter = "nvlink2",
                    const std::string& nic = "ib-edr") {
  const auto host = [&](const std::string& name) {
    return "  - {name: " + name + ", devices: {kind: v100, count: 2}, interconnect: " + inter +
           ", nic: " + nic + "}\n";
  };
  return "device_kinds:\n  v100: " + kind + "\nhosts:\n" + host("a") + host("b");
}

constexpr char kV100[] = "{hardware: V100-SXM2-16GB}";

TEST(Plausible, AreFiguresOfTheCatalog) {
  EXPECT_EQ(verdict(cluster(kV100)), "plausible");
  EXPECT_EQ(verdict(cluster("{memory: 15.7GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS, "
                            "fp16: 125TFLOPS}}",
                            "{kind: nvlink, bandwidth: 50GB/s}")),
            "plausible");
  EXPECT_EQ(verdict("hosts: [{name: a, devices: {kind: T4}}]"), "plausible");
}

TEST(Plausible, IsTheSumOfSeveralNicsInBits) {
  EXPECT_EQ(verdict(cluster(kV100, "nvlink2", "{kind: ib, bandwidth: 3200Gbit/s}")), "plausible");
}

TEST(Implausible, IsMoreMemoryThanTheBoardHas) {
  EXPECT_EQ(
      verdict(cluster("{hardware: V100-SXM2-16GB, memory: 40GiB}")),
      "c.yaml:2:44: error: 'memory' of device kind 'v100' is 40GiB, V100-SXM2-16GB has 16GiB\n"
      "    v100: {hardware: V100-SXM2-16GB, memory: 40GiB}\n"
      "                                             ^~~~~\n"
      "  hint: agpcs-plan kinds shows the board's figures; leave the key out to take them");
}

TEST(Implausible, IsMoreThanAnyBoardOfThatName) {
  EXPECT_THAT(
      verdict(cluster("{memory: 64GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15TFLOPS}}")),
      HasSubstr("'memory' of device kind 'v100' is 64GiB, v100 has 32GiB"));
}

TEST(Implausible, AreBitsForBytes) {
  EXPECT_THAT(verdict(cluster("{hardware: V100-SXM2-16GB, memory_bandwidth: 7200GB/s}")),
              HasSubstr("hint: that is a factor of 8: are these bits, or bytes?"));
  EXPECT_THAT(verdict(cluster("{hardware: V100-SXM2-16GB, memory_bandwidth: 112GB/s}")),
              HasSubstr("hint: that is a factor of 8: are these bits, or bytes?"));
  EXPECT_THAT(verdict(cluster(kV100, "nvlink2", "{kind: ib-edr, bandwidth: 100GB/s}")),
              HasSubstr("'bandwidth' of the nic of host 'a' is 100GB/s, ib-edr has 12.5GB/s "
                        "(100Gbit/s)"));
  EXPECT_THAT(
      verdict(cluster(kV100, "nvlink2", "{kind: ethernet, bandwidth: 100GB/s}")),
      HasSubstr("hint: are these bits? if they are several NICs together, say it in Gbit/s"));
}

TEST(Implausible, IsAPeakAboveTheCatalogs) {
  EXPECT_THAT(verdict(cluster("{hardware: A100-SXM4-40GB, peak: {fp16: 624TFLOPS}}", "nvlink3")),
              HasSubstr("the fp16 peak of device kind 'v100' is 624TFLOPS, A100-SXM4-40GB has "
                        "312TFLOPS"));
  EXPECT_THAT(verdict(cluster("{hardware: A100-SXM4-40GB, peak: {fp16: 624TFLOPS}}", "nvlink3")),
              HasSubstr("hint: it is twice that with sparsity, or accumulating in fp16"));
}

TEST(Implausible, IsALowerPrecisionThatIsSlower) {
  EXPECT_THAT(verdict(cluster("{memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15TFLOPS, "
                              "fp16: 12TFLOPS}}")),
              HasSubstr("device kind 'v100' is slower in fp16 (12TFLOPS) than in fp32 (15TFLOPS)"));
}

TEST(Implausible, IsALinkThatTheBoardDoesNotHave) {
  EXPECT_THAT(verdict(cluster("{hardware: T4}", "nvlink2")),
              HasSubstr("the interconnect of host 'a' is nvlink2, and T4 has no nvlink"));
  EXPECT_THAT(verdict(cluster(kV100, "nvswitch-h100")),
              HasSubstr("the interconnect of host 'a' is nvswitch-h100 of 450GB/s, V100-SXM2-16GB "
                        "has 150GB/s at most"));
  EXPECT_THAT(verdict(cluster(kV100, "{kind: pcie, bandwidth: 31GB/s}")),
              HasSubstr("'bandwidth' of the interconnect of host 'a' is 31GB/s, V100-SXM2-16GB has "
                        "15.754GB/s (126.032Gbit/s)"));
  EXPECT_THAT(verdict(cluster(kV100, "nvlink2", "pcie3x16")),
              HasSubstr("the nic of host 'a' is pcie3x16, which joins devices of one host"));
}

TEST(Implausible, IsALatencyOutOfRange) {
  EXPECT_THAT(verdict(cluster(kV100, "nvlink2", "{kind: ib-edr, latency: 20s}")),
              HasSubstr("'latency' of the nic of host 'a' is 20s, from 0.5us to 50000us are "
                        "plausible"));
  EXPECT_THAT(verdict(cluster(kV100, "{kind: nvlink2, latency: 3ns}")),
              HasSubstr("'latency' of the interconnect of host 'a' is 3ns"));
}

TEST(Implausible, AreCablesBetweenHostsToo) {
  EXPECT_THAT(
      verdict(cluster(kV100) + "network:\n  topology: links\n  links:\n"
                               "    - {from: a, to: b, kind: ib-hdr, bandwidth: 200GB/s}\n"),
      HasSubstr("c.yaml:9:49: error: 'bandwidth' of a link is 200GB/s, ib-hdr has 25GB/s"));
}

TEST(Implausible, IsAHostWithoutNicAmongSeveral) {
  EXPECT_THAT(verdict("hosts:\n  - {name: a, devices: {kind: T4}, nic: ib-edr}\n"
                      "  - {name: b, devices: {kind: T4}}\n"),
              HasSubstr("'b'"));
}

TEST(Implausible, IsAKindThatIsToBeFilledIn) {
  EXPECT_EQ(verdict(cluster("{hardware: fill-in}")),
            "c.yaml:2:20: error: 'hardware' of device kind 'v100' is still to be filled in\n"
            "    v100: {hardware: fill-in}\n"
            "                     ^~~~~~~\n"
            "  hint: name the accelerator (agpcs-plan kinds lists all), or give memory, "
            "memory_bandwidth and peak in its place");
}

TEST(Plausible, IsAFileWhosePrecisionIsTheModels) {
  EXPECT_EQ(verdict(cluster("{memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp16: 100TFLOPS}}")),
            "plausible");
}

}  // namespace
}  // namespace agpcs
