// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/team/placed_body.h"

#include "ir/base/at.h"
#include "ir/graph/split/split.h"
#include "ir/plan/body/body.h"
#include "ir/strategy/plan_body.h"
#include "ir/team/blocks.h"
#include "ir/team/body.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace agpcs {
namespace {

std::string_view word_of(TensorKind kind) {
  switch (kind) {
    case TensorKind::kInput:
      return "input";
    case TensorKind::kParameter:
      return "parameter";
    case TensorKind::kState:
      return "state";
    case TensorKind::kConstant:
    case TensorKind::kPrepared:
      return "constant";
    case TensorKind::kActivation:
      return "activation";
  }
  return "";
}

Json range_json(const UnitRange& range) { return {range.begin, range.end}; }

Json form_json(const Graph& graph, const TeamBody& body, const TeamForm& form) {
  const Tensor& tensor = graph.tensor(form.tensor);
  Json json = {{"tensor", tensor.name},
               {"kind", word_of(tensor.kind)},
               {"gradient", has_gradient(tensor)},
               {"lies", name_of(lying_of(form.placement))}};
  if (form.placement.kind == Placement::Kind::kPart) {
    json["axis"] = form.placement.axis;
    json["ranges"] = Json::array();
    for (std::size_t m = 0; m < body.members(); ++m) {
      json["ranges"].push_back(
          json_array(part_elements(body.divisions, form.placement, m), range_json));
    }
  }
  if (form.from != kNone) json["from"] = form.from;
  return json;
}

Json ids_json(const std::vector<int>& forms) {
  return json_array(forms, [](int form) { return form == kNone ? Json() : Json(form); });
}

/// What a member computes otherwise than the whole operator, beyond the extents of its tensors.
void add_split(const Graph& graph, const TeamBody& body, const TeamOp& of, Json& json) {
  const OpSplit split = splits_of(graph, of.op)[at(of.split)];
  const bool is_mean = std::ranges::any_of(
      split.outputs, [](const Placement& p) { return p.kind == Placement::Kind::kMean; });
  if (!split.inside.empty()) json["inside"] = true;
  if (of.division == kNone) return;
  const Division& division = body.divisions[at(of.division)];
  if (split.indices != kNone) json["indices"] = split.indices;
  if (is_mean) json["mean"] = Json::array();
  if (split.indices != kNone) json["units"] = Json::array();
  for (std::size_t m = 0; m < body.members(); ++m) {
    if (is_mean) json["mean"].push_back(division.part(m));
    if (split.indices != kNone) json["units"].push_back(range_json(division.range(m, split.units)));
  }
}

Json op_json(const Graph& graph, const TeamBody& body, const TeamOp& of) {
  const Op& op = graph.op(of.op);
  Json json = {{"name", op.name},
               {"type", op.type},
               {"inputs", ids_json(of.inputs)},
               {"outputs", ids_json(of.outputs)}};
  if (of.split != kNone) add_split(graph, body, of, json);
  return json;
}

}  // namespace

Result<Json> placed_body_json(const Graph& graph, const Plan& plan, const PlanBody& body,
                              const std::vector<OpId>& ops) {
  AGPCS_TRY(const TeamBody whole, team_body_of(graph, body, ops, plan.training.precision));
  AGPCS_RETURN_IF_ERROR(verify_team_body(graph, whole));
  return Json{
      {"forms", json_array(whole.forms,
                           [&](const TeamForm& form) { return form_json(graph, whole, form); })},
      {"operators",
       json_array(whole.ops, [&](const TeamOp& op) { return op_json(graph, whole, op); })},
      {"step_end", json_array(whole.step_end, [](const TeamStep& step) { return step.form; })}};
}

}  // namespace agpcs
