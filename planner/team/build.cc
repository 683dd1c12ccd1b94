// SPDX-License-Identifier: Apache-2.0
// The body of what was chosen, and what a body takes.
#include "planner/team/choose.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

class BodyBuilder {
 public:
  BodyBuilder(const TeamProblem& problem, const TeamSpace& space, const std::vector<int>& options,
              const std::vector<int>& beginnings)
      : problem_(problem), space_(space), options_(options), beginnings_(beginnings) {}

  std::optional<TeamBody> run() {
    body_.parts = problem_.parts;
    number_divisions();
    for (std::size_t i = 0; i < problem_.ops.size(); ++i) note_needs(i);
    for (const auto& [id, need] : needs_) {
      if (!add_forms(id, need)) return std::nullopt;
    }
    for (std::size_t i = 0; i < problem_.ops.size(); ++i) add_operator(i);
    order_steps(problem_.graph, body_);
    return std::move(body_);
  }

 private:
  struct Need {
    int root = kNone;
    FormSet forms = 0;
  };

  const TeamOption& option(std::size_t i) const {
    return space_.options[i][static_cast<std::size_t>(options_[i])];
  }
  const TensorForms& forms(TensorId id) const {
    return space_.tensors[static_cast<std::size_t>(id)];
  }

  /// Keeps the divisions that operators have, in the space's order.
  void number_divisions() {
    division_.assign(space_.divisions.size(), kNone);
    for (std::size_t i = 0; i < problem_.ops.size(); ++i) {
      if (option(i).division != kNone) division_[static_cast<std::size_t>(option(i).division)] = 0;
    }
    for (std::size_t d = 0; d < division_.size(); ++d) {
      if (division_[d] == kNone) continue;
      division_[d] = static_cast<int>(body_.divisions.size());
      body_.divisions.push_back(space_.divisions[d]);
    }
  }

  void note_needs(std::size_t i) {
    const Op& op = problem_.graph.op(problem_.ops[i]);
    for (std::size_t k = 0; k < op.inputs.size(); ++k) {
      if (op.inputs[k] != kNone) needs_[op.inputs[k]].forms |= form_bit(option(i).inputs[k]);
    }
    for (std::size_t k = 0; k < op.outputs.size(); ++k) {
      if (op.outputs[k] == kNone) continue;
      Need& need = needs_[op.outputs[k]];
      need.root = option(i).outputs[k];
      if (forms(op.outputs[k]).leaves) need.forms |= form_bit(0);
    }
  }

  /// Returns kNone if no beginning is possible.
  int root_of(TensorId id, const Need& need) const {
    const int given = beginnings_[static_cast<std::size_t>(id)];
    if (given != kNone) return given;
    int best = kNone;
    double least = kNeverSeconds;
    for (const int beginning : forms(id).beginnings) {
      const double seconds =
          cheapest_tree(forms(id), beginning, need.forms).seconds + forms(id).held_in(beginning);
      if (seconds < least) best = beginning;
      least = std::min(least, seconds);
    }
    return best;
  }

  void add_form(TensorId id, int form, int from) {
    TeamForm made{id, forms(id).placements[static_cast<std::size_t>(form)], from};
    if (made.placement.division != kNone) {
      made.placement.division = division_[static_cast<std::size_t>(made.placement.division)];
    }
    number_[{id, form}] = static_cast<int>(body_.forms.size());
    body_.forms.push_back(std::move(made));
  }

  bool add_forms(TensorId id, const Need& need) {
    if (forms(id).free) {
      for (int form = 0; form < static_cast<int>(forms(id).placements.size()); ++form) {
        if ((need.forms & form_bit(form)) != 0) add_form(id, form, kNone);
      }
      return true;
    }
    const int root = need.root != kNone ? need.root : root_of(id, need);
    if (root == kNone) return false;
    const FormTree tree = cheapest_tree(forms(id), root, need.forms);
    if (tree.seconds == kNeverSeconds) return false;
    add_form(id, root, kNone);
    for (const auto& [form, from] : tree.made) add_form(id, form, number_.at({id, from}));
    return true;
  }

  void add_operator(std::size_t i) {
    const TeamOption& chosen = option(i);
    TeamOp mine{problem_.ops[i], chosen.split, kNone, chosen.bands, chosen.own_gradient};
    if (chosen.division != kNone) {
      mine.division = division_[static_cast<std::size_t>(chosen.division)];
    }
    const auto numbered = [&](const std::vector<TensorId>& ids, const std::vector<int>& forms) {
      std::vector<int> numbers;
      for (std::size_t k = 0; k < ids.size(); ++k) {
        numbers.push_back(ids[k] == kNone ? kNone : number_.at({ids[k], forms[k]}));
      }
      return numbers;
    };
    const Op& op = problem_.graph.op(mine.op);
    mine.inputs = numbered(op.inputs, chosen.inputs);
    mine.outputs = numbered(op.outputs, chosen.outputs);
    body_.ops.push_back(std::move(mine));
  }

  const TeamProblem& problem_;
  const TeamSpace& space_;
  const std::vector<int>& options_;
  const std::vector<int>& beginnings_;
  TeamBody body_;
  std::vector<int> division_;  // by the space's: the body's
  std::map<TensorId, Need> needs_;
  std::map<std::pair<TensorId, int>, int> number_;  // of forms in the body
};

/// `split`: that of the operator; null where each member computes all of it.
double seconds_of_operator(const TeamProblem& problem, const TeamBody& body, const TeamOp& op,
                           const OpSplit* split) {
  double slowest = 0;
  for (std::size_t m = 0; m < body.members(); ++m) {
    MemberOp own{op.op, kNone, 0};
    double part = 1;
    if (op.division != kNone) {
      const Division& division = body.divisions[static_cast<std::size_t>(op.division)];
      own = {op.op, op.split, division.range(m, split->units).size()};
      part = division.part(m);
    }
    slowest = std::max(slowest, problem.costs.compute(own, m, part));
  }
  return slowest;
}

/// Returns what a micro-batch takes for the operator at an index of the problem's.
TeamSeconds seconds_at(const TeamProblem& problem, const TeamBody& body, std::size_t index) {
  const TeamOp& op = body.ops[index];
  TeamSeconds seconds;
  if (op.split == kNone) {
    seconds.compute = seconds_of_operator(problem, body, op, nullptr);
    return seconds;
  }
  const OpSplit split = splits_of(problem.graph, op.op)[static_cast<std::size_t>(op.split)];
  seconds.compute = seconds_of_operator(problem, body, op, &split);
  for (const TeamTraffic& traffic :
       inside_traffic(problem.graph, op.op, split, problem.samples, body.members())) {
    seconds.exchange += problem.costs.exchange(traffic);
  }
  return seconds;
}

}  // namespace

std::optional<TeamBody> team_body(const TeamProblem& problem, const TeamSpace& space,
                                  const std::vector<int>& options,
                                  const std::vector<int>& beginnings) {
  return BodyBuilder(problem, space, options, beginnings).run();
}

TeamSeconds team_seconds(const TeamProblem& problem, const TeamBody& body) {
  TeamSeconds seconds;
  // By number of the like, split and division; the first operator may wait for samples.
  std::map<std::tuple<int, int, int>, TeamSeconds> known;
  for (std::size_t i = 0; i < body.ops.size(); ++i) {
    const TeamOp& op = body.ops[i];
    const bool repeats = !problem.alike.empty() && op.op != 0;
    const auto [entry, added] =
        known.try_emplace({repeats ? problem.alike[i] : -1 - op.op, op.split, op.division});
    if (added) entry->second = seconds_at(problem, body, i);
    seconds.compute += entry->second.compute;
    seconds.exchange += entry->second.exchange;
  }
  const auto add = [&](const std::vector<TeamStep>& steps, bool forward, double& sum) {
    for (const TeamStep& step : steps) {
      if (step.form == kNone) continue;
      const auto traffic_of = forward ? forward_traffic : backward_traffic;
      const TeamTraffic traffic =
          traffic_of(problem.graph, body, step.form, problem.samples, problem.precision);
      if (traffic.exchange != TeamExchange::kNothing) sum += problem.costs.exchange(traffic);
    }
  };
  add(body.forward, true, seconds.exchange);
  add(body.backward, false, seconds.exchange);
  add(body.step_end, false, seconds.step_end);
  return seconds;
}

}  // namespace agpcs
