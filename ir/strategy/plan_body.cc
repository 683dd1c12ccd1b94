// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/plan_body.h"

#include "ir/base/at.h"
#include "ir/plan/body/body.h"
#include "ir/plan/text.h"
#include "ir/strategy/plan_graph.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <numeric>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

/// Returns what a plan calls a split: its name; the second of that name is "sum:2".
std::string name_of_split(const std::vector<OpSplit>& splits, std::size_t index) {
  const auto before =
      std::count_if(splits.begin(), splits.begin() + static_cast<std::ptrdiff_t>(index),
                    [&](const OpSplit& other) { return other.name == splits[index].name; });
  return before == 0 ? splits[index].name : fmt::format("{}:{}", splits[index].name, before + 1);
}

bool is_trained(const Tensor& tensor) {
  return tensor.kind == TensorKind::kParameter && has_gradient(tensor);
}

BodyForm form_of(const TeamPlacement& placement) {
  BodyForm form;
  form.lying = lying_of(placement);
  if (form.lying != Lying::kPart) return form;
  form.axis = placement.axis;
  form.division = placement.division;
  if (placement.bands.size() > 1) form.bands = placement.bands;
  return form;
}

TeamPlacement placement_of(const BodyForm& form, const Tensor& tensor) {
  switch (form.lying) {
    case Lying::kCopy:
      return {};
    case Lying::kCopySummed:
      return {Kind::kCopy, true};
    case Lying::kSum:
      return {Kind::kSum};
    case Lying::kPart:
      break;
  }
  TeamPlacement part{Kind::kPart, false, form.axis, form.bands, form.division};
  if (part.bands.empty() && at(form.axis) < tensor.shape.size()) {
    part.bands = {tensor.shape[at(form.axis)].fixed};
  }
  return part;
}

class BodyWriter {
 public:
  BodyWriter(const Graph& graph, const TeamBody& body, Precision precision)
      : graph_(graph), body_(body), precision_(precision) {}

  PlanBody run() {
    PlanBody out;
    out.parts = body_.parts;
    for (const Division& division : body_.divisions) {
      BodyDivision& pieces = out.divisions.emplace_back();
      std::int64_t before = 0;
      for (const std::int64_t end : division.ends) {
        pieces.pieces.push_back(end - before);
        before = end;
      }
    }
    for (const TeamOp& op : body_.ops) out.operators.push_back(operator_of(op));
    find_places(out.tensors);
    out.forward = steps_of(body_.forward);
    out.backward = steps_of(body_.backward);
    out.step_end = steps_of(body_.step_end);
    return out;
  }

 private:
  BodyOperator operator_of(const TeamOp& op) const {
    BodyOperator out{graph_.op(op.op).name, {}, op.division, op.bands, op.own_gradient};
    if (op.split != kNone) out.split = name_of_split(splits_of(graph_, op.op), at(op.split));
    return out;
  }

  /// Lists tensors, and notes where each of their forms is.
  void find_places(std::vector<BodyTensor>& tensors) {
    places_.assign(body_.forms.size(), {kNone, kNone});
    for (std::size_t first = 0, end = 0; first < body_.forms.size(); first = end) {
      const TensorId id = body_.forms[first].tensor;
      while (end < body_.forms.size() && body_.forms[end].tensor == id) ++end;
      const Tensor& tensor = graph_.tensor(id);
      if (!is_trained(tensor) && end - first < 2) continue;
      BodyTensor out{tensor.name, is_trained(tensor),   held_type(tensor.type, precision_),
                     {},          has_gradient(tensor), {}};
      for (const Extent& extent : tensor.shape) {
        out.shape.push_back({extent.fixed, extent.per_sample});
      }
      for (std::size_t i = first; i < end; ++i) {
        const TeamForm& form = body_.forms[i];
        out.forms.push_back(form_of(form.placement));
        if (form.from != kNone) out.forms.back().from = form.from - static_cast<int>(first);
        places_[i] = {static_cast<int>(tensors.size()), static_cast<int>(i - first)};
      }
      tensors.push_back(std::move(out));
    }
  }

  std::vector<BodyStep> steps_of(const std::vector<TeamStep>& steps) const {
    std::vector<BodyStep> out;
    for (const TeamStep& step : steps) {
      if (step.form == kNone) {
        out.push_back({step.first, step.last});
      } else {
        out.push_back({0, -1, places_[at(step.form)].first, places_[at(step.form)].second});
      }
    }
    return out;
  }

  const Graph& graph_;
  const TeamBody& body_;
  Precision precision_;
  std::vector<std::pair<int, int>> places_;  // by form: tensor of the plan's body, and form of it
};

class BodyResolver {
 public:
  BodyResolver(const Graph& graph, const PlanBody& body, const std::vector<OpId>& ops,
               Precision precision)
      : graph_(graph), body_(body), ops_(ops), precision_(precision) {}

  Result<TeamBody> run() {
    out_.parts = body_.parts;
    for (const BodyDivision& division : body_.divisions) {
      Division& ends = out_.divisions.emplace_back();
      std::partial_sum(division.pieces.begin(), division.pieces.end(),
                       std::back_inserter(ends.ends));
      ends.of = division.of();
    }
    AGPCS_RETURN_IF_ERROR(read_operators());
    AGPCS_RETURN_IF_ERROR(read_tensors());
    std::vector<OpPlacements> placements;
    for (std::size_t i = 0; i < out_.ops.size(); ++i) {
      const TeamOp& op = out_.ops[i];
      auto found = placements_of(graph_, op, splits_[i], out_.divisions);
      if (!found) return fail("'{}' cannot be divided so", graph_.op(op.op).name);
      AGPCS_RETURN_IF_ERROR(note(graph_.op(op.op).inputs, found->inputs));
      AGPCS_RETURN_IF_ERROR(note(graph_.op(op.op).outputs, found->outputs));
      placements.push_back(std::move(*found));
    }
    number_forms();
    for (std::size_t i = 0; i < out_.ops.size(); ++i) {
      const Op& op = graph_.op(out_.ops[i].op);
      out_.ops[i].inputs = numbers_of(op.inputs, placements[i].inputs);
      out_.ops[i].outputs = numbers_of(op.outputs, placements[i].outputs);
    }
    out_.forward = steps_of(body_.forward);
    out_.backward = steps_of(body_.backward);
    out_.step_end = steps_of(body_.step_end);
    return std::move(out_);
  }

 private:
  template <typename... Args>
  Status fail(fmt::format_string<Args...> format, Args&&... args) const {
    return invalid_input(fmt::format("plan: error: body {}: ", body_.name) +
                         fmt::format(format, std::forward<Args>(args)...));
  }

  Status read_operators() {
    for (std::size_t i = 0; i < std::max(ops_.size(), body_.operators.size()); ++i) {
      const std::string has = i < body_.operators.size() ? body_.operators[i].name : "nothing";
      const std::string needs = i < ops_.size() ? graph_.op(ops_[i]).name : "nothing";
      if (has != needs) {
        return fail("'{}' comes where the model's stage has '{}'\n  hint: compile again", has,
                    needs);
      }
      const BodyOperator& one = body_.operators[i];
      TeamOp op{ops_[i], kNone, one.division, one.bands, one.gradient_sum};
      const std::vector<OpSplit>& splits = splits_.emplace_back(splits_of(graph_, ops_[i]));
      if (!one.split.empty()) {
        std::vector<std::string> names;
        for (std::size_t s = 0; s < splits.size(); ++s) names.push_back(name_of_split(splits, s));
        const auto split = std::ranges::find(names, one.split);
        if (split == names.end()) {
          names.insert(names.begin(), "whole");
          return fail("'{}' has no split '{}'\n  hint: its splits are {}", has, one.split,
                      fmt::join(names, ", "));
        }
        op.split = static_cast<int>(split - names.begin());
      }
      out_.ops.push_back(std::move(op));
    }
    return {};
  }

  Status read_tensors() {
    std::map<std::string_view, TensorId> ids;
    for (const OpId op : ops_) {
      for (const std::vector<TensorId>* const list :
           {&graph_.op(op).inputs, &graph_.op(op).outputs}) {
        for (const TensorId id : *list) {
          if (id != kNone) ids.emplace(graph_.tensor(id).name, id);
        }
      }
    }
    TensorId before = kNone;
    for (const BodyTensor& one : body_.tensors) {
      const auto found = ids.find(one.name);
      if (found == ids.end()) return fail("no operator of the stage has a tensor '{}'", one.name);
      const TensorId id = found->second;
      AGPCS_RETURN_IF_ERROR(compare(one, graph_.tensor(id)));
      if (id <= before) {
        return fail("'{}' comes after '{}'\n  hint: tensors are in the model's order", one.name,
                    graph_.tensor(before).name);
      }
      before = id;
      for (const BodyForm& form : one.forms) {
        forms_[id].push_back({id, placement_of(form, graph_.tensor(id)), form.from});
      }
      listed_.push_back(id);
    }
    return {};
  }

  Status compare(const BodyTensor& one, const Tensor& tensor) const {
    std::vector<BodyExtent> shape;
    for (const Extent& extent : tensor.shape) shape.push_back({extent.fixed, extent.per_sample});
    const auto text = [](bool parameter, DType type, const std::vector<BodyExtent>& extents,
                         bool gradient) {
      return fmt::format("{} {} {} gradient={}", parameter ? "parameter" : "tensor", name_of(type),
                         print_extents(extents), gradient ? "yes" : "no");
    };
    const std::string has = text(one.parameter, one.type, one.shape, one.gradient);
    const std::string needs =
        text(is_trained(tensor), held_type(tensor.type, precision_), shape, has_gradient(tensor));
    if (has == needs) return {};
    return fail("'{}' is {}\n  the model has {}\n  hint: compile again", one.name, has, needs);
  }

  /// Notes the forms in which an operator makes or reads tensors.
  Status note(const std::vector<TensorId>& ids, const std::vector<TeamPlacement>& placements) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNone) continue;
      std::vector<TeamForm>& forms = forms_[ids[i]];
      if (forms.empty()) forms.push_back({ids[i], placements[i], kNone});
      if (find(forms, placements[i]) != forms.end()) continue;
      const Tensor& tensor = graph_.tensor(ids[i]);
      const bool listed = std::ranges::binary_search(listed_, ids[i]);
      return fail("'{}' is needed as {}, and {}\n  hint: {}", tensor.name,
                  print_lying(form_of(placements[i])),
                  listed ? "has no such form" : "as " + print_lying(form_of(forms[0].placement)),
                  "a tensor of several forms is listed, with what each is made of");
    }
    return {};
  }

  static std::vector<TeamForm>::const_iterator find(const std::vector<TeamForm>& forms,
                                                    const TeamPlacement& placement) {
    return std::ranges::find(forms, placement, &TeamForm::placement);
  }

  void number_forms() {
    for (const auto& [id, forms] : forms_) {
      const int first = static_cast<int>(out_.forms.size());
      first_[id] = first;
      for (TeamForm form : forms) {
        if (form.from != kNone) form.from += first;
        out_.forms.push_back(std::move(form));
      }
    }
  }

  std::vector<int> numbers_of(const std::vector<TensorId>& ids,
                              const std::vector<TeamPlacement>& placements) const {
    std::vector<int> numbers;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] == kNone) {
        numbers.push_back(kNone);
        continue;
      }
      const std::vector<TeamForm>& forms = forms_.at(ids[i]);
      numbers.push_back(first_.at(ids[i]) +
                        static_cast<int>(find(forms, placements[i]) - forms.begin()));
    }
    return numbers;
  }

  std::vector<TeamStep> steps_of(const std::vector<BodyStep>& steps) const {
    std::vector<TeamStep> out;
    for (const BodyStep& step : steps) {
      if (step.is_exchange()) {
        out.push_back({0, kNone, first_.at(listed_[at(step.tensor)]) + step.form});
      } else {
        out.push_back({step.first, step.last, kNone});
      }
    }
    return out;
  }

  const Graph& graph_;
  const PlanBody& body_;
  const std::vector<OpId>& ops_;
  Precision precision_;
  std::vector<TensorId> listed_;                     // by tensor of the plan's body; ascending
  std::map<TensorId, std::vector<TeamForm>> forms_;  // `from` within the tensor
  std::map<TensorId, int> first_;                    // the number of a tensor's first form
  TeamBody out_;
  std::vector<std::vector<OpSplit>> splits_;  // by operator
};

}  // namespace

PlanBody plan_body(const Graph& graph, const TeamBody& body, Precision precision,
                   std::string name) {
  PlanBody out = BodyWriter(graph, body, precision).run();
  out.name = std::move(name);
  return out;
}

Result<TeamBody> team_body_of(const Graph& graph, const PlanBody& body,
                              const std::vector<OpId>& ops, Precision precision) {
  return BodyResolver(graph, body, ops, precision).run();
}

}  // namespace agpcs
