// SPDX-License-Identifier: Apache-2.0
// The rules by which ranks agree on what is reduced next, through all schedules: every order in
// which gradients become ready, cycles begin and messages arrive.
#include "runtime/reduce/negotiation.h"

#include "runtime/reduce/response_cache.h"
#include "runtime/reduce/tensor_fusion.h"
#include "runtime/replay/in_order.h"
#include "tests/runtime/reduce/explore.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kGradients = 4;

struct Case {
  std::string name;
  bool cached = false;
  std::size_t capacity = 0;
  std::vector<std::vector<int>> units;
  int steps = 1;
  bool warm = false;  ///< after a step in which all came at once
};

void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }  // NOLINT

/// One rank: the machine under test, and what its driver knows.
struct ModelRank {
  Negotiation machine;
  int step = 0;
  std::vector<char> submitted = std::vector<char>(kGradients, 0);
  std::vector<char> reduced = std::vector<char>(kGradients, 0);
  std::size_t log = 0;  // all-reduces done
  bool in_cycle() const { return machine.awaited().member >= 0; }
};

std::vector<NegotiationSetup> setups_of(const Case& setting) {
  std::vector<NegotiationSetup> setups(3);
  for (int r = 0; r < 3; ++r) {
    NegotiationSetup& setup = setups[static_cast<std::size_t>(r)];
    setup.member = r;
    setup.ranks = {0, 1, 2};
    setup.hosts = {0, 0, 0};
    setup.names = {"a", "b", "c", "d"};
    setup.shapes.assign(kGradients, {DType::kFp32, 1});
    setup.units = setting.units;
    setup.cached = setting.cached;
    setup.capacity = setting.capacity;
    setup.fusion_bytes = 8;  // two gradients
  }
  return setups;
}

/// All ranks, what is under way between them, and what was reduced. What a rank can do, and what
/// comes of it, does not depend on the others before it takes a message of theirs, and each message
/// waits for one reader: one rank at a time may be explored.
class Model {
 public:
  static constexpr int kRanks = 3;
  Model(const std::vector<NegotiationSetup>& setups, int steps) : steps_(steps) {
    for (const NegotiationSetup& setup : setups) ranks_.push_back({Negotiation(setup)});
    channels_.resize(kRanks * kRanks);
  }

  /// What a rank does next: begins a cycle, before which the gradients of a set (its bits) come, or
  /// takes a message (kTake). When a gradient comes makes no difference before its rank's next
  /// cycle, hence these are all orders in which gradients can come.
  static constexpr int kTake = 1 << kGradients, kActions = kTake + 1;
  bool can(int r, int what) const {
    const ModelRank& rank = ranks_[static_cast<std::size_t>(r)];
    if (what == kTake) {
      return rank.in_cycle() && !channels_[index(rank.machine.awaited().member, r)].empty();
    }
    if (rank.in_cycle()) return false;
    for (int g = 0; g < kGradients; ++g) {
      if ((what >> g & 1) != 0 && rank.submitted[static_cast<std::size_t>(g)] != 0) return false;
    }
    return what != 0 ? rank.step < steps_ : rank.machine.pending();
  }
  void act(int r, int what) {
    ModelRank& rank = at(r);
    if (what == kTake) {
      auto& from = channels_[index(rank.machine.awaited().member, r)];
      const std::vector<char> message = from.front();
      from.pop_front();
      rank.machine.deliver(message);
    } else {
      for (int g = 0; g < kGradients; ++g) {
        if ((what >> g & 1) == 0) continue;
        rank.submitted[static_cast<std::size_t>(g)] = 1;
        rank.machine.submit(g, {DType::kFp32, 1});
      }
      if (rank.machine.pending()) rank.machine.begin_cycle();
    }
    for (auto& message : rank.machine.take_messages()) {
      channels_[index(r, message.member)].push_back(std::move(message.bytes));
    }
    if (!rank.in_cycle()) reduce(rank);
  }
  /// A step in which everything comes at once everywhere.
  void warm_up() {
    ++steps_;
    for (int r = 0; r < kRanks; ++r) act(r, kTake - 1);
    for (bool more = true; more;) {
      more = false;
      for (int r = 0; r < kRanks; ++r) {
        if (!can(r, kTake)) continue;
        act(r, kTake);
        more = true;
      }
    }
  }
  bool over() const {
    for (const ModelRank& rank : ranks_) {
      if (rank.step < steps_ || rank.in_cycle() || rank.machine.pending()) return false;
    }
    for (const auto& messages : channels_) {
      if (!messages.empty()) return false;
    }
    return true;
  }
  /// What went wrong so far.
  const std::string& wrong() const { return wrong_; }

  std::string key() const {
    std::string key;
    std::size_t all = log_.size();
    for (const ModelRank& rank : ranks_) all = std::min(all, rank.log);
    for (const ModelRank& rank : ranks_) {
      key += rank.machine.state() + '/' + std::to_string(rank.step) + '/' +
             std::to_string(rank.log - all) + '/';
      key.append(rank.submitted.begin(), rank.submitted.end());
      key.append(rank.reduced.begin(), rank.reduced.end());
      key += '|';
    }
    for (const auto& messages : channels_) {
      for (const auto& bytes : messages) key.append(bytes.begin(), bytes.end()) += ',';
      key += ';';
    }
    for (std::size_t i = all; i < log_.size(); ++i) {
      for (const int g : log_[i]) key += static_cast<char>('a' + g);
      key += '.';
    }
    return key;
  }

 private:
  ModelRank& at(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  static std::size_t index(int from, int to) {
    return static_cast<std::size_t>(from * kRanks + to);
  }
  void reduce(ModelRank& rank) {
    for (const FusedTensors& tensors : rank.machine.take_decided()) {
      if (rank.log == log_.size()) log_.push_back(tensors.gradients);
      if (log_[rank.log++] != tensors.gradients) wrong_ = "another order on some rank";
      for (const int gradient : tensors.gradients) {
        const auto g = static_cast<std::size_t>(gradient);
        if (rank.submitted[g] == 0) wrong_ = "reduced before it came";
        if (rank.reduced[g]++ != 0) wrong_ = "reduced twice";
      }
    }
    if (rank.reduced != std::vector<char>(kGradients, 1)) return;
    ++rank.step;
    rank.submitted.assign(kGradients, 0);
    rank.reduced.assign(kGradients, 0);
  }

  int steps_;
  std::vector<ModelRank> ranks_;
  std::vector<std::deque<std::vector<char>>> channels_;  // by `index`
  std::vector<std::vector<int>> log_;                    // all-reduces, in the order of all ranks
  std::string wrong_;
};

const std::vector<std::vector<int>> kAlone = {{0}, {1}, {2}, {3}};
const std::vector<std::vector<int>> kGrouped = {{0, 2}, {1, 3}};
const std::vector<std::vector<int>> kOneGroup = {{1, 2, 3}, {0}};

class EverySchedule : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(All, EverySchedule,
                         ::testing::Values(Case{"Coordinator", false, 0, kAlone},
                                           Case{"ColdCache", true, 16, kAlone},
                                           Case{"Cached", true, 16, kAlone, 1, true},
                                           Case{"CachedWithEviction", true, 3, kAlone, 1, true},
                                           Case{"GroupedCoordinator", false, 0, kGrouped, 2},
                                           Case{"GroupedCached", true, 16, kGrouped, 2},
                                           Case{"GroupedCachedWithEviction", true, 1, kGrouped, 2},
                                           Case{"AGroupAndOneAlone", true, 16, kOneGroup, 2}),
                         [](const auto& setting) { return setting.param.name; });

TEST_P(EverySchedule, ReducesEachGradientOnceInOneOrderAndNeverHangs) {
  const auto setups = setups_of(GetParam());
  Model model(setups, GetParam().steps);
  if (GetParam().warm) model.warm_up();
  explore(model, true);
}

TEST(Negotiation, EveryScheduleOfTwoGroupsWithoutAnyShortCut) {
  for (const Case& setting :
       {Case{"coordinator", false, 0, kGrouped}, Case{"cached", true, 16, kGrouped, 1, true}}) {
    SCOPED_TRACE(setting.name);
    const auto setups = setups_of(setting);
    Model model(setups, setting.steps);
    if (setting.warm) model.warm_up();
    EXPECT_GT(explore(model, false).states, explore(model, true).states);
  }
}

using Words = std::vector<std::int64_t>;

std::vector<char> bytes_of(const Words& words) {
  std::vector<char> bytes(words.size() * sizeof words[0]);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}

// What member `r`, to which gradient 0 came, makes of a message and the size before it.
std::string verdict_on(int r, const Words& words, std::int64_t size) {
  const auto setups = setups_of({"", false, 0, kAlone});
  Negotiation machine(setups[static_cast<std::size_t>(r)]);
  machine.submit(0, {DType::kFp32, 1});
  machine.begin_cycle();
  machine.deliver(bytes_of({size}));
  if (machine.failure().ok()) machine.deliver(bytes_of(words));
  return machine.failure().message();
}
std::string verdict_on(int r, const Words& words) {
  return verdict_on(r, words, static_cast<std::int64_t>(words.size() * sizeof words[0]));
}

TEST(Negotiation, AListThatNoRankSendsIsAFailureThatNamesTheRank) {
  constexpr std::int64_t kChange = std::int64_t{1} << 32;
  constexpr auto kFp64 = static_cast<std::int64_t>(DType::kFp64);
  EXPECT_EQ(verdict_on(0, {0, 3}), "");
  EXPECT_EQ(verdict_on(0, {kChange, kFp64, 7}), "");
  const std::string nonsense = "what rank 1 says of its gradients cannot be understood";
  for (const std::int64_t size : {std::int64_t{1} << 60, std::int64_t{-8}, std::int64_t{100'000}}) {
    EXPECT_EQ(verdict_on(0, {}, size), nonsense) << size;
  }
  for (const Words& list : std::vector<Words>{{4},
                                              {0, 0},
                                              {-1},
                                              {kChange},
                                              {7 * kChange, kFp64, 7},
                                              {kChange, 256 + kFp64, 7},
                                              {kChange, 255, 7},
                                              {kChange, kFp64, -7}}) {
    EXPECT_EQ(verdict_on(0, list), nonsense) << list[0];
  }
}

TEST(Negotiation, AnAnswerThatNoCoordinatorSendsIsAFailureThatNamesIt) {
  EXPECT_EQ(verdict_on(1, {0}), "");
  const std::string nonsense = "what rank 0 says of its gradients cannot be understood";
  EXPECT_EQ(verdict_on(1, {}, std::int64_t{1} << 60), nonsense);
  for (const Words& answer : std::vector<Words>{{1}, {0, 0}, {99}, {std::int64_t{1} << 32}, {-2}}) {
    EXPECT_EQ(verdict_on(1, answer), nonsense) << answer[0];
  }
}

}  // namespace
}  // namespace agpcs
