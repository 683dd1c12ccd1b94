// SPDX-License-Identifier: Apache-2.0
#include "tools/run/compiler_replanner.h"

#include "cost_model/fit/calibrate.h"
#include "ir/plan/lookup.h"
#include "planner/plan_problem.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/planner/problem/problems.h"
#include "tests/support/team_models.h"
#include "tools/run/replan.h"

#include <agpcs/digest.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <signal.h>
#include <string>
#include <sys/resource.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::chain;
using testing::cluster_of;
using ::testing::HasSubstr;

const std::atomic<bool> kGoOn = false;

Cluster four_equal() {
  return cluster_of(
      "kind k fp32=5e12 bandwidth=300e9\n"
      "host a k 2 nic=3e9\nhost b k 2 nic=3e9\n");
}

Graph graph() { return chain(6, 512); }
// So many samples that each device is worth what it computes.
constexpr std::int64_t kBatch = 1 << 18;

/// Planned as agpcs-compile does without a search, for all devices.
Plan planned(const Cluster& cluster) {
  ProblemOptions wanted;
  wanted.ranks = Ranks::kAll;
  const auto problem = testing::problem_of(graph(), cluster, kBatch, wanted);
  return plan_problem(*problem, {})->best.plan;
}

std::unique_ptr<CompilerReplanner> replanner_of(const Plan& plan, const Cluster& cluster,
                                                double least_gain = 0.03) {
  ReplanOptions options;
  options.least_gain = least_gain;
  options.budget = 200;
  return *make_compiler_replanner(plan, graph(), cluster, options);
}

HardwareReport computes(int rank, double factor) {
  HardwareReport report;
  report.step = 120;
  report.changes = {{Quantity::kCompute, rank, factor, 100}};
  return report;
}

/// The NIC of a takes `times` as long, as probes between each two ranks see it.
HardwareReport thin_nic(double times) {
  HardwareReport report;
  for (int from = 0; from < 4; ++from) {
    for (int to = 0; to < 4; ++to) {
      if (from == to) continue;
      const bool far = from / 2 != to / 2;
      report.before.push_back({from, to, far ? 3e-10 : 2e-11, 3e-5});
      report.now.push_back({from, to, far ? times * 3e-10 : 2.1e-11, 3.3e-5});
    }
  }
  return report;
}

TEST(CompilerReplanner, TellsDevicesAndLinksFromAReport) {
  const Cluster cluster = four_equal();
  const Plan plan = planned(cluster);
  HardwareReport report = thin_nic(4);
  report.changes = {{Quantity::kCompute, 3, 2.5, 100}, {Quantity::kAllReduce, 0, 3.9, 100}};
  const auto drift = drift_of(plan, report, cluster);
  ASSERT_TRUE(drift.ok()) << drift.status().message();
  EXPECT_EQ(print_drift(cluster, *drift),
            "device b/1 computes 2.5 times as long\n"
            "link 'a nic out' takes 4 times as long for a byte, 1 times the latency\n"
            "link 'a nic in' takes 4 times as long for a byte, 1 times the latency\n");
}

TEST(CompilerReplanner, DevicesThatDidNotChangeAreTakenAsMeasuredToo) {
  const Cluster cluster = four_equal();
  HardwareReport report = computes(1, 2.2);  // of what is normal, which is 1.2
  report.computing = {1.01, 2.64, 1.2, 0.98};
  const HardwareDrift drift = *drift_of(planned(cluster), report, cluster);
  EXPECT_EQ(print_drift(cluster, compose({}, drift)),
            "device a/1 computes 2.64 times as long\ndevice b/0 computes 1.2 times as long\n");
}

TEST(CompilerReplanner, RoutesThatWereNotProbedBeforeTellNothing) {
  const Cluster cluster = four_equal();
  HardwareReport report = thin_nic(4);
  report.before.clear();
  EXPECT_EQ(*drift_of(planned(cluster), report, cluster), HardwareDrift());
}

TEST(CompilerReplanner, PlansForASlowDeviceOnTheSameRanks) {
  const Cluster cluster = four_equal();
  Plan plan = planned(cluster);
  plan.model = "net";  // as its file was called when it was compiled
  const auto replanner = replanner_of(plan, cluster);
  EXPECT_EQ(replanner->hardware_text(), "");
  const auto found = replanner->replan(plan, computes(1, 2.5), kGoOn);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
  const Replan& better = **found;
  EXPECT_LT(better.step_seconds, 0.97 * better.running_step_seconds);
  EXPECT_EQ(devices_of_ranks(better.plan), devices_of_ranks(plan));
  EXPECT_EQ(better.plan.model_digest, plan.model_digest);
  EXPECT_EQ(better.plan.model, "net");
  EXPECT_NE(better.plan.cluster_digest, plan.cluster_digest);
  EXPECT_EQ(verify_plan(better.plan).message(), "");
  EXPECT_THAT(replanner->hardware_text(), HasSubstr("device a/1 computes 2.5 times as long\n"));
  EXPECT_THAT(replanner->hardware_text(), HasSubstr(digest_of(print_plan(plan))));
}

// A single sample, which a team computes fastest.
TEST(CompilerReplanner, AJobThatBeganWithTeamsMayHaveOthersAndOneWithoutHasNone) {
  const Cluster cluster = cluster_of(
      "kind gpu memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "host a gpu 4 bandwidth=300e9 latency=1e-6\n");
  for (const bool teams : {true, false}) {
    ProblemOptions wanted;
    wanted.ranks = Ranks::kAll;
    wanted.choose_teams = teams;
    Graph graph = testing::gpt_graph({2, 256, 1024, 16, 16, 4096, 1000, false});
    const auto problem = testing::problem_of(Graph(graph), cluster, 1, wanted);
    const Plan plan = plan_problem(*problem, {})->best.plan;
    EXPECT_EQ(plan.bodies.empty(), !teams);
    ReplanOptions options;
    options.budget = 10;
    const auto replanner = *make_compiler_replanner(plan, std::move(graph), cluster, options);
    const auto found = replanner->replan(plan, computes(1, 2), kGoOn);
    ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
    EXPECT_EQ((*found)->plan.bodies.empty(), !teams);
    EXPECT_EQ(devices_of_ranks((*found)->plan), devices_of_ranks(plan));
    EXPECT_EQ(verify_plan((*found)->plan).message(), "");
    if (!teams) continue;
    // The next one begins from the first.
    const auto next = replanner->replan((*found)->plan, computes(1, 0.5), kGoOn);
    ASSERT_TRUE(next.ok() && next->has_value()) << next.status().message();
    EXPECT_EQ((*next)->plan.bodies.empty(), !teams);
  }
}

TEST(CompilerReplanner, PlansWhereNoDeviceOfAKindIsAsItWas) {
  const Cluster cluster = cluster_of(
      "kind k fp32=5e12 bandwidth=300e9\nkind l fp32=5e12 bandwidth=300e9\n"
      "host a k 2 nic=3e9\nhost b l 2 nic=3e9\n");
  const Plan plan = planned(cluster);
  HardwareReport report = computes(1, 2.5);
  report.computing = {1.2, 2.5, 1, 1};
  const auto found = replanner_of(plan, cluster)->replan(plan, report, kGoOn);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
  EXPECT_EQ(verify_plan((*found)->plan).message(), "");
}

/// A device takes `slower` times as long, and then `back` times what the plan for that expects: the
/// hardware is as it was.
void expect_the_first_cluster_after(double slower, double back) {
  const Cluster cluster = four_equal();
  const Plan plan = planned(cluster);
  const auto replanner = replanner_of(plan, cluster, -100);
  const Plan slow = (*replanner->replan(plan, computes(1, slower), kGoOn))->plan;
  const auto last = replanner->replan(slow, computes(1, back), kGoOn);
  ASSERT_TRUE(last.ok() && last->has_value()) << last.status().message();
  EXPECT_EQ((*last)->plan.cluster_digest, plan.cluster_digest);
}

TEST(CompilerReplanner, ReportsAreRelativeToThePlanThatRuns) {
  expect_the_first_cluster_after(2.5, 0.41);
}

// A slow step takes 3 times as long, and a probe of the idle device then 2.5 times less.
TEST(CompilerReplanner, ADeviceThatIsAboutAsFastAsBeforeIsTakenToBeAsItWas) {
  expect_the_first_cluster_after(3, 0.4);
}

// Device a/1 was a little faster than the plan has it, and has become slower.
TEST(CompilerReplanner, ADeviceThatHasBecomeSlowIsNotTakenToBeAsItWas) {
  const Cluster cluster = four_equal();
  HardwareReport report = computes(1, 1.45);
  report.computing = {0.85, 1.23, 0.85, 0.85};
  const Plan plan = planned(cluster);
  const auto replanner = replanner_of(plan, cluster, -100);
  ASSERT_TRUE(replanner->replan(plan, report, kGoOn).ok());
  EXPECT_THAT(replanner->hardware_text(), HasSubstr("device a/1 computes 1.23 times as long\n"));
}

// Where a profile tells how fast devices are, those that did not change differ by what they have in
// common; b/1 is too far from it.
TEST(CompilerReplanner, ProfiledDevicesThatDidNotChangeDifferByWhatTheyHaveInCommon) {
  const auto work = [](OpClass, double flops, double bytes) {
    return 1e-6 + 1e-12 * flops + 1e-11 * bytes;
  };
  DeviceProfile device = testing::measured_device("k", graph(), {1024, 65536}, work, work);
  const Cluster cluster = calibrate(testing::with_device(four_equal(), device))->cluster;
  HardwareReport report = computes(1, 2.5);
  report.computing = {1.1, 3, 1.2, 2};
  const Plan plan = planned(cluster);
  const auto replanner = replanner_of(plan, cluster, -100);
  const auto found = replanner->replan(plan, report, kGoOn);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_THAT(replanner->hardware_text(), HasSubstr("device a/0 computes 1.2 times as long\n"
                                                    "device a/1 computes 3 times as long\n"
                                                    "device b/0 computes 1.2 times as long\n"
                                                    "device b/1 computes 2 times as long\n"));
}

TEST(CompilerReplanner, DevicesThatNoRankHasStayOutAndInTheClustersDigest) {
  const Cluster cluster = cluster_of(
      "kind k fp32=5e12 bandwidth=300e9\n"
      "host a k 2 nic=3e9\nhost b k 2 nic=3e9\n"
      "host far k 1 nic=1e6\n");
  Plan plan = planned(four_equal());
  plan.cluster_digest = digest_of(print_cluster(cluster));
  const auto replanner = replanner_of(plan, cluster, -100);
  const Plan slow = (*replanner->replan(plan, computes(1, 2.5), kGoOn))->plan;
  EXPECT_EQ(devices_of_ranks(slow), devices_of_ranks(plan));
  EXPECT_EQ((*replanner->replan(slow, computes(1, 0.4), kGoOn))->plan.cluster_digest,
            plan.cluster_digest);
  EXPECT_THAT(replanner->hardware_text(), HasSubstr("far/0 has no rank, so no plan may use it\n"));
}

TEST(CompilerReplanner, SameReportSamePlan) {
  const Cluster cluster = four_equal();
  const Plan plan = planned(cluster);
  const auto text = [&] {
    return print_plan((*replanner_of(plan, cluster, -100)->replan(plan, thin_nic(4), kGoOn))->plan);
  };
  EXPECT_EQ(text(), text());
}

TEST(CompilerReplanner, WhereNothingChangedThereIsNoPlan) {
  const Cluster cluster = four_equal();
  const Plan plan = planned(cluster);
  const auto found = replanner_of(plan, cluster, -100)->replan(plan, computes(1, 1.02), kGoOn);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_FALSE(found->has_value());
}

TEST(CompilerReplanner, LostRanksAreNotPlannedFor) {
  const Cluster cluster = four_equal();
  const Plan plan = planned(cluster);
  ASSERT_EQ(plan.rank_count(), 4);
  HardwareReport report;
  report.lost_ranks = {1};
  const auto replanner = replanner_of(plan, cluster, -100);
  const auto found = replanner->replan(plan, report, kGoOn);
  ASSERT_TRUE(found.ok() && found->has_value()) << found.status().message();
  EXPECT_EQ(devices_of_ranks((*found)->plan), (std::vector<std::string>{"a/0", "b/0", "b/1"}));
  EXPECT_TRUE(std::isinf((*found)->running_step_seconds));
  // Nor later.
  const auto later = replanner->replan((*found)->plan, computes(0, 3), kGoOn);
  ASSERT_TRUE(later.ok() && later->has_value()) << later.status().message();
  EXPECT_EQ(devices_of_ranks((*later)->plan), (std::vector<std::string>{"a/0", "b/0", "b/1"}));
  report.lost_ranks = {0, 1, 2, 3};
  EXPECT_EQ(replanner->replan(plan, report, kGoOn).status().message(),
            "no device is left to plan for");
}

TEST(CompilerReplanner, AnotherClusterOrModelIsRefusedWithBothDigests) {
  const Plan plan = planned(four_equal());
  const Cluster other = cluster_of("kind k fp32=5e12\nhost a k 4\n");
  const Status cluster = make_compiler_replanner(plan, graph(), other).status();
  EXPECT_THAT(cluster.message(), HasSubstr("cluster with digest " + plan.cluster_digest));
  EXPECT_THAT(cluster.message(), HasSubstr(digest_of(print_cluster(other))));
  const Status model = make_compiler_replanner(plan, chain(5, 512), four_equal()).status();
  EXPECT_THAT(model.message(), HasSubstr("model with digest " + plan.model_digest));
}

std::filesystem::path empty_folder(const std::string& name) {
  std::filesystem::path folder = std::filesystem::path(::testing::TempDir()) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

TEST(WriteProposal, NeverOverwrites) {
  const std::filesystem::path folder = empty_folder("agpcs_write_proposal");
  const Plan plan = planned(four_equal());
  const std::string old = (folder / "net.plan").string();
  EXPECT_EQ(*write_proposal(old, 120, plan, "one\n"), (folder / "net.replan-120.plan").string());
  EXPECT_EQ(*write_proposal(old, 120, plan, "two\n"), (folder / "net.replan-120-2.plan").string());
  const auto text = [&](const char* name) {
    std::ifstream file(folder / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  EXPECT_EQ(text("net.replan-120.plan"), print_plan(plan));
  EXPECT_EQ(text("net.replan-120.hardware.txt"), "one\n");
  EXPECT_EQ(text("net.replan-120-2.hardware.txt"), "two\n");
  EXPECT_THAT(write_proposal((folder / "no/net.plan").string(), 1, plan, "").status().message(),
              HasSubstr("net.replan-1.plan: cannot be written: No such file"));
  std::filesystem::remove_all(folder);
}

// As on a disk that is full: half a plan could be taken for one.
TEST(WriteProposal, LeavesNoPartOfAPlan) {
  const std::filesystem::path folder = empty_folder("agpcs_write_part");
  const Plan plan = planned(four_equal());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit little{100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const auto written = write_proposal((folder / "net.plan").string(), 1, plan, "");
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(written.status().message(),
              HasSubstr("net.replan-1.plan: cannot be written: File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace agpcs
