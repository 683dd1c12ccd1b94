// SPDX-License-Identifier: Apache-2.0
// The files for NCCL's example tuner plugin, read back by the rules of the plugin.
#include "tools/plan/nccl_tuner.h"

#include "cost_model/network/link_model.h"
#include "frontend/cluster/file.h"
#include "tests/support/plan_builders.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/plan/says.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders

/// A configuration as the plugin keeps it.
struct Config {
  std::string collective;
  std::uint64_t least = 0, most = 0;
  std::string algorithm, protocol;
  int channels = 0, nodes = 0, ranks = 0, pipe_ops = -1, registered = -1;
};

/// The fields of a line. The plugin skips empty ones, and trims spaces and tabs.
std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream in(line);
  for (std::string field; std::getline(in, field, ',');) {
    if (field.empty()) continue;
    const std::size_t first = field.find_first_not_of(" \t"), last = field.find_last_not_of(" \t");
    fields.push_back(first == std::string::npos ? "" : field.substr(first, last - first + 1));
  }
  return fields;
}

/// Reads a file as the plugin documents it: comments begin with '#' in the first column, a line has
/// 8 to 10 fields and less than 256 characters. What the plugin would replace by a default (an
/// unknown word, too many fields) fails the test.
std::vector<Config> read_back(const std::string& csv) {
  const std::set<std::string> collectives = {"broadcast", "reduce", "allgather", "reducescatter",
                                             "allreduce"};
  const std::set<std::string> algorithms = {
      "tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat"};
  const std::set<std::string> protocols = {"ll", "ll128", "simple"};
  std::vector<Config> configs;
  std::istringstream in(csv);
  for (std::string line; std::getline(in, line);) {
    EXPECT_LT(line.size() + 1, 256U) << line;
    if (line.empty() || line[0] == '#') continue;
    const std::vector<std::string> f = fields_of(line);
    EXPECT_TRUE(f.size() >= 8 && f.size() <= 10) << line;
    if (f.size() < 8) continue;
    EXPECT_EQ(collectives.count(f[0]) + algorithms.count(f[3]) + protocols.count(f[4]), 3U) << line;
    Config config{f[0], std::strtoull(f[1].c_str(), nullptr, 10),
                  std::strtoull(f[2].c_str(), nullptr, 10), f[3], f[4]};
    config.channels = std::atoi(f[5].c_str());
    config.nodes = std::atoi(f[6].c_str());
    config.ranks = std::atoi(f[7].c_str());
    if (f.size() > 8) config.pipe_ops = std::atoi(f[8].c_str());
    if (f.size() > 9) config.registered = std::atoi(f[9].c_str());
    EXPECT_LE(config.least, config.most) << line;
    configs.push_back(config);
  }
  return configs;
}

/// What the plugin prefers for an all-reduce: the first configuration that matches. Without one,
/// NCCL's own costs stay ("nccl").
std::string preferred(const std::vector<Config>& configs, std::int64_t bytes, int nodes,
                      int ranks) {
  const auto size = static_cast<std::uint64_t>(bytes);
  for (const Config& c : configs) {
    if (c.collective != "allreduce" || size < c.least || size > c.most) continue;
    if (c.nodes != -1 && c.nodes != nodes) continue;
    if (c.ranks != -1 && c.ranks != ranks) continue;
    if (c.pipe_ops != -1 && c.pipe_ops != 1) continue;
    if (c.registered != -1 && c.registered != 0) continue;
    return c.algorithm;
  }
  return "nccl";
}

/// Gradients of 256 bytes, 16 KiB, 2 MiB and 64 MiB.
Graph four_sizes() {
  return graph_of(
      "input x [n,8]\nparameter a [8,8]\nparameter b [8,512]\nparameter c [512,1024]\n"
      "parameter d [1024,16384]\nh = MatMul(x, a) [n,8]\ni = MatMul(h, b) [n,512]\n"
      "j = MatMul(i, c) [n,1024]\nk = MatMul(j, d) [n,16384]\nl = ReduceSum(k) []\n"
      "outputs k\nloss l\n");
}

Cluster eight_hosts() {
  std::string text = "kind g memory=16e9 fp32=1e12\n";
  for (const char host : std::string("abcdefgh")) {
    text += std::string("host ") + host + " g 1 nic=3e9 nic-latency=50e-6\n";
  }
  return cluster_of(text);
}

const std::string kEverywhere =
    "micro-batches 1\nstage a/0=1 b/0=1 c/0=1 d/0=1 e/0=1 f/0=1 "
    "g/0=1 h/0=1 : *\n";

std::vector<DeviceId> all_devices(const Cluster& cluster) {
  std::vector<DeviceId> devices;
  for (DeviceId d = 0; d < cluster.device_count(); ++d) devices.push_back(d);
  return devices;
}

std::string modelled(const Cluster& cluster, const std::vector<DeviceId>& devices,
                     std::int64_t bytes) {
  const double ring = lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kRing, bytes));
  const double tree = lone_seconds(cluster, all_reduce(cluster, devices, AllReduce::kTree, bytes));
  return tree < ring ? "tree" : "ring";
}

TEST(NcclTuner, EveryGroupGetsTheAlgorithmOfThePlan) {
  const Cluster cluster = eight_hosts();
  for (const std::string order : {"ring ring tree tree", "tree tree ring ring",
                                  "ring tree ring tree", "tree ring tree ring"}) {
    std::istringstream words(order);
    std::string strategy = kEverywhere;
    for (const std::string weight : {"d", "c", "b", "a"}) {
      std::string algorithm;
      words >> algorithm;
      strategy += "bucket 0 " + algorithm + " " + weight + "\n";
    }
    const Plan plan = plan_of(four_sizes(), cluster, strategy, 8);
    const Result<std::string> csv = nccl_tuner_csv(plan, cluster, -1);
    ASSERT_TRUE(csv.ok()) << csv.status().message();
    const std::vector<Config> configs = read_back(*csv);
    ASSERT_EQ(plan.buckets.size(), 4U);
    for (const PlanBucket& bucket : plan.buckets) {
      EXPECT_EQ(preferred(configs, bucket.bytes(), 8, 8), name_of(bucket.algorithm))
          << order << "\n"
          << *csv;
    }
  }
}

TEST(NcclTuner, OtherSizesGetTheFasterOneToTheByte) {
  const Cluster cluster = eight_hosts();
  const Plan plan = plan_of(
      four_sizes(), cluster,
      kEverywhere + "bucket 0 hierarchical d\nbucket 0 hierarchical c b\nbucket 0 hierarchical a\n",
      8);
  const std::string csv = *nccl_tuner_csv(plan, cluster, -1);
  const std::vector<Config> configs = read_back(csv);
  ASSERT_GE(configs.size(), 2U) << csv;
  const std::vector<DeviceId> devices = all_devices(cluster);
  for (std::int64_t bytes = 256; bytes <= 64 << 20; bytes = bytes * 5 / 4 + 3) {
    EXPECT_EQ(preferred(configs, bytes, 8, 8), modelled(cluster, devices, bytes)) << bytes;
  }
  for (std::size_t i = 1; i < configs.size(); ++i) {
    EXPECT_EQ(configs[i].least, configs[i - 1].most + 1);
    const auto first = static_cast<std::int64_t>(configs[i].least);
    EXPECT_EQ(modelled(cluster, devices, first), configs[i].algorithm);
    EXPECT_EQ(modelled(cluster, devices, first - 1), configs[i - 1].algorithm);
  }
}

TEST(NcclTuner, SizesAndCommunicatorsOfOtherJobsKeepNcclsOwnChoice) {
  const Cluster cluster = eight_hosts();
  const Plan plan = plan_of(four_sizes(), cluster, kEverywhere + "bucket 0 tree d c b a\n", 8);
  const std::vector<Config> configs = read_back(*nccl_tuner_csv(plan, cluster, 4));
  const std::int64_t bytes = plan.buckets[0].bytes();
  EXPECT_EQ(preferred(configs, bytes, 8, 8), "tree");
  EXPECT_EQ(configs[0].channels, 4);
  EXPECT_EQ(preferred(configs, bytes - 1, 8, 8), "nccl");
  EXPECT_EQ(preferred(configs, bytes + 1, 8, 8), "nccl");
  EXPECT_EQ(preferred(configs, bytes, 4, 8), "nccl");
  EXPECT_EQ(preferred(configs, bytes, 8, 7), "nccl");
}

TEST(NcclTuner, StagesThatNcclCannotTellApartShareTheirLines) {
  const Cluster cluster = cluster_of(
      "kind g memory=16e9 fp32=1e12\nhost a g 2\nhost b g 2\nhost c g 3 bandwidth=1e9\n");
  const Graph graph = graph_of(
      "input x [n,8]\nparameter v [8,16]\nparameter w [16,8]\nparameter u [8,32]\n"
      "h = MatMul(x, v) [n,16]\ni = MatMul(h, w) [n,8]\nj = MatMul(i, u) [n,32]\n"
      "l = ReduceSum(j) []\noutputs j\nloss l\n");
  const Plan plan = plan_of(graph, cluster,
                            "micro-batches 1\nstage a/0=4 a/1=4 : h\nstage b/0=4 b/1=4 : i\n"
                            "stage c/0=4 c/1=2 c/2=2 : *\nbucket 0 ring v\nbucket 1 tree w\n"
                            "bucket 2 tree u\n",
                            8);
  EXPECT_EQ(
      *nccl_tuner_csv(plan, cluster, -1),
      "# made by agpcs-plan export --format nccl-tuner; the first line that matches counts\n"
      "# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n"
      "# b0: 512 bytes, ring in the plan\n"
      "# b1: 512 bytes, tree in the plan\n"
      "allreduce,512,512,ring,simple,-1,1,2,-1,-1\n"
      "# b2: 1024 bytes, tree in the plan\n"
      "allreduce,1024,1024,tree,simple,-1,1,3,-1,-1\n");
}

/// A plan for the cluster of a file, in a folder.
class NcclTunerCommand : public ::testing::Test {
 protected:
  PlanSays exported(const std::string& strategy, std::vector<std::string> options) const {
    const Result<ClusterFile> file = read_cluster(cluster_);
    AGPCS_CHECK(file.ok(), "{}", file.status().message());
    std::ofstream(plan_) << print_plan(plan_of(four_sizes(), file->cluster, strategy, 8));
    options.insert(options.begin(), {"export", plan_, "--format", "nccl-tuner"});
    return run(options);
  }

  const TempFolder temp_;
  const std::string plan_ = temp_ / "a.plan", cluster_ = "samples/clusters/v100x4-rtx3090x4.yaml";
};

const std::string kPaper = "micro-batches 1\nstage volta/0=4 ampere/0=4 : *\n";

TEST_F(NcclTunerCommand, WritesTheFile) {
  const PlanSays outcome =
      exported(kPaper + "bucket 0 ring d c b a\n", {"--cluster", cluster_, "--channels", "8"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(
      outcome.out,
      "# made by agpcs-plan export --format nccl-tuner; the first line that matches counts\n"
      "# colltype,minbytes,maxbytes,algorithm,protocol,channels,nNodes,nRanks,numPipeOps,regBuff\n"
      "# b0: 69222656 bytes, ring in the plan\n"
      "allreduce,69222656,69222656,ring,simple,8,2,2,-1,-1\n");
}

TEST_F(NcclTunerCommand, SaysWhichGroupsItHasNoWordsFor) {
  const PlanSays outcome =
      exported(kPaper + "bucket 0 hierarchical d c b a\n", {"--cluster", cluster_});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err,
            "agpcs-plan: warning: bucket b0 has algorithm=hierarchical, which NCCL's tuner has no "
            "words for: it gets the faster of ring and tree\n");
}

TEST_F(NcclTunerCommand, SaysWhatItNeeds) {
  const PlanSays none = exported(kPaper, {});
  EXPECT_EQ(none.code, 1);
  EXPECT_EQ(none.err,
            "agpcs-plan: error: --format nccl-tuner needs the cluster, whose links decide between "
            "ring and tree\n  hint: --cluster cluster.yaml\n");
  const PlanSays alone =
      exported("micro-batches 1\nstage volta/0=8 : *\n", {"--cluster", cluster_});
  EXPECT_EQ(alone.code, 1);
  EXPECT_EQ(alone.err,
            "agpcs-plan: error: the plan has no all-reduce to choose an algorithm for\n"
            "  hint: each of its stages has one rank\n");
  const PlanSays other = exported(kPaper, {"--cluster", "samples/clusters/local-2.yaml"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err,
              ::testing::HasSubstr("the plan is for cluster 'v100x4-rtx3090x4' (sha256:"));
  EXPECT_THAT(other.err,
              ::testing::EndsWith("  hint: give the cluster that the plan was made for, or "
                                  "compile again\n"));
}

}  // namespace
}  // namespace agpcs
