// SPDX-License-Identifier: Apache-2.0
// verify_team_body: walks a body as a member would, and counts what is there and what is missing.
#include "ir/team/body.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

Status wrong(std::string what) { return internal_error("team body: " + std::move(what)); }

class BodyVerifier {
 public:
  BodyVerifier(const Graph& graph, const TeamBody& body) : graph_(graph), body_(body) {
    for (const TeamOp& op : body.ops) ops_.push_back(op.op);
    leaving_ = leaving_tensors(graph, ops_);
  }

  Status run() {
    AGPCS_RETURN_IF_ERROR(check_divisions());
    AGPCS_RETURN_IF_ERROR(check_forms());
    for (std::size_t i = 0; i < body_.ops.size(); ++i) {
      AGPCS_RETURN_IF_ERROR(check_operator(i));
    }
    AGPCS_RETURN_IF_ERROR(check_beginnings());
    AGPCS_RETURN_IF_ERROR(walk_forward());
    AGPCS_RETURN_IF_ERROR(walk_backward());
    return check_spelling();
  }

 private:
  const TeamForm& form(int id) const { return body_.forms[static_cast<std::size_t>(id)]; }
  const Tensor& tensor_of(int id) const { return graph_.tensor(form(id).tensor); }
  const std::string& name_of_form(int id) const { return tensor_of(id).name; }
  bool is_form(int id) const { return id >= 0 && id < static_cast<int>(body_.forms.size()); }

  /// A member that computes alone has whole tensors, each in one form.
  Status check_alone() const {
    if (!body_.divisions.empty()) return wrong("one member, which computes alone, and divisions");
    for (const TeamForm& one : body_.forms) {
      if (one.placement == TeamPlacement() && one.from == kNone) continue;
      return wrong(fmt::format("one member, which computes alone, and '{}' as {}",
                               graph_.tensor(one.tensor).name, team_placement_text(one.placement)));
    }
    return {};
  }

  Status check_divisions() const {
    if (body_.members() == 0) return wrong("a team has no member");
    if (body_.members() == 1) AGPCS_RETURN_IF_ERROR(check_alone());
    for (const Division& division : body_.divisions) {
      std::int64_t before = 0;
      bool fits = division.ends.size() == body_.members() && division.of > 0;
      for (const std::int64_t end : division.ends) {
        fits = fits && end > before;
        before = end;
      }
      if (!fits || before != division.of) {
        return wrong(fmt::format("division {} does not give each of {} members a piece",
                                 division_text(division), body_.members()));
      }
    }
    return {};
  }

  /// A part holds each element of its axis once: bands fill the axis, and members the bands.
  Status check_part(int id) const {
    const TeamPlacement& placement = form(id).placement;
    const Tensor& tensor = tensor_of(id);
    const bool known =
        placement.division >= 0 && placement.division < static_cast<int>(body_.divisions.size()) &&
        placement.axis >= 0 && placement.axis < static_cast<int>(tensor.shape.size());
    if (!known)
      return wrong(fmt::format("a part of '{}' has no such axis or division", tensor.name));
    const Extent& extent = tensor.shape[static_cast<std::size_t>(placement.axis)];
    const Division& division = body_.divisions[static_cast<std::size_t>(placement.division)];
    const bool fills = extent.per_sample == 0 &&
                       std::accumulate(placement.bands.begin(), placement.bands.end(),
                                       std::int64_t{0}) == extent.fixed &&
                       std::all_of(placement.bands.begin(), placement.bands.end(),
                                   [&](std::int64_t band) { return division.divides(band); });
    if (fills) return {};
    return wrong(fmt::format("the parts of '{}' are not all of its axis {}, each once", tensor.name,
                             placement.axis));
  }

  Status check_forms() const {
    for (int id = 0; id < static_cast<int>(body_.forms.size()); ++id) {
      const TeamForm& one = form(id);
      if (one.tensor < 0 || one.tensor >= static_cast<TensorId>(graph_.tensors.size())) {
        return wrong(fmt::format("form {} is of no tensor", id));
      }
      if (one.placement.kind == Kind::kPart) AGPCS_RETURN_IF_ERROR(check_part(id));
      if (one.placement.kind != Kind::kCopy && one.placement.gradient_is_sum) {
        return wrong(fmt::format("'{}' is no copy, whose gradient may be a sum", name_of_form(id)));
      }
      if (one.from == kNone) continue;
      if (!is_form(one.from) || one.from >= id || form(one.from).tensor != one.tensor) {
        return wrong(fmt::format("a form of '{}' is made of none before it", name_of_form(id)));
      }
      if (tensor_of(id).kind == TensorKind::kParameter &&
          is_collective(forward_exchange(body_, id))) {
        return wrong(
            fmt::format("parameter '{}' is gathered, which no member holds", name_of_form(id)));
      }
    }
    return {};
  }

  Status check_list(const Op& op, const std::vector<TensorId>& ids, const std::vector<int>& forms,
                    const std::vector<TeamPlacement>& placements, std::string_view what) const {
    if (forms.size() != ids.size()) {
      return wrong(
          fmt::format("'{}' has {} {}s, and forms of {}", op.name, ids.size(), what, forms.size()));
    }
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNone && forms[i] == kNone) continue;
      if (!is_form(forms[i]) || form(forms[i]).tensor != ids[i]) {
        return wrong(fmt::format("{} {} of '{}' has no form", what, i, op.name));
      }
      if (form(forms[i]).placement == placements[i]) continue;
      return wrong(fmt::format("{} {} of '{}', '{}', lies as {}, and its split needs {}", what, i,
                               op.name, name_of_form(forms[i]),
                               team_placement_text(form(forms[i]).placement),
                               team_placement_text(placements[i])));
    }
    return {};
  }

  Status check_operator(std::size_t index) const {
    const TeamOp& mine = body_.ops[index];
    if (mine.op < 0 || mine.op >= static_cast<OpId>(graph_.ops.size()) ||
        (index > 0 && body_.ops[index - 1].op >= mine.op)) {
      return wrong(fmt::format("operator {} is none, or not in its order", mine.op));
    }
    const Op& op = graph_.op(mine.op);
    const auto placements =
        placements_of(graph_, mine, splits_of(graph_, mine.op), body_.divisions);
    if (!placements) return wrong(fmt::format("'{}' cannot be divided so", op.name));
    AGPCS_RETURN_IF_ERROR(check_list(op, op.inputs, mine.inputs, placements->inputs, "input"));
    AGPCS_RETURN_IF_ERROR(check_list(op, op.outputs, mine.outputs, placements->outputs, "output"));
    for (const int output : mine.outputs) {
      if (output != kNone && form(output).from != kNone) {
        return wrong(fmt::format("'{}' is made twice", name_of_form(output)));
      }
    }
    return {};
  }

  /// Two bodies that do the same are equal.
  Status check_spelling() const {
    for (std::size_t d = 0; d < body_.divisions.size(); ++d) {
      const bool used = std::ranges::any_of(
          body_.ops, [&](const TeamOp& op) { return op.division == static_cast<int>(d); });
      const auto same = std::ranges::find(body_.divisions, body_.divisions[d]);
      if (used && same - body_.divisions.begin() == static_cast<std::ptrdiff_t>(d)) continue;
      return wrong(fmt::format("division {} is there twice, or divides nothing",
                               division_text(body_.divisions[d])));
    }
    for (int id = 1; id < static_cast<int>(body_.forms.size()); ++id) {
      for (int other = 0; other < id; ++other) {
        if (form(other).tensor != form(id).tensor || form(other).placement != form(id).placement)
          continue;
        return wrong(fmt::format("'{}' has a form twice: {}", name_of_form(id),
                                 team_placement_text(form(id).placement)));
      }
    }
    TeamBody ordered = body_;
    order_steps(graph_, ordered);
    if (ordered == body_) return {};
    return wrong(
        "an exchange is not just before the first operator that needs it, or backward not just "
        "after the last one that adds to its gradient");
  }

  bool is_made_here(TensorId id) const {
    const OpId producer = graph_.tensor(id).producer;
    return producer != kNone && std::binary_search(ops_.begin(), ops_.end(), producer);
  }

  /// Checks the forms that tensors begin in: one of each, unless all that it takes is a copy.
  Status check_beginnings() const {
    std::set<TensorId> begun;
    for (int id = 0; id < static_cast<int>(body_.forms.size()); ++id) {
      const TeamForm& one = form(id);
      const Tensor& tensor = tensor_of(id);
      if (one.from != kNone) continue;
      const bool leaf = !is_made_here(one.tensor);
      if (leaf && !has_gradient(tensor)) continue;
      if (!begun.insert(one.tensor).second) {
        return wrong(fmt::format("'{}' begins in two forms", tensor.name));
      }
      if (!leaf) continue;
      const bool copy = one.placement == TeamPlacement();
      const bool part = one.placement.kind == Kind::kPart && tensor.kind == TensorKind::kParameter;
      if (!copy && !part) {
        return wrong(
            fmt::format("'{}' begins as {}", tensor.name, team_placement_text(one.placement)));
      }
    }
    return {};
  }

  /// Returns whether a form is there: it was made, or shares its tensor with one that is.
  bool is_there(int id) const {
    while (!there_[static_cast<std::size_t>(id)]) {
      if (form(id).from == kNone || forward_exchange(body_, id) != TeamExchange::kNothing)
        return false;
      id = form(id).from;
    }
    return true;
  }

  Status walk_forward() {
    there_.assign(body_.forms.size(), false);
    for (std::size_t id = 0; id < there_.size(); ++id) {
      there_[id] = body_.forms[id].from == kNone && !is_made_here(body_.forms[id].tensor);
    }
    int next = 0;
    for (const TeamStep& step : body_.forward) {
      if (step.form == kNone) {
        if (step.first != next || step.last < step.first ||
            step.last >= static_cast<int>(body_.ops.size())) {
          return wrong(
              fmt::format("forward: a run begins at operator {}, not {}", step.first, next));
        }
        for (; next <= step.last; ++next) AGPCS_RETURN_IF_ERROR(compute(next));
        continue;
      }
      if (!is_form(step.form) || forward_exchange(body_, step.form) == TeamExchange::kNothing) {
        return wrong("forward: an exchange that is none");
      }
      if (there_[static_cast<std::size_t>(step.form)] || !is_there(form(step.form).from)) {
        return wrong(fmt::format("forward: '{}' is exchanged twice, or before it is there",
                                 name_of_form(step.form)));
      }
      there_[static_cast<std::size_t>(step.form)] = true;
    }
    if (next != static_cast<int>(body_.ops.size())) {
      return wrong(fmt::format("forward: {} of {} operators run", next, body_.ops.size()));
    }
    for (const TensorId id : leaving_) {
      if (leaving_form(id) == kNone || !is_there(leaving_form(id))) {
        return wrong(fmt::format("'{}' does not leave as a copy", graph_.tensor(id).name));
      }
    }
    return {};
  }

  Status compute(int index) {
    const TeamOp& op = body_.ops[static_cast<std::size_t>(index)];
    for (const int input : op.inputs) {
      if (input != kNone && !is_there(input)) {
        return wrong(fmt::format("forward: '{}' reads '{}', which is not there yet",
                                 graph_.op(op.op).name, name_of_form(input)));
      }
    }
    for (const int output : op.outputs) {
      if (output != kNone) there_[static_cast<std::size_t>(output)] = true;
    }
    return {};
  }

  int leaving_form(TensorId id) const {
    for (int i = 0; i < static_cast<int>(body_.forms.size()); ++i) {
      if (form(i).tensor == id && form(i).placement == TeamPlacement()) return i;
    }
    return kNone;
  }

  /// Counts what is still to be added to the gradient of each form: by operators that read it, and
  /// by forms that are made of it.
  void count_summands() {
    missing_.assign(body_.forms.size(), 0);
    const auto count = [this](int id) {
      if (id != kNone && has_gradient(tensor_of(id))) ++missing_[static_cast<std::size_t>(id)];
    };
    for (const TeamOp& op : body_.ops) {
      for (const int input : op.inputs) count(input);
    }
    for (const TeamForm& one : body_.forms) count(one.from);
    for (int id = static_cast<int>(body_.forms.size()); id-- > 0;) {
      if (has_gradient(tensor_of(id)) && missing_[static_cast<std::size_t>(id)] == 0) pass_on(id);
    }
  }

  /// A complete gradient that needs no exchange is added to that of the form that it was made of.
  void pass_on(int id) {
    if (form(id).from == kNone || backward_exchange(graph_, body_, id) != TeamExchange::kNothing)
      return;
    add_summand(form(id).from);
  }

  void add_summand(int id) {
    if (--missing_[static_cast<std::size_t>(id)] == 0) pass_on(id);
  }

  Status exchange_gradient(const TeamStep& step, bool at_end) {
    if (!is_form(step.form) ||
        backward_exchange(graph_, body_, step.form) == TeamExchange::kNothing) {
      return wrong("backward: an exchange that is none");
    }
    if (at_end != (tensor_of(step.form).kind == TensorKind::kParameter)) {
      return wrong(fmt::format("the gradient of '{}' is exchanged {}", name_of_form(step.form),
                               at_end ? "once a step" : "at every micro-batch"));
    }
    if (missing_[static_cast<std::size_t>(step.form)] != 0) {
      return wrong(
          fmt::format("backward: the gradient of '{}' is exchanged before it is complete, or twice",
                      name_of_form(step.form)));
    }
    missing_[static_cast<std::size_t>(step.form)] = kNone;
    add_summand(form(step.form).from);
    return {};
  }

  Status go_back(int index) {
    const TeamOp& op = body_.ops[static_cast<std::size_t>(index)];
    for (const int output : op.outputs) {
      if (output == kNone || missing_[static_cast<std::size_t>(output)] == 0) continue;
      return wrong(fmt::format("backward: '{}' begins before the gradient of '{}' is complete",
                               graph_.op(op.op).name, name_of_form(output)));
    }
    for (const int input : op.inputs) {
      if (input != kNone && has_gradient(tensor_of(input))) add_summand(input);
    }
    return {};
  }

  Status walk_backward() {
    count_summands();
    int next = static_cast<int>(body_.ops.size()) - 1;
    for (const TeamStep& step : body_.backward) {
      if (step.form != kNone) {
        AGPCS_RETURN_IF_ERROR(exchange_gradient(step, false));
        continue;
      }
      if (step.last != next || step.first > step.last || step.first < 0) {
        return wrong(fmt::format("backward: a run begins at operator {}, not {}", step.last, next));
      }
      for (; next >= step.first; --next) AGPCS_RETURN_IF_ERROR(go_back(next));
    }
    for (const TeamStep& step : body_.step_end) {
      AGPCS_RETURN_IF_ERROR(exchange_gradient(step, true));
    }
    for (int id = 0; id < static_cast<int>(body_.forms.size()); ++id) {
      if (missing_[static_cast<std::size_t>(id)] <= 0) continue;
      return wrong(
          fmt::format("backward: summands of the gradient of '{}' are left out", name_of_form(id)));
    }
    return next == -1 ? Status()
                      : wrong(fmt::format("backward: {} operators do not run", next + 1));
  }

  const Graph& graph_;
  const TeamBody& body_;
  std::vector<OpId> ops_;
  std::vector<TensorId> leaving_;
  std::vector<bool> there_;   // by form
  std::vector<int> missing_;  // by form: summands of its gradient; kNone: it has been exchanged
};

}  // namespace

Status verify_team_body(const Graph& graph, const TeamBody& body) {
  return BodyVerifier(graph, body).run();
}

}  // namespace agpcs
