// SPDX-License-Identifier: Apache-2.0
// Files of NCCL in, cluster.yaml and warnings out. tests/tools/cluster/topologies are public dumps
// of RCCL, with their licence beside them.
#include "tools/cluster/nccl_topo.h"

#include "frontend/cluster/file.h"
#include "frontend/cluster/plausible.h"
#include "tests/support/temp_folder.h"
#include "tools/cluster/describe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

const std::string kTopologies = "tests/tools/cluster/topologies/";

/// Returns what follows "hosts:" in the description, without the network.
std::string hosts_of(const Description& description) {
  const std::size_t at = description.text.find("hosts:\n");
  return description.text.substr(at + 7);
}

Description describe(const std::string& text) {
  const Result<NcclTopology> topology = parse_nccl_topology(text, "topo.xml");
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  if (!topology.ok()) return {};
  return describe_cluster(topology->hosts, "lab", "topo.xml");
}

Description describe_file(const std::string& name) {
  const Result<NcclTopology> topology = read_nccl_topology(kTopologies + name);
  EXPECT_TRUE(topology.ok()) << topology.status().message();
  if (!topology.ok()) return {};
  return describe_cluster(topology->hosts, "lab", name);
}

std::string error_of(const std::string& text) {
  return parse_nccl_topology(text, "topo.xml").status().message();
}

/// A server with GPUs below one processor: "pci busid device sm links".
std::string server(const std::string& inside) {
  return "<system version=\"1\">\n<cpu numaid=\"0\" arch=\"x86_64\">\n" + inside +
         "</cpu>\n</system>\n";
}

std::string gpu(int dev, const std::string& device, int sm, const std::string& links) {
  return "<pci busid=\"0000:0" + std::to_string(dev + 1) +
         ":00.0\" class=\"0x030200\" vendor=\"0x10de\" device=\"" + device +
         "\" link_speed=\"8.0 GT/s PCIe\" link_width=\"16\"><gpu dev=\"" + std::to_string(dev) +
         "\" sm=\"" + std::to_string(sm) + "\" rank=\"" + std::to_string(dev) + "\" gdr=\"1\">" +
         links + "</gpu></pci>\n";
}

std::string nvlink(const std::string& target, int count, const std::string& tclass = "0x030200") {
  return "<nvlink target=\"" + target + "\" count=\"" + std::to_string(count) + "\" tclass=\"" +
         tclass + "\"/>";
}

struct Dump {
  const char* name;
  const char* hosts;
  int warnings;
};
void PrintTo(const Dump& dump, std::ostream* out) { *out << dump.name; }

class PublicDump : public ::testing::TestWithParam<Dump> {};

TEST_P(PublicDump, BecomesThisCluster) {
  const Description description = describe_file(std::string(GetParam().name) + ".xml");
  EXPECT_EQ(hosts_of(description), GetParam().hosts);
  int warnings = 0;
  for (std::size_t at = 0; (at = description.warnings.find("warning:", at)) != std::string::npos;
       ++at) {
    ++warnings;
  }
  EXPECT_EQ(warnings, GetParam().warnings) << description.warnings;
}

INSTANTIATE_TEST_SUITE_P(
    All, PublicDump,
    ::testing::Values(
        Dump{"topo_16p1h",
             "  - name: host\n"
             "    devices: {kind: MI250, count: 16}\n"
             "    interconnect: {kind: xgmi, bandwidth: 350GB/s}  # Infinity Fabric, 350GB/s of "
             "each GPU\n"
             "    nic: {kind: ib-hdr, count: 8}  # one message has 200Gbit/s at most\n",
             2},
        Dump{"topo_3p_pcie",
             "  - name: host\n"
             "    devices: {kind: MI210, count: 3}\n"
             "    interconnect: pcie4x16  # nominal; messages reach about 0.8 of it\n"
             "    nic: ib-hdr\n",
             0},
        Dump{"topo_4p2h",
             "  - name: host\n"
             "    devices: {kind: unknown-gfx906, count: 8}\n"
             "    interconnect: pcie3x16  # nominal; messages reach about 0.8 of it\n"
             "    nic: roce-100g\n",
             2},
        Dump{"topo_4p4h",
             "  - name: host\n"
             "    devices: {kind: MI100, count: 16}\n"
             "    interconnect: pcie3x16  # nominal; messages reach about 0.8 of it\n"
             "    nic: {kind: ib-hdr, count: 16}  # one message has 200Gbit/s at most\n",
             1},
        Dump{"topo_8p1h",
             "  - name: host\n"
             "    devices: {kind: MI250, count: 8}\n"
             "    interconnect: {kind: xgmi, bandwidth: 300GB/s}  # Infinity Fabric, 300GB/s of "
             "each GPU\n"
             "    nic: {kind: ib-hdr, count: 4}  # one message has 200Gbit/s at most\n",
             3},
        Dump{"topo_8p6l_4nic",
             "  - name: host\n"
             "    devices: {kind: MI100, count: 8}\n"
             "    interconnect: {kind: xgmi, bandwidth: 276GB/s}  # Infinity Fabric, 276GB/s of "
             "each GPU\n"
             "    nic: {kind: roce-200g, count: 4}  # one message has 200Gbit/s at most\n",
             1},
        Dump{"topo_8p_940",
             "  - name: host\n"
             "    devices: {kind: MI300X, count: 8}\n"
             "    interconnect: xgmi-mi300x  # Infinity Fabric, 448GB/s of each GPU\n"
             "    nic: {kind: ib-ndr, count: 8}  # one message has 400Gbit/s at most\n",
             0},
        Dump{"topo_8p_rome_n4",
             "  - name: host\n"
             "    devices: {kind: unknown-gfx906, count: 8}\n"
             "    interconnect: pcie4x16  # nominal; messages reach about 0.8 of it\n"
             "    nic: ib-hdr\n",
             2}),
    [](const auto& dump) { return std::string(dump.param.name); });

TEST_P(PublicDump, IsTakenByThePlannerOrAsksForTheNameOfItsGpus) {
  const Description description = describe_file(std::string(GetParam().name) + ".xml");
  const auto checked = check_plausible(description.text, "cluster.yaml");
  const bool known = description.text.find("unknown-") == std::string::npos;
  EXPECT_EQ(checked.ok(), known) << checked.status().message();
  if (known) return;
  EXPECT_THAT(checked.status().message(), HasSubstr("is still to be filled in"));
}

TEST(NcclTopology, OfIslandsSaysWhichGpusHaveLinks) {
  EXPECT_THAT(describe_file("topo_4p2h.xml").warnings,
              HasSubstr("agpcs-cluster: warning: host 'host': Infinity Fabric joins its GPUs only "
                        "within {0-3}, {4-7}; a host of cluster.yaml has one interconnect, so the "
                        "file has PCIe for all, and 92GB/s of each GPU are lost\n"
                        "  hint: or describe each group as a host of its own, whose nic is what "
                        "joins the groups\n"));
}

TEST(NcclTopology, OfMeshedGpusSaysWhichPairsHaveNoLink) {
  EXPECT_THAT(describe_file("topo_8p6l_4nic.xml").warnings,
              HasSubstr("4 of 28 pairs of its GPUs have no Infinity Fabric of their own (0 and 5, "
                        "for one); the file has a port of 276GB/s for each GPU to all others"));
}

TEST(NcclTopology, OfNvlinksToSwitchesIsTheSwitchOfTheGpusKind) {
  const std::string links =
      nvlink("0000:c4:00.0", 6, "0x068000") + nvlink("fffffff:ffff:ff", 6, "0x068000");
  const Description description =
      describe(server(gpu(0, "0x20b2", 80, links) + gpu(1, "0x20b2", 80, links)));
  EXPECT_EQ(hosts_of(description),
            "  - name: host\n"
            "    devices: {kind: A100-SXM4-80GB, count: 2}\n"
            "    interconnect: nvswitch-a100  # NVLink through switches, 300GB/s of each GPU\n");
  EXPECT_EQ(description.warnings, "");
}

std::string infiniband(int count, const std::string& speed) {
  std::string text;
  for (int i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    text += "<pci class=\"0x020700\"><nic><net name=\"mlx5_" + number + "\" dev=\"" + number +
            "\" speed=\"" + speed + "\" gdr=\"1\"/></nic></pci>";
  }
  return text;
}

// Like a DGX A100: a switch of NVLinks, and an HDR NIC for each GPU.
TEST(NcclTopology, OfHostsWithSeveralNicsHasNetworksWithNcclsProtocols) {
  const std::string links = nvlink("0000:c4:00.0", 12, "0x068000");
  std::string inside = infiniband(8, "200000");
  for (int i = 0; i < 8; ++i) inside += gpu(i, "0x20b0", 80, links);
  const Description description = describe(server(inside));
  EXPECT_EQ(hosts_of(description),
            "  - name: host\n"
            "    devices: {kind: A100-SXM4-40GB, count: 8}\n"
            "    interconnect: nvswitch-a100  # NVLink through switches, 300GB/s of each GPU\n"
            "    nic: {kind: ib-hdr, count: 8}  # one message has 200Gbit/s at most\n");
  const Result<ClusterFile> file = parse_cluster(description.text, "cluster.yaml");
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->cluster.links.size(), 18u);
  for (const Link& link : file->cluster.links) EXPECT_GE(link.protocols, 0) << link.name;
  EXPECT_EQ(file->cluster.links.back().bandwidth, 8 * 24e9);
}

TEST(NcclTopology, OfNicsThatDifferIsTheirSum) {
  const Description description = describe(
      server(gpu(0, "0x1eb8", 75, "") + infiniband(2, "200000") + infiniband(1, "100000")));
  EXPECT_THAT(hosts_of(description),
              HasSubstr("    nic: {kind: ib, bandwidth: 500Gbit/s, latency: 9.6us}  # 3 NICs "
                        "together; one message has 200Gbit/s at most\n"));
}

TEST(NcclTopology, OfNvlinksBetweenGpusIsTheirSum) {
  const Description description = describe(server(gpu(0, "0x1db1", 70, nvlink("0000:02:00.0", 2)) +
                                                  gpu(1, "0x1db1", 70, nvlink("0000:01:00.0", 2))));
  EXPECT_EQ(hosts_of(description),
            "  - name: host\n"
            "    devices: {kind: V100-SXM2-16GB, count: 2}\n"
            "    interconnect: {kind: nvlink, bandwidth: 50GB/s, latency: 3.4us}  # NVLink, 50GB/s "
            "of each GPU\n");
}

TEST(NcclTopology, PassesOverLinksToProcessorsAndToItself) {
  const Description description =
      describe(server(gpu(0, "0x1db1", 70, nvlink("0000:01:00.0", 2)) +
                      gpu(1, "0x1db1", 70, nvlink("0004:00:00.0", 3, "0x068001"))));
  EXPECT_THAT(hosts_of(description), HasSubstr("interconnect: pcie3x16"));
}

// As makers of virtual machines ship them.
TEST(NcclTopology, WithoutGpusMarkedTakesPciDevices) {
  const Description description = describe(
      "<system version=\"1\"><cpu numaid=\"0\">"
      "<pci busid=\"ffff:ff:01.0\" class=\"0x060400\" link_speed=\"16 GT/s\" link_width=\"16\">"
      "<pci busid=\"0001:00:00.0\" class=\"0x030200\" link_speed=\"16 GT/s\" link_width=\"16\"/>"
      "<pci busid=\"0101:00:00.0\" class=\"0x020700\" link_speed=\"16 GT/s\" link_width=\"16\"/>"
      "</pci><pci busid=\"0002:00:00.0\" class=\"0x030000\" vendor=\"0x1a03\"/></cpu></system>");
  EXPECT_EQ(hosts_of(description),
            "  - name: host\n"
            "    devices: {kind: unknown-gpu, count: 1}\n"
            "    interconnect: pcie4x16  # nominal; messages reach about 0.8 of it\n"
            "    # nic: the speed of its NICs (1) is not known; such as nic: ib-hdr\n");
  EXPECT_THAT(description.warnings,
              HasSubstr("the catalog cannot tell which accelerator 'unknown-gpu' is (of which "
                        "nothing is said)"));
}

TEST(NcclTopology, OfSeveralHostsHasEach) {
  const auto cpu = [](const char* hash, const std::string& inside) {
    return "<cpu host_hash=\"" + std::string(hash) + "\" numaid=\"0\">" + inside + "</cpu>";
  };
  const std::string nic = "<nic><net name=\"eth0\" dev=\"0\" speed=\"25000\"/></nic>";
  const Description description =
      describe("<system version=\"1\">" + cpu("0x1", gpu(0, "0x1eb8", 75, "") + nic) +
               cpu("0x2", gpu(0, "0x1eb8", 75, "") + nic) + "</system>");
  EXPECT_EQ(description.text.substr(description.text.find("name:")),
            "name: lab\n"
            "\n"
            "hosts:\n"
            "  - name: host-0\n"
            "    devices: {kind: T4, count: 1}\n"
            "    interconnect: pcie3x16  # nominal; messages reach about 0.8 of it\n"
            "    nic: ethernet-25g\n"
            "  - name: host-1\n"
            "    devices: {kind: T4, count: 1}\n"
            "    interconnect: pcie3x16  # nominal; messages reach about 0.8 of it\n"
            "    nic: ethernet-25g\n"
            "\n"
            "network: {topology: switch}\n");
}

TEST(NcclTopology, ThatIsNotXmlIsAnErrorWithItsPlace) {
  EXPECT_EQ(error_of("<system version=\"1\">\n<cpu></system>"),
            "topo.xml:2:8: error: it is not XML: start-end tags mismatch\n"
            "    <cpu></system>\n"
            "           ^");
  EXPECT_THAT(error_of(""), HasSubstr("it has no element, <system> is expected"));
  EXPECT_THAT(error_of("model: resnet\n"), HasSubstr("it has no element"));
  EXPECT_THAT(error_of(std::string("<system\0>", 9)), HasSubstr("it is not XML"));
}

TEST(NcclTopology, OfAnotherRootOrVersionIsAnError) {
  EXPECT_THAT(error_of("<graphs version=\"1\"/>"),
              HasSubstr("it begins with <graphs>, not with <system>"));
  EXPECT_THAT(error_of("<system version=\"9\"/>"),
              HasSubstr("the file has version 9; 1 and 2 are known"));
  EXPECT_THAT(error_of("<system version=\"1\"><cpu/></system>"), HasSubstr("the file has no GPU"));
}

TEST(NcclTopology, WithADocumentTypeIsAnErrorSoThatNoEntityGrows) {
  EXPECT_EQ(error_of("<!DOCTYPE s [<!ENTITY a \"ha\"><!ENTITY b \"&a;&a;&a;\">]>\n"
                     "<system version=\"1\">&b;</system>"),
            "topo.xml: error: it has a document type, and NCCL's files have none");
}

TEST(NcclTopology, NestedWithoutEndIsAnError) {
  std::string open, close;
  for (int i = 0; i < 100'000; ++i) {
    open += "<pci>";
    close += "</pci>";
  }
  EXPECT_THAT(error_of("<system version=\"1\"><cpu>" + open + close + "</cpu></system>"),
              HasSubstr("it has elements 65 deep, at most 64 are expected"));
}

TEST(NcclTopology, WithNumbersThatAreNoneNamesAll) {
  const std::string text =
      error_of(server(gpu(0, "0x1db1", 70, nvlink("x", 99999)) + "<pci><gpu dev=\"one\"/></pci>\n" +
                      gpu(0, "0x1db1", 70, "")));
  EXPECT_THAT(text, HasSubstr("count=\"99999\" of <nvlink> is no whole number from 0 to 1024"));
  EXPECT_THAT(text, HasSubstr("dev=\"one\" of <gpu> is no whole number"));
  EXPECT_THAT(text, HasSubstr("two GPUs have dev=\"0\""));
}

TEST(NcclTopology, WithAVendorTooLongForAKindsNameIsAnError) {
  EXPECT_THAT(error_of(server(gpu(0, "0x" + std::string(1100, '1'), 70, ""))),
              HasSubstr("topo.xml:3:2: error: device of <pci> has 1102 characters, at most 64 are "
                        "expected"));
}

TEST(NcclTopology, ThatIsTooLongIsNotRead) {
  const TempFolder folder;
  const std::string path = folder.path().string() + "/topo.xml";
  std::ofstream(path) << "<system/>";
  std::filesystem::resize_file(path, (std::uintmax_t{16} << 20) + 1);
  EXPECT_THAT(read_nccl_topology(path).status().message(), HasSubstr(path));
  EXPECT_FALSE(read_nccl_topology(path).ok());
}

// Every dump cut off anywhere, and with any one byte gone, is read or refused.
TEST(NcclTopology, ThatIsDamagedEndsInAnAnswer) {
  std::ifstream file(kTopologies + "topo_4p2h.xml");
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  ASSERT_FALSE(text.empty());
  for (std::size_t i = 0; i < text.size(); i += 7) {
    EXPECT_FALSE(parse_nccl_topology(text.substr(0, i), "topo.xml").ok());
    std::string damaged = text;
    damaged.erase(i, 1);
    const auto topology = parse_nccl_topology(damaged, "topo.xml");
    if (topology.ok()) describe_cluster(topology->hosts, "lab", "topo.xml");
  }
}

}  // namespace
}  // namespace agpcs
