// SPDX-License-Identifier: Apache-2.0
// Jobs of agpcs-run with --tls.
#include "tests/support/relay.h"
#include "tests/tools/run/processes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <deque>
#include <signal.h>
#include <string>
#include <sys/types.h>
#include <vector>

namespace agpcs {
namespace {

using testing::HasSubstr;
using testing::Not;

class RunTls : public RunProcesses {
 protected:
  /// Starts two ranks, with options of their own; rank 1 finds rank 0 at `port_of_rank_1`.
  void launch(const std::vector<std::string>& of_rank_0, const std::vector<std::string>& of_rank_1,
              int port_of_rank_1) {
    int rank = 0;
    for (const std::vector<std::string>& more : {of_rank_0, of_rank_1}) {
      std::vector<std::string> argv{kRun,      plan_, kModel,      "--json",
                                    "--steps", "3",   "--threads", "1"};
      argv.insert(argv.end(), more.begin(), more.end());
      ranks_.emplace_back(argv, rank_of(rank, 2, rank == 0 ? port_ : port_of_rank_1));
      ++rank;
    }
  }

  const int port_ = free_port();
  std::deque<Process> ranks_;
};

/// The lines of steps without their times.
std::string losses(const std::string& output) {
  std::string found;
  for (std::size_t at = output.find("\"loss\": "); at != std::string::npos;
       at = output.find("\"loss\": ", at + 1)) {
    found += output.substr(at, output.find(',', at) - at) + "\n";
  }
  return found;
}

TEST_F(RunTls, LocalJobsTrainAsWithout) {
  const std::vector<std::string> options = {"--steps", "5", "--json", "--threads", "1"};
  Process plain(local(options));
  EXPECT_EQ(plain.wait(), 0) << plain.errors();
  std::vector<std::string> encrypted = options;
  encrypted.insert(encrypted.end(), {"--tls", "--check-messages"});
  Process process(local(encrypted));
  EXPECT_EQ(process.wait(), 0) << process.errors();
  EXPECT_EQ(process.errors(), "");
  EXPECT_THAT(losses(process.output()), HasSubstr("\"loss\": 2."));
  EXPECT_EQ(losses(process.output()), losses(plain.output()));
}

TEST_F(RunTls, TheWireCarriesNothingOfTheJob) {
  for (const bool tls : {false, true}) {
    const Relay relay(port_);
    const std::vector<std::string> more =
        tls ? std::vector<std::string>{"--tls"} : std::vector<std::string>();
    launch(more, more, relay.port());
    for (Process& rank : ranks_) EXPECT_EQ(rank.wait(), 0) << rank.errors();
    ranks_.clear();
    const std::string passed = relay.passed();
    EXPECT_GT(passed.size(), 500U);
    for (const char* known : {"sha256:", "--check-messages=no", "local/1", "trained"}) {
      if (tls) {
        EXPECT_THAT(passed, Not(HasSubstr(known)));
      } else {
        EXPECT_THAT(passed, HasSubstr(known)) << "it passes in the clear without TLS";
      }
    }
  }
}

TEST_F(RunTls, OneRankWithAndOneWithoutSaySo) {
  launch({"--tls"}, {}, port_);
  const std::string why =
      "rank 1 has another --tls than rank 0: no against yes\n"
      "  hint: with --tls everything is encrypted, so all ranks need it, or none\n";
  EXPECT_EQ(ranks_[0].wait(), 1);
  EXPECT_THAT(ranks_[0].errors(), HasSubstr("agpcs-run: error: " + why));
  EXPECT_EQ(ranks_[1].wait(), 1);
  EXPECT_EQ(ranks_[1].errors(), "agpcs-run: error: rank 0 refused this rank: " + why);
}

TEST_F(RunTls, TransportsThatCannotEncryptAreRefused) {
  Process gloo(local({"--tls", "--transport", "gloo"}));
  EXPECT_EQ(gloo.wait(), 2);
  EXPECT_THAT(gloo.errors(),
              HasSubstr("--tls needs --transport tcp: Gloo's connections know no TLS"));
  Process nccl(local({"--tls", "--transport", "nccl"}));
  EXPECT_EQ(nccl.wait(), 2);
  EXPECT_THAT(nccl.errors(),
              HasSubstr("--tls needs --transport tcp: NCCL's own sockets encrypt nothing"));
}

TEST_F(RunTls, JobsGoOnWithoutARankThatIsKilled) {
  const std::vector<std::string> argv{
      kRun,        plan_, kModel,         "--json",    "--steps",  "60",
      "--threads", "1",   "--tls",        "--elastic", "--replan", "samples/clusters/local-2.yaml",
      "--save",    save_, "--save-every", "5"};
  for (int rank = 0; rank < 2; ++rank) ranks_.emplace_back(argv, rank_of(rank, 2, port_));
  ASSERT_TRUE(ranks_[0].wait_for_output("\"event\": \"saved\"")) << ranks_[0].errors();
  const std::vector<pid_t> lost = ranks_[1].children();
  ASSERT_EQ(lost.size(), 1U);
  ASSERT_EQ(kill(lost.front(), SIGKILL), 0);
  for (Process& keeper : ranks_) EXPECT_EQ(keeper.wait(), 0) << keeper.errors();
  EXPECT_THAT(ranks_[0].errors(), HasSubstr("training goes on without rank 1 (local/1)"));
  EXPECT_THAT(ranks_[0].output(), HasSubstr("\"ranks\": 1"));
}

}  // namespace
}  // namespace agpcs
