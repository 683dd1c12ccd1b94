// SPDX-License-Identifier: Apache-2.0
// State on the move: random plans before and after, over every transport.
#include "runtime/job/state_moves.h"

#include "ir/base/rng.h"
#include "runtime/job/move_cost.h"
#include "tests/runtime/fake_executor.h"
#include "tests/runtime/plans.h"
#include "tests/runtime/world.h"
#include "tests/support/shard_plan.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::milliseconds kLong{60000};

// "rank: item item ...", an item being tensor/slot=elements or, for a part,
// tensor/slot=elements[begin,end).
StateOwners owners_of(const std::vector<std::vector<std::string>>& ranks) {
  StateOwners owners;
  for (const auto& items : ranks) {
    owners.emplace_back();
    for (const std::string& text : items) {
      const std::size_t slash = text.find('/'), equals = text.find('=');
      owners.back().push_back({text.substr(0, slash), text.substr(slash + 1, equals - slash - 1),
                               std::stoll(text.substr(equals + 1))});
      const std::size_t open = text.find('['), comma = text.find(',');
      if (open == std::string::npos) continue;
      StateItem& item = owners.back().back();
      item.before = std::stoll(text.substr(open + 1));
      item.after = item.elements - std::stoll(text.substr(comma + 1));
    }
  }
  return owners;
}

std::string text(const Result<std::vector<StateMove>>& moves) {
  if (!moves.ok()) return moves.status().message();
  std::string out;
  for (const StateMove& move : *moves) {
    const ElementRange range = move.item.range();
    const std::string part = range.size() == move.item.elements
                                 ? std::string()
                                 : fmt::format("[{},{})", range.begin, range.end);
    out += fmt::format("{}/{}={}{} {}->{}\n", move.item.tensor, move.item.slot, move.item.elements,
                       part, move.from, move.to);
  }
  return out;
}

TEST(PlanStateMoves, AnItemStaysWhereItIs) {
  const StateOwners owners = owners_of({{"a/value=4", "b/value=2"}, {"b/value=2"}});
  EXPECT_EQ(text(plan_state_moves(owners, owners)),
            "a/value=4 0->0\nb/value=2 0->0\nb/value=2 1->1\n");
  EXPECT_EQ(bytes_of(*plan_state_moves(owners, owners)), 0);
}

TEST(PlanStateMoves, HoldersShareTheWork) {
  const StateOwners before = owners_of(
      {{"a/value=4", "b/value=4", "c/first=8"}, {"a/value=4", "b/value=4", "c/first=8"}, {}});
  const StateOwners after = owners_of({{}, {}, {"a/value=4", "b/value=4", "c/first=8"}});
  const auto moves = plan_state_moves(before, after);
  EXPECT_EQ(text(moves), "a/value=4 1->2\nb/value=4 1->2\nc/first=8 0->2\n");
  EXPECT_EQ(bytes_of(*moves), 16 * 4);
}

// A pair of links that are alike, and one that was not measured, which counts as the slowest.
TEST(SecondsOfMoves, AreThoseOfTheRankThatIsBusiestWithWhatTravels) {
  const StateOwners before =
      owners_of({{"a/value=4", "b/value=4"}, {"b/value=4"}, {"c/value=6", "d/value=1"}});
  const StateOwners after = owners_of({{"a/value=4"}, {"a/value=4", "c/value=6"}, {"d/value=1"}});
  const std::vector<StateMove> moves = *plan_state_moves(before, after);
  EXPECT_DOUBLE_EQ(seconds_of(moves, {{0, 1, 2.0, 0}, {1, 0, 3.0, 0}}),
                   16 * 2.0 + 24 * 3.0);  // both to rank 1
  EXPECT_DOUBLE_EQ(seconds_of(moves, {{0, 1, 2.0, 0}, {2, 1, 0.5, 0}}), 16 * 2.0 + 24 * 0.5);
  EXPECT_EQ(seconds_of(*plan_state_moves(after, after), {{0, 1, 2.0, 0}}), 0);
}

std::string text(const StateOwners& owners) {
  std::string out;
  for (const std::vector<StateItem>& items : owners) {
    for (const StateItem& item : items) {
      out += fmt::format("{}/{}={}:{} ", item.tensor, item.slot, item.elements, item.size());
    }
    out += "\n";
  }
  return out;
}

TEST(StateUnderAPlan, IsWholeOrAPartOfATeamOrOfASharedOptimizersState) {
  TestPlan spec{.shares = {{4}, {3, 1}},
                .cuts = {{0, 1, {"a"}}},
                .micro_batches = 2,
                .elements = {12, 3},
                .pieces = {{3, 1}, {}}};
  // Adam would remember two numbers an element, these plans remember none.
  EXPECT_EQ(text(state_under(make_plan(spec))),
            "w0/value=12:3 w1/value=3:3 \nw0/value=12:9 w1/value=3:3 \n"
            "w2/value=12:12 w3/value=3:3 \nw2/value=12:12 w3/value=3:3 \n");
  spec.pieces.clear();
  spec.weights = {2, 1};
  Plan divided = make_plan(spec);
  divided.training.optimizer.momentum = 0.9;
  EXPECT_EQ(text(state_under(divided)),
            "w0/value=12:12 w0/momentum=12:12 w1/value=3:3 w1/momentum=3:3 \n"
            "w2/value=12:12 w2/momentum=12:8 w3/value=3:3 w3/momentum=3:1 \n"
            "w2/value=12:12 w2/momentum=12:4 w3/value=3:3 w3/momentum=3:2 \n");
}

TEST(PlanStateMoves, NamesAnItemThatNobodyHas) {
  EXPECT_EQ(text(plan_state_moves(owners_of({{"a/value=4"}}),
                                  owners_of({{"a/value=4", "a/momentum=4"}}))),
            "rank 0 needs 'momentum' of 'a', which no rank has");
}

TEST(PlanStateMoves, PartsComeFromTheirHolders) {
  const StateOwners before = owners_of({{"a/first=9[0,4)"}, {"a/first=9[4,9)"}, {}});
  const StateOwners after = owners_of({{"a/first=9[0,1)"}, {"a/first=9[1,3)"}, {"a/first=9[3,9)"}});
  const auto moves = plan_state_moves(before, after);
  EXPECT_EQ(text(moves),
            "a/first=9[0,1) 0->0\na/first=9[1,3) 0->1\na/first=9[3,4) 0->2\na/first=9[4,9) 1->2\n");
  EXPECT_EQ(bytes_of(*moves), 8 * 4);
}

TEST(PlanStateMoves, AWholeItemIsPutTogetherAroundWhatARankHas) {
  const StateOwners before =
      owners_of({{"a/first=9[0,4)"}, {"a/first=9[4,6)"}, {"a/first=9[6,9)"}});
  const StateOwners after = owners_of({{}, {"a/first=9"}, {"a/first=9"}});
  EXPECT_EQ(text(plan_state_moves(before, after)),
            "a/first=9[0,4) 0->1\na/first=9[4,6) 1->1\na/first=9[6,9) 2->1\n"
            "a/first=9[0,4) 0->2\na/first=9[4,6) 1->2\na/first=9[6,9) 2->2\n");
}

TEST(PlanStateMoves, HoldersOfAllGiveParts) {
  const StateOwners before = owners_of({{"a/first=9"}, {"a/first=9"}, {}});
  const StateOwners after = owners_of({{}, {"a/first=9[5,9)"}, {"a/first=9[0,5)"}});
  EXPECT_EQ(text(plan_state_moves(before, after)), "a/first=9[5,9) 1->1\na/first=9[0,5) 0->2\n");
}

TEST(PlanStateMoves, NamesElementsThatNobodyHas) {
  EXPECT_EQ(text(plan_state_moves(owners_of({{"a/first=9[0,4)"}, {"a/first=9[6,9)"}}),
                                  owners_of({{}, {"a/first=9[2,9)"}}))),
            "rank 1 needs elements 4 to 6 of 'first' of 'a', which has 9, and no rank has them");
}

TEST(PlanStateMoves, RefusesAnotherNumberOfElements) {
  EXPECT_EQ(text(plan_state_moves(owners_of({{"a/value=4"}}), owners_of({{"a/value=5"}}))),
            "'value' of 'a' had 4 elements, and now has 5");
}

struct Parameter {
  std::string name;
  std::int64_t elements = 0;
};

// Sizes from nothing to two chunks and a half; FakeExecutor has two elements for each.
std::vector<Parameter> random_parameters(Rng& rng) {
  const std::int64_t sizes[] = {
      0, 1, 3, 1000, kStateChunk / 2, kStateChunk / 2 + 1, 5 * kStateChunk / 4};
  std::vector<Parameter> parameters;
  const std::uint64_t count = 1 + rng.below(12);
  for (std::uint64_t i = 0; i < count; ++i) {
    // Mostly small ones, so that the test is quick.
    parameters.push_back({fmt::format("w{}", i), sizes[rng.below(rng.below(4) == 0 ? 7 : 4)]});
  }
  return parameters;
}

// Random stages over `ranks` ranks, each parameter in one of them. Only what state depends on.
Plan random_plan(const std::vector<Parameter>& parameters, int ranks, Rng& rng) {
  Plan plan;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == 0 || rng.below(2) == 0) {
      plan.stages.emplace_back().name = fmt::format("s{}", plan.stages.size());
    }
    plan.stages.back().ranks.push_back(rank);
    plan.stages.back().samples.push_back(1);
  }
  for (std::size_t stage = 0; stage < plan.stages.size(); ++stage) {
    plan.buckets.push_back({"b", static_cast<int>(stage), AllReduce::kRing, DType::kFp64, {}, -1});
  }
  for (const Parameter& parameter : parameters) {
    plan.buckets[rng.below(plan.buckets.size())].members.push_back(
        {parameter.name, parameter.elements});
  }
  for (PlanBucket& bucket : plan.buckets) {
    const std::size_t replicas = plan.stages[static_cast<std::size_t>(bucket.stage)].ranks.size();
    if (replicas == 1 || rng.below(2) == 0) continue;
    const std::vector<std::int64_t> weights[] = {{5, 3, 4}, {0, 1}, {1, 0, 0}, {1}};
    bucket.parts = testing::parts_of(bucket.elements(), replicas, weights[rng.below(4)]);
    bucket.state = kDividingLevels[rng.below(kDividingLevels.size())];
  }
  return plan;
}

// Element `i` of the item with this hash, as its bytes: any, those of no number too.
std::uint32_t bits_of(std::uint64_t hash, std::int64_t i) {
  return static_cast<std::uint32_t>((hash + static_cast<std::uint64_t>(i)) * 0x9e3779b97f4a7c15 >>
                                    32);
}

void fill(Executor& executor) {
  for (const StateItem& item : executor.state()) {
    const std::uint64_t hash = stable_hash(item.tensor + item.slot);
    const ElementRange has = item.range();
    std::vector<float> values(static_cast<std::size_t>(has.size()));
    for (std::int64_t i = 0; i < has.size(); ++i) {
      const std::uint32_t bits = bits_of(hash, has.begin + i);
      std::memcpy(&values[static_cast<std::size_t>(i)], &bits, sizeof bits);
    }
    ASSERT_TRUE(executor.write_state(item, has.begin, has.size(), values.data()).ok());
  }
}

void expect_filled(const Executor& executor, const std::string& what) {
  for (const StateItem& item : executor.state()) {
    const ElementRange has = item.range();
    std::vector<float> values(static_cast<std::size_t>(has.size()));
    ASSERT_TRUE(executor.read_state(item, has.begin, has.size(), values.data()).ok());
    const std::uint64_t hash = stable_hash(item.tensor + item.slot);
    std::int64_t wrong = 0;
    for (std::int64_t i = 0; i < has.size(); ++i) {
      const std::uint32_t want = bits_of(hash, has.begin + i);
      wrong += std::memcmp(&values[static_cast<std::size_t>(i)], &want, sizeof want) != 0 ? 1 : 0;
    }
    EXPECT_EQ(wrong, 0) << what << ": " << item.tensor;
  }
}

class StateMovesOver : public OverWorld {};

INSTANTIATE_TEST_SUITE_P(Transports, StateMovesOver, ::testing::ValuesIn(worlds()),
                         [](const auto& param) { return param.param.name; });

// One switch of plans on one rank.
void switch_plans(const Plan& before, const Plan& after, Transport& transport,
                  const std::string& what) {
  FakeExecutor from, to;
  from.remembers = to.remembers = true;
  ASSERT_TRUE(from.prepare(before, transport.rank()).ok());
  ASSERT_TRUE(to.prepare(after, transport.rank()).ok());
  fill(from);
  const auto had = share_state_owners(from.state(), transport, kLong);
  const auto need = share_state_owners(to.state(), transport, kLong);
  ASSERT_TRUE(had.ok()) << what << ": " << had.status().message();
  ASSERT_TRUE(need.ok()) << what << ": " << need.status().message();
  EXPECT_EQ((*need)[static_cast<std::size_t>(transport.rank())], to.state());
  const auto moves = plan_state_moves(*had, *need);
  ASSERT_TRUE(moves.ok()) << what << ": " << moves.status().message();
  const Status moved = move_state(*moves, from, to, transport, kLong);
  ASSERT_TRUE(moved.ok()) << what << ": " << moved.message();
  expect_filled(to, what);
}

TEST_P(StateMovesOver, EveryItemArrivesBitForBitUnderAnyTwoPlans) {
  for (const int ranks : {1, 2, 3, 5}) {
    GetParam().run(ranks, [&](Transport& transport) {
      for (std::uint64_t seed = 0; seed < 5; ++seed) {
        Rng rng(seed * 10 + static_cast<std::uint64_t>(ranks));  // the same on all ranks
        const auto parameters = random_parameters(rng);
        const Plan before = random_plan(parameters, ranks, rng);
        const Plan after = random_plan(parameters, ranks, rng);
        switch_plans(before, after, transport, fmt::format("{} ranks, seed {}", ranks, seed));
      }
    });
  }
}

// Two replicas that swap with two others, with much to send both ways.
TEST_P(StateMovesOver, RanksThatSendAndReceiveAtOnceDoNotBlockEachOther) {
  std::vector<Parameter> parameters;
  for (int i = 0; i < 4; ++i) parameters.push_back({fmt::format("w{}", i), 3 * kStateChunk / 2});
  const auto plan_of = [&](int first) {
    Plan plan;
    for (int stage = 0; stage < 2; ++stage) {
      PlanStage& made = plan.stages.emplace_back();
      made.name = fmt::format("s{}", stage);
      made.ranks = {2 * stage, 2 * stage + 1};
      made.samples = {1, 1};
      plan.buckets.push_back({"b", stage, AllReduce::kRing, DType::kFp64, {}, -1});
    }
    for (int i = 0; i < 4; ++i) {
      const auto at = static_cast<std::size_t>(i);
      plan.buckets[static_cast<std::size_t>((first + i) % 2)].members.push_back(
          {parameters[at].name, parameters[at].elements});
    }
    return plan;
  };
  GetParam().run(4, [&](Transport& transport) {
    switch_plans(plan_of(0), plan_of(1), transport, "all change");
  });
}

TEST_P(StateMovesOver, NoMoreThanTwoChunksAreUnderWay) {
  const StateItem large{"w", "value", 9 * kStateChunk + 17}, small{"x", "value", 3};
  const std::vector<StateMove> moves = {{large, 0, 1}, {small, 1, 0}, {large, 1, 1}};
  GetParam().run(2, [&](Transport& transport) {
    std::int64_t begun = 0, most = 0;
    std::vector<std::int64_t> written;
    const auto read = [&](const StateItem& /*item*/, std::int64_t first, std::int64_t count,
                          float* out) {
      EXPECT_EQ(first % kStateChunk, 0);
      most = std::max(most, count);
      ++begun;
      std::fill(out, out + count, 1.F);
      return Status();
    };
    const auto write = [&](const StateItem& /*item*/, std::int64_t first, std::int64_t count,
                           const float* /*values*/) {
      written.push_back(first);
      most = std::max(most, count);
      return Status();
    };
    const Status moved = carry_state(moves, read, write, transport, kLong);
    ASSERT_TRUE(moved.ok()) << moved.message();
    EXPECT_EQ(most, kStateChunk);
    EXPECT_EQ(begun, transport.rank() == 0 ? 10 : 11);
    EXPECT_EQ(written.size(), transport.rank() == 0 ? 1U : 20U);
  });
}

TEST_P(StateMovesOver, ARankThatCannotReadEndsTheMoveOnAllRanks) {
  const StateItem item{"w", "value", 4 * kStateChunk};
  const std::vector<StateMove> moves = {{item, 0, 1}, {item, 0, 2}};
  GetParam().run(3, [&](Transport& transport) {
    const auto read = [&](const StateItem& /*item*/, std::int64_t first, std::int64_t /*count*/,
                          float* /*out*/) {
      return first == 2 * kStateChunk ? Status(StatusCode::kUnavailable, "disk on fire") : Status();
    };
    const auto write = [](const StateItem& /*item*/, std::int64_t /*first*/, std::int64_t /*count*/,
                          const float* /*values*/) { return Status(); };
    const Status moved = carry_state(moves, read, write, transport, kLong);
    ASSERT_FALSE(moved.ok());
    EXPECT_THAT(moved.message(),
                HasSubstr("moving 'value' of 'w' from rank 0 to rank 1: disk on fire"));
  });
}

}  // namespace
}  // namespace agpcs
