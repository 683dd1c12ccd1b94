// SPDX-License-Identifier: Apache-2.0
// cluster.yaml that calls accelerators and networks by names of the catalog.
#include "frontend/cluster/file.h"
#include "tests/support/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace agpcs {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kTyped[] = R"(device_kinds:
  gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS, fp16: 125TFLOPS}}
hosts:
  - {name: a, devices: {kind: gpu, count: 2}, nic: {bandwidth: 10Gbit/s}}
)";

constexpr char kNamed[] = R"(device_kinds:
  gpu: {hardware: V100-SXM2-16GB}
hosts:
  - {name: a, devices: {kind: gpu, count: 2}, nic: {bandwidth: 10Gbit/s}}
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

Result<Profile> read(const std::string& path) {
  if (path != "lab.yaml") return invalid_input(path + ": error: cannot be opened");
  Profile profile = small_profile();
  profile.file = path;
  profile.devices[0].name = "T4";
  seal_profile(profile);
  return profile;
}

/// The cluster, or the error.
std::string cluster_of(const std::string& text) {
  const Result<ClusterFile> file = parse_cluster(text, "c.yaml", read);
  return file.ok() ? print_cluster(file->cluster) + file->warnings : file.status().message();
}

/// The lines of the cluster that begin with `word`.
std::string lines_of(const std::string& text, const std::string& word) {
  const std::string all = cluster_of(text);
  std::string lines;
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = all.find('\n', at);
    if (all.compare(at, word.size(), word) == 0) lines += all.substr(at, end - at + 1);
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return lines.empty() ? all : lines;
}

// The digest of a cluster covers this text. No key of the file has what the kernel model needs.
TEST(NamedKinds, AreExpandedToTheFiguresThatPeopleWouldTypeAndThoseOfTheirProcessors) {
  EXPECT_EQ(cluster_of(kNamed),
            with(cluster_of(kTyped), "peak-fp32=15700000000000\n",
                 "peak-fp32=15700000000000 processors=80 board-power=300 process='TSMC 12FFN' "
                 "memory-type=HBM2 overlap=1.6666666666666666e-12,1\n"));
}

TEST(NamedKinds, MayBeTheKindItself) {
  constexpr char kKind[] =
      "kind T4 memory=17179869184 memory-bandwidth=320000000000 launch-overhead=5e-06 "
      "peak-fp16=65000000000000 peak-fp32=8100000000000 processors=40 board-power=70 "
      "process='TSMC 12FFN' memory-type=GDDR6 overlap=4.6875e-12,1\n";
  EXPECT_EQ(lines_of("hosts: [{name: a, devices: {kind: T4, count: 4}}]\n", "kind"), kKind);
  EXPECT_EQ(lines_of("device_kinds: {T4: }\nhosts: [{name: a, devices: {kind: T4}}]\n", "kind"),
            kKind);
  EXPECT_EQ(lines_of("device_kinds: {T4: {launch_overhead: 5us}}\n"
                     "hosts: [{name: a, devices: {kind: T4}}]\n",
                     "kind"),
            kKind);
  // One kind, although two hosts name it.
  EXPECT_EQ(lines_of("hosts:\n"
                     "  - {name: a, devices: {kind: T4}, nic: {bandwidth: 1Gbit/s}}\n"
                     "  - {name: b, devices: {kind: T4}, nic: {bandwidth: 1Gbit/s}}\n",
                     "kind"),
            kKind);
}

TEST(NamedKinds, KeysOfTheFileComeFirst) {
  EXPECT_EQ(lines_of(with(kNamed, "V100-SXM2-16GB",
                          "V100-SXM2-16GB, memory: 15GiB, memory_bandwidth: 800GB/s, "
                          "peak: {fp32: 14TFLOPS, tf32: 15TFLOPS}, launch_overhead: 3us"),
                     "kind"),
            "kind gpu memory=16106127360 memory-bandwidth=800000000000 launch-overhead=3e-06 "
            "peak-fp16=125000000000000 peak-fp32=14000000000000 peak-tf32=15000000000000 "
            "processors=80 board-power=300 process='TSMC 12FFN' memory-type=HBM2 "
            "overlap=1.875e-12,1\n");
  // Another name as the key than as the hardware.
  EXPECT_EQ(lines_of("device_kinds: {T4: {hardware: P4}}\n"
                     "hosts: [{name: a, devices: {kind: T4}}]\n",
                     "kind"),
            "kind T4 memory=8589934592 memory-bandwidth=192000000000 launch-overhead=5e-06 "
            "peak-fp32=5500000000000 processors=20 board-power=75 process='TSMC 16FF' "
            "memory-type=GDDR5 overlap=7.8125e-12,1\n");
}

// What was measured counts; the catalog's figures are for what was not measured.
TEST(NamedKinds, ProfilesComeFirst) {
  const std::string measured =
      "kind T4 memory=17179869184 memory-bandwidth=320000000000 "
      "launch-overhead=5e-06 peak-fp16=65000000000000 "
      "peak-fp32=8100000000000 processors=40 board-power=70 process='TSMC 12FFN' "
      "memory-type=GDDR6 profile=sha256:";
  const std::string in_hosts = lines_of(
      "profile: lab.yaml\nhosts: [{name: a, devices: {kind: T4}, nic: {bandwidth: 1Gbit/s}}]\n",
      "kind");
  EXPECT_EQ(in_hosts.substr(0, measured.size()), measured);
  EXPECT_THAT(in_hosts, HasSubstr(" entry='T4'"));
  EXPECT_THAT(in_hosts, HasSubstr(" overlap=3e-10,0.8"));
  EXPECT_EQ(lines_of("device_kinds: {gpu: {hardware: T4, profile: lab.yaml#T4}}\n"
                     "hosts: [{name: a, devices: {kind: gpu}}]\n",
                     "kind"),
            with(in_hosts, "kind T4", "kind gpu"));
}

// Messages need a part of the memory's bandwidth: 1.5 bytes for each byte that NCCL moves.
TEST(NamedKinds, LoseComputingTimeByMessagesWhereTheCatalogSaysHowMuch) {
  const auto kind = [](const std::string& name) {
    return lines_of("hosts: [{name: a, devices: {kind: " + name + "}}]\n", "kind");
  };
  EXPECT_THAT(kind("H100-SXM5-80GB"), HasSubstr(" overlap=4.4776119402985073e-13,1"));
  EXPECT_THAT(kind("MI300X"), Not(HasSubstr("overlap")));
  EXPECT_THAT(cluster_of(kTyped), Not(HasSubstr("overlap")));
}

TEST(NamedKinds, AnUnknownNameIsRefusedWithThoseLikeIt) {
  EXPECT_EQ(cluster_of(with(kNamed, "V100-SXM2-16GB", "v100-sxm2")),
            "c.yaml:2:19: error: unknown hardware 'v100-sxm2'\n"
            "    gpu: {hardware: v100-sxm2}\n"
            "                    ^~~~~~~~~\n"
            "  hint: did you mean 'V100-SXM2-16GB' or 'V100-SXM2-32GB'?");
  EXPECT_EQ(cluster_of(with(kNamed, "V100-SXM2-16GB", "abacus")),
            "c.yaml:2:19: error: unknown hardware 'abacus'\n"
            "    gpu: {hardware: abacus}\n"
            "                    ^~~~~~\n"
            "  hint: agpcs-plan kinds lists all");
  EXPECT_EQ(cluster_of(with(kNamed, "V100-SXM2-16GB", "[]")),
            "c.yaml:2:19: error: unknown hardware a list\n"
            "    gpu: {hardware: []}\n"
            "                    ^\n"
            "  hint: agpcs-plan kinds lists all");
  EXPECT_EQ(cluster_of(with(kTyped, "kind: gpu", "kind: A100")),
            "c.yaml:4:31: error: unknown device kind 'A100'\n"
            "    - {name: a, devices: {kind: A100, count: 2}, nic: {bandwidth: 10Gbit/s}}\n"
            "                                ^~~~\n"
            "  hint: did you mean 'A100-PCIe-40GB' or 'A100-PCIe-80GB' or 'A100-SXM4-40GB' or "
            "'A100-SXM4-80GB'?");
  EXPECT_EQ(cluster_of("hosts: [{name: a, devices: {kind: gpu}}]\n"),
            "c.yaml:1:35: error: unknown device kind 'gpu'\n"
            "    hosts: [{name: a, devices: {kind: gpu}}]\n"
            "                                      ^~~\n"
            "  hint: describe it in device_kinds, or take one that agpcs-plan kinds lists");
}

TEST(NamedKinds, APrecisionWithoutPeakIsRefused) {
  EXPECT_EQ(cluster_of(std::string(kNamed) + "training: {precision: bf16}\n"),
            "c.yaml:2:19: error: device kind 'gpu' has no peak for precision 'bf16', only for "
            "fp16, fp32\n"
            "    gpu: {hardware: V100-SXM2-16GB}\n"
            "                    ^~~~~~~~~~~~~~\n"
            "  hint: add its bf16 peak, or choose another precision");
}

TEST(NamedKinds, OneThatNoHostHasCausesTheWarning) {
  EXPECT_THAT(cluster_of(with(kTyped, "device_kinds:\n", "device_kinds:\n  T4:\n")),
              HasSubstr("c.yaml:2:3: warning: no host has devices of kind 'T4'\n"));
}

// ---- Networks ----

TEST(NamedNetworks, GiveTheirFiguresByNameOrAsTheKind) {
  constexpr char kLinks[] =
      "link 'a/0 out' kind=nvlink2 bandwidth=132000000000 latency=1.7e-06 "
      "protocols=nccl-nvlink\n"
      "link 'a/0 in' kind=nvlink2 bandwidth=132000000000 latency=1.7e-06 protocols=nccl-nvlink\n"
      "link 'a nic out' kind=ib-hdr bandwidth=24000000000 latency=4.8e-06 protocols=nccl-net\n"
      "link 'a nic in' kind=ib-hdr bandwidth=24000000000 latency=4.8e-06 protocols=nccl-net\n";
  EXPECT_EQ(
      lines_of("hosts: [{name: a, devices: {kind: T4}, interconnect: nvlink2, nic: ib-hdr}]\n",
               "link"),
      kLinks);
  EXPECT_EQ(lines_of("hosts: [{name: a, devices: {kind: T4}, interconnect: {kind: nvlink2}, "
                     "nic: {kind: ib-hdr}}]\n",
                     "link"),
            kLinks);
}

// A bandwidth of the file is what messages get; its latency is all that a message pays.
TEST(NamedNetworks, KeysOfTheFileComeFirst) {
  EXPECT_EQ(lines_of("hosts: [{name: a, devices: {kind: T4}, interconnect: {kind: pcie4x16, "
                     "bandwidth: 24GB/s}, nic: {kind: ib-hdr, latency: 2us}}]\n",
                     "link"),
            "link 'a/0 out' kind=pcie4x16 bandwidth=24000000000 latency=2.85e-06 "
            "protocols=nccl-pcie\n"
            "link 'a/0 in' kind=pcie4x16 bandwidth=24000000000 latency=2.85e-06 "
            "protocols=nccl-pcie\n"
            "link 'a nic out' kind=ib-hdr bandwidth=24000000000 latency=1e-06\n"
            "link 'a nic in' kind=ib-hdr bandwidth=24000000000 latency=1e-06\n");
}

// No source states the latency of TCP; the default of a NIC stays.
TEST(NamedNetworks, WithoutLatencyLeaveTheDefault) {
  EXPECT_EQ(lines_of("hosts: [{name: a, devices: {kind: T4}, nic: ethernet-10g}]\n", "link 'a nic"),
            "link 'a nic out' kind=ethernet-10g bandwidth=1250000000 latency=1e-05\n"
            "link 'a nic in' kind=ethernet-10g bandwidth=1250000000 latency=1e-05\n");
}

TEST(NamedNetworks, OfSeveralNicsHaveTheirBandwidthTogether) {
  const std::string nic = "nic: {bandwidth: 10Gbit/s}";
  EXPECT_EQ(lines_of(with(kNamed, nic, "nic: {kind: ib-hdr, count: 8}"), "link 'a nic out'"),
            "link 'a nic out' kind=ib-hdr bandwidth=192000000000 latency=4.8e-06 "
            "protocols=nccl-net\n");
  EXPECT_EQ(lines_of(with(kNamed, nic, "nic: {bandwidth: 10Gbit/s, count: 3}"), "link 'a nic out'"),
            lines_of(with(kNamed, nic, "nic: {bandwidth: 30Gbit/s}"), "link 'a nic out'"));
  EXPECT_THAT(cluster_of(with(kNamed, nic, "nic: {kind: ib-hdr, count: 0}")),
              HasSubstr("'count' of nic of host 'a' must be a whole number from 1 to 64, is '0'"));
  EXPECT_THAT(cluster_of(with(kNamed, nic, "interconnect: {kind: pcie3x16, count: 2}")),
              HasSubstr("unknown key 'count'"));
}

// Text of `lines_of` with a host link of kind T4.
std::string with_host_link(const std::string& link) {
  return "device_kinds: {T4: {host_link: " + link +
         "}}\nhosts: [{name: a, memory: 64GiB, devices: {kind: T4, count: 2}}]\n";
}

TEST(HostLinks, AreNetworksOrFiguresAndMayBeShared) {
  EXPECT_THAT(lines_of(with_host_link("pcie3x16"), "kind"),
              HasSubstr(" host-link=pcie3x16,12004548000,5.7e-06\n"));
  EXPECT_THAT(lines_of(with_host_link("{bandwidth: 12GB/s}"), "kind"),
              HasSubstr(" host-link=pcie,12000000000,5e-06\n"));
  EXPECT_THAT(lines_of(with_host_link("{bandwidth: 12GB/s, latency: 8us, shared_by: 4}"), "kind"),
              HasSubstr(" host-link=pcie,3000000000,8e-06\n"));
  EXPECT_EQ(lines_of(with_host_link("pcie3x16"), "host "), "host a memory=68719476736\n");
}

TEST(HostLinks, OfAKindOfTheCatalogAreItsPcieWhereAHostHasMemory) {
  const auto kinds = [](const std::string& memory) {
    return lines_of(
        "device_kinds: {v: {hardware: V100-SXM2-16GB}, own: {memory: 16GiB, memory_bandwidth: "
        "900GB/s, peak: {fp32: 15.7TFLOPS}}}\n"
        "hosts: [{name: a, " +
            memory +
            "devices: [{kind: v}, {kind: own}, {kind: RTX-3090}], nic: ib-edr}, {name: b, devices: "
            "{kind: T4}, nic: ib-edr}]\n",
        "kind");
  };
  const std::string with = kinds("memory: 64GiB, ");
  EXPECT_THAT(with, ContainsRegex("kind v [^\n]* host-link=pcie3x16,12004548000,5.7e-06\n"));
  EXPECT_THAT(with, ContainsRegex("kind RTX-3090 [^\n]* host-link=pcie4x16,24009096000,5.7e-06\n"));
  EXPECT_THAT(with, Not(ContainsRegex("kind own [^\n]*host-link")));
  EXPECT_THAT(with, Not(ContainsRegex("kind T4 [^\n]*host-link")));
  EXPECT_THAT(kinds(""), Not(HasSubstr("host-link")));
}

TEST(HostLinks, LeaveTheTextOfOtherClustersAsItWas) {
  EXPECT_THAT(cluster_of(kTyped), AllOf(Not(HasSubstr("host-link")), Not(HasSubstr("host a"))));
}

TEST(HostLinks, WhatIsWrongIsRefused) {
  EXPECT_THAT(cluster_of(with_host_link("pcie")),
              HasSubstr("error: host_link of device kind 'T4' has no 'bandwidth'"));
  EXPECT_THAT(cluster_of(with_host_link("pcie3x15")), HasSubstr("unknown link kind 'pcie3x15'"));
  EXPECT_THAT(
      cluster_of(with_host_link("{bandwidth: 12GB/s, shared_by: 0}")),
      HasSubstr("'shared_by' of host_link of device kind 'T4' must be a whole number from 1 to"));
  EXPECT_THAT(cluster_of(with_host_link("{bandwidth: 0}")),
              HasSubstr("'bandwidth' of host_link of device kind 'T4' must be more than zero"));
}

// The digest covers what protocols cost; networks without any leave the text as it was.
TEST(NamedNetworks, PrintTheirProtocolsOnce) {
  EXPECT_EQ(lines_of("hosts: [{name: a, devices: {kind: T4, count: 2}, interconnect: pcie3x16}]\n",
                     "protocols"),
            "protocols nccl-pcie step=1.25e-06 expected=0 ll=1.06e-05,0.17543859649122806,0.25 "
            "simple=1.5399999999999998e-05,1,1\n");
  EXPECT_THAT(cluster_of(kTyped), Not(HasSubstr("protocols")));
}

TEST(NamedNetworks, HaveNoProtocolsWhereAProfileMeasured) {
  const std::string hosts =
      "hosts:\n"
      "  - {name: a, devices: {kind: T4}, interconnect: nvlink2, nic: ib-hdr}\n"
      "  - {name: b, devices: {kind: T4}, interconnect: nvlink2, nic: ib-hdr}\n";
  EXPECT_THAT(lines_of(hosts, "link 'a/0 out'"), HasSubstr("protocols=nccl-nvlink"));
  EXPECT_THAT(lines_of("profile: lab.yaml\n" + hosts, "link 'a/0 out'"),
              Not(HasSubstr("protocols")));
}

TEST(NamedNetworks, JoinHosts) {
  const std::string hosts =
      "hosts: [{name: a, devices: {kind: T4}}, {name: b, devices: {kind: T4}}]\n";
  EXPECT_EQ(
      lines_of(hosts + "network: {topology: links, links: [{from: a, to: b, kind: "
                       "roce-100g}]}\n",
               "link 'a ->"),
      "link 'a -> b' kind=roce-100g bandwidth=12000000000 latency=9.6e-06 protocols=nccl-net\n");
  EXPECT_EQ(lines_of(hosts + "network: {topology: torus, a: 2, kind: ib-edr, latency: 3us}\n",
                     "link 'a ->"),
            "link 'a -> b' kind=ib-edr bandwidth=12000000000 latency=3e-06\n");
}

TEST(NamedNetworks, AnUnknownNameIsRefusedWithTheNearest) {
  EXPECT_EQ(cluster_of("hosts: [{name: a, devices: {kind: T4}, nic: ib-hdrr}]\n"),
            "c.yaml:1:45: error: unknown link kind 'ib-hdrr'\n"
            "    hosts: [{name: a, devices: {kind: T4}, nic: ib-hdrr}]\n"
            "                                                ^~~~~~~\n"
            "  hint: did you mean 'ib-hdr'?");
  EXPECT_EQ(cluster_of("hosts: [{name: a, devices: {kind: T4}, interconnect: {kind: pcie4x15}}]\n"),
            "c.yaml:1:61: error: unknown link kind 'pcie4x15'\n"
            "    hosts: [{name: a, devices: {kind: T4}, interconnect: {kind: pcie4x15}}]\n"
            "                                                                ^~~~~~~~\n"
            "  hint: did you mean 'pcie4x16'?");
  // A class of links has no figures of its own.
  EXPECT_EQ(cluster_of("hosts: [{name: a, devices: {kind: T4}, nic: ib}]\n"),
            "c.yaml:1:45: error: nic of host 'a' lacks 'bandwidth'\n"
            "    hosts: [{name: a, devices: {kind: T4}, nic: ib}]\n"
            "                                                ^~");
  EXPECT_EQ(cluster_of("hosts: [{name: a, devices: {kind: T4}, nic: [ib-hdr]}]\n"),
            "c.yaml:1:45: error: nic of host 'a' must be a map, is a list\n"
            "    hosts: [{name: a, devices: {kind: T4}, nic: [ib-hdr]}]\n"
            "                                                ^\n"
            "  hint: keys: kind, bandwidth, latency, profile, count");
}

}  // namespace
}  // namespace agpcs
