// SPDX-License-Identifier: Apache-2.0
#include "planner/team/choose.h"

#include "ir/base/check.h"
#include "planner/team/frontier.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

/// Less by more than rounding.
constexpr double kClearlyLess = 1 - 1e-12;

/// How the tensors of the frontier lie, a number of `TensorStates` each.
using Key = std::u16string;

/// The states at one place. Those that have the same key are one: the cheapest.
struct Layer {
  std::vector<Key> keys;
  std::vector<double> seconds;
  std::unordered_map<Key, std::size_t> known;  // looked up only
};

/// How a state came about.
struct Came {
  std::int32_t from = 0;     // state of the layer before
  std::int32_t variant = 0;  // of the operator between
};

/// Operators that come in turns, like layers: from `begin` on, `turns` turns of `period` operators.
struct Turns {
  std::size_t begin = 0, period = 0, turns = 0;
  std::size_t turn(std::size_t number) const { return begin + number * period; }
};

constexpr std::size_t kLongestTurn = 512, kFewestTurns = 6;

/// Returns the turns that have most operators; none if they are few.
Turns turns_of(const std::vector<int>& alike) {
  Turns best;
  for (std::size_t period = 1; period <= std::min(kLongestTurn, alike.size() / 2); ++period) {
    std::size_t run = 0;  // of operators that are like those a period before
    for (std::size_t i = period; i < alike.size(); ++i) {
      run = alike[i] == alike[i - period] ? run + 1 : 0;
      const std::size_t turns = run / period + 1;
      if (turns < 2 || turns * period <= best.turns * best.period) continue;
      best = {i + 1 - turns * period, period, turns};
    }
  }
  return best.turns < kFewestTurns ? Turns() : best;
}

class Chooser {
 public:
  Chooser(const TeamProblem& problem, const TeamSpace& space, std::size_t most_states)
      : space_(space),
        frontier_(problem, space),
        most_states_(most_states),
        turns_(turns_of(problem.alike)) {
    layer_.keys.emplace_back();
    layer_.seconds.push_back(0);
  }

  void run() {
    const bool repeats = turns_.turns > 0;
    for (std::size_t op = 0; op < space_.options.size(); ++op) {
      if (repeats && op == turns_.turn(2)) behind_second_ = layer_;
      if (repeats && op == turns_.turn(3)) op = repeat();
      advance(op);
    }
    AGPCS_CHECK(layer_.keys.size() == 1, "{} states at the end", layer_.keys.size());
  }

  bool exact() const { return exact_; }
  double seconds() const { return layer_.seconds[0]; }

  /// Follows the best state back.
  void read_choice(std::vector<int>& options, std::vector<int>& beginnings) const {
    options.assign(came_.size(), 0);
    beginnings.assign(space_.tensors.size(), kNone);
    std::size_t state = 0;
    for (std::size_t op = came_.size(); op-- > 0;) {
      const Came& came = came_[op][state];
      const FrontierStep& step = frontier_.step(op);
      const FrontierVariant& variant = step.variants[static_cast<std::size_t>(came.variant)];
      options[op] = variant.option;
      for (std::size_t i = 0; i < step.begun.size(); ++i) {
        beginnings[static_cast<std::size_t>(step.begun[i])] = variant.beginnings[i];
      }
      state = static_cast<std::size_t>(came.from);
    }
  }

 private:
  /// Goes the way of the second turn from there to the last turn. The way is that to the best state
  /// now, behind the third. Returns the first operator of the last turn.
  std::size_t repeat() {
    exact_ = false;
    const std::vector<double> rank = ranks(frontier_.step(turns_.turn(3) - 1), layer_);
    auto state = static_cast<std::size_t>(std::ranges::min_element(rank) - rank.begin());
    std::size_t op = turns_.turn(3);
    const auto go_back = [&] { state = static_cast<std::size_t>(came_[--op][state].from); };
    while (op > turns_.turn(2)) go_back();
    layer_ = std::move(behind_second_);
    for (std::size_t s = 0; s < layer_.seconds.size(); ++s) {
      if (s != state) layer_.seconds[s] = kNeverSeconds;
    }
    std::vector<std::int32_t> variants(turns_.period);
    while (op > turns_.turn(1)) {
      variants[op - 1 - turns_.turn(1)] = came_[op - 1][state].variant;
      go_back();
    }
    came_.resize(turns_.turn(2));
    for (op = turns_.turn(2); op < turns_.turn(turns_.turns - 1); ++op) {
      advance(op, variants[(op - turns_.begin) % turns_.period]);
    }
    return op;
  }

  /// Chooses for an operator; if `only` is one of its variants and possible, that one.
  void advance(std::size_t op, std::int32_t only = kNone) {
    FrontierStep& step = frontier_.step(op);
    Layer next;
    std::vector<Came> came;
    const auto all = static_cast<std::int32_t>(step.variants.size());
    if (only >= all) only = kNone;
    extend_all(step, only == kNone ? 0 : only, only == kNone ? all : only + 1, next, came);
    if (next.keys.empty() && only != kNone) extend_all(step, 0, all, next, came);
    if (next.keys.size() > most_states_) keep_best(step, next, came);
    layer_ = std::move(next);
    came_.push_back(std::move(came));
  }

  /// Adds what the variants from `first` on, before `end`, make of each state.
  void extend_all(const FrontierStep& step, std::int32_t first, std::int32_t end, Layer& next,
                  std::vector<Came>& came) {
    for (std::size_t s = 0; s < layer_.keys.size(); ++s) {
      if (layer_.seconds[s] == kNeverSeconds) continue;
      for (std::int32_t v = first; v < end; ++v) {
        Key key;
        const double seconds =
            layer_.seconds[s] +
            frontier_.extend(step, layer_.keys[s], static_cast<std::size_t>(v), key);
        if (seconds == kNeverSeconds) continue;
        const auto [entry, added] = next.known.try_emplace(key, next.keys.size());
        if (added) {
          next.keys.push_back(std::move(key));
          next.seconds.push_back(seconds);
          came.emplace_back();
        } else if (seconds > next.seconds[entry->second] * kClearlyLess) {
          continue;  // ties go to the first
        }
        next.seconds[entry->second] = seconds;
        came[entry->second] = {static_cast<std::int32_t>(s), v};
      }
    }
  }

  /// Returns the seconds of states, counted as if every tensor had to become a copy.
  std::vector<double> ranks(const FrontierStep& step, const Layer& layer) {
    std::vector<double> rank(layer.keys.size());
    for (std::size_t s = 0; s < rank.size(); ++s) {
      rank[s] = layer.seconds[s] + frontier_.seconds_to_copies(step, layer.keys[s]);
    }
    return rank;
  }

  void keep_best(const FrontierStep& step, Layer& layer, std::vector<Came>& came) {
    exact_ = false;
    const std::vector<double> rank = ranks(step, layer);
    std::vector<std::size_t> kept(layer.keys.size());
    std::iota(kept.begin(), kept.end(), std::size_t{0});
    std::ranges::stable_sort(kept, {}, [&](std::size_t s) { return rank[s]; });
    kept.resize(most_states_);
    std::ranges::sort(kept);
    Layer best;
    std::vector<Came> came_best;
    for (const std::size_t s : kept) {
      best.keys.push_back(std::move(layer.keys[s]));
      best.seconds.push_back(layer.seconds[s]);
      came_best.push_back(came[s]);
    }
    layer = std::move(best);
    came = std::move(came_best);
  }

  const TeamSpace& space_;
  Frontier frontier_;
  std::size_t most_states_;
  Turns turns_;
  bool exact_ = true;
  Layer layer_, behind_second_;          // the latter: behind the second turn
  std::vector<std::vector<Came>> came_;  // by operator and state behind it
};

Status check_members(const std::vector<std::int64_t>& parts) {
  const bool positive = std::ranges::all_of(parts, [](std::int64_t part) { return part > 0; });
  if (parts.size() >= 2 && positive) return {};
  return {StatusCode::kUsage,
          fmt::format("a team needs two members at least, each with a part above 0, not {}",
                      parts.size())};
}

}  // namespace

Result<TeamChoice> choose_team_body(const TeamProblem& problem, std::size_t most_states) {
  AGPCS_RETURN_IF_ERROR(check_members(problem.parts));
  const TeamSpace space = team_space(problem);
  Chooser chooser(problem, space, most_states);
  chooser.run();
  std::vector<int> options, beginnings;
  chooser.read_choice(options, beginnings);
  std::optional<TeamBody> body = team_body(problem, space, options, beginnings);
  AGPCS_CHECK(body, "a choice that has no body");
  TeamChoice choice{*std::move(body), chooser.seconds(), chooser.exact()};
  if (problem.held_element > 0) {
    choice.seconds = team_seconds(problem, choice.body).per_micro_batch(problem.micro_batches);
  }
  AGPCS_RETURN_IF_ERROR(verify_team_body(problem.graph, choice.body));
  return choice;
}

}  // namespace agpcs
