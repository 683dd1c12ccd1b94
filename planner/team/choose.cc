// SPDX-License-Identifier: Apache-2.0
#include "planner/team/choose.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "planner/team/frontier.h"
#include "planner/team/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

/// Less by more than rounding.
constexpr double kClearlyLess = 1 - 1e-12;

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

/// If more than this are left where hopeless states were dropped, so many of the best stay.
constexpr std::size_t kMostLeft = 200;
/// The best few, beside which others may be hopeless.
constexpr std::size_t kLeaders = 8;

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
    layer_.add({}, 0);
  }

  void run() {
    const bool repeats = turns_.turns > 0;
    for (std::size_t op = 0; op < space_.options.size(); ++op) {
      if (repeats && op == turns_.turn(2)) behind_second_ = layer_;
      if (repeats && op == turns_.turn(3)) op = repeat();
      advance(op);
    }
    AGPCS_CHECK(layer_.size() == 1, "{} states at the end", layer_.size());
  }

  bool exact() const { return exact_; }
  double seconds() const { return layer_.seconds(0); }

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
    for (std::size_t s = 0; s < layer_.size(); ++s) {
      if (s != state) layer_.seconds(s) = kNeverSeconds;
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
    const FrontierStep& step = frontier_.step(op);
    FrontierLayer next(step.behind.size());
    std::vector<Came> came;
    const std::size_t all = step.variants.size();
    const bool one = only != kNone && at(only) < all;
    if (one) extend_all(step, at(only), at(only) + 1, next, came);
    if (next.size() == 0) extend_all(step, 0, all, next, came);
    if (next.size() > most_states_) drop_hopeless(step, next, came);
    const std::size_t most_left = std::max(most_states_, kMostLeft);
    if (next.size() > most_left) keep_best(step, next, came, most_left);
    layer_ = std::move(next);
    came_.push_back(std::move(came));
  }

  /// Adds what the variants from `first` on, before `end`, make of each state.
  void extend_all(const FrontierStep& step, std::size_t first, std::size_t end, FrontierLayer& next,
                  std::vector<Came>& came) {
    FrontierExtension extension(frontier_, step, first, end);
    for (std::size_t s = 0; s < layer_.size(); ++s) {
      if (layer_.seconds(s) == kNeverSeconds) continue;
      extension.begin(layer_.key(s));
      for (std::size_t v = first; v < end; ++v) {
        const double seconds = layer_.seconds(s) + extension.extend(v);
        if (seconds == kNeverSeconds) continue;
        const auto [state, added] = next.add(extension.behind(), seconds);
        if (added) {
          came.emplace_back();
        } else if (seconds > next.seconds(state) * kClearlyLess) {
          continue;  // ties go to the first
        }
        next.seconds(state) = seconds;
        came[state] = {static_cast<std::int32_t>(s), static_cast<std::int32_t>(v)};
      }
    }
  }

  /// Returns the seconds of states, counted as if every tensor had to become a copy.
  std::vector<double> ranks(const FrontierStep& step, const FrontierLayer& layer) {
    std::vector<double> rank(layer.size());
    for (std::size_t s = 0; s < rank.size(); ++s) {
      rank[s] = layer.seconds(s) + frontier_.seconds_to_copies(step, layer.key(s));
    }
    return rank;
  }

  /// Returns the `count` states that rank best, in no order.
  std::vector<std::size_t> best_states(const FrontierStep& step, const FrontierLayer& layer,
                                       std::size_t count) {
    const std::vector<double> rank = ranks(step, layer);
    std::vector<std::size_t> best(layer.size());
    std::iota(best.begin(), best.end(), std::size_t{0});
    const auto is_before = [&](std::size_t a, std::size_t b) {  // of equal ones, the first
      return rank[a] != rank[b] ? rank[a] < rank[b] : a < b;
    };
    std::ranges::nth_element(best, best.begin() + static_cast<std::ptrdiff_t>(count), is_before);
    best.resize(count);
    return best;
  }

  /// Drops states that take no less than one of the best would with all their forms as well. (Such
  /// a state might still end up better, if a form to come made one that it has cheaper.)
  void drop_hopeless(const FrontierStep& step, FrontierLayer& layer, std::vector<Came>& came) {
    const std::vector<std::size_t> best =
        best_states(step, layer, std::min(kLeaders, layer.size()));
    const auto is_hopeless = [&](std::size_t s) {
      return std::ranges::any_of(best, [&](std::size_t b) {
        if (b == s || layer.seconds(b) > layer.seconds(s)) return false;
        const double with_all =
            layer.seconds(b) + frontier_.seconds_to_have(step, layer.key(b), layer.key(s));
        return with_all < layer.seconds(s) || (with_all == layer.seconds(s) && b < s);
      });
    };
    std::vector<std::size_t> kept;
    for (std::size_t s = 0; s < layer.size(); ++s) {
      if (!is_hopeless(s)) kept.push_back(s);
    }
    keep(kept, step, layer, came);
  }

  void keep_best(const FrontierStep& step, FrontierLayer& layer, std::vector<Came>& came,
                 std::size_t count) {
    std::vector<std::size_t> kept = best_states(step, layer, count);
    std::ranges::sort(kept);
    keep(kept, step, layer, came);
  }

  void keep(const std::vector<std::size_t>& kept, const FrontierStep& step, FrontierLayer& layer,
            std::vector<Came>& came) {
    if (kept.size() == layer.size()) return;
    exact_ = false;
    FrontierLayer best(step.behind.size());
    std::vector<Came> came_best;
    for (const std::size_t s : kept) {
      best.add(layer.key(s), layer.seconds(s));
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
  FrontierLayer layer_{0}, behind_second_{0};  // the latter: behind the second turn
  std::vector<std::vector<Came>> came_;        // by operator and state behind it
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
#ifndef NDEBUG  // others verify the strategy that is taken, not every choice on the way
  AGPCS_RETURN_IF_ERROR(verify_team_body(problem.graph, choice.body));
#endif
  return choice;
}

}  // namespace agpcs
