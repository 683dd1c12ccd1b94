// SPDX-License-Identifier: Apache-2.0
// `kPlanned` through all schedules: every order in which gradients come on 3 ranks, all-reduces end
// on each of them, and the word of a failure arrives.
#include "runtime/reduce/planned_step.h"

#include "runtime/reduce/step_gradients.h"
#include "tests/runtime/reduce/explore.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr std::size_t kGradients = 4;

/// A call of `submit` in each step of a rank.
struct Submit {
  int gradient = 0;
  std::size_t elements = 1;
  friend bool operator==(const Submit&, const Submit&) = default;
};

struct Case {
  std::string name;
  std::vector<std::vector<int>> groups;
  std::array<std::vector<Submit>, 3> calls;  ///< by rank
  std::string error;                         ///< what all ranks are told; empty: nothing
  int steps = 1;
  /// Ranks whose calls of `submit` are seen in two halves, between which others act.
  std::array<bool, 3> halves = {};
};

void PrintTo(const Case& of, std::ostream* out) { *out << of.name; }  // NOLINT

const std::vector<Submit> kAll = {{0}, {1}, {2}, {3}};
const std::vector<std::vector<int>> kAlone = {{0}, {1}, {2}, {3}};
const std::vector<std::vector<int>> kGrouped = {{0, 2}, {1, 3}};
const std::vector<std::vector<int>> kOneGroup = {{1, 2, 3}, {0}};

GradientSet set_of(const Case& setting) {
  GradientSet set;
  for (const char* name : {"a", "b", "c", "d"}) set.gradients.push_back({name, DType::kFp32, 1});
  for (const std::vector<int>& gradients : setting.groups) {
    GradientGroup& group = set.groups.emplace_back();
    group.gradients = gradients;
  }
  return set;
}

/// Where a call is.
enum class Call : char { kNotYet, kTaken, kBrought, kRefused };

/// One rank: the machines under test, and what their driver, the reducer, does with them.
struct PlannedRank {
  PlannedRank(const GradientSet& set, int rank, std::size_t count)
      : came(set, rank), order(set), calls(count, Call::kNotYet) {}

  StepGradients came;
  PlannedStep order;
  std::vector<Call> calls;
  std::array<bool, kGradients> brought = {}, posted = {};
  std::size_t started = 0, done = 0;  // all-reduces, of all steps
  int step = 0;
  bool finishing = false;  // wait_all: all is posted
  bool told = false;       // wait_all returned an error
  std::string failure;     // the first one
  bool announced = false;
  std::string lost;  // why the transport refuses all
};

class Model {
 public:
  static constexpr int kRanks = 3;
  /// What a rank does next: the next half of a call (its number), or one of these.
  enum Action : int { kComplete = 5, kHear, kAnnounce, kWait, kLate, kActions };

  Model(const Case& setting, const GradientSet& set) : case_(&setting), set_(&set) {
    for (int r = 0; r < kRanks; ++r) ranks_.emplace_back(set, r, calls(r).size());
  }

  bool can(int r, int what) const {
    const PlannedRank& rank = at(r);
    const bool failed = !rank.failure.empty();
    switch (what) {
      case kComplete:  // an all-reduce ends once all ranks have begun it
        return rank.lost.empty() && rank.done < rank.started && all_started() > rank.done;
      case kHear:
        return !failed && rank.lost.empty() && announcer() >= 0;
      case kAnnounce:  // others hear of it already, where it is an echo
        return failed && rank.lost.empty();
      case kWait:
        return !over(rank) && may_go_on(rank);
      case kLate:  // once all came that will
        return !over(rank) && !rank.finishing && !failed && !rank.came.all() &&
               has_called(rank, Call::kTaken);
      default:  // what is called after a failure returns it, and changes nothing
        return !failed && !over(rank) && may_call(r, static_cast<std::size_t>(what));
    }
  }

  void act(int r, int what) {
    PlannedRank& rank = ranks_[static_cast<std::size_t>(r)];
    switch (what) {
      case kComplete:
        return complete(rank);
      case kHear:
        rank.lost = at(announcer()).failure;
        return;
      case kAnnounce:
        rank.announced = true;
        rank.lost = rank.failure;
        return;
      case kWait:
        return go_on(rank);
      case kLate:
        rank.failure = rank.came.missing();
        return;
      default:
        return submit(r, rank, static_cast<std::size_t>(what));
    }
  }

  bool over() const {
    return std::all_of(ranks_.begin(), ranks_.end(), [&](const PlannedRank& rank) {
      return case_->error.empty()
                 ? rank.step == case_->steps && rank.failure.empty()
                 : rank.told && rank.failure.find(case_->error) != rank.failure.npos;
    });
  }
  const std::string& wrong() const { return wrong_; }

  /// Ranks that make the same calls may change places.
  std::string key() const {
    std::array<std::string, kRanks> keys;
    for (int r = 0; r < kRanks; ++r) keys[static_cast<std::size_t>(r)] = key_of(at(r));
    for (std::size_t a = 0; a < kRanks; ++a) {
      for (std::size_t b = a + 1; b < kRanks; ++b) {
        const bool alike =
            case_->calls[a] == case_->calls[b] && case_->halves[a] == case_->halves[b];
        if (alike && keys[b] < keys[a]) std::swap(keys[a], keys[b]);
      }
    }
    return keys[0] + '|' + keys[1] + '|' + keys[2];
  }

 private:
  const PlannedRank& at(int r) const { return ranks_[static_cast<std::size_t>(r)]; }
  const std::vector<Submit>& calls(int r) const {
    return case_->calls[static_cast<std::size_t>(r)];
  }
  static std::string key_of(const PlannedRank& rank) {
    std::string key;
    for (const bool flag : {rank.finishing, rank.told, rank.announced}) key += flag ? '+' : '-';
    key += rank.failure + '/' + rank.lost;
    if (rank.told) return key;
    for (const Call call : rank.calls) key += static_cast<char>('0' + static_cast<int>(call));
    for (const std::size_t count : {rank.started, rank.done}) key += static_cast<char>('a' + count);
    return key + static_cast<char>('0' + rank.step);
  }
  bool over(const PlannedRank& rank) const { return rank.told || rank.step == case_->steps; }
  std::size_t all_started() const {
    std::size_t least = ranks_.front().started;
    for (const PlannedRank& rank : ranks_) least = std::min(least, rank.started);
    return least;
  }
  /// The first rank whose failure others are being told of; -1: none.
  int announcer() const {
    for (int r = 0; r < kRanks; ++r) {
      if (at(r).announced) return r;
    }
    return -1;
  }
  /// Whether each call is beyond `least`.
  static bool has_called(const PlannedRank& rank, Call least) {
    return std::all_of(rank.calls.begin(), rank.calls.end(),
                       [&](const Call call) { return call > least; });
  }
  bool all_done(const PlannedRank& rank) const {
    return rank.done == static_cast<std::size_t>(rank.step + 1) * set_->groups.size();
  }

  /// Of two equal calls the first one is made first.
  bool may_call(int r, std::size_t call) const {
    const std::vector<Call>& made = at(r).calls;
    if (call >= made.size() || made[call] > Call::kTaken) return false;
    for (std::size_t other = 0; other < call; ++other) {
      if (calls(r)[other] == calls(r)[call] && made[other] < Call::kTaken) return false;
    }
    return true;
  }

  // submit: what is not as declared, or came already, is refused; the rest is copied to its place,
  // and then posted with what it completes.
  void submit(int r, PlannedRank& rank, std::size_t call) {
    const Submit& made = calls(r)[call];
    if (rank.calls[call] == Call::kNotYet) {
      const Buffer buffer{nullptr, made.elements * sizeof(float), DType::kFp32, false};
      Status status = rank.came.check(made.gradient, buffer, true);
      if (status.ok()) status = rank.came.take(made.gradient);
      rank.failure = status.message();
      rank.calls[call] = status.ok() ? Call::kTaken : Call::kRefused;
      if (rank.calls[call] == Call::kRefused || case_->halves[static_cast<std::size_t>(r)]) return;
    }
    rank.calls[call] = Call::kBrought;
    rank.brought[static_cast<std::size_t>(made.gradient)] = true;
    if (!rank.order.bring(made.gradient) || !rank.failure.empty()) return;
    const Status status = rank.order.advance([&](std::size_t group) { return post(rank, group); });
    rank.failure = status.message();
  }

  Status post(PlannedRank& rank, std::size_t group) {
    if (!rank.lost.empty()) return {StatusCode::kPeerFailed, rank.lost};
    if (group != rank.started++ % set_->groups.size()) wrong_ = "not the plan's order";
    for (const int gradient : set_->groups[group].gradients) {
      const auto g = static_cast<std::size_t>(gradient);
      if (!rank.brought[g]) wrong_ = "reduced before it came";
      if (rank.posted[g]) wrong_ = "reduced twice";
      rank.posted[g] = true;
    }
    return {};
  }

  void complete(PlannedRank& rank) {
    const std::size_t group = rank.done++ % set_->groups.size();
    for (const int gradient : set_->groups[group].gradients) {
      if (!rank.posted[static_cast<std::size_t>(gradient)]) wrong_ = "ended before it began";
    }
  }

  // wait_all: until all is posted, then until each group is reduced. A call that a test makes in a
  // step begins before that step's wait_all returns.
  bool may_go_on(const PlannedRank& rank) const {
    if (!rank.finishing) return !rank.failure.empty() || rank.order.all_posted();
    if (!all_done(rank)) return !rank.lost.empty();
    return has_called(rank, Call::kNotYet);
  }
  void go_on(PlannedRank& rank) {
    if (!rank.finishing && rank.failure.empty()) {
      rank.finishing = true;
      return;
    }
    if (rank.finishing && !all_done(rank) && rank.failure.empty()) rank.failure = rank.lost;
    if (!rank.failure.empty()) {
      rank.told = true;
      return;
    }
    if (rank.posted != std::array<bool, kGradients>{true, true, true, true}) {
      wrong_ = "a step ended without a gradient";
    }
    rank.came.begin_step();
    rank.order.begin_step();
    rank.calls.assign(rank.calls.size(), Call::kNotYet);
    rank.brought = rank.posted = {};
    rank.finishing = false;
    ++rank.step;
  }

  const Case* case_;
  const GradientSet* set_;
  std::vector<PlannedRank> ranks_;
  std::string wrong_;
};

Explored explore_case(const Case& setting, bool shortened) {
  const GradientSet set = set_of(setting);
  return explore(Model(setting, set), shortened);
}

class EveryPlannedSchedule : public ::testing::TestWithParam<Case> {};

// Until something fails, what a rank does neither hinders nor changes what another one can do: two
// steps are explored one rank at a time.
INSTANTIATE_TEST_SUITE_P(
    All, EveryPlannedSchedule,
    ::testing::Values(Case{"Alone", kAlone, {kAll, kAll, kAll}, "", 2},
                      Case{"Grouped", kGrouped, {kAll, kAll, kAll}, "", 2},
                      Case{"AGroupAndOneAlone", kOneGroup, {kAll, kAll, kAll}, "", 2}),
    [](const auto& setting) { return setting.param.name; });

TEST_P(EveryPlannedSchedule, ReducesEachGradientOnceInThePlansOrderAndNeverHangs) {
  Case setting = GetParam();
  setting.halves = {true, true, true};
  explore_case(setting, true);
}

TEST_P(EveryPlannedSchedule, OfOneStepWithoutAnyShortCut) {
  Case setting = GetParam();
  setting.steps = 1;
  setting.halves = {false, false, true};
  EXPECT_GT(explore_case(setting, false).states, explore_case(setting, true).states);
}

class EveryScheduleThatFails : public ::testing::TestWithParam<Case> {};

const std::vector<Submit> kTwice = {{0}, {1}, {2}, {3}, {0}};
const std::vector<Submit> kNever = {{0}, {1}, {3}};
const std::vector<Submit> kLonger = {{0}, {1}, {2}, {3, 5}};

// The two halves of a call matter where gradients are refused or late; elsewhere nobody sees the
// first one. In two steps: who had all before the failure is told of it in the next one.
INSTANTIATE_TEST_SUITE_P(
    All, EveryScheduleThatFails,
    ::testing::Values(Case{"Twice",
                           kAlone,
                           {kAll, kAll, kTwice},
                           "gradient 'a' came twice in a step on rank 2",
                           2,
                           {false, false, true}},
                      Case{"TwiceInAGroup",
                           kGrouped,
                           {kAll, kAll, kTwice},
                           "gradient 'a' came twice in a step on rank 2",
                           2,
                           {false, false, true}},
                      Case{"Never",
                           kAlone,
                           {kAll, kNever, kAll},
                           "gradient 'c' did not come on rank 1",
                           2,
                           {false, true, false}},
                      Case{"NeverInAGroup",
                           kGrouped,
                           {kAll, kNever, kAll},
                           "gradient 'c' did not come on rank 1",
                           2,
                           {false, true, false}},
                      Case{"AnotherSize",
                           kAlone,
                           {kAll, kLonger, kAll},
                           "gradient 'd' has 5 elements of fp32 on rank 1, 1 of fp32 were declared",
                           2,
                           {false, true, false}},
                      Case{"AnotherSizeInAGroup",
                           kGrouped,
                           {kAll, kLonger, kAll},
                           "gradient 'd' has 5 elements of fp32 on rank 1, 1 of fp32 were declared",
                           2,
                           {false, true, false}}),
    [](const auto& setting) { return setting.param.name; });

TEST_P(EveryScheduleThatFails, NamesTheGradientAndTheRankOnEveryRank) {
  explore_case(GetParam(), false);
}

}  // namespace
}  // namespace agpcs
