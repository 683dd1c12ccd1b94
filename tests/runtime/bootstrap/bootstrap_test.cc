// SPDX-License-Identifier: Apache-2.0
#include "runtime/bootstrap/frame.h"
#include "runtime/bootstrap/socket.h"
#include "tests/runtime/bootstrap/job.h"
#include "tests/support/ipv6.h"

#include <agpcs/bootstrap.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <cerrno>
#include <chrono>
#include <functional>
#include <latch>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <sys/socket.h>
#include <thread>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;
using testing::StartsWith;

constexpr milliseconds kLong = std::chrono::seconds(60);

TEST(Bootstrap, RanksExchangeValuesOfAnyBytes) {
  const std::string bytes("\0\xff,=\n", 5);
  Job(3).run([&](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    Bootstrap& bootstrap = **joined;
    EXPECT_EQ(bootstrap.rank(), rank);
    EXPECT_EQ(bootstrap.size(), 3);
    EXPECT_EQ(bootstrap.local_address(), "127.0.0.1");
    ASSERT_TRUE(bootstrap.set("key/" + std::to_string(rank), bytes + std::to_string(rank)).ok());
    for (int other = 0; other < 3; ++other) {
      const auto value = bootstrap.get("key/" + std::to_string(other), kLong);
      ASSERT_TRUE(value.ok()) << value.status().message();
      EXPECT_EQ(*value, bytes + std::to_string(other));
    }
    EXPECT_TRUE(bootstrap.barrier("end", kLong).ok());
  });
}

TEST(Bootstrap, AValueThatIsNotSetIsATimeoutThatNamesIt) {
  Job(1).run([](int /*rank*/, Job::Joined joined) {
    ASSERT_JOINED(joined);
    const auto value = (*joined)->get("nothing", milliseconds(20));
    EXPECT_EQ(value.status().code(), StatusCode::kTimeout);
    EXPECT_EQ(value.status().message(), "bootstrap value 'nothing' was not set within 20 ms");
  });
}

TEST(Bootstrap, AValueHasABound) {
  Job(1).run([](int /*rank*/, Job::Joined joined) {
    ASSERT_JOINED(joined);
    EXPECT_TRUE((*joined)->set("largest", std::string(65536, 'x')).ok());
    EXPECT_EQ((*joined)->get("largest", kLong)->size(), 65536U);
    EXPECT_EQ((*joined)->set("larger", std::string(65537, 'x')).message(),
              "bootstrap value 'larger' has 65537 bytes, at most 65536 are allowed");
  });
}

TEST(Bootstrap, AWrongTokenIsRefusedAndHarmsNobody) {
  Job job(2);
  BootstrapOptions stranger = job.options_of(1);
  stranger.token = kWrongToken;
  std::latch refused(1);
  std::thread outsider([&] {
    const auto joined = Bootstrap::join(stranger);
    EXPECT_EQ(joined.status().code(), StatusCode::kInvalidInput);
    EXPECT_EQ(joined.status().message(),
              "rank 0 refused this rank: the job token is wrong: every rank needs the same "
              "AGPCS_JOB_TOKEN");
    refused.count_down();
  });
  job.run([&](int /*rank*/, Job::Joined joined) {
    ASSERT_JOINED(joined);
    refused.wait();
    EXPECT_TRUE((*joined)->barrier("end", kLong).ok());
  });
  outsider.join();
}

TEST(Bootstrap, AnotherPlanIsRefusedOnBothSides) {
  Job(2).run(
      [](int rank, Job::Joined joined) {
        ASSERT_FALSE(joined.ok());
        EXPECT_THAT(joined.status().message(),
                    HasSubstr("rank 1 (host/1) has another plan than rank 0: sha256:2 against "
                              "sha256:1"))
            << "at rank " << rank;
      },
      [](BootstrapOptions& options) {
        if (options.rank == 1) options.identity = "sha256:2";
      });
}

TEST(Bootstrap, AnotherNumberOfRanksIsRefused) {
  Job(2).run(
      [](int /*rank*/, Job::Joined joined) {
        ASSERT_FALSE(joined.ok());
        EXPECT_THAT(joined.status().message(),
                    HasSubstr("rank 1 (host/1) expects 4 ranks, rank 0 expects 2"));
      },
      [](BootstrapOptions& options) {
        if (options.rank == 1) options.size = 4;
      });
}

TEST(Bootstrap, RanksThatDoNotJoinAreNamed) {
  Job job(4);
  BootstrapOptions options = job.options_of(0);
  options.join_limit = milliseconds(200);
  const auto joined = Bootstrap::join(options);
  EXPECT_EQ(joined.status().message(), "ranks 1,2,3 of 4 did not join within 200 ms");
}

TEST(Bootstrap, ARankWhoseServiceIsNotThereSaysWhereItLooked) {
  BootstrapOptions options;
  options.rank = 1;
  options.size = 2;
  options.token = kJobToken;
  options.join_limit = milliseconds(120);
  {
    const Fd closed_again = *listen_at("127.0.0.1");
    options.port = port_of(closed_again.get());
  }
  const auto joined = Bootstrap::join(options);
  EXPECT_EQ(joined.status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(joined.status().message(), "rank 0 does not answer: cannot connect to 127.0.0.1:" +
                                           std::to_string(options.port) + ": Connection refused");
}

TEST(Bootstrap, ServesBothKindsOfAddresses) {
  if (const std::string why = no_ipv6(); !why.empty()) GTEST_SKIP() << why;
  Fd listening = *listen_at("");
  const int port = port_of(listening.get());
  for (const char* address : {"::1", "127.0.0.1"}) {
    const Fd fd = *connect_to(address, port, std::chrono::steady_clock::now() + kLong);
    EXPECT_EQ(local_address_of(fd.get()), address);
  }
  EXPECT_EQ(*family_of("::1"), AF_INET6);
  EXPECT_EQ(*family_of("127.0.0.1"), AF_INET);
  EXPECT_EQ(endpoint("fd00::2", 80), "[fd00::2]:80");
  EXPECT_EQ(endpoint("node7", 80), "node7:80");
}

TEST(Bootstrap, AnAddressOfIpv6StandsInBracketsBesideAPort) {
  BootstrapOptions options;
  options.rank = 1;
  options.size = 2;
  options.token = kJobToken;
  options.join_limit = milliseconds(0);
  options.address = "::1";
  options.port = 1;
  const std::string message = Bootstrap::join(options).status().message();
  EXPECT_THAT(message, StartsWith("rank 0 does not answer: cannot connect to [::1]:1: "));
  options.address = "[::1]";
  options.join_limit = kLong;  // which does not pass
  EXPECT_EQ(Bootstrap::join(options).status().message(),
            "rank 0 does not answer: cannot resolve '[::1]': an IPv6 address stands without "
            "brackets here");
}

TEST(Bootstrap, APortThatIsTakenIsNamed) {
  const Fd taken = *listen_at("127.0.0.1");
  BootstrapOptions options;
  options.token = kJobToken;
  options.port = port_of(taken.get());
  EXPECT_EQ(
      Bootstrap::join(options).status().message(),
      "cannot listen at 127.0.0.1:" + std::to_string(options.port) + ": Address already in use");
}

TEST(Bootstrap, AReportReachesEveryRankOnceAndFirstOnesWin) {
  std::barrier together(3);
  Job(3).run([&](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    together.arrive_and_wait();  // a rank that joined later would be refused with the report
    std::latch heard(1);
    (*joined)->on_failure([&](const Status& failure) {
      EXPECT_EQ(failure.code(), StatusCode::kPeerFailed);
      EXPECT_EQ(failure.message(), "rank 1 (host/1): update: disk on fire");
      heard.count_down();
    });
    if (rank == 1) {
      (*joined)->report({StatusCode::kInternal, "rank 1 (host/1): update: disk on fire"});
      (*joined)->report({StatusCode::kInternal, "a second report is not heard"});
    }
    heard.wait();
    EXPECT_EQ((*joined)->get("never", kLong).status().message(),
              "rank 1 (host/1): update: disk on fire");
    together.arrive_and_wait();
  });
}

TEST(Bootstrap, AListenerThatComesLateHearsAtOnceAndADetachedOneNever) {
  Job(1).run([](int /*rank*/, Job::Joined joined) {
    ASSERT_JOINED(joined);
    (*joined)->on_failure([](const Status&) { FAIL() << "detached"; });
    (*joined)->on_failure(nullptr);
    (*joined)->report(internal_error("rank 0: broken"));
    EXPECT_EQ((*joined)->wait_for_failure(kLong).message(), "rank 0: broken");
    int heard = 0;
    (*joined)->on_failure([&](const Status&) { ++heard; });
    EXPECT_EQ(heard, 1);
  });
}

TEST(Bootstrap, ARankWhoseConnectionIsLostIsNamed) {
  Job job(2);
  std::future<Fd> half = half_rank(job.options_of(1));
  const auto joined = Bootstrap::join(job.options_of(0));
  Fd other = half.get();
  ASSERT_JOINED(joined);
  EXPECT_TRUE((*joined)->failure().ok());
  other.reset();
  EXPECT_EQ((*joined)->wait_for_failure(kLong).message(),
            "rank 1 (host/1) went away: its connection was lost");
}

// What rank 0 hears of a job whose rank 1 says hello and no more.
std::string failure_of_half_a_job(milliseconds stall_limit) {
  Job job(2);
  std::future<Fd> half = half_rank(job.options_of(1));
  BootstrapOptions options = job.options_of(0);
  options.stall_limit = stall_limit;
  const auto joined = Bootstrap::join(options);
  const Fd other = half.get();
  return joined.ok() ? (*joined)->wait_for_failure(kLong).message() : joined.status().message();
}

TEST(Bootstrap, ASilentRankHasStalled) {
  std::string failure;
  // On a busy machine rank 0 may not even hear of its own service in time: then there is more time.
  for (milliseconds limit(300); limit < kLong; limit *= 4) {
    failure = failure_of_half_a_job(limit);
    if (failure.rfind("rank 0", 0) != 0) break;
  }
  EXPECT_THAT(failure, testing::StartsWith("rank 1 (host/1) stalled: not heard from for "));
}

TEST(Bootstrap, AServiceThatNeverAnswersIsWaitedForAsLongAsRanksMayJoin) {
  const Fd silent = *listen_at("127.0.0.1");
  BootstrapOptions options;
  options.rank = 1;
  options.size = 2;
  options.port = port_of(silent.get());
  options.token = kJobToken;
  options.join_limit = milliseconds(300);
  options.stall_limit = milliseconds(50);
  EXPECT_EQ(
      Bootstrap::join(options).status().message(),
      "rank 0 at 127.0.0.1:" + std::to_string(options.port) + " did not answer within 300 ms");
}

// Its socket listens: the launcher made it.
TEST(Bootstrap, ARank0ThatBeginsLaterThanTheStallLimitIsWaitedFor) {
  Job job(2);
  const BootstrapOptions late = job.options_of(0);
  BootstrapOptions early = job.options_of(1);
  early.stall_limit = milliseconds(1500);
  std::thread rank_1([&] {
    const auto joined = Bootstrap::join(early);
    ASSERT_JOINED(joined);
  });
  std::this_thread::sleep_for(2 * early.stall_limit);
  const auto joined = Bootstrap::join(late);
  ASSERT_JOINED(joined);
  rank_1.join();
}

TEST(Bootstrap, LeavingIsNoFailure) {
  std::latch left(1);
  Job(2).run([&](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    if (rank == 1) {
      joined->reset();
      left.count_down();
      return;
    }
    left.wait();
    EXPECT_TRUE((*joined)->wait_for_failure(milliseconds(300)).ok());
  });
}

TEST(Bootstrap, ARankThatAnExceptionEndsIsLost) {
  std::latch both_joined(2);
  Job(2).run([&](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    both_joined.arrive_and_wait();
    if (rank == 0) {
      EXPECT_EQ((*joined)->wait_for_failure(kLong).message(),
                "rank 1 (host/1) went away: its connection was lost");
      return;
    }
    try {
      const auto mine = std::move(*joined);
      throw std::runtime_error("no more threads");
    } catch (const std::runtime_error&) {
    }
  });
}

// A job of three that outlives ranks: 0 and 1 as Bootstrap, 2 as a bare connection.
struct OutlivingJob {
  explicit OutlivingJob(milliseconds stall_limit = kLong) : job(3) {
    std::future<Fd> half = half_rank(job.options_of(2));
    std::thread other([&] { rank_1 = join(1, stall_limit); });
    rank_0 = join(0, stall_limit);
    other.join();
    rank_2 = half.get();
  }
  Job::Joined join(int rank, milliseconds stall_limit) {
    BootstrapOptions options = job.options_of(rank);
    options.outlives_ranks = true;
    options.stall_limit = stall_limit;
    return Bootstrap::join(options);
  }

  Job job;
  Job::Joined rank_0 = internal_error("did not join"), rank_1 = internal_error("did not join");
  Fd rank_2;
};

TEST(Bootstrap, WhereItOutlivesRanksALossIsAnEventAndAllSeeTheSameOnes) {
  OutlivingJob job;
  ASSERT_JOINED(job.rank_0);
  ASSERT_JOINED(job.rank_1);
  EXPECT_TRUE((*job.rank_1)->say("one").ok());
  const auto first = (*job.rank_0)->event(0, kLong);
  ASSERT_TRUE(first.ok()) << first.status().message();
  EXPECT_EQ(first->text, "one");
  job.rank_2.reset();
  const auto loss = (*job.rank_0)->event(1, kLong);
  ASSERT_TRUE(loss.ok()) << loss.status().message();
  EXPECT_TRUE(loss->lost);
  EXPECT_EQ(loss->rank, 2);
  EXPECT_EQ(loss->text, "rank 2 (host/2) went away: its connection was lost");
  EXPECT_TRUE((*job.rank_0)->set("key", "value").ok());
  EXPECT_TRUE((*job.rank_0)->say("two\nlines").ok());
  for (const auto* joined : {&job.rank_0, &job.rank_1}) {
    Bootstrap& bootstrap = ***joined;
    const std::string texts[] = {"one", loss->text, "two\nlines"};
    for (int i = 0; i < 3; ++i) {
      const auto event = bootstrap.event(i, kLong);
      ASSERT_TRUE(event.ok()) << event.status().message();
      EXPECT_EQ(event->text, texts[i]);
      EXPECT_EQ(event->lost, i == 1);
    }
    EXPECT_EQ(*bootstrap.get("key", kLong), "value");  // set before the last event
    EXPECT_EQ(bootstrap.event(3, milliseconds(20)).status().code(), StatusCode::kTimeout);
    EXPECT_TRUE(bootstrap.failure().ok());
  }
}

TEST(Bootstrap, WhereItOutlivesRanksOneThatSaysTooMuchIsLostAndTheOthersAreHeard) {
  OutlivingJob job;
  ASSERT_JOINED(job.rank_0);
  ASSERT_JOINED(job.rank_1);
  const std::string word = encode({FrameKind::kFail, {std::string(65536, 'x')}});
  for (std::size_t sent = 0; sent < 1100 * word.size();) {
    const std::size_t at = sent % word.size();
    const auto count = send(job.rank_2.get(), word.data() + at, word.size() - at, MSG_NOSIGNAL);
    if (count < 0 && errno != EAGAIN) break;
    if (count > 0) sent += static_cast<std::size_t>(count);
  }
  int number = 0;
  auto event = (*job.rank_0)->event(number, kLong);
  while (event.ok() && !event->lost) event = (*job.rank_0)->event(++number, kLong);
  ASSERT_TRUE(event.ok()) << event.status().message();
  EXPECT_EQ(event->rank, 2);
  EXPECT_THAT(event->text,
              testing::StartsWith("rank 2 (host/2) stored more than the bootstrap holds for it: "));
  EXPECT_TRUE((*job.rank_1)->set("key", std::string(65536, 'y')).ok());
  EXPECT_TRUE((*job.rank_1)->say("here").ok());
  const auto heard = (*job.rank_0)->event(number + 1, kLong);
  ASSERT_TRUE(heard.ok()) << heard.status().message();
  EXPECT_EQ(heard->text, "here");
}

// What rank 2 reads until its connection ends: the last frame.
std::optional<Frame> last_word_to(const Fd& rank_2) {
  FrameReader told;
  char buffer[4096];
  for (ssize_t count = 0; (count = recv(rank_2.get(), buffer, sizeof buffer, 0)) > 0;) {
    told.append(buffer, static_cast<std::size_t>(count));
  }
  std::optional<Frame> last;
  while (auto frame = told.next(kMaxFrameBytes)) last = std::move(frame);
  return last;
}

// False where the machine was too busy for so short a limit: another rank stalled.
bool sees_rank_2_stall(milliseconds stall_limit) {
  OutlivingJob job(stall_limit);
  if (!job.rank_0.ok() || !job.rank_1.ok()) return false;
  const auto loss = (*job.rank_1)->event(0, kLong);
  if (!loss.ok() || loss->rank != 2) return false;
  EXPECT_THAT(loss->text, testing::StartsWith("rank 2 (host/2) stalled: not heard from for "));
  const auto last = last_word_to(job.rank_2);
  EXPECT_TRUE(last && last->kind == FrameKind::kFailed);
  if (last) {
    EXPECT_EQ(last->fields, std::vector<std::string>{loss->text});
  }
  const std::string refused = Bootstrap::join(job.job.options_of(2)).status().message();
  EXPECT_THAT(refused, testing::AnyOf(HasSubstr("has joined already"), HasSubstr("stalled")));
  return true;
}

TEST(Bootstrap, WhereItOutlivesRanksOneThatStallsIsToldAndLetInNoMore) {
  milliseconds limit(500);
  while (limit < kLong && !sees_rank_2_stall(limit)) limit *= 4;
  EXPECT_LT(limit, kLong);
}

TEST(Bootstrap, WhereItOutlivesRanksTheLossOfRank0EndsIt) {
  OutlivingJob job;
  ASSERT_JOINED(job.rank_1);
  job.rank_0 = internal_error("gone");
  EXPECT_EQ((*job.rank_1)->event(0, kLong).status().message(),
            "rank 0 (host/0) went away: its connection was lost");
}

TEST(Bootstrap, GarbageOnThePortIsDroppedAndTheJobGoesOn) {
  Job job(2);
  const int port = job.port();
  std::vector<std::string> garbage{"GET / HTTP/1.1\r\n\r\n",
                                   std::string(100000, 'x'),
                                   std::string(64, '\0'),
                                   std::string("\xff\xff\xff\xff", 4),
                                   std::string("\x05\x00\x00\x00\x01\xff\xff\xff\x7f", 9),
                                   encode({FrameKind::kSet, {"key", "value"}}),
                                   encode({FrameKind::kHello, {"someone", "else"}}),
                                   ""};
  std::vector<Fd> open;
  for (const std::string& bytes : garbage) {
    open.push_back(*connect_to("127.0.0.1", port, std::chrono::steady_clock::now() + kLong));
    [[maybe_unused]] const auto sent =
        send(open.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  job.run([](int rank, Job::Joined joined) {
    ASSERT_JOINED(joined);
    if (rank == 0) {
      EXPECT_TRUE((*joined)->set("answer", "42").ok());
    }
    EXPECT_EQ(*(*joined)->get("answer", kLong), "42");
    EXPECT_TRUE((*joined)->barrier("end", kLong).ok());
  });
}

TEST(BootstrapFrame, ReadsBackWhatItWroteInAnyPieces) {
  const std::string bytes = encode({FrameKind::kValue, {"a key", std::string(300, 'v')}}) +
                            encode({FrameKind::kPing, {}});
  FrameReader reader;
  std::vector<Frame> frames;
  for (const char byte : bytes) {
    reader.append(&byte, 1);
    while (const auto frame = reader.next(kMaxFrameBytes)) frames.push_back(*frame);
  }
  ASSERT_EQ(frames.size(), 2U);
  EXPECT_EQ(frames[0].kind, FrameKind::kValue);
  EXPECT_EQ(frames[0].fields, (std::vector<std::string>{"a key", std::string(300, 'v')}));
  EXPECT_EQ(frames[1].kind, FrameKind::kPing);
}

TEST(BootstrapFrame, RefusesFramesThatAreTooLargeOrMadeWrongly) {
  const auto broken = [](const std::string& bytes) {
    FrameReader reader;
    reader.append(bytes.data(), bytes.size());
    EXPECT_FALSE(reader.next(100).has_value());
    return reader.broken();
  };
  EXPECT_TRUE(broken(encode({FrameKind::kSet, {std::string(101, 'x')}})));
  EXPECT_TRUE(broken(std::string("\x00\x00\x00\x00", 4)));      // no kind
  EXPECT_TRUE(broken(std::string("\x01\x00\x00\x00\x63", 5)));  // unknown kind
  EXPECT_TRUE(broken(std::string("\x02\x00\x00\x00\x01\x01", 6)));
  EXPECT_FALSE(broken(std::string("\x05\x00\x00\x00\x01", 5)));  // not all there yet
}

}  // namespace
}  // namespace agpcs
