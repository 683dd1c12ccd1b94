// SPDX-License-Identifier: Apache-2.0
// The `profile` keys of cluster.yaml.
#include "frontend/cluster/file.h"
#include "tests/support/profiles.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// What small_profile() measured is all that it needs, but for "a nic in" and the like.
constexpr char kMeasured[] = R"(profile: lab.yaml
device_kinds:
  cpu: {memory: 4GiB}
hosts:
  - {name: a, devices: {kind: cpu}, nic: {bandwidth: 1Gbit/s}}
  - {name: b, devices: {kind: cpu}, nic: {bandwidth: 1Gbit/s}}
)";

// No profile has anything of it by its own names.
constexpr char kForeign[] = R"(device_kinds:
  gpu: {memory: 4GiB, memory_bandwidth: 9GB/s, peak: {fp32: 1TFLOPS}}
hosts:
  - {name: x, devices: {kind: gpu}, interconnect: {bandwidth: 1GB/s}, nic: {bandwidth: 1Gbit/s}}
  - {name: y, devices: {kind: gpu}, interconnect: {bandwidth: 1GB/s}, nic: {bandwidth: 1Gbit/s}}
network: {topology: links, links: [{from: x, to: y, bandwidth: 1Gbit/s}]}
)";

std::string with(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

/// A profile of a network that is measured both ways, with a cable.
Profile network_profile() {
  Profile profile = small_profile();
  profile.file = "net.yaml";
  profile.devices.clear();
  profile.collectives.clear();
  profile.paths[0].links = {"a/0 out", "a nic out", "a -> b", "b nic in", "b/0 in"};
  profile.paths.push_back(profile.paths[0]);
  profile.paths[1].from = "b/0";
  profile.paths[1].to = "a/0";
  profile.paths[1].links = {"b/0 out", "b nic out", "b -> a", "a nic in", "a/0 in"};
  seal_profile(profile);
  return profile;
}

Profile fast_profile() {
  Profile profile = small_profile();
  profile.file = "fast.yaml";
  profile.devices[0].message_overhead = 7e-6;
  profile.paths.clear();
  profile.collectives.clear();
  seal_profile(profile);
  return profile;
}

/// A quick profile of the same device.
Profile quick_profile() {
  Profile profile = fast_profile();
  profile.file = "quick.yaml";
  profile.devices[0].probes = std::move(profile.devices[0].operators);
  profile.devices[0].operators.clear();
  seal_profile(profile);
  return profile;
}

/// Files lab.yaml (small_profile), net.yaml, fast.yaml and quick.yaml in folder "in/".
Result<Profile> read(const std::string& path) {
  const std::map<std::string, Profile> files = {{"in/lab.yaml", small_profile()},
                                                {"in/net.yaml", network_profile()},
                                                {"in/fast.yaml", fast_profile()},
                                                {"in/quick.yaml", quick_profile()}};
  const auto found = files.find(path);
  if (found == files.end()) return invalid_input(path + ": error: cannot be opened");
  return found->second;
}

Result<ClusterFile> parse(const std::string& text) {
  return parse_cluster(text, "in/c.yaml", read);
}

std::string error_of(const std::string& text) { return parse(text).status().message(); }

/// "kind cpu: in/lab.yaml#cpu" for all that refers to a profile.
std::string references(const std::string& text) {
  const Result<ClusterFile> file = parse(text);
  if (!file.ok()) return file.status().message();
  const Cluster& cluster = file->cluster;
  std::string all;
  const auto add = [&](const std::string& what, const ProfileRef& ref) {
    if (!ref.given()) return;
    const Profile& profile = cluster.profiles.at(static_cast<std::size_t>(ref.profile));
    all += what + ": " + profile.file + (ref.entry.empty() ? "" : "#" + ref.entry) + "\n";
  };
  for (const DeviceKind& kind : cluster.kinds) add("kind " + kind.name, kind.profile);
  for (const Link& link : cluster.links) add("link " + link.name, link.profile);
  add("collectives", cluster.collectives_profile);
  return all;
}

TEST(ClusterProfiles, EverythingOfTheProfilesNamesRefersToIt) {
  EXPECT_EQ(references(kMeasured),
            "kind cpu: lab.yaml#cpu\n"
            "link a/0 out: lab.yaml#a/0 out\n"
            "link a nic out: lab.yaml#a nic out\n"
            "link b/0 in: lab.yaml#b/0 in\n"
            "link b nic in: lab.yaml#b nic in\n"
            "collectives: lab.yaml\n");
  const Result<ClusterFile> file = parse(kMeasured);
  EXPECT_EQ(file->warnings, "");
  const DeviceKind& cpu = file->cluster.kinds[0];
  EXPECT_EQ(cpu.message_overhead, 12e-6);
  EXPECT_EQ(cpu.overlap.communication_factor, 0.8);
  EXPECT_EQ(cpu.overlap.compute_seconds_per_byte, 0.3e-9);
}

TEST(ClusterProfiles, TheTextNamesTheMeasurementsInPlaceOfFigures) {
  const Result<ClusterFile> file = parse(kMeasured);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const std::string ref = "profile=" + small_profile().digest;
  EXPECT_EQ(print_cluster(file->cluster),
            "cluster cluster topology=switch\n"
            "kind cpu memory=4294967296 memory-bandwidth=192000000 launch-overhead=5e-06 " +
                ref +
                " entry='cpu' message-overhead=1.2e-05 overlap=3e-10,0.8\n"
                "device a/0 kind=cpu\n"
                "device b/0 kind=cpu\n"
                "link 'a/0 out' kind=pcie " +
                ref +
                " entry='a/0 out'\n"
                "link 'a/0 in' kind=pcie bandwidth=12000000000 latency=2.5e-06\n"
                "link 'a nic out' kind=ethernet " +
                ref +
                " entry='a nic out'\n"
                "link 'a nic in' kind=ethernet bandwidth=125000000 latency=1e-05\n"
                "link 'b/0 out' kind=pcie bandwidth=12000000000 latency=2.5e-06\n"
                "link 'b/0 in' kind=pcie " +
                ref +
                " entry='b/0 in'\n"
                "link 'b nic out' kind=ethernet bandwidth=125000000 latency=1e-05\n"
                "link 'b nic in' kind=ethernet " +
                ref +
                " entry='b nic in'\n"
                "collectives " +
                ref +
                "\n"
                "route a b: a nic out, b nic in\n"
                "route b a: b nic out, a nic in\n");
}

TEST(ClusterProfiles, FittedFiguresAreNoPartOfTheText) {
  Result<ClusterFile> file = parse(kMeasured);
  ASSERT_TRUE(file.ok()) << file.status().message();
  Cluster& cluster = file->cluster;
  const std::string before = print_cluster(cluster);
  cluster.links[0].bandwidth = 5e6;
  cluster.links[0].latency = 1;
  cluster.kinds[0].fit.begin_per_element = 1;
  cluster.collectives[0].stretch = 2;
  EXPECT_EQ(print_cluster(cluster), before);
  cluster.collectives_profile = {};
  EXPECT_THAT(print_cluster(cluster),
              HasSubstr("\ncollective ring step-overhead=0 stretch=2\nroute "));
}

TEST(ClusterProfiles, OfSeveralFilesTheLastOneThatHasSomethingIsTaken) {
  EXPECT_EQ(references(with(kMeasured, "lab.yaml", "[lab.yaml, fast.yaml]")),
            "kind cpu: fast.yaml#cpu\n"
            "link a/0 out: lab.yaml#a/0 out\n"
            "link a nic out: lab.yaml#a nic out\n"
            "link b/0 in: lab.yaml#b/0 in\n"
            "link b nic in: lab.yaml#b nic in\n"
            "collectives: lab.yaml\n");
  EXPECT_THAT(references(with(kMeasured, "lab.yaml", "[fast.yaml, lab.yaml]")),
              StartsWith("kind cpu: lab.yaml#cpu\nlink a/0 out: lab.yaml"));
}

TEST(ClusterProfiles, AProfileComesBeforeAQuickOneInAnyOrder) {
  for (const char* files : {"[lab.yaml, quick.yaml]", "[quick.yaml, lab.yaml]"}) {
    EXPECT_THAT(references(with(kMeasured, "lab.yaml", files)),
                StartsWith("kind cpu: lab.yaml#cpu\n"));
  }
  EXPECT_THAT(references(with(kMeasured, "lab.yaml", "[net.yaml, quick.yaml]")),
              StartsWith("kind cpu: quick.yaml#cpu\n"));
}

TEST(ClusterProfiles, AKindsOwnProfileComesBeforeTheClusters) {
  EXPECT_THAT(references(with(kMeasured, "{memory: 4GiB}", "{memory: 4GiB, profile: fast.yaml}")),
              StartsWith("kind cpu: fast.yaml#cpu\nlink a/0 out: lab.yaml"));
  EXPECT_EQ(references(with(kForeign, "{memory: 4GiB, ", "{profile: lab.yaml#cpu, memory: 4GiB, ")),
            "kind gpu: lab.yaml#cpu\n");
}

TEST(ClusterProfiles, AHostOfTheProfileStandsInForAnother) {
  const std::string nic = with(kForeign, "nic: {bandwidth: 1Gbit/s}", "nic: {profile: net.yaml#b}");
  EXPECT_EQ(references(nic),
            "link x nic out: net.yaml#b nic out\n"
            "link x nic in: net.yaml#b nic in\n");
  EXPECT_EQ(references(with(kForeign, "bandwidth: 1GB/s", "profile: net.yaml#a")),
            "link x/0 out: net.yaml#a/0 out\n"
            "link x/0 in: net.yaml#a/0 in\n");
}

TEST(ClusterProfiles, ADeviceOfTheProfileStandsInForAllOfAHost) {
  const std::string text = with(with(kForeign, "bandwidth: 1GB/s", "profile: net.yaml#b/0"),
                                "{kind: gpu}", "{kind: gpu, count: 2}");
  EXPECT_EQ(references(text),
            "link x/0 out: net.yaml#b/0 out\n"
            "link x/0 in: net.yaml#b/0 in\n"
            "link x/1 out: net.yaml#b/0 out\n"
            "link x/1 in: net.yaml#b/0 in\n");
}

TEST(ClusterProfiles, ACableStandsInForAnotherBothWays) {
  EXPECT_EQ(
      references(with(kForeign, "to: y, bandwidth: 1Gbit/s", "to: y, profile: net.yaml#b -> a")),
      "link x -> y: net.yaml#b -> a\n"
      "link y -> x: net.yaml#a -> b\n");
  EXPECT_EQ(references(with(kForeign, "to: y, bandwidth: 1Gbit/s",
                            "to: y, one_way: true, profile: net.yaml#b -> a}, "
                            "{from: y, to: x, one_way: true, bandwidth: 1Gbit/s")),
            "link x -> y: net.yaml#b -> a\n");
}

TEST(ClusterProfiles, TheNetworksProfileIsForLinksAndCollectives) {
  const std::string text = std::string(kMeasured) + "network: {profile: net.yaml}\n";
  EXPECT_EQ(references(text),
            "kind cpu: lab.yaml#cpu\n"
            "link a/0 out: net.yaml#a/0 out\n"
            "link a/0 in: net.yaml#a/0 in\n"
            "link a nic out: net.yaml#a nic out\n"
            "link a nic in: net.yaml#a nic in\n"
            "link b/0 out: net.yaml#b/0 out\n"
            "link b/0 in: net.yaml#b/0 in\n"
            "link b nic out: net.yaml#b nic out\n"
            "link b nic in: net.yaml#b nic in\n"
            "collectives: lab.yaml\n");
}

TEST(ClusterProfiles, MeasuredLinksNeedNoBandwidth) {
  std::string text = with(kMeasured, "{bandwidth: 1Gbit/s}", "{}");
  text = with(text, "{bandwidth: 1Gbit/s}", "{}");
  EXPECT_EQ(error_of(text),
            "in/c.yaml:5:42: error: nic of host 'a' lacks 'bandwidth'\n"
            "    - {name: a, devices: {kind: cpu}, nic: {}}\n"
            "                                           ^\n"
            "  hint: no profile has link 'a nic in' either\n"
            "in/c.yaml:6:42: error: nic of host 'b' lacks 'bandwidth'\n"
            "    - {name: b, devices: {kind: cpu}, nic: {}}\n"
            "                                           ^\n"
            "  hint: no profile has link 'b nic out' either");
  const Result<ClusterFile> file = parse(with(text, "lab.yaml", "[lab.yaml, net.yaml]"));
  ASSERT_TRUE(file.ok()) << file.status().message();
  for (const Link& link : file->cluster.links) EXPECT_GT(link.bandwidth, 1e9) << link.name;
}

TEST(ClusterProfiles, AFileIsReadOnce) {
  int reads = 0;
  const ReadProfile counting = [&](const std::string& path) {
    ++reads;
    return read(path);
  };
  const std::string text = with(kMeasured, "{bandwidth: 1Gbit/s}", "{profile: net.yaml#b}") +
                           "network: {profile: net.yaml}\n";
  const Result<ClusterFile> file = parse_cluster(text, "in/c.yaml", counting);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(reads, 2);
  EXPECT_EQ(file->cluster.profiles.size(), 2U);
}

TEST(ClusterProfiles, FilesLieBesideTheClusterFile) {
  const std::filesystem::path folder =
      std::filesystem::path(::testing::TempDir()) / "agpcs_cluster_profile_test";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "lab.yaml") << print_profile(small_profile());
  std::ofstream(folder / "c.yaml") << kMeasured;
  const Result<ClusterFile> file = read_cluster((folder / "c.yaml").string());
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->cluster.profiles[0].digest, small_profile().digest);
  std::filesystem::remove_all(folder);
}

TEST(BadClusterProfiles, AFileThatCannotBeReadIsNamedAtItsFirstPlace) {
  EXPECT_EQ(error_of(with(with(kMeasured, "lab.yaml", "lost.yaml"), "{memory: 4GiB}",
                          "{memory: 4GiB, profile: lost.yaml}")),
            "in/c.yaml:1:10: error: profile 'lost.yaml' cannot be used\n"
            "    profile: lost.yaml\n"
            "             ^~~~~~~~~\n"
            "in/lost.yaml: error: cannot be opened");
}

TEST(BadClusterProfiles, AReferenceSaysWhatTheFileHas) {
  EXPECT_EQ(error_of(with(kMeasured, "{memory: 4GiB}", "{memory: 4GiB, profile: lab.yaml#cpv}")),
            "in/c.yaml:3:32: error: profile 'lab.yaml' has no device 'cpv'\n"
            "    cpu: {memory: 4GiB, profile: lab.yaml#cpv}\n"
            "                                 ^~~~~~~~~~~~\n"
            "  hint: did you mean 'cpu'? its devices: cpu");
  EXPECT_THAT(error_of(with(kMeasured, "{memory: 4GiB}", "{memory: 4GiB, profile: net.yaml}")),
              HasSubstr("error: profile 'net.yaml' has no device 'cpu'\n"
                        "    cpu: {memory: 4GiB, profile: net.yaml}\n"
                        "                                 ^~~~~~~~\n"
                        "  hint: it has no devices"));
  EXPECT_EQ(error_of(with(kMeasured, "{bandwidth: 1Gbit/s}", "{profile: lab.yaml#c}")),
            "in/c.yaml:5:52: error: profile 'lab.yaml' has no link 'c nic out'\n"
            "    - {name: a, devices: {kind: cpu}, nic: {profile: lab.yaml#c}}\n"
            "                                                     ^~~~~~~~~~\n"
            "  hint: did you mean 'a nic out'? its links: a nic out, a/0 out, b nic in, b/0 in");
  EXPECT_THAT(error_of(with(kMeasured, "{bandwidth: 1Gbit/s}", "{profile: fast.yaml}")),
              HasSubstr("profile 'fast.yaml' has no link 'a nic out'\n"));
  EXPECT_THAT(error_of(with(kForeign, "to: y, bandwidth: 1Gbit/s", "to: y, profile: lab.yaml")),
              HasSubstr("profile 'lab.yaml' has no link 'x -> y'\n"));
}

TEST(BadClusterProfiles, AKindWithoutFiguresNeedsMeasuredOperators) {
  EXPECT_EQ(error_of(with(kMeasured, "lab.yaml", "net.yaml")),
            "in/c.yaml:3:8: error: device kind 'cpu' lacks 'memory_bandwidth'\n"
            "    cpu: {memory: 4GiB}\n"
            "         ^\n"
            "  hint: no profile has operators of a device 'cpu' either\n"
            "in/c.yaml:3:8: error: device kind 'cpu' lacks 'peak'\n"
            "    cpu: {memory: 4GiB}\n"
            "         ^\n"
            "  hint: no profile has operators of a device 'cpu' either");
}

TEST(BadClusterProfiles, AnotherPrecisionIsRefusedWithBoth) {
  EXPECT_EQ(error_of(std::string(kMeasured) + "training: {precision: fp16}\n"),
            "in/c.yaml:3:3: error: device kind 'cpu' was measured in fp32, but the training is in "
            "fp16\n"
            "    cpu: {memory: 4GiB}\n"
            "    ^~~\n"
            "  hint: profile it in fp16, or train in fp32");
}

TEST(BadClusterProfiles, WholeFilesAreNamedWithoutAnEntry) {
  EXPECT_EQ(
      error_of(with(kMeasured, "lab.yaml", "lab.yaml#cpu").substr(0, 22) + std::string(kForeign)),
      "in/c.yaml:1:10: error: the cluster's profile is a whole file, without '#'\n"
      "    profile: lab.yaml#cpu\n"
      "             ^~~~~~~~~~~~\n"
      "  hint: an entry is chosen where it is used: at a device kind or a link");
  EXPECT_THAT(error_of(std::string(kMeasured) + "network: {profile: net.yaml#a}\n"),
              StartsWith("in/c.yaml:7:20: error: the network's profile is a whole file, without "
                         "'#'\n"));
  EXPECT_THAT(error_of(std::string(kMeasured) + "network: {profile: fast.yaml}\n"),
              StartsWith("in/c.yaml:7:20: error: profile 'fast.yaml' has no paths and no "
                         "collectives\n"));
  EXPECT_THAT(error_of(with(kMeasured, "lab.yaml", "{a: b}")),
              StartsWith("in/c.yaml:1:10: error: 'profile' must be a file, is a map\n"
                         "    profile: {a: b}\n"
                         "             ^\n"
                         "  hint: as in profile: lab.yaml, or lab.yaml#v100 for its entry 'v100'"));
}

TEST(BadClusterProfiles, AFileThatNothingRefersToIsAWarning) {
  const Result<ClusterFile> file = parse("profile: fast.yaml\n" + std::string(kForeign));
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_EQ(file->warnings,
            "in/c.yaml:1:10: warning: nothing of the cluster is in profile 'fast.yaml'\n"
            "    profile: fast.yaml\n"
            "             ^~~~~~~~~\n"
            "  hint: its devices: cpu");
}

}  // namespace
}  // namespace agpcs
