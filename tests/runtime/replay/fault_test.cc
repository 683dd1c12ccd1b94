// SPDX-License-Identifier: Apache-2.0
// Every message and every computation of four plans comes to harm once, in every way: the run ends
// within its limit with an error that names rank and instruction, or with exactly right numbers.
#include "runtime/support/checksum.h"
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/replay/faulty_network.h"

#include <agpcs/replayer.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace agpcs {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

constexpr int kSteps = 2;
constexpr milliseconds kPatience{60000};  // where nothing has to be waited for in vain
constexpr milliseconds kLimit{300};       // where something has
constexpr std::size_t kWorlds = 12;       // at a time: most of them wait

struct Case {
  const char* name;
  TestPlan plan;
};
void PrintTo(const Case& plan, std::ostream* out) { *out << plan.name; }  // NOLINT

std::vector<Case> cases() {
  return {{"data_parallel", {{{2, 1, 1}}, {}, 2}},
          {"pipeline", {{{2}, {2}, {2}}, {{0, 1, {"a"}}, {1, 2, {"b", "W"}}}, 4}},
          {"hybrid_with_shares", {{{3, 1}, {1, 3}}, {{0, 1, {"a", "!m"}}}, 2}},
          {"flows", {{{2, 1, 4, 1}}, {}, 1, Schedule::k1F1B, AllReduce::kFlow}}};
}

/// What a rank has at the end.
struct Outcome {
  Status status;
  std::vector<std::vector<double>> parameters;
  double loss = 0;
};

/// Fails the `n`-th computation of `rank`; nothing when `rank` is -1.
struct BadComputation {
  int rank = -1;
  int n = 0;
};

struct Replay {
  std::vector<Outcome> outcomes;
  std::vector<std::size_t> sent[2];  // by collective or not, then rank
  std::chrono::steady_clock::duration took{};
};

Outcome run_rank(const Plan& plan, Transport& transport, milliseconds limit,
                 const BadComputation& bad) {
  FakeExecutor executor;
  if (transport.rank() == bad.rank) {
    executor.before = [n = bad.n](const char*, int) mutable {
      return n-- == 0 ? internal_error("out of luck") : Status();
    };
  }
  ReplayOptions options;
  options.limit = limit;
  auto replayer = Replayer::create(plan, transport.rank(), transport, executor, options);
  if (!replayer.ok()) return {replayer.status(), {}, 0};
  Outcome outcome;
  for (int step = 0; step < kSteps; ++step) {
    const auto report = (*replayer)->run_step();
    if (!report.ok()) return {report.status(), {}, 0};
    outcome.loss = report->loss;
  }
  outcome.parameters = executor.parameters();
  return outcome;
}

Replay replay(const Plan& plan, const Fault& fault, bool checked, milliseconds limit,
              const BadComputation& bad = {}) {
  const int ranks = plan.rank_count();
  FaultyNetwork network(ranks, fault);
  Replay result;
  result.outcomes.resize(static_cast<std::size_t>(ranks));
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const auto transport = network.join(rank, checked);
      result.outcomes[static_cast<std::size_t>(rank)] = run_rank(plan, *transport, limit, bad);
    });
  }
  for (std::thread& thread : threads) thread.join();
  result.took = std::chrono::steady_clock::now() - begin;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const bool collective : {false, true}) {
      result.sent[collective ? 1 : 0].push_back(network.sent(rank, collective));
    }
  }
  return result;
}

/// "" when the rank's numbers are those of one process that computes all.
std::string wrong_numbers(const Plan& plan, int rank, const Outcome& outcome,
                          const FakeOutcome& expected) {
  if (outcome.loss != expected.loss) return "another loss";
  for (std::size_t b = 0; b < plan.buckets.size(); ++b) {
    if (plan.buckets[b].stage != plan.stage_of_rank(rank)) continue;
    if (outcome.parameters[b] != expected.parameters[b]) return "other parameters";
  }
  return "";
}

/// What is wrong with how a rank ended; "" when nothing is.
std::string objection(const Plan& plan, int rank, const Outcome& outcome,
                      const FakeOutcome& expected) {
  if (outcome.status.ok()) return wrong_numbers(plan, rank, outcome, expected);
  const std::string& said = outcome.status.message();
  const std::string who = "rank " + std::to_string(rank) + " (host";
  if (said.rfind(who, 0) != 0) return "an error without its rank: " + said;
  constexpr const char* kInstructions[] = {"send",   "recv",   "forward",    "backward",
                                           "update", "report", "all_reduce", "begin of step"};
  const bool named = std::any_of(std::begin(kInstructions), std::end(kInstructions),
                                 [&](const char* name) { return said.find(name) != said.npos; });
  return named ? "" : "an error without an instruction: " + said;
}

struct Trial {
  Fault fault;
  bool checked = false;
};

bool waits_in_vain(FaultKind kind) {
  return kind == FaultKind::kDrop || kind == FaultKind::kSever || kind == FaultKind::kStop;
}

std::vector<Trial> trials_of(const Plan& plan, bool checked, const std::vector<FaultKind>& kinds) {
  const Replay clean = replay(plan, {}, checked, kPatience);
  std::vector<Trial> trials;
  for (int rank = 0; rank < plan.rank_count(); ++rank) {
    EXPECT_TRUE(clean.outcomes[static_cast<std::size_t>(rank)].status.ok());
    for (const bool collective : {false, true}) {
      const std::size_t count = clean.sent[collective ? 1 : 0][static_cast<std::size_t>(rank)];
      for (std::size_t message = 0; message < count; ++message) {
        for (const FaultKind kind : kinds) {
          trials.push_back({{kind, rank, collective, message}, checked});
        }
      }
    }
  }
  return trials;
}

/// Counts of how the runs of one plan ended.
struct Counts {
  int runs = 0, right = 0, failed = 0;
};

class FaultsOf : public testing::TestWithParam<Case> {
 protected:
  FaultsOf() : plan_(make_plan(GetParam().plan)), expected_(fake_reference(plan_, kSteps)) {}

  /// Runs all trials, several at a time.
  Counts run_all(const std::vector<Trial>& trials) {
    std::atomic<std::size_t> next{0};
    std::vector<std::thread> workers;
    Counts counts;
    for (std::size_t i = 0; i < kWorlds; ++i) {
      workers.emplace_back([&] {
        for (std::size_t t = next++; t < trials.size(); t = next++) check(trials[t], counts);
      });
    }
    for (std::thread& worker : workers) worker.join();
    std::cout << counts.runs << " runs: " << counts.right << " ended with right numbers, "
              << counts.failed << " with an error\n";
    return counts;
  }

  void check(const Trial& trial, Counts& counts) {
    const milliseconds limit = waits_in_vain(trial.fault.kind) ? kLimit : kPatience;
    const Replay done = replay(plan_, trial.fault, trial.checked, limit);
    const std::lock_guard lock(mutex_);
    ++counts.runs;
    bool all_right = true;
    for (int rank = 0; rank < plan_.rank_count(); ++rank) {
      const Outcome& outcome = done.outcomes[static_cast<std::size_t>(rank)];
      all_right = all_right && outcome.status.ok();
      EXPECT_EQ(objection(plan_, rank, outcome, expected_), "") << trial.fault;
    }
    ++(all_right ? counts.right : counts.failed);
    EXPECT_LT(done.took, std::chrono::seconds(10)) << trial.fault;
    if (trial.fault.kind == FaultKind::kDelay) {
      EXPECT_TRUE(all_right) << trial.fault;
    }
  }

  const Plan plan_;
  const FakeOutcome expected_;
  std::mutex mutex_;
};

INSTANTIATE_TEST_SUITE_P(Plans, FaultsOf, testing::ValuesIn(cases()),
                         [](const auto& plan) { return std::string(plan.param.name); });

TEST_P(FaultsOf, EveryMessageThatIsLateChangesNothing) {
  const Counts counts = run_all(trials_of(plan_, false, {FaultKind::kDelay}));
  EXPECT_EQ(counts.right, counts.runs);
}

TEST_P(FaultsOf, AConnectionThatIsStuckOrAMessageCutShortEndsTheRun) {
  const Counts counts = run_all(trials_of(plan_, false, {FaultKind::kSever, FaultKind::kTruncate}));
  EXPECT_EQ(counts.failed, counts.runs);
}

TEST_P(FaultsOf, ARankThatStopsOrDiesAtAnyMessageEndsTheRun) {
  const Counts counts = run_all(trials_of(plan_, false, {FaultKind::kStop, FaultKind::kDie}));
  EXPECT_EQ(counts.failed, counts.runs);
}

TEST_P(FaultsOf, WithChecksEveryMessageThatIsLostIsFound) {
  const Counts counts = run_all(trials_of(plan_, true, {FaultKind::kDrop}));
  EXPECT_EQ(counts.failed, counts.runs);
}

TEST_P(FaultsOf, WithChecksEveryMessageThatIsDamagedOrRepeatedIsFound) {
  const Counts counts = run_all(
      trials_of(plan_, true, {FaultKind::kCorrupt, FaultKind::kTruncate, FaultKind::kDuplicate}));
  EXPECT_GE(counts.failed * 3, counts.runs * 2);  // a repeated last message harms nobody
}

// Without checks a wire has to keep what TCP promises.
TEST_P(FaultsOf, WithoutChecksADamagedMessageCanGoUnnoticed) {
  int unnoticed = 0;
  for (const Trial& trial : trials_of(plan_, false, {FaultKind::kCorrupt})) {
    const Replay done = replay(plan_, trial.fault, false, kPatience);
    for (int rank = 0; rank < plan_.rank_count(); ++rank) {
      const Outcome& outcome = done.outcomes[static_cast<std::size_t>(rank)];
      const bool wrong =
          outcome.status.ok() && !wrong_numbers(plan_, rank, outcome, expected_).empty();
      unnoticed += wrong ? 1 : 0;
    }
  }
  EXPECT_GT(unnoticed, 0);
}

TEST_P(FaultsOf, AnErrorInAnyComputationIsNamedByAll) {
  for (int rank = 0; rank < plan_.rank_count(); ++rank) {
    for (int n = 0; n < kSteps * 2 * static_cast<int>(plan_.micro_batches); ++n) {
      const Replay done = replay(plan_, {}, false, kPatience, {rank, n});
      const std::string who = "rank " + std::to_string(rank) + " (host";
      for (int other = 0; other < plan_.rank_count(); ++other) {
        const Outcome& outcome = done.outcomes[static_cast<std::size_t>(other)];
        ASSERT_FALSE(outcome.status.ok()) << "computation " << n << " of rank " << rank;
        EXPECT_EQ(objection(plan_, other, outcome, expected_), "");
        EXPECT_THAT(outcome.status.message(), HasSubstr(who));
        EXPECT_THAT(outcome.status.message(), HasSubstr("out of luck"));
      }
    }
  }
}

// Values of the reference implementation.
TEST(Checksum, IsXxh64) {
  const auto of = [](const std::string& text) { return checksum(text.data(), text.size()); };
  EXPECT_EQ(of(""), 0xef46db3751d8e999U);
  EXPECT_EQ(of("a"), 0xd24ec4f1a98c6e5bU);
  EXPECT_EQ(of("abc"), 0x44bc2cf5ad770999U);
  EXPECT_EQ(of("Nobody inspects the spammish repetition"), 0xfbcea83c8a378bf1U);
}

}  // namespace
}  // namespace agpcs
