// SPDX-License-Identifier: Apache-2.0
// agpcs-run --elastic as a launcher starts it: jobs of three ranks, some of which come to harm.
#include "tests/tools/process.h"
#include "tests/tools/run/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <signal.h>
#include <sstream>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::seconds;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;
using Clock = std::chrono::steady_clock;

constexpr int kSize = 3, kSteps = 60;

// Loss by step, of --json's lines.
std::map<int, double> losses_of(const std::string& output) {
  std::map<int, double> losses;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    const std::string step = "\"step\": ", loss = "\"loss\": ";
    const std::size_t at = line.find(step), value = line.find(loss);
    if (at == std::string::npos || value == std::string::npos) continue;
    losses[std::atoi(line.c_str() + at + step.size())] =
        std::atof(line.c_str() + value + loss.size());
  }
  return losses;
}

class RunKeepers : public RunJobs {
 protected:
  void SetUp() override {
    cluster_ = folder_ / "three.yaml";
    std::ofstream(cluster_)
        << "name: three\n"
           "device_kinds:\n"
           "  core: {memory: 2GiB, memory_bandwidth: 10GB/s, peak: {fp32: 50GFLOPS}}\n"
           "hosts:\n"
           "  - name: local\n"
           "    devices: {kind: core, count: 3}\n"
           "    interconnect: {kind: tcp, bandwidth: 2GB/s, latency: 50us}\n"
           "training: {batch: 48, loss: softmax_cross_entropy, optimizer: {kind: sgd, momentum: "
           "0.9}}\n";
    plan_ = compile("net.plan", {"--seeder", "data_parallel", "--refiner", "none"}, cluster_);
    save_ = folder_ / "checkpoints";
  }

  std::vector<std::string> command(int steps, const std::vector<std::string>& more) const {
    std::vector<std::string> argv{
        kRun, plan_, kModel, "--json", "--steps", std::to_string(steps), "--threads", "1"};
    argv.insert(argv.end(), more.begin(), more.end());
    return argv;
  }
  /// All keepers of a job, as a launcher starts them. `more` by rank, or the same for all.
  void launch(int steps = kSteps, const std::vector<std::string>& more = {}) {
    port_ = free_port();
    std::vector<std::string> argv =
        command(steps, {"--elastic", "--replan", cluster_, "--save", save_, "--save-every",
                        std::to_string(save_every_)});
    argv.insert(argv.end(), more.begin(), more.end());
    for (int rank = 0; rank < kSize; ++rank)
      keepers_.emplace_back(argv, rank_of(rank, kSize, port_));
  }
  Process& keeper(int rank) { return keepers_[static_cast<std::size_t>(rank)]; }
  /// The rank's process.
  pid_t rank(int rank) {
    const std::vector<pid_t> children = keeper(rank).children();
    EXPECT_EQ(children.size(), 1U);
    return children.empty() ? -1 : children.front();
  }
  std::vector<pid_t> ranks() {
    std::vector<pid_t> pids;
    for (int i = 0; i < kSize; ++i) pids.push_back(rank(i));
    return pids;
  }
  /// A rank that has ended has pid -1 here, which stands for every process of the machine.
  static void signal_process(pid_t pid, int number) {
    ASSERT_GT(pid, 0);
    ASSERT_EQ(kill(pid, number), 0);
  }
  void signal_rank(int rank_number, int number) { signal_process(rank(rank_number), number); }
  void wait_for_checkpoint() {
    ASSERT_TRUE(keeper(0).wait_for_output("\"event\": \"saved\"")) << keeper(0).errors();
  }
  void expect_all_train_to_the_end() {
    for (Process& process : keepers_) {
      EXPECT_EQ(process.wait(seconds(120)), 0) << process.errors();
    }
  }
  /// That the port of the job, and the one after, are free again.
  void expect_free_ports() const {
    for (const int port : {port_, port_ + 1}) EXPECT_TRUE(listen_at("", port).ok()) << port;
  }
  /// That the job's losses, of all generations, are those of a job that nothing happened to.
  void expect_losses(const std::string& output) {
    Process undisturbed(command(kSteps, {"--transport", "loopback"}));
    ASSERT_EQ(undisturbed.wait(), 0) << undisturbed.errors();
    const auto expected = losses_of(undisturbed.output()), got = losses_of(output);
    ASSERT_EQ(expected.size(), static_cast<std::size_t>(kSteps));
    for (const auto& [step, loss] : got) {
      EXPECT_NEAR(loss, expected.at(step), 1e-4 * expected.at(step)) << "step " << step;
    }
    EXPECT_EQ(got.size(), expected.size());
  }

  std::string cluster_, plan_, save_;
  int port_ = 0, save_every_ = 5;
  std::deque<Process> keepers_;
};

TEST_F(RunKeepers, TrainAndLeaveNothingBehind) {
  launch();
  wait_for_checkpoint();
  const std::vector<pid_t> pids = ranks();
  expect_all_train_to_the_end();
  for (const pid_t pid : pids) EXPECT_TRUE(wait_until_gone(pid, seconds(0)));
  expect_free_ports();
  expect_losses(keeper(0).output());
  for (const auto& entry : std::filesystem::directory_iterator(save_)) {
    EXPECT_THAT(entry.path().filename().string(), testing::StartsWith("step-"));
  }
}

TEST_F(RunKeepers, GoOnWithoutARankThatIsKilled) {
  launch();
  wait_for_checkpoint();
  ASSERT_NO_FATAL_FAILURE(signal_rank(1, SIGKILL));
  expect_all_train_to_the_end();
  EXPECT_THAT(keeper(0).errors(), HasSubstr("rank 1 (local/1) was killed by signal 9"));
  EXPECT_THAT(keeper(0).errors(), HasSubstr("training goes on without rank 1 (local/1), by " +
                                            (folder_ / "net.without-1.plan").string()));
  EXPECT_THAT(keeper(0).output(), HasSubstr("\"ranks\": 2"));
  expect_losses(keeper(0).output());
  expect_free_ports();
}

TEST_F(RunKeepers, GoOnOnAnotherMachineWithoutRank0) {
  launch();
  wait_for_checkpoint();
  ASSERT_NO_FATAL_FAILURE(signal_rank(0, SIGKILL));
  expect_all_train_to_the_end();
  EXPECT_THAT(keeper(1).output(), HasSubstr("\"ranks\": 2"));  // its rank is rank 0 now
  expect_losses(keeper(0).output() + keeper(1).output());
}

TEST_F(RunKeepers, GoOnWithoutAKeeperAndThenWithoutAnother) {
  launch();
  wait_for_checkpoint();
  const pid_t orphan = rank(1);
  keeper(1).signal(SIGKILL);
  EXPECT_EQ(keeper(1).wait(), 128 + SIGKILL);
  EXPECT_TRUE(wait_until_gone(orphan));
  ASSERT_TRUE(keeper(0).wait_for_output("\"ranks\": 2", seconds(120))) << keeper(0).errors();
  EXPECT_THAT(keeper(0).errors(),
              ContainsRegex("the starter of rank 1 \\(local/1[^)]*\\) went away: its connection"));
  const std::vector<pid_t> left = keeper(2).children();
  ASSERT_EQ(left.size(), 1U);
  ASSERT_NO_FATAL_FAILURE(signal_process(left.front(), SIGKILL));
  for (const int i : {0, 2}) EXPECT_EQ(keeper(i).wait(seconds(120)), 0) << keeper(i).errors();
  EXPECT_THAT(keeper(0).output(), HasSubstr("\"ranks\": 1"));
  expect_losses(keeper(0).output());
  expect_free_ports();
}

TEST_F(RunKeepers, GoOnWithoutARankThatStalls) {
  launch();
  wait_for_checkpoint();
  const pid_t stopped = rank(2);
  ASSERT_NO_FATAL_FAILURE(signal_process(stopped, SIGSTOP));
  expect_all_train_to_the_end();
  EXPECT_TRUE(wait_until_gone(stopped, seconds(0)));
  EXPECT_THAT(keeper(0).errors(), HasSubstr("training goes on without rank 2 (local/2)"));
  expect_losses(keeper(0).output());
}

TEST_F(RunKeepers, GoOnWithoutAKeeperThatStalls) {
  launch();
  wait_for_checkpoint();
  const pid_t orphan = rank(1);
  keeper(1).signal(SIGSTOP);
  for (const int i : {0, 2}) EXPECT_EQ(keeper(i).wait(seconds(120)), 0) << keeper(i).errors();
  EXPECT_THAT(keeper(0).errors(), HasSubstr("stalled: not heard from for"));
  keeper(1).signal(SIGCONT);
  EXPECT_EQ(keeper(1).wait(), 1);
  EXPECT_THAT(keeper(1).errors(), HasSubstr("the others go on without it"));
  EXPECT_TRUE(wait_until_gone(orphan, seconds(0)));
  expect_losses(keeper(0).output());
}

TEST_F(RunKeepers, AllEndWhenThatOfRank0IsLost) {
  launch(100000000);
  wait_for_checkpoint();
  const std::vector<pid_t> pids = ranks();
  const auto begin = Clock::now();
  keeper(0).signal(SIGKILL);
  for (const int i : {1, 2}) {
    EXPECT_EQ(keeper(i).wait(), 1);
    EXPECT_THAT(keeper(i).errors(),
                ContainsRegex("agpcs-run: error: the starter of rank 0 \\(local/0[^)]*\\) went "
                              "away: its connection was lost\n  hint: .*--resume"));
  }
  EXPECT_LT(Clock::now() - begin, seconds(10));
  for (const pid_t pid : pids) EXPECT_TRUE(wait_until_gone(pid));
  expect_free_ports();
}

TEST_F(RunKeepers, AllEndWhenARankFailsByItself) {
  launch(100000000, {"--data", "no/such.npy"});
  for (int i = 0; i < kSize; ++i) {
    EXPECT_EQ(keeper(i).wait(), 1);
    EXPECT_THAT(keeper(i).errors(), HasSubstr("no/such.npy"));
    EXPECT_THAT(keeper(i).errors(), Not(HasSubstr("goes on without")));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "net.without-0.plan"));
  expect_free_ports();
}

TEST_F(RunKeepers, AllEndWhenARankCrashes) {
  launch(100000000);
  wait_for_checkpoint();
  ASSERT_NO_FATAL_FAILURE(signal_rank(1, SIGABRT));
  for (int i = 0; i < kSize; ++i) {
    EXPECT_EQ(keeper(i).wait(), 1);
    EXPECT_THAT(keeper(i).errors(), HasSubstr("rank 1 (local/1) crashed: signal 6 (Aborted)"));
    EXPECT_THAT(keeper(i).errors(), Not(HasSubstr("goes on without")));
  }
  expect_free_ports();
}

TEST_F(RunKeepers, GoOnFromWhatTheyWereResumedFromUntilTheyHaveSaved) {
  const std::string old = folder_ / "old";
  Process before(command(5, {"--transport", "loopback", "--save", old}));
  ASSERT_EQ(before.wait(), 0) << before.errors();
  save_every_ = 100000000;
  launch(100000000, {"--resume", old});
  ASSERT_TRUE(keeper(0).wait_for_output("\"step\": 9,")) << keeper(0).errors();
  ASSERT_NO_FATAL_FAILURE(signal_rank(1, SIGKILL));
  ASSERT_TRUE(keeper(0).wait_for_output("\"ranks\": 2")) << keeper(0).errors();
  keeper(0).signal(SIGTERM);
  for (int i = 0; i < kSize; ++i) keeper(i).wait();
  EXPECT_THAT(keeper(0).errors(), Not(HasSubstr("begins at step 0")));
  EXPECT_THAT(keeper(0).output(), Not(HasSubstr("\"step\": 0,")));
}

TEST_F(RunKeepers, GoOnByAPlanBesideTheirCheckpointsWhereThePlansFolderIsGone) {
  const std::filesystem::path plans = folder_ / "plans";
  std::filesystem::create_directory(plans);
  std::filesystem::rename(plan_, plans / "net.plan");
  plan_ = plans / "net.plan";
  launch();
  wait_for_checkpoint();
  std::filesystem::remove_all(plans);
  ASSERT_NO_FATAL_FAILURE(signal_rank(1, SIGKILL));
  expect_all_train_to_the_end();
  EXPECT_THAT(keeper(0).errors(), HasSubstr("by " + save_ + "/net.without-1.plan\n"));
}

TEST_F(RunKeepers, DoNotStopForSignalsThatTheyWereStartedToIgnore) {
  port_ = free_port();
  const std::vector<std::string> argv =
      ignoring("HUP INT", command(100000000, {"--elastic", "--replan", cluster_, "--save", save_}));
  for (int i = 0; i < kSize; ++i) keepers_.emplace_back(argv, rank_of(i, kSize, port_));
  ASSERT_TRUE(keeper(0).wait_for_output("\"step\": 3,")) << keeper(0).errors();
  std::vector<pid_t> all = ranks();
  for (const Process& process : keepers_) all.push_back(process.pid());
  for (const pid_t pid : all) {
    for (const int ignored : {SIGHUP, SIGINT}) {
      ASSERT_NO_FATAL_FAILURE(signal_process(pid, ignored));
    }
  }
  EXPECT_TRUE(keeper(0).wait_for_output("\"step\": 100,")) << keeper(0).errors();
  keeper(1).signal(SIGTERM);
  for (int i = 0; i < kSize; ++i) EXPECT_EQ(keeper(i).wait(), 130) << keeper(i).errors();
}

TEST_F(RunKeepers, StopTogetherWhenOneIsAsked) {
  launch(100000000);
  wait_for_checkpoint();
  const std::vector<pid_t> pids = ranks();
  ASSERT_NO_FATAL_FAILURE(signal_rank(2, SIGHUP));  // as one of a group
  keeper(2).signal(SIGHUP);
  for (int i = 0; i < kSize; ++i) {
    EXPECT_EQ(keeper(i).wait(), 130);
    EXPECT_THAT(keeper(i).errors(), HasSubstr("a signal asked for it; saved in " + save_));
  }
  for (const pid_t pid : pids) EXPECT_TRUE(wait_until_gone(pid, seconds(0)));
}

TEST_F(RunKeepers, StopWhenOneWithoutARankIsAsked) {
  launch(100000000);
  wait_for_checkpoint();
  ASSERT_NO_FATAL_FAILURE(signal_rank(1, SIGKILL));
  ASSERT_TRUE(keeper(0).wait_for_output("\"ranks\": 2", seconds(120))) << keeper(0).errors();
  ASSERT_TRUE(keeper(0).wait_for_output("\"event\": \"resumed\"", seconds(120)));
  keeper(1).signal(SIGINT);
  for (int i = 0; i < kSize; ++i) EXPECT_EQ(keeper(i).wait(), 130) << keeper(i).errors();
}

TEST_F(RunKeepers, RefuseAFolderThatNotAllSee) {
  port_ = free_port();
  for (int rank = 0; rank < kSize; ++rank) {
    const std::string save = save_ + std::to_string(rank);
    keepers_.emplace_back(command(5, {"--elastic", "--replan", cluster_, "--save", save}),
                          rank_of(rank, kSize, port_));
  }
  for (int i = 0; i < kSize; ++i) {
    EXPECT_EQ(keeper(i).wait(), 1);
    EXPECT_THAT(keeper(i).errors(), ContainsRegex("rank [12] \\(local/[12]\\): --save .*checkpoints"
                                                  "[12] is not the folder that rank 0 sees\n"
                                                  "  hint: "));
  }
}

}  // namespace
}  // namespace agpcs
