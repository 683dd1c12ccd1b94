// SPDX-License-Identifier: Apache-2.0
// agpcs-run as its users start it: with real processes, some of which come to harm.
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <signal.h>
#include <sstream>
#include <string>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::seconds;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

TEST_F(RunProcesses, TrainsAndSumsUpAndLeavesNobodyBehind) {
  Process process(local({"--steps", "6"}));
  ASSERT_TRUE(process.wait_for_output("samples/s"));
  const std::vector<pid_t> ranks = process.children();
  EXPECT_EQ(process.wait(), 0) << process.errors();
  EXPECT_THAT(process.output(), HasSubstr("small_cnn: batch 32 in 1 micro-batch, 2 ranks over "
                                          "tcp\n  s0 on local/0, local/1 (16:16)\n"));
  EXPECT_THAT(process.output(), HasSubstr("\n6 steps, median "));
  EXPECT_EQ(process.errors(), "");
  for (const pid_t pid : ranks) EXPECT_TRUE(wait_until_gone(pid, seconds(0)));
}

TEST_F(RunProcesses, GradientsMayTravelInFewerBytes) {
  const auto losses = [&](const std::vector<std::string>& more) {
    plan_ = compile("rounded.plan", more);
    Process process(local({"--steps", "4"}));
    EXPECT_EQ(process.wait(), 0) << process.errors();
    return process.output();
  };
  const std::string layout = "local/0:3,local/1:1";
  EXPECT_THAT(losses({"--layout", layout}), Not(HasSubstr("gradients travel")));
  for (const char* type : {"fp16", "bf16"}) {
    EXPECT_THAT(losses({"--layout", layout, "--wire-type", type}),
                HasSubstr("(24:8)\n  gradients travel in " + std::string(type) + "\n\n"));
  }
  Process process(local({"--steps", "1", "--json"}));
  EXPECT_EQ(process.wait(), 0) << process.errors();
  EXPECT_THAT(process.output(), HasSubstr("\"wire_type\": \"bf16\", \"transport\": \"tcp\""));
}

TEST_F(RunProcesses, ARankThatIsKilledEndsTheOthersAndIsNamed) {
  for (const std::size_t rank : {0U, 1U}) {
    Process process(endless());
    expect_quick_end(process, rank, SIGKILL);
    const std::string number = std::to_string(rank), other = std::to_string(1 - rank);
    EXPECT_THAT(process.errors(),
                testing::StartsWith("agpcs-run: error: rank " + number + " (local/" + number +
                                    ") was killed by signal 9 (Killed)\n  rank " + other +
                                    " (local/" + other + ")"));
  }
}

TEST_F(RunProcesses, ARankThatStallsEndsTheOthersAndIsNamed) {
  for (const std::size_t rank : {0U, 1U}) {
    Process process(endless({"--stall-limit", "3"}));
    expect_quick_end(process, rank, SIGSTOP);
    const std::string number = std::to_string(rank);
    EXPECT_THAT(process.errors(), HasSubstr("rank " + number + " (local/" + number +
                                            ") stalled: not heard from for 3"));
  }
}

TEST_F(RunProcesses, AnInterruptStopsAllRanksAfterTheSameStep) {
  for (const int harm : {SIGINT, SIGTERM}) {
    Process process(endless());
    ASSERT_TRUE(process.wait_for_output("\"step\": 3,"));
    const std::vector<pid_t> ranks = process.children();
    process.signal(harm);
    EXPECT_EQ(process.wait(), 130);
    EXPECT_THAT(
        process.errors(),
        testing::MatchesRegex("agpcs-run: error: stopped after [0-9]+ of 100000000 steps: a "
                              "signal asked for it\n"));
    EXPECT_THAT(process.output(), HasSubstr("\"event\": \"summary\""));
    for (const pid_t pid : ranks) EXPECT_TRUE(wait_until_gone(pid, seconds(0)));
  }
}

TEST_F(RunProcesses, ASecondInterruptEndsAllRanksAtOnce) {
  Process process(endless());
  ASSERT_TRUE(process.wait_for_output("\"step\": 3,"));
  const std::vector<pid_t> ranks = process.children();
  for (const pid_t pid : ranks) ASSERT_EQ(kill(pid, SIGSTOP), 0);  // so that they do not stop
  process.signal(SIGINT);
  process.signal(SIGTERM);  // taken for the same request
  EXPECT_EQ(process.wait(seconds(1)), -1);
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(seconds(5)), 130);
  EXPECT_THAT(process.errors(),
              testing::MatchesRegex("agpcs-run: error: stopped by .*; all ranks were ended\n"));
  for (const pid_t pid : ranks) EXPECT_TRUE(wait_until_gone(pid, seconds(0)));
}

TEST_F(RunProcesses, ARequestToOneRankOfALauncherStopsAll) {
  for (const int request : {SIGTERM, SIGHUP}) {
    const int port = free_port();
    const std::vector<std::string> argv{kRun, plan_, kModel, "--steps", "100000000", "--json"};
    Process first(argv, rank_of(0, 2, port)), second(argv, rank_of(1, 2, port));
    ASSERT_TRUE(first.wait_for_output("\"step\": 3,"));
    second.signal(request);
    EXPECT_EQ(first.wait(), 130);
    EXPECT_EQ(second.wait(), 130);
    EXPECT_THAT(first.errors(), HasSubstr("a signal asked for it"));
    EXPECT_EQ(first.errors(), second.errors());
  }
}

TEST_F(RunProcesses, AnInterruptStopsLoopback) {
  for (const int request : {SIGTERM, SIGHUP}) {
    Process process(endless({"--transport", "loopback"}));
    ASSERT_TRUE(process.wait_for_output("\"step\": 3,"));
    process.signal(request);
    EXPECT_EQ(process.wait(), 130);
    EXPECT_THAT(process.errors(), HasSubstr("a signal asked for it"));
  }
}

TEST_F(RunProcesses, SignalsThatTheyWereStartedToIgnoreDoNothing) {
  for (const char* transport : {"tcp", "gloo", "loopback"}) {
    Process process(ignoring("HUP INT", endless({"--transport", transport})));
    ASSERT_TRUE(process.wait_for_output("\"step\": 3,")) << process.errors();
    std::vector<pid_t> all = process.children();
    all.push_back(process.pid());
    for (const pid_t pid : all) {
      for (const int ignored : {SIGHUP, SIGINT}) ASSERT_EQ(kill(pid, ignored), 0);
    }
    EXPECT_TRUE(process.wait_for_output("\"step\": 100,")) << process.errors();
    process.signal(SIGTERM);
    EXPECT_EQ(process.wait(), 130);
    EXPECT_THAT(process.errors(), HasSubstr("a signal asked for it"));
  }
}

TEST_F(RunProcesses, ARequestReachesRanksThatWereStartedToIgnoreSigterm) {
  Process process(ignoring("TERM", endless()));
  ASSERT_TRUE(process.wait_for_output("\"step\": 3,")) << process.errors();
  process.signal(SIGTERM);
  EXPECT_TRUE(process.wait_for_output("\"step\": 100,")) << process.errors();
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 130);
  EXPECT_THAT(process.errors(), HasSubstr("a signal asked for it"));
}

TEST_F(RunProcesses, EndsWhereItWasStartedToIgnoreTheEndsOfChildren) {
  Process process(ignoring("CHLD", local({"--steps", "3"})));
  EXPECT_EQ(process.wait(), 0) << process.errors();
}

// A terminal hangs up: its shell tells the job, and when the shell has ended, the kernel does.
TEST_F(RunProcesses, AHangupOfTheirGroupStopsAllRanksWhichSave) {
  std::vector<std::string> argv = endless({"--save", save_});
  argv.insert(argv.begin(), "/usr/bin/setsid");
  Process process(argv);
  ASSERT_TRUE(process.wait_for_output("\"step\": 3,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  for (const pid_t pid : ranks) ASSERT_EQ(kill(pid, SIGSTOP), 0);  // it takes them a while
  ASSERT_EQ(kill(-process.pid(), SIGHUP), 0);
  EXPECT_EQ(process.wait(std::chrono::milliseconds(500)), -1);
  ASSERT_EQ(kill(-process.pid(), SIGHUP), 0);
  for (const pid_t pid : ranks) ASSERT_EQ(kill(pid, SIGCONT), 0);
  EXPECT_EQ(process.wait(), 130);
  EXPECT_THAT(process.errors(), HasSubstr("a signal asked for it; saved in " + save_));
  EXPECT_FALSE(std::filesystem::is_empty(save_));
}

// A NumPy file of numbers of `type` ("<f4") that are all `bits`.
template <typename Bits>
void write_npy(const std::filesystem::path& path, const std::string& type, const std::string& shape,
               std::size_t elements, Bits bits) {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::ofstream file(path, std::ios::binary);
  file << std::string("\x93NUMPY\x01\x00", 8) << static_cast<char>(header.size() & 0xff)
       << static_cast<char>(header.size() >> 8) << header;
  for (std::size_t i = 0; i < elements; ++i) {
    file.write(reinterpret_cast<const char*>(&bits), sizeof bits);
  }
}

TEST_F(RunProcesses, SamplesThatAreNoNumbersAreNamedByTheRankThatHasThem) {
  const std::string data = folder_ / "nan.npy";
  write_npy(data, "<f4", "(64, 3, 16, 16)", 64 * 768, std::uint32_t{0x7fc00000});
  Process process(local({"--steps", "3", "--data", data}));
  EXPECT_EQ(process.wait(), 1);
  EXPECT_THAT(
      process.errors(),
      testing::ContainsRegex("agpcs-run: error: rank [01] \\(local/[01]\\): forward mb=0: the "
                             "loss of step 0 is not finite: nan\n  hint: "));
  Process allowed(local({"--steps", "3", "--data", data, "--allow-nan"}));
  EXPECT_EQ(allowed.wait(), 0) << allowed.errors();
}

TEST_F(RunProcesses, ALabelThatIsNoClassIsNamedWithItsFileAndRow) {
  const std::string labels = folder_ / "labels.npy";
  write_npy(labels, "<i8", "(64,)", 64, std::int64_t{10});
  Process process(local({"--steps", "3", "--transport", "loopback", "--labels", labels}));
  EXPECT_EQ(process.wait(), 1);
  EXPECT_EQ(process.errors(), "agpcs-run: error: rank 0 (local/0): forward mb=0: " + labels +
                                  ": row 0 has label 10, input 'labels' takes classes 0 to 9\n"
                                  "  hint: rows and classes count from 0\n");
}

// LibTorch would wait for the missing ones for ever.
TEST_F(RunProcesses, ThreadsThatCannotBeStartedAreAnError) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers take terabytes of addresses";
#endif
  Process job({"/bin/sh", "-c", "ulimit -s 8192; ulimit -v 4000000; exec \"$@\"", "sh", kRun, plan_,
               kModel, "--local", "--threads", "1024", "--steps", "2"});
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.errors(), ContainsRegex("rank [01] \\(local/[01]\\): [0-9]+ of 1024 threads can "
                                          "be started: .*\n  hint: raise the limits"));
}

// Time that a process has had a core for.
std::chrono::milliseconds core_time_of(pid_t pid) {
  const std::string stat = text_of("/proc/" + std::to_string(pid) + "/stat");
  std::istringstream fields(stat.substr(stat.rfind(')') + 1));
  constexpr int kBefore = 11;  // fields between the name and the two times
  std::string skipped;
  for (int i = 0; i < kBefore; ++i) fields >> skipped;
  std::int64_t user = 0, system = 0;
  fields >> user >> system;
  return std::chrono::milliseconds((user + system) * 1000 / sysconf(_SC_CLK_TCK));
}

TEST_F(RunProcesses, ARankThatTakesLongToDieIsWaitedForWithoutSpinning) {
  Process process(endless());
  ASSERT_TRUE(process.wait_for_output("\"step\": 3,")) << process.errors();
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  if (ptrace(PTRACE_SEIZE, ranks[1], nullptr, PTRACE_O_TRACEEXIT) != 0) {
    GTEST_SKIP() << "a process may not be traced here";
  }
  ASSERT_EQ(kill(ranks[0], SIGKILL), 0);
  EXPECT_EQ(process.wait(seconds(4)), -1);  // it has been killed by now, and does not end
  const auto before = core_time_of(process.pid());
  EXPECT_EQ(process.wait(seconds(1)), -1);
  EXPECT_LT(core_time_of(process.pid()) - before, std::chrono::milliseconds(100));
  ASSERT_EQ(waitpid(ranks[1], nullptr, __WALL), ranks[1]);  // at its end
  ASSERT_EQ(ptrace(PTRACE_DETACH, ranks[1], nullptr, nullptr), 0);
  EXPECT_EQ(process.wait(), 1);
}

TEST_F(RunProcesses, RanksDoNotOutliveTheProcessThatStartedThem) {
  Process process(endless());
  ASSERT_TRUE(process.wait_for_output("\"step\": 3,"));
  const std::vector<pid_t> ranks = process.children();
  ASSERT_EQ(ranks.size(), 2U);
  process.signal(SIGKILL);
  EXPECT_EQ(process.wait(), 128 + SIGKILL);
  for (const pid_t pid : ranks) EXPECT_TRUE(wait_until_gone(pid));
}

TEST_F(RunProcesses, TwoJobsAtOnceDoNotMeet) {
  Process first(local({"--steps", "30", "--json"})), second(local({"--steps", "30", "--json"}));
  EXPECT_EQ(first.wait(), 0) << first.errors();
  EXPECT_EQ(second.wait(), 0) << second.errors();
}

TEST_F(RunProcesses, GlooAndLoopbackTrainToTheSameBytes) {
  for (const std::string seeder : {"data_parallel", "degree"}) {
    const std::string plan = compile(seeder + ".plan", {"--seeder", seeder});
    const auto save = [&](const std::string& transport) {
      const std::filesystem::path to = folder_ / (seeder + "-" + transport);
      Process process({kRun, plan, kModel, "--local", "--steps", "4", "--transport", transport,
                       "--threads", "1", "--save-parameters", to});
      EXPECT_EQ(process.wait(), 0) << process.errors();
      return to;
    };
    const std::filesystem::path tcp = save("tcp"), loopback = save("loopback");
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(tcp)) {
      ++files;
      EXPECT_EQ(text_of(entry.path()), text_of(loopback / entry.path().filename()))
          << seeder << ": " << entry.path();
    }
    EXPECT_EQ(files, 6);
  }
}

TEST_F(RunProcesses, ALauncherStartsTheRanks) {
  const int port = free_port();
  const std::vector<std::string> argv{kRun, plan_, kModel, "--steps", "3"};
  Process first(argv, rank_of(0, 2, port)), second(argv, rank_of(1, 2, port));
  EXPECT_EQ(first.wait(), 0) << first.errors();
  EXPECT_EQ(second.wait(), 0) << second.errors();
  EXPECT_THAT(first.output(), HasSubstr("\n3 steps, median "));
  EXPECT_EQ(second.output(), "");
}

TEST_F(RunProcesses, ARankWithAWrongTokenIsRefused) {
  const int port = free_port();
  const std::vector<std::string> argv{kRun, plan_, kModel, "--steps", "3", "--timeout", "4"};
  Process first(argv, rank_of(0, 2, port)), second(argv, rank_of(1, 2, port, kWrongToken));
  EXPECT_EQ(second.wait(), 1);
  EXPECT_EQ(second.errors(),
            "agpcs-run: error: rank 0 refused this rank: the job token is wrong: every rank needs "
            "the same AGPCS_JOB_TOKEN\n");
  EXPECT_EQ(first.wait(), 1);
  EXPECT_EQ(first.errors(),
            "warning: refused a connection from 127.0.0.1: its job token is wrong\n"
            "agpcs-run: error: rank 1 of 2 did not join within 4000 ms\n"
            "  hint: 1 connection with a wrong job token was refused: every rank needs the same "
            "AGPCS_JOB_TOKEN\n");
}

// The trace is written last, for it may still fail.
TEST_F(RunProcesses, ATraceThatFailsTakesNoParametersWithIt) {
  const std::filesystem::path trace = folder_ / "traces" / "t.json", saved = folder_ / "saved";
  std::filesystem::create_directory(trace.parent_path());
  Process process(local({"--steps", "100000000", "--transport", "loopback", "--json", "--trace",
                         trace, "--save-parameters", saved}));
  ASSERT_TRUE(process.wait_for_output("\"step\": 3,"));
  std::filesystem::remove(trace.parent_path());
  process.signal(SIGINT);
  EXPECT_EQ(process.wait(), 1);
  EXPECT_THAT(process.errors(), HasSubstr("t.json: error: cannot be written"));
  EXPECT_FALSE(std::filesystem::is_empty(saved));
}

TEST_F(RunProcesses, TheClusterOfATraceIsThatOfThePlan) {
  const std::string trace = folder_ / "t.json", other = "samples/clusters/mixed-32.yaml";
  const auto refused = [&](const std::string& cluster) {
    Process process(local({"--steps", "2", "--trace", trace, "--trace-cluster", cluster}));
    EXPECT_EQ(process.wait(), 1);
    EXPECT_EQ(process.output(), "");
    return process.errors();
  };
  EXPECT_THAT(refused(other),
              testing::ContainsRegex(other + ": error: the plan was made for a cluster with digest "
                                             "sha256:[0-9a-f]{64}, this one has sha256:"));
  EXPECT_THAT(refused("no/such.yaml"),
              HasSubstr("no/such.yaml: error: cannot be read: No such file"));
  Process process(local(
      {"--steps", "2", "--trace", trace, "--trace-cluster", "samples/clusters/local-2.yaml"}));
  EXPECT_EQ(process.wait(), 0);
  EXPECT_THAT(process.errors(), HasSubstr(", measured and planned; "));
}

}  // namespace
}  // namespace agpcs
