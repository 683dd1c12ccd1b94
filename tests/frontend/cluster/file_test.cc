// SPDX-License-Identifier: Apache-2.0
#include "tests/frontend/cluster/two_hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ClusterFile, ReadsDevicesLinksAndRoutes) {
  const Result<ClusterFile> file = parse_cluster(kTwoHosts, "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(print_cluster(file->cluster),
            "cluster two topology=switch\n"
            "kind gpu memory=17179869184 memory-bandwidth=900000000000 launch-overhead=5e-06 "
            "peak-fp32=15700000000000\n"
            "device a/0 kind=gpu\n"
            "device a/1 kind=gpu\n"
            "device b/0 kind=gpu\n"
            "link 'a/0 out' kind=nvlink bandwidth=50000000000 latency=2e-06\n"
            "link 'a/0 in' kind=nvlink bandwidth=50000000000 latency=2e-06\n"
            "link 'a/1 out' kind=nvlink bandwidth=50000000000 latency=2e-06\n"
            "link 'a/1 in' kind=nvlink bandwidth=50000000000 latency=2e-06\n"
            "link 'a nic out' kind=ethernet bandwidth=10000000000 latency=5e-06\n"
            "link 'a nic in' kind=ethernet bandwidth=10000000000 latency=5e-06\n"
            "link 'b/0 out' kind=pcie bandwidth=16000000000 latency=3e-06\n"
            "link 'b/0 in' kind=pcie bandwidth=16000000000 latency=3e-06\n"
            "link 'b nic out' kind=ethernet bandwidth=1000000000 latency=1.5e-05\n"
            "link 'b nic in' kind=ethernet bandwidth=1000000000 latency=1.5e-05\n"
            "route a b: a nic out, b nic in\n"
            "route b a: b nic out, a nic in\n");
  EXPECT_EQ(file->warnings, "");
}

// yaml-cpp alone would make empty documents of it without end.
TEST(ClusterFile, WhatBeginsNoValueIsBadYaml) {
  EXPECT_EQ(error_of(", a: 1\n"),
            "c.yaml:1:1: error: bad YAML: nothing can begin like this\n"
            "    , a: 1\n"
            "    ^");
  EXPECT_THAT(error_of("name: two\n---\n, b: 1\n"),
              HasSubstr("c.yaml:3:1: error: bad YAML: nothing"));
}

TEST(ClusterFile, DefaultsAreTheDocumentedOnes) {
  const Result<ClusterFile> file = parse_cluster(
      "device_kinds: {gpu: {memory: 8GB, memory_bandwidth: 100GB/s, peak: {fp32: 1TFLOPS}}}\n"
      "hosts: [{name: a, devices: {kind: gpu}}]\n",
      "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(print_cluster(file->cluster),
            "cluster cluster topology=switch\n"
            "kind gpu memory=8000000000 memory-bandwidth=100000000000 launch-overhead=5e-06 "
            "peak-fp32=1000000000000\n"
            "device a/0 kind=gpu\n"
            "link 'a/0 out' kind=pcie bandwidth=12000000000 latency=2.5e-06\n"
            "link 'a/0 in' kind=pcie bandwidth=12000000000 latency=2.5e-06\n");
  const Training& training = file->training;
  EXPECT_EQ(training.batch, 0);
  EXPECT_EQ(training.precision, Precision::kFp32);
  EXPECT_EQ(training.attention, AttentionForm::kSteps);
  EXPECT_EQ(training.loss.kind, LossKind::kSoftmaxCrossEntropy);
  EXPECT_TRUE(training.loss.outputs.empty());
  EXPECT_TRUE(training.loss.by_shape) << "nobody named a loss";
  EXPECT_EQ(training.optimizer.kind, OptimizerKind::kSgd);
  EXPECT_EQ(training.optimizer.learning_rate, 0.01);
  EXPECT_EQ(training.optimizer.momentum, 0);
}

TEST(ClusterFile, ReadsEfficiencyLaunchOverheadAndMixedHosts) {
  const Result<ClusterFile> file = parse_cluster(
      "device_kinds:\n"
      "  big: {memory: 8GB, memory_bandwidth: 100GB/s, peak: {fp32: 1TFLOPS}, launch_overhead: "
      "2us, efficiency: {convolution: 0.5}}\n"
      "  small: {memory: 4GB, memory_bandwidth: 50GB/s, peak: {fp32: 1TFLOPS}}\n"
      "hosts: [{name: a, devices: [{kind: big, count: 1}, {kind: small, count: 2}]}]\n",
      "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  const Cluster& cluster = file->cluster;
  EXPECT_EQ(cluster.kinds[0].launch_overhead, 2e-6);
  EXPECT_EQ(cluster.kinds[0].efficiency.at("convolution"), 0.5);
  ASSERT_EQ(cluster.device_count(), 3);
  EXPECT_EQ(cluster.kind_of(0).name, "big");
  EXPECT_EQ(cluster.kind_of(2).name, "small");
  EXPECT_EQ(cluster.device_name(2), "a/2");
}

// ---- Units ----

double bandwidth_of(const std::string& text) {
  const Result<ClusterFile> file =
      parse_cluster(two_hosts_with("bandwidth: 80Gbit/s", "bandwidth: " + text), "c.yaml");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? file->cluster.links[4].bandwidth : 0;
}

TEST(ClusterUnits, BytesBitsAndBlanks) {
  EXPECT_EQ(bandwidth_of("25Gbit/s"), 3.125e9);
  EXPECT_EQ(bandwidth_of("25 Gbit/s"), 3.125e9);
  EXPECT_EQ(bandwidth_of("1.5e3MB/s"), 1.5e9);
  EXPECT_EQ(bandwidth_of("1GiB/s"), 1073741824.0);
  EXPECT_EQ(bandwidth_of("\"900 kB/s\""), 9e5);
}

TEST(ClusterUnits, AnUnknownUnitListsTheKnownOnes) {
  EXPECT_EQ(error_of(two_hosts_with("16GiB", "16GiBs")),
            "c.yaml:3:17: error: unknown unit 'GiBs' of a size\n"
            "    gpu: {memory: 16GiBs, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}\n"
            "                  ^~~~~~\n"
            "  hint: did you mean 'GiB'? units: B, kB, MB, GB, TB, KiB, MiB, GiB, TiB");
}

TEST(ClusterUnits, BitsAndBytesAreNotGuessed) {
  EXPECT_THAT(error_of(two_hosts_with("80Gbit/s", "80Gb/s")),
              HasSubstr("unknown unit 'Gb/s' of a bandwidth\n"));
  EXPECT_THAT(error_of(two_hosts_with("80Gbit/s", "80Gbps")),
              HasSubstr("hint: write 'Gbit/s' for bits or 'GB/s' for bytes"));
}

TEST(ClusterUnits, ANumberWithoutUnitIsRefusedUnlessZero) {
  EXPECT_THAT(error_of(two_hosts_with("4us", "4")), HasSubstr("error: '4' lacks its unit\n"));
  EXPECT_TRUE(parse_cluster(two_hosts_with("4us", "0"), "c.yaml").ok());
  EXPECT_THAT(error_of(two_hosts_with("4us", "soon")), HasSubstr("error: 'soon' is not a time\n"));
  EXPECT_THAT(error_of(two_hosts_with("4us", "nan")), HasSubstr("error: 'nan' is not a time\n"));
}

// ---- Bad input ----

TEST(BadClusterFile, AnUnknownKeyIsNamedWithTheNearest) {
  EXPECT_EQ(error_of(two_hosts_with("    nic:", "    nci:")),
            "c.yaml:8:5: error: unknown key 'nci' in host 'a'\n"
            "    nci: {bandwidth: 80Gbit/s, latency: 10us}\n"
            "    ^~~\n"
            "  hint: did you mean 'nic'? keys: name, count, devices, interconnect, nic, memory\n"
            "c.yaml:5:5: error: host 'a' has no 'nic', but must reach other hosts through the "
            "switch\n"
            "    - name: a\n"
            "      ^\n"
            "  hint: add nic: {bandwidth: 25Gbit/s, latency: 15us}");
}

TEST(BadClusterFile, OfHostsAlikeOneIsNamedThatHasNoNic) {
  EXPECT_EQ(error_of("hosts:\n"
                     "  - {name: a, count: 3, devices: {kind: P4}}\n"
                     "  - {name: b, devices: {kind: P4}}\n"),
            "c.yaml:2:5: error: host 'a0' has no 'nic', but must reach other hosts through the "
            "switch\n"
            "    - {name: a, count: 3, devices: {kind: P4}}\n"
            "      ^\n"
            "  hint: add nic: {bandwidth: 25Gbit/s, latency: 15us}\n"
            "c.yaml:3:5: error: host 'b' has no 'nic', but must reach other hosts through the "
            "switch\n"
            "    - {name: b, devices: {kind: P4}}\n"
            "      ^\n"
            "  hint: add nic: {bandwidth: 25Gbit/s, latency: 15us}");
}

TEST(BadClusterFile, ALineThatATabIndentsIsTold) {
  EXPECT_EQ(error_of("hosts:\n\t- {name: a, devices: {kind: P4}}\n"),
            "c.yaml:2:2: error: bad YAML: illegal block entry\n"
            "    - {name: a, devices: {kind: P4}}\n"
            "    ^\n"
            "  hint: the line begins with a tab, and YAML indents by blanks");
}

TEST(BadClusterFile, OfALongTextItQuotesTheBeginning) {
  std::string plan = "agpcs-plan 2\n";
  for (int i = 0; i < 100; ++i) plan += "gradient w" + std::to_string(i) + " elements=4\n";
  EXPECT_THAT(error_of(plan),
              testing::StartsWith("c.yaml:1:1: error: cluster file must be a map, is 'agpcs-plan 2 "
                                  "gradient w0 elements=4 gradient w1 elements=4 g...'\n"));
}

TEST(BadClusterFile, ANegativeOrZeroBandwidthIsRefused) {
  EXPECT_EQ(error_of(two_hosts_with("50GB/s", "-50GB/s")),
            "c.yaml:7:45: error: 'bandwidth' of interconnect of host 'a' must be more than zero, "
            "is '-50GB/s'\n"
            "    interconnect: {kind: nvlink, bandwidth: -50GB/s, latency: 4us}\n"
            "                                            ^~~~~~~");
  EXPECT_THAT(error_of(two_hosts_with("80Gbit/s", "0Gbit/s")),
              HasSubstr("'bandwidth' of nic of host 'a' must be more than zero, is '0Gbit/s'"));
  EXPECT_THAT(error_of(two_hosts_with("10us", "-1us")),
              HasSubstr("'latency' of nic of host 'a' must not be negative, is '-1us'"));
}

TEST(BadClusterFile, FiguresThatNoHardwareHasAreRefused) {
  EXPECT_THAT(error_of(two_hosts_with("50GB/s", "1e-320B/s")),
              HasSubstr("'bandwidth' of interconnect of host 'a' is out of range: '1e-320B/s'"));
  EXPECT_THAT(error_of(two_hosts_with("50GB/s", "1e300GB/s")), HasSubstr("out of range"));
  EXPECT_THAT(error_of(two_hosts_with("10us", "1e200s")),
              HasSubstr("'latency' of nic of host 'a' is out of range: '1e200s'"));
}

TEST(ClusterFile, EqualHostsMayBeWrittenOnce) {
  const Result<ClusterFile> counted =
      parse_cluster(two_hosts_with("- name: b", "- name: b\n    count: 2"), "c.yaml");
  ASSERT_TRUE(counted.ok()) << counted.status().message();
  const Result<ClusterFile> written = parse_cluster(
      two_hosts_with("- name: b\n",
                     "- name: b0\n"
                     "    devices: {kind: gpu, count: 1}\n"
                     "    interconnect: {kind: pcie, bandwidth: 16GB/s, latency: 6us}\n"
                     "    nic: {bandwidth: 8Gbit/s, latency: 30us}\n"
                     "  - name: b1\n"),
      "c.yaml");
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_EQ(print_cluster(counted->cluster), print_cluster(written->cluster));
  EXPECT_THAT(print_cluster(counted->cluster), HasSubstr("device b1/0 kind=gpu\n"));
}

TEST(BadClusterFile, WhatIsWrongWithEqualHostsIsSaidOnce) {
  EXPECT_EQ(error_of(two_hosts_with("name: b\n    devices: {kind: gpu",
                                    "name: b\n    count: 3\n    devices: {kind: gpuu")),
            "c.yaml:11:21: error: unknown device kind 'gpuu'\n"
            "    devices: {kind: gpuu, count: 1}\n"
            "                    ^~~~\n"
            "  hint: did you mean 'gpu'? kinds: gpu");
  EXPECT_EQ(
      error_of(two_hosts_with("name: b", "name: b\n    count: 0")),
      "c.yaml:10:12: error: 'count' of host 'b' must be a whole number from 1 to 1024, is '0'\n"
      "    count: 0\n"
      "           ^");
}

TEST(BadClusterFile, MoreHostsThanCanBePlannedForAreRefused) {
  EXPECT_THAT(error_of(two_hosts_with("name: b", "name: b\n    count: 1024")),
              StartsWith("c.yaml:9:5: error: more than 1024 hosts cannot be planned for\n"));
}

TEST(BadClusterFile, ZeroDevicesAreRefused) {
  EXPECT_EQ(error_of(two_hosts_with("count: 2", "count: 0")),
            "c.yaml:6:33: error: 'count' of devices of host 'a' must be a whole number from 1 to "
            "256, is '0'\n"
            "    devices: {kind: gpu, count: 0}\n"
            "                                ^");
  EXPECT_THAT(error_of("device_kinds: {}\nhosts: []\n"),
              HasSubstr("error: 'hosts' must be a list of hosts, is empty"));
}

TEST(BadClusterFile, TwoHostsOfOneNameAreRefused) {
  EXPECT_EQ(error_of(two_hosts_with("name: b", "name: a")),
            "c.yaml:9:11: error: two hosts are named 'a'\n"
            "    - name: a\n"
            "            ^\n"
            "  hint: the first is in line 5");
  EXPECT_THAT(error_of(two_hosts_with("- name: b",
                                      "- {name: a1, devices: {kind: gpu}}\n"
                                      "  - name: a\n    count: 2")),
              HasSubstr("error: two hosts are named 'a1'\n"));
}

TEST(BadClusterFile, AnUnknownDeviceKindIsNamedWithTheNearest) {
  EXPECT_EQ(error_of(two_hosts_with("{kind: gpu, count: 2}", "{kind: gpuu, count: 2}")),
            "c.yaml:6:21: error: unknown device kind 'gpuu'\n"
            "    devices: {kind: gpuu, count: 2}\n"
            "                    ^~~~\n"
            "  hint: did you mean 'gpu'? kinds: gpu");
}

TEST(BadClusterFile, AnUnknownLinkKindIsNamedWithTheNearest) {
  EXPECT_EQ(error_of(two_hosts_with("kind: nvlink", "kind: nvlnik")),
            "c.yaml:7:26: error: unknown link kind 'nvlnik'\n"
            "    interconnect: {kind: nvlnik, bandwidth: 50GB/s, latency: 4us}\n"
            "                         ^~~~~~\n"
            "  hint: did you mean 'nvlink'? kinds: nvlink, xgmi, pcie, ib, ethernet, tcp, shm");
}

TEST(BadClusterFile, APrecisionWithoutPeakIsRefused) {
  EXPECT_EQ(error_of(two_hosts_with("{batch: 64}", "{batch: 64, precision: bf16}")),
            "c.yaml:3:57: error: device kind 'gpu' has no peak for precision 'bf16', only for "
            "fp32\n"
            "    gpu: {memory: 16GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}\n"
            "                                                          ^\n"
            "  hint: add its bf16 peak, or choose another precision");
}

TEST(BadClusterFile, BadSyntaxIsPointedAt) {
  EXPECT_EQ(error_of(two_hosts_with("{batch: 64}", "{batch: 64")),
            "c.yaml:14:1: error: bad YAML: end of map flow not found");
  EXPECT_THAT(error_of("hosts: [a\n\tb: c"), StartsWith("c.yaml:"));
}

TEST(BadClusterFile, AnEmptyFileIsRefused) {
  for (const char* text : {"", "\n\n", "# nothing\n", "---\n"}) {
    EXPECT_EQ(error_of(text),
              "c.yaml: error: the file is empty\n"
              "  hint: docs/reference/cluster_yaml.md has an example");
  }
}

TEST(BadClusterFile, SeveralErrorsAreReportedAtOnce) {
  std::string text = two_hosts_with("16GiB", "-1GiB");
  text += "trainnig: {}\n";
  const std::size_t at = text.find("30us");
  text.replace(at, 4, "30u");
  EXPECT_EQ(error_of(text),
            "c.yaml:14:1: error: unknown key 'trainnig' in cluster file\n"
            "    trainnig: {}\n"
            "    ^~~~~~~~\n"
            "  hint: did you mean 'training'? keys: name, profile, device_kinds, hosts, network, "
            "training\n"
            "c.yaml:3:17: error: 'memory' of device kind 'gpu' must be more than zero, is '-1GiB'\n"
            "    gpu: {memory: -1GiB, memory_bandwidth: 900GB/s, peak: {fp32: 15.7TFLOPS}}\n"
            "                  ^~~~~\n"
            "c.yaml:12:40: error: unknown unit 'u' of a time\n"
            "    nic: {bandwidth: 8Gbit/s, latency: 30u}\n"
            "                                       ^~~\n"
            "  hint: did you mean 'us'? units: us, ms, s, ns");
}

TEST(BadClusterFile, MissingPartsAreNamed) {
  EXPECT_EQ(error_of("name: x\n"),
            "c.yaml:1:1: error: cluster file lacks 'device_kinds'\n"
            "    name: x\n"
            "    ^\n"
            "c.yaml:1:1: error: cluster file lacks 'hosts'\n"
            "    name: x\n"
            "    ^");
  EXPECT_THAT(error_of(two_hosts_with("memory: 16GiB, ", "")),
              HasSubstr("error: device kind 'gpu' lacks 'memory'"));
  EXPECT_THAT(error_of(two_hosts_with(", peak: {fp32: 15.7TFLOPS}", "")),
              HasSubstr("error: device kind 'gpu' lacks 'peak'"));
}

TEST(BadClusterFile, AKeyThatIsThereTwiceIsRefused) {
  EXPECT_THAT(error_of(two_hosts_with("training:", "name: again\ntraining:")),
              HasSubstr("error: key 'name' is twice in cluster file\n"));
}

TEST(BadClusterFile, WrongShapesAreRefused) {
  EXPECT_THAT(error_of("- a\n- b\n"), HasSubstr("error: cluster file must be a map, is a list"));
  EXPECT_THAT(error_of("just words"), HasSubstr("error: cluster file must be a map, is 'just "));
  EXPECT_THAT(error_of(two_hosts_with("{batch: 64}", "[64]")),
              HasSubstr("error: training must be a map, is a list"));
  EXPECT_THAT(error_of(two_hosts_with("name: a", "name: a/b")),
              HasSubstr("error: 'name' of host 'a/b' must be a name, is 'a/b'"));
  EXPECT_THAT(error_of(std::string(4000, '[')), HasSubstr("error: bad YAML: "));
}

TEST(BadClusterFile, AFileThatIsNotThereIsNamed) {
  EXPECT_EQ(read_cluster("/nowhere/c.yaml").status().message(),
            "/nowhere/c.yaml: error: cannot be read: No such file or directory");
  EXPECT_FALSE(read_cluster("/").ok());
}

// ---- Files of the project ----

TEST(ClusterSamples, ThePapersClusterIsRead) {
  const Result<ClusterFile> file = read_cluster("samples/clusters/v100x4-rtx3090x4.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->cluster.name, "v100x4-rtx3090x4");
  EXPECT_EQ(file->cluster.device_count(), 8);
  EXPECT_EQ(file->cluster.device_name(4), "ampere/0");
  EXPECT_EQ(file->cluster.kind_of(4).name, "rtx3090");
  EXPECT_EQ(file->cluster.kind_of(4).memory_bytes, 25769803776);
  EXPECT_EQ(file->cluster.route(0, 7).size(), 4u);
  EXPECT_EQ(file->training.batch, 512);
  EXPECT_EQ(file->training.optimizer.momentum, 0.9);
  EXPECT_EQ(file->warnings, "");
}

TEST(ClusterSamples, TheMixedClusterIsRead) {
  const Result<ClusterFile> file = read_cluster("samples/clusters/mixed-32.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->cluster.device_count(), 32);
  EXPECT_EQ(file->cluster.hosts.size(), 8u);
  EXPECT_EQ(file->cluster.kind_of(31).name, "a100");
  EXPECT_EQ(file->cluster.kind_of(31).peak_flops.at(Precision::kFp16), 312e12);
  EXPECT_EQ(file->training.precision, Precision::kFp16);
  EXPECT_EQ(file->training.optimizer.kind, OptimizerKind::kAdam);
}

TEST(ClusterSamples, AKindThatNoHostHasIsAWarning) {
  const Result<ClusterFile> file = parse_cluster(
      two_hosts_with("hosts:",
                     "  spare: {memory: 1GB, memory_bandwidth: 1GB/s, peak: {fp16: 1TFLOPS}}\n"
                     "hosts:"),
      "c.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_THAT(file->warnings,
              StartsWith("c.yaml:4:3: warning: no host has devices of kind 'spare'"));
}

}  // namespace
}  // namespace agpcs
