// SPDX-License-Identifier: Apache-2.0
// What strangers, mistaken ranks and broken ranks can do to the bootstrap: nothing that the others
// are not told of.
#include "ir/base/rng.h"
#include "tests/runtime/bootstrap/job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <latch>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr milliseconds kLong = std::chrono::seconds(60);

/// What every rank of a job of two says when rank 1 joins with other options.
std::string said_of(const std::function<void(BootstrapOptions&)>& change_of_rank_1) {
  std::vector<std::string> said(2);
  Job(2).run(
      [&](int rank, Job::Joined joined) {
        EXPECT_FALSE(joined.ok());
        said[static_cast<std::size_t>(rank)] = joined.status().message();
      },
      [&](BootstrapOptions& options) {
        options.agreed = {{"AGPCS version", "0.2.0"}, {"--steps", "100"}};
        options.host = "node" + std::to_string(options.rank);
        if (options.rank == 1) change_of_rank_1(options);
      });
  const std::string refused = "rank 0 refused this rank: ";
  if (said[1].rfind(refused, 0) == 0) said[1] = said[1].substr(refused.size());
  EXPECT_EQ(said[0], said[1]);
  return said[0];
}

TEST(BootstrapMistakes, AnotherVersionIsRefusedWithBoth) {
  EXPECT_EQ(said_of([](BootstrapOptions& options) { options.agreed[0].second = "0.1.0"; }),
            "rank 1 (host/1 on node1) has another AGPCS version than rank 0: 0.1.0 against 0.2.0");
}

TEST(BootstrapMistakes, AnotherSettingIsRefusedWithBoth) {
  EXPECT_EQ(said_of([](BootstrapOptions& options) { options.agreed[1].second = "50"; }),
            "rank 1 (host/1 on node1) has another --steps than rank 0: 50 against 100");
}

TEST(BootstrapMistakes, ASettingThatTheOtherDoesNotHaveIsRefused) {
  EXPECT_EQ(said_of([](BootstrapOptions& options) { options.agreed.pop_back(); }),
            "rank 1 (host/1 on node1) gives '=' where rank 0 gives '--steps=100': another AGPCS "
            "version");
}

TEST(BootstrapMistakes, AnotherProtocolIsRefusedWithBoth) {
  Job job(2);
  const BootstrapOptions other = job.options_of(1);
  Frame hello = hello_of(other);
  hello.fields[0] = "agpcs-bootstrap-9";
  hello.fields.resize(4);
  std::future<Fd> fd =
      std::async(std::launch::async, [&] { return half_rank_that_says(other, hello); });
  const auto joined = Bootstrap::join(job.options_of(0));
  EXPECT_EQ(joined.status().message(),
            "rank 1 speaks agpcs-bootstrap-9, rank 0 speaks agpcs-bootstrap-3\n"
            "  hint: every rank needs the same AGPCS version");
}

TEST(BootstrapMistakes, AFailureNamesTheHost) {
  Job job(2);
  BootstrapOptions other = job.options_of(1);
  other.host = "node7";
  std::future<Fd> half = half_rank(other);
  const auto joined = Bootstrap::join(job.options_of(0));
  Fd fd = half.get();
  ASSERT_JOINED(joined);
  say(fd, encode({FrameKind::kFail, {"rank 1 (host/1): recv c0 mb=3: out of luck"}}));
  EXPECT_EQ((*joined)->wait_for_failure(kLong).message(),
            "rank 1 (host/1 on node7): recv c0 mb=3: out of luck");
  fd.reset();
}

TEST(BootstrapMistakes, AReportWithoutANameGetsOne) {
  Job job(2);
  const BootstrapOptions other = job.options_of(1);
  std::future<Fd> half = half_rank(other);
  const auto joined = Bootstrap::join(job.options_of(0));
  Fd fd = half.get();
  ASSERT_JOINED(joined);
  say(fd, encode({FrameKind::kFail, {""}}));
  EXPECT_EQ((*joined)->wait_for_failure(kLong).message(),
            "rank 1 (host/1) failed without saying why");
  fd.reset();
}

TEST(BootstrapMistakes, ASecondRankOfTheSameNumberIsRefusedAndTheJobGoesOn) {
  Job job(2);
  const BootstrapOptions twin = job.options_of(1);
  BootstrapOptions with_another_plan = twin;
  with_another_plan.identity = "sha256:2";
  job.run([&](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    ASSERT_TRUE((*joined)->barrier("both are in", kLong).ok());
    if (rank == 1) {
      EXPECT_EQ(Bootstrap::join(twin).status().message(),
                "rank 0 refused this rank: rank 1 (host/1) has joined already");
      EXPECT_THAT(Bootstrap::join(with_another_plan).status().message(),
                  HasSubstr("rank 1 (host/1) has another plan"));
    }
    EXPECT_TRUE((*joined)->barrier("end", kLong).ok());
    EXPECT_TRUE((*joined)->failure().ok());
  });
}

TEST(BootstrapMistakes, TokensThatDifferAnywhereAreRefused) {
  Job job(2);
  BootstrapOptions stranger = job.options_of(1);
  std::thread rank_0([&, options = job.options_of(0)] {
    const auto joined = Bootstrap::join(options);
    EXPECT_THAT(joined.status().message(), HasSubstr("rank 1 (host/1) has another plan"));
  });
  const std::string right = kJobToken;
  for (const std::string& token : {right.substr(0, 31) + "e", right + "0", right + right,
                                   ' ' + right, std::string(kWrongToken)}) {
    stranger.token = token;
    EXPECT_THAT(Bootstrap::join(stranger).status().message(), HasSubstr("the job token is wrong"))
        << token;
  }
  stranger.token = kJobToken;  // ends the test: known, but mistaken
  stranger.identity = "other";
  EXPECT_FALSE(Bootstrap::join(stranger).ok());
  rank_0.join();
}

// A job of two that joins while strangers do their worst, and then works.
void expect_to_work(Job& job) {
  job.run([](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    if (rank == 0) {
      EXPECT_TRUE((*joined)->set("answer", "42").ok());
    }
    const auto answer = (*joined)->get("answer", kLong);
    ASSERT_TRUE(answer.ok()) << answer.status().message();
    EXPECT_EQ(*answer, "42");
    EXPECT_TRUE((*joined)->barrier("end", kLong).ok());
    EXPECT_TRUE((*joined)->failure().ok());
  });
}

TEST(BootstrapStrangers, ACrowdThatSaysNothingKeepsNobodyOut) {
  Job job(2);
  std::vector<Fd> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(connect_here(job.port()));
  expect_to_work(job);
}

// Connects again whenever it is dropped, and says its hello a byte at a time.
TEST(BootstrapStrangers, ACrowdThatTalksVerySlowlyKeepsNobodyOut) {
  Job job(2);
  const std::string hello = encode(hello_of(job.options_of(1)));
  std::atomic<bool> over{false};
  std::latch crowded(1);
  std::thread crowd([&] {
    std::vector<Fd> slow(100);
    for (std::size_t byte = 0; !over; ++byte) {
      for (Fd& fd : slow) {
        char gone = 0;
        const bool lost = fd.get() < 0 || recv(fd.get(), &gone, 1, MSG_DONTWAIT) == 0;
        if (lost && !over) {
          auto again = connect_to("127.0.0.1", job.port(), std::chrono::steady_clock::now());
          fd = again.ok() ? std::move(*again) : Fd();
        }
        if (fd.get() >= 0) say(fd, hello.substr(byte % (hello.size() / 2), 1));
      }
      if (byte == 0) crowded.count_down();
    }
  });
  crowded.wait();
  expect_to_work(job);
  over = true;
  crowd.join();
}

// Bytes that are noise, a frame of noise, or a right hello with some bytes changed; never one with
// the right token, so that nobody can get in.
std::string random_bytes(Rng& rng, const std::string& hello) {
  std::string bytes;
  const auto length = static_cast<std::size_t>(rng.below(400));
  for (std::size_t i = 0; i < length; ++i) bytes.push_back(static_cast<char>(rng.below(256)));
  switch (rng.below(4)) {
    case 0:
      return bytes;
    case 1:
      return encode({static_cast<FrameKind>(1 + rng.below(11)), {bytes, bytes}});
    case 2:
      return encode({static_cast<FrameKind>(1 + rng.below(11)), {}}) + bytes;
    default: {
      std::string changed = hello;
      const auto changes = 1 + rng.below(4);
      for (std::uint64_t i = 0; i < changes; ++i) {
        changed[static_cast<std::size_t>(rng.below(changed.size()))] =
            static_cast<char>(rng.below(256));
      }
      return changed + bytes;
    }
  }
}

TEST(BootstrapStrangers, RandomBytesNeverHarmAJob) {
  Job job(2);
  BootstrapOptions wrong = job.options_of(1);
  wrong.token = kWrongToken;
  const std::string hello = encode(hello_of(wrong));
  job.run([&](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    if (rank == 1) {
      Rng rng(7);
      for (int i = 0; i < 2000; ++i) {
        const Fd fd = connect_here(job.port());
        say(fd, random_bytes(rng, hello));
      }
    }
    EXPECT_TRUE((*joined)->barrier("end", kLong).ok());
    EXPECT_TRUE((*joined)->failure().ok()) << (*joined)->failure().message();
  });
}

std::size_t resident_bytes() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;
  return pages * 4096;
}

// A rank that was admitted and then says `bytes` again and again until the job has failed; what
// rank 0 hears.
std::string said_of_a_broken_rank(const std::string& bytes) {
  Job job(2);
  std::future<Fd> half = half_rank(job.options_of(1));
  const auto joined = Bootstrap::join(job.options_of(0));
  Fd fd = half.get();
  if (!joined.ok()) return joined.status().message();
  std::atomic<bool> over{false};
  std::thread flood([&] {
    for (std::size_t at = 0; !over;) {
      const auto count =
          send(fd.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count > 0) at = (at + static_cast<std::size_t>(count)) % bytes.size();
    }
  });
  const std::string said = (*joined)->wait_for_failure(kLong).message();
  over = true;
  flood.join();
  fd.reset();  // or rank 0 would wait for its goodbye
  return said;
}

TEST(BootstrapBrokenRanks, GarbageAfterTheHelloIsNamed) {
  const std::string expected =
      "rank 1 (host/1) sent what is no message of the bootstrap's protocol";
  EXPECT_EQ(said_of_a_broken_rank(std::string(64, '\xff')), expected);
  EXPECT_EQ(said_of_a_broken_rank(encode({FrameKind::kSet, {"key without a value"}})), expected);
  EXPECT_EQ(said_of_a_broken_rank(encode({FrameKind::kReady, {}})), expected);
}

TEST(BootstrapBrokenRanks, ARankThatStoresWithoutEndIsStopped) {
  std::string flood;
  for (int i = 0; i < 1100; ++i) {
    flood += encode({FrameKind::kSet, {"key" + std::to_string(i), std::string(65536, 'x')}});
  }
  const std::size_t before = resident_bytes();
  EXPECT_THAT(said_of_a_broken_rank(flood),
              testing::StartsWith("rank 1 (host/1) stored more than the bootstrap holds for it: "));
#ifdef __SANITIZE_THREAD__
  constexpr std::size_t kShadow = 4;  // of each byte
#else
  constexpr std::size_t kShadow = 0;
#endif
  EXPECT_LT(resident_bytes(), before + (1 + kShadow) * (std::size_t{200} << 20));
}

TEST(BootstrapBrokenRanks, ARankThatAsksAndDoesNotReadIsStopped) {
  std::string flood = encode({FrameKind::kSet, {"large", std::string(65536, 'x')}});
  for (int i = 0; i < 500; ++i) flood += encode({FrameKind::kGet, {"large"}});
  EXPECT_EQ(said_of_a_broken_rank(flood), "rank 1 (host/1) does not read what it asked for");
}

TEST(BootstrapBrokenRanks, ARankThatAsksForWhatNobodySetsIsStopped) {
  std::string flood;
  for (int i = 0; i < 10000; ++i) flood += encode({FrameKind::kGet, {"key" + std::to_string(i)}});
  EXPECT_EQ(said_of_a_broken_rank(flood),
            "rank 1 (host/1) sent what is no message of the bootstrap's protocol");
}

}  // namespace
}  // namespace agpcs
