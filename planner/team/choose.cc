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

class Chooser {
 public:
  Chooser(const TeamProblem& problem, const TeamSpace& space, std::size_t most_states)
      : space_(space), frontier_(problem, space), most_states_(most_states) {
    layer_.keys.emplace_back();
    layer_.seconds.push_back(0);
  }

  void run() {
    for (std::size_t op = 0; op < space_.options.size(); ++op) advance(op);
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
  void advance(std::size_t op) {
    FrontierStep& step = frontier_.step(op);
    Layer next;
    std::vector<Came> came;
    for (std::size_t s = 0; s < layer_.keys.size(); ++s) {
      for (std::size_t v = 0; v < step.variants.size(); ++v) {
        Key key;
        const double seconds = layer_.seconds[s] + frontier_.extend(step, layer_.keys[s], v, key);
        if (seconds == kNeverSeconds) continue;
        const auto [entry, added] = next.known.emplace(key, next.keys.size());
        if (added) {
          next.keys.push_back(std::move(key));
          next.seconds.push_back(seconds);
          came.emplace_back();
        } else if (seconds > next.seconds[entry->second] * kClearlyLess) {
          continue;  // ties go to the first
        }
        next.seconds[entry->second] = seconds;
        came[entry->second] = {static_cast<std::int32_t>(s), static_cast<std::int32_t>(v)};
      }
    }
    if (next.keys.size() > most_states_) keep_best(step, next, came);
    layer_ = std::move(next);
    came_.push_back(std::move(came));
  }

  void keep_best(const FrontierStep& step, Layer& layer, std::vector<Came>& came) {
    exact_ = false;
    std::vector<double> rank(layer.keys.size());
    for (std::size_t s = 0; s < rank.size(); ++s) {
      rank[s] = layer.seconds[s] + frontier_.seconds_to_copies(step, layer.keys[s]);
    }
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
  bool exact_ = true;
  Layer layer_;
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
