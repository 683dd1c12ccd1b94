// SPDX-License-Identifier: Apache-2.0
#include "planner/team/frontier.h"

#include "ir/base/check.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <tuple>

namespace agpcs {
namespace {

constexpr std::size_t kNobody = std::numeric_limits<std::size_t>::max();

/// Returns the forms of `id` in a list of an operator.
FormSet forms_of(TensorId id, const std::vector<TensorId>& ids, const std::vector<int>& forms) {
  FormSet set = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] == id) set |= form_bit(forms[i]);
  }
  return set;
}

int place_in(const std::vector<TensorId>& frontier, TensorId id) {
  const auto found = std::ranges::find(frontier, id);
  return found == frontier.end() ? kNone : static_cast<int>(found - frontier.begin());
}

}  // namespace

double TensorStates::tree_seconds(int root, FormSet needed) const {
  return cheapest_tree(*forms_, root, needed).seconds + forms_->held_in(root);
}

std::uint16_t TensorStates::number(int root, FormSet needed) {
  const auto [entry, added] = numbers_.emplace(std::pair(root, needed | form_bit(root)),
                                               static_cast<std::uint16_t>(states_.size()));
  if (added) {
    AGPCS_CHECK(states_.size() < 0xffff, "a tensor lies in too many ways");
    states_.push_back({root, needed | form_bit(root), tree_seconds(root, needed), -1, {}});
  }
  return entry->second;
}

std::uint16_t TensorStates::after(std::uint16_t state, FormSet more) {
  for (const auto& [forms, next] : states_[state].after) {
    if (forms == more) return next;
  }
  const std::uint16_t next = number(states_[state].root, states_[state].needed | more);
  states_[state].after.emplace_back(more, next);
  return next;
}

double TensorStates::seconds_to_copy(std::uint16_t state) {
  if (states_[state].to_copy < 0) {
    const double seconds = tree_seconds(states_[state].root, states_[state].needed | form_bit(0));
    // A parameter in parts never becomes a copy.
    states_[state].to_copy =
        seconds == kNeverSeconds ? 0 : std::max(0.0, seconds - states_[state].seconds);
  }
  return states_[state].to_copy;
}

double TensorStates::seconds_to_have(std::uint16_t state, std::uint16_t other) {
  if (state == other) return 0;
  const std::uint16_t both = after(state, states_[other].needed);
  // More forms may make others cheaper; then it still takes no less than nothing.
  return std::max(0.0, states_[both].seconds - states_[state].seconds);
}

Frontier::Frontier(const TeamProblem& problem, const TeamSpace& space)
    : problem_(problem),
      space_(space),
      first_(space.tensors.size(), kNobody),
      last_(space.tensors.size(), kNobody),
      states_(space.tensors.size()) {
  for (std::size_t i = 0; i < problem.ops.size(); ++i) {
    for (const TensorId id : problem.graph.op(problem.ops[i]).inputs) {
      if (id == kNone) continue;
      const auto tensor = static_cast<std::size_t>(id);
      if (first_[tensor] == kNobody) first_[tensor] = i;
      last_[tensor] = i;
    }
  }
  const std::vector<TensorId> none;
  for (std::size_t i = 0; i < problem.ops.size(); ++i) {
    add_step(i, i == 0 ? none : steps_[i - 1].behind);
  }
}

bool Frontier::is_tracked(TensorId id) const {
  const TensorForms& forms = space_.tensors[static_cast<std::size_t>(id)];
  if (forms.free) return false;
  const auto tensor = static_cast<std::size_t>(id);
  return last_[tensor] != kNobody && (forms.made_here || first_[tensor] != last_[tensor]);
}

TensorStates& Frontier::states(TensorId id) {
  std::optional<TensorStates>& known = states_[static_cast<std::size_t>(id)];
  if (!known) known.emplace(space_.tensors[static_cast<std::size_t>(id)]);
  return *known;
}

void Frontier::add_step(std::size_t index, const std::vector<TensorId>& before) {
  const Op& op = problem_.graph.op(problem_.ops[index]);
  FrontierStep step;
  for (const TensorId id : op.inputs) {
    if (id == kNone || !is_tracked(id) || place_in(step.read, id) != kNone) continue;
    const int place = place_in(before, id);
    if (place == kNone) {
      if (place_in(step.begun, id) == kNone) step.begun.push_back(id);
    } else {
      step.read.push_back(id);
      step.place.push_back(static_cast<std::size_t>(place));
    }
  }
  step.read.insert(step.read.end(), step.begun.begin(), step.begun.end());
  for (std::size_t place = 0; place < before.size(); ++place) {
    if (place_in(step.read, before[place]) != kNone) continue;
    step.passed.emplace_back(place, step.behind.size());
    step.behind.push_back(before[place]);
  }
  for (const TensorId id : step.read) {
    const bool again = last_[static_cast<std::size_t>(id)] > index;
    step.after.push_back(again ? static_cast<int>(step.behind.size()) : kNone);
    if (again) step.behind.push_back(id);
  }
  for (const TensorId id : op.outputs) {
    if (id == kNone || !is_tracked(id)) continue;
    step.made.push_back(step.behind.size());
    step.behind.push_back(id);
  }
  add_variants(index, step);
  steps_.push_back(std::move(step));
}

void Frontier::add_variants(std::size_t index, FrontierStep& step) {
  const auto& options = space_.options[index];
  for (int option = 0; option < static_cast<int>(options.size()); ++option) {
    const FrontierVariant one = variant_of(index, option, step);
    if (one.seconds == kNeverSeconds) continue;
    std::vector<FrontierVariant> variants = {one};
    for (const TensorId id : step.begun) {  // each beginning with each of the tensors before
      std::vector<FrontierVariant> longer;
      for (const FrontierVariant& variant : variants) {
        for (const int beginning : space_.tensors[static_cast<std::size_t>(id)].beginnings) {
          longer.push_back(variant);
          longer.back().beginnings.push_back(beginning);
        }
      }
      variants = std::move(longer);
    }
    step.variants.insert(step.variants.end(), variants.begin(), variants.end());
  }
}

FrontierVariant Frontier::variant_of(std::size_t index, int option, const FrontierStep& step) {
  const Op& op = problem_.graph.op(problem_.ops[index]);
  const TeamOption& chosen = space_.options[index][static_cast<std::size_t>(option)];
  FrontierVariant variant;
  variant.option = option;
  variant.seconds = chosen.seconds;
  for (const TensorId id : step.read) {
    variant.reads.push_back(forms_of(id, op.inputs, chosen.inputs));
  }
  for (std::size_t i = 0; i < op.inputs.size(); ++i) {
    const TensorId id = op.inputs[i];
    if (id == kNone || is_tracked(id)) continue;
    if (std::find(op.inputs.begin(), op.inputs.begin() + static_cast<std::ptrdiff_t>(i), id) !=
        op.inputs.begin() + static_cast<std::ptrdiff_t>(i)) {
      continue;  // counted already
    }
    variant.seconds += seconds_outside(id, forms_of(id, op.inputs, chosen.inputs));
  }
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const TensorId id = op.outputs[i];
    if (id == kNone) continue;
    const TensorForms& forms = space_.tensors[static_cast<std::size_t>(id)];
    const FormSet needed = forms.leaves ? form_bit(0) : 0;
    if (is_tracked(id)) {
      variant.made.push_back(states(id).number(chosen.outputs[i], needed));
      variant.seconds += states(id).seconds(variant.made.back());
    } else {
      variant.seconds += cheapest_tree(forms, chosen.outputs[i], needed).seconds;
    }
  }
  return variant;
}

/// Returns the seconds of a tensor that one operator reads: it begins wherever is cheapest.
double Frontier::seconds_outside(TensorId id, FormSet needed) const {
  const TensorForms& forms = space_.tensors[static_cast<std::size_t>(id)];
  if (forms.free) return 0;
  double least = kNeverSeconds;
  for (const int beginning : forms.beginnings) {
    least =
        std::min(least, cheapest_tree(forms, beginning, needed).seconds + forms.held_in(beginning));
  }
  return least;
}

double Frontier::seconds_to_copies(const FrontierStep& step, FrontierKey behind) {
  double seconds = 0;
  for (std::size_t place = 0; place < behind.size(); ++place) {
    seconds += states(step.behind[place]).seconds_to_copy(behind[place]);
  }
  return seconds;
}

double Frontier::seconds_to_have(const FrontierStep& step, FrontierKey behind, FrontierKey other) {
  double seconds = 0;
  for (std::size_t place = 0; place < behind.size(); ++place) {
    seconds += states(step.behind[place]).seconds_to_have(behind[place], other[place]);
  }
  return seconds;
}

FrontierExtension::FrontierExtension(Frontier& frontier, const FrontierStep& step,
                                     std::size_t first, std::size_t end)
    : step_(step),
      first_(first),
      there_(step.read.size() - step.begun.size()),
      before_(there_),
      seconds_before_(there_),
      behind_(step.behind.size()) {
  for (const TensorId id : step.read) states_.push_back(&frontier.states(id));
  const std::size_t reads = step.read.size();
  known_of_.resize((end - first) * reads);
  std::map<std::tuple<std::size_t, int, FormSet>, std::uint32_t> numbers;  // by tensor read
  const auto number = [&](std::size_t v, std::size_t i) {
    const FrontierVariant& variant = step.variants[v];
    const int beginning = i < there_ ? kNone : variant.beginnings[i - there_];
    const auto next = static_cast<std::uint32_t>(known_.size());
    const auto [entry, added] = numbers.try_emplace({i, beginning, variant.reads[i]}, next);
    if (added) known_.emplace_back();
    known_of_[(v - first) * reads + i] = entry->second;
  };
  // Begun tensors first: how these lie does not depend on the state.
  for (std::size_t v = first; v < end; ++v) {
    for (std::size_t i = there_; i < reads; ++i) number(v, i);
  }
  fixed_ = known_.size();
  for (std::size_t v = first; v < end; ++v) {
    for (std::size_t i = 0; i < there_; ++i) number(v, i);
  }
}

void FrontierExtension::begin(FrontierKey before) {
  for (std::size_t i = 0; i < there_; ++i) {
    before_[i] = before[step_.place[i]];
    seconds_before_[i] = states_[i]->seconds(before_[i]);
  }
  std::fill(known_.begin() + static_cast<std::ptrdiff_t>(fixed_), known_.end(), After());
  for (const auto& [from, to] : step_.passed) behind_[to] = before[from];
}

FrontierExtension::After FrontierExtension::look_up(std::size_t read, std::uint16_t state,
                                                    FormSet forms) const {
  TensorStates& of = *states_[read];
  const std::uint16_t after = of.after(state, forms);
  return {of.seconds(after), after};
}

double FrontierExtension::extend(std::size_t v) {
  const FrontierVariant& variant = step_.variants[v];
  double seconds = variant.seconds;
  for (std::size_t i = 0; i < states_.size(); ++i) {
    const bool there = i < there_;
    if (there) seconds -= seconds_before_[i];
    After& after = known_[known_of_[(v - first_) * states_.size() + i]];
    if (after.state == kNone) {
      const std::uint16_t state =
          there ? before_[i] : states_[i]->number(variant.beginnings[i - there_], 0);
      after = look_up(i, state, variant.reads[i]);
    }
    if (after.seconds == kNeverSeconds) return kNeverSeconds;
    seconds += after.seconds;
    if (step_.after[i] != kNone) {
      behind_[static_cast<std::size_t>(step_.after[i])] = static_cast<std::uint16_t>(after.state);
    }
  }
  for (std::size_t i = 0; i < step_.made.size(); ++i) behind_[step_.made[i]] = variant.made[i];
  return seconds;
}

}  // namespace agpcs
