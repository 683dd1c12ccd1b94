// SPDX-License-Identifier: Apache-2.0
// The frontier of a team's dynamic program: between two operators, the tensors that operators
// behind still read, and how each of them may lie.
#pragma once

#include "planner/team/layer.h"
#include "planner/team/space.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {

/// How a tensor may lie: what it began in, and the forms that operators have read so far. Each such
/// pair has a number, and the seconds of its cheapest tree.
class TensorStates {
 public:
  explicit TensorStates(const TensorForms& forms) : forms_(&forms) {}
  std::uint16_t number(int root, FormSet needed);
  double seconds(std::uint16_t state) const { return states_[state].seconds; }
  /// Returns the state after an operator has read `more`.
  std::uint16_t after(std::uint16_t state, FormSet more);
  /// Returns what a copy would take beyond what the state takes.
  double seconds_to_copy(std::uint16_t state);
  /// Returns what all forms of `other` would take beyond what the state takes.
  double seconds_to_have(std::uint16_t state, std::uint16_t other);

 private:
  struct State {
    int root = 0;
    FormSet needed = 0;
    double seconds = 0, to_copy = -1;  // to_copy: -1 is not known yet
    std::vector<std::pair<FormSet, std::uint16_t>> after;
  };
  double tree_seconds(int root, FormSet needed) const;  ///< and what is counted for holding it
  const TensorForms* forms_;
  std::vector<State> states_;
  std::map<std::pair<int, FormSet>, std::uint16_t> numbers_;
};

/// An option of an operator, and where tensors begin that it is the first to read.
struct FrontierVariant {
  int option = 0;
  std::vector<int> beginnings;      ///< parallel to FrontierStep::begun
  double seconds = 0;               ///< of the option, and of tensors that no frontier has
  std::vector<FormSet> reads;       ///< parallel to FrontierStep::read
  std::vector<std::uint16_t> made;  ///< states of the outputs in the frontier behind
};

/// An operator, between the frontiers before and behind it.
struct FrontierStep {
  std::vector<TensorId> begun;  ///< tensors not made here that several operators read, at the first
  std::vector<TensorId> read;   ///< tensors of the frontier before, then `begun`
  std::vector<std::size_t> place;  ///< of `read` in the frontier before; not for `begun`
  std::vector<int> after;  ///< of `read` in the frontier behind; kNone: read for the last time
  std::vector<std::pair<std::size_t, std::size_t>> passed;  ///< from place to place: not read here
  std::vector<std::size_t> made;                            ///< places of outputs
  std::vector<TensorId> behind;                             ///< the frontier behind
  std::vector<FrontierVariant> variants;
};

class Frontier {
 public:
  Frontier(const TeamProblem& problem, const TeamSpace& space);

  FrontierStep& step(std::size_t op) { return steps_[op]; }
  const FrontierStep& step(std::size_t op) const { return steps_[op]; }

  /// Returns what it takes to make copies of all tensors of a frontier.
  double seconds_to_copies(const FrontierStep& step, FrontierKey behind);
  /// Returns what a state takes to have each tensor of a frontier in all forms of another state.
  double seconds_to_have(const FrontierStep& step, FrontierKey behind, FrontierKey other);
  TensorStates& states(TensorId id);

 private:
  void add_step(std::size_t index, const std::vector<TensorId>& before);
  void add_variants(std::size_t index, FrontierStep& step);
  FrontierVariant variant_of(std::size_t index, int option, const FrontierStep& step);
  double seconds_outside(TensorId id, FormSet needed) const;
  std::size_t last_reader(TensorId id) const;  ///< index of an operator; none: SIZE_MAX
  bool is_tracked(TensorId id) const;

  const TeamProblem& problem_;
  const TeamSpace& space_;
  std::vector<std::size_t> first_, last_;  // by TensorId: operators that read it, by index
  std::vector<std::optional<TensorStates>> states_;  // by TensorId; made where they are asked for
  std::vector<FrontierStep> steps_;
};

/// What some variants of a step make of states of the frontier before. Many variants read the same
/// forms of a tensor, so it looks up once for each state how that then lies. Refers to both.
class FrontierExtension {
 public:
  /// The variants are those from `first` on, before `end`.
  FrontierExtension(Frontier& frontier, const FrontierStep& step, std::size_t first,
                    std::size_t end);

  /// Takes a state of the frontier before.
  void begin(FrontierKey before);
  /// Returns what variant `v` adds to the seconds of that state; `behind` is then the state behind,
  /// unless the variant is not possible (kNeverSeconds).
  double extend(std::size_t v);
  FrontierKey behind() const { return behind_; }

 private:
  struct After {
    double seconds = 0;
    std::int32_t state = kNone;  // kNone: not looked up yet
  };
  After look_up(std::size_t read, std::uint16_t state, FormSet forms) const;

  const FrontierStep& step_;
  std::size_t first_;
  std::size_t there_;                  // of what is read: in the frontier before
  std::vector<TensorStates*> states_;  // parallel to FrontierStep::read
  std::vector<std::uint16_t> before_;  // likewise, as far as it is there
  std::vector<double> seconds_before_;
  std::vector<std::uint32_t> known_of_;  // by variant and tensor read: index in `known_`
  std::size_t fixed_ = 0;                // so many of these hold for all states: of begun tensors
  std::vector<After> known_;
  std::vector<std::uint16_t> behind_;
};

}  // namespace agpcs
