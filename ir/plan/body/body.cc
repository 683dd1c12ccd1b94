// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/body/body.h"

#include "ir/plan/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

constexpr std::string_view kPart = "part:";
constexpr std::string_view kSamples = "samples";

/// Takes what comes before `separator` off the front of `text`; all of it if there is none.
std::string_view take_until(std::string_view& text, char separator) {
  const std::size_t at = std::min(text.find(separator), text.size());
  const std::string_view taken = text.substr(0, at);
  text.remove_prefix(std::min(at + 1, text.size()));
  return taken;
}

std::optional<int> parse_small(std::string_view text) {
  const std::optional<std::int64_t> number = parse_integer(text);
  if (!number || *number < 0 || *number > 1 << 20) return {};
  return static_cast<int>(*number);
}

std::optional<BodyExtent> parse_extent(std::string_view text) {
  BodyExtent extent;
  const std::size_t at = text.find(kSamples);
  if (at == std::string_view::npos) {
    const std::optional<std::int64_t> fixed = parse_integer(text);
    if (!fixed) return {};
    extent.fixed = *fixed;
    return extent;
  }
  const auto slope = at == 0 ? std::optional<std::int64_t>(1) : parse_integer(text.substr(0, at));
  if (!slope) return {};
  extent.per_sample = *slope;
  const std::string_view rest = text.substr(at + kSamples.size());
  if (rest.empty()) return extent;
  const auto fixed = rest.front() == '+' ? parse_integer(rest.substr(1)) : std::nullopt;
  if (!fixed) return {};
  extent.fixed = *fixed;
  return extent;
}

}  // namespace

std::string_view name_of(TeamExchange exchange) {
  constexpr std::string_view kNames[] = {"nothing",         "take-part",  "keep-one",
                                         "fill-with-zeros", "all-reduce", "all-gather",
                                         "reduce-scatter",  "all-to-all"};
  return kNames[static_cast<std::size_t>(exchange)];
}

TeamExchange exchange_between(Lying from, Lying to, bool same_part) {
  const auto is_copy = [](Lying one) { return one == Lying::kCopy || one == Lying::kCopySummed; };
  if (is_copy(from)) {
    if (is_copy(to)) return TeamExchange::kNothing;
    return to == Lying::kPart ? TeamExchange::kTakePart : TeamExchange::kKeepOne;
  }
  if (from == Lying::kSum) {
    if (to == Lying::kSum) return TeamExchange::kNothing;
    return is_copy(to) ? TeamExchange::kAllReduce : TeamExchange::kReduceScatter;
  }
  if (is_copy(to)) return TeamExchange::kAllGather;
  if (to == Lying::kSum) return TeamExchange::kFillWithZeros;
  return same_part ? TeamExchange::kNothing : TeamExchange::kAllToAll;
}

bool BodyForm::is_same(const BodyForm& other) const {
  return lying == other.lying && axis == other.axis && division == other.division &&
         bands == other.bands;
}

std::int64_t BodyDivision::of() const {
  return std::accumulate(pieces.begin(), pieces.end(), std::int64_t{0});
}

namespace {

/// Returns how the gradient of a tensor lies that lies so.
Lying gradient_of(Lying lying) {
  if (lying == Lying::kPart) return lying;
  return lying == Lying::kCopySummed ? Lying::kSum : Lying::kCopy;
}

bool is_same_part(const BodyForm& a, const BodyForm& b) {
  return a.axis == b.axis && a.division == b.division && a.bands == b.bands;
}

const BodyForm& form_of(const BodyTensor& tensor, int form) {
  return tensor.forms[static_cast<std::size_t>(form)];
}

}  // namespace

TeamExchange forward_exchange(const BodyTensor& tensor, int form) {
  const BodyForm& made = form_of(tensor, form);
  if (made.from < 0) return TeamExchange::kNothing;
  const BodyForm& from = form_of(tensor, made.from);
  return exchange_between(from.lying, made.lying, is_same_part(from, made));
}

TeamExchange backward_exchange(const BodyTensor& tensor, int form) {
  const BodyForm& made = form_of(tensor, form);
  if (made.from < 0 || !tensor.gradient) return TeamExchange::kNothing;
  const BodyForm& from = form_of(tensor, made.from);
  return exchange_between(gradient_of(made.lying), gradient_of(from.lying),
                          is_same_part(from, made));
}

std::string_view name_of(Lying lying) {
  switch (lying) {
    case Lying::kCopy:
      return "copy";
    case Lying::kCopySummed:
      return "copy/sum";
    case Lying::kSum:
      return "sum";
    case Lying::kPart:
      return "part";
  }
  return "";
}

std::string print_lying(const BodyForm& form) {
  if (form.lying != Lying::kPart) return std::string(name_of(form.lying));
  std::string text = fmt::format("{}{}:d{}", kPart, form.axis, form.division);
  if (!form.bands.empty()) text += ":" + print_numbers(form.bands, '+');
  return text;
}

std::optional<BodyForm> parse_lying(std::string_view text) {
  BodyForm form;
  for (const Lying lying : {Lying::kCopy, Lying::kCopySummed, Lying::kSum}) {
    form.lying = lying;
    if (print_lying(form) == text) return form;
  }
  if (text.substr(0, kPart.size()) != kPart) return {};
  form.lying = Lying::kPart;
  text.remove_prefix(kPart.size());
  const std::optional<int> axis = parse_small(take_until(text, ':'));
  const std::string_view division = take_until(text, ':');
  const std::optional<int> index =
      division.substr(0, 1) == "d" ? parse_small(division.substr(1)) : std::nullopt;
  if (!axis || !index) return {};
  form.axis = *axis;
  form.division = *index;
  if (text.empty()) return form;
  std::optional<std::vector<std::int64_t>> bands = parse_numbers(text, '+');
  if (!bands) return {};
  form.bands = std::move(*bands);
  return form;
}

std::string print_forms(const std::vector<BodyForm>& forms) {
  std::string text;
  for (const BodyForm& form : forms) {
    if (!text.empty()) text += ',';
    if (form.from >= 0) text += print_lying(forms[static_cast<std::size_t>(form.from)]) + ">";
    text += print_lying(form);
  }
  return text;
}

std::optional<std::vector<BodyForm>> parse_forms(std::string_view text) {
  std::vector<BodyForm> forms;
  while (!text.empty()) {
    const std::string_view one = take_until(text, ',');
    const std::size_t arrow = one.find('>');
    const bool made = arrow != std::string_view::npos;
    std::optional<BodyForm> form = parse_lying(made ? one.substr(arrow + 1) : one);
    if (!form) return {};
    if (made) {
      const std::optional<BodyForm> from = parse_lying(one.substr(0, arrow));
      if (!from) return {};
      const auto found = std::find_if(forms.begin(), forms.end(),
                                      [&](const BodyForm& other) { return other.is_same(*from); });
      if (found == forms.end()) return {};
      form->from = static_cast<int>(found - forms.begin());
    }
    forms.push_back(std::move(*form));
  }
  if (forms.empty()) return {};
  return forms;
}

std::string print_extents(const std::vector<BodyExtent>& shape) {
  std::string text;
  for (const BodyExtent& extent : shape) {
    if (!text.empty()) text += 'x';
    if (extent.per_sample == 0) {
      text += fmt::to_string(extent.fixed);
      continue;
    }
    if (extent.per_sample != 1) text += fmt::to_string(extent.per_sample);
    text += kSamples;
    if (extent.fixed != 0) fmt::format_to(Out(text), "+{}", extent.fixed);
  }
  return text.empty() ? "scalar" : text;
}

std::optional<std::vector<BodyExtent>> parse_extents(std::string_view text) {
  std::vector<BodyExtent> shape;
  if (text == "scalar") return shape;
  while (!text.empty()) {
    const std::optional<BodyExtent> extent = parse_extent(take_until(text, 'x'));
    if (!extent) return {};
    shape.push_back(*extent);
  }
  if (shape.empty()) return {};
  return shape;
}

std::string print_numbers(const std::vector<std::int64_t>& numbers, char separator) {
  std::string text;
  for (const std::int64_t number : numbers) {
    if (!text.empty()) text += separator;
    text += fmt::to_string(number);
  }
  return text;
}

std::optional<std::vector<std::int64_t>> parse_numbers(std::string_view text, char separator) {
  std::vector<std::int64_t> numbers;
  while (!text.empty()) {
    const std::optional<std::int64_t> number = parse_integer(take_until(text, separator));
    if (!number) return {};
    numbers.push_back(*number);
  }
  if (numbers.empty()) return {};
  return numbers;
}

std::int64_t whole_elements(const BodyTensor& tensor, std::int64_t samples) {
  std::int64_t elements = 1;
  for (const BodyExtent& extent : tensor.shape) {
    elements *= extent.fixed + extent.per_sample * samples;
  }
  return elements;
}

std::int64_t held_elements(const PlanBody& body, const BodyTensor& tensor, const BodyForm& form,
                           std::size_t member, std::int64_t samples) {
  const std::int64_t whole = whole_elements(tensor, samples);
  if (form.lying != Lying::kPart) return whole;
  const BodyDivision& division = body.divisions[static_cast<std::size_t>(form.division)];
  return whole / division.of() * division.pieces[member];
}

const BodyTensor* find_parameter(const PlanBody& body, std::string_view name) {
  const auto found = std::find_if(
      body.tensors.begin(), body.tensors.end(),
      [&](const BodyTensor& tensor) { return tensor.parameter && tensor.name == name; });
  return found == body.tensors.end() ? nullptr : &*found;
}

std::vector<int> PlanStage::members(std::size_t replica) const {
  std::vector<int> members = {ranks[replica]};
  if (!has_teams()) return members;
  members.insert(members.end(), further_ranks[replica].begin(), further_ranks[replica].end());
  return members;
}

std::vector<int> PlanStage::all_ranks() const {
  std::vector<int> all = ranks;
  for (const std::vector<int>& more : further_ranks)
    all.insert(all.end(), more.begin(), more.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int> bodies_of(const PlanStage& stage) {
  std::vector<int> bodies = stage.bodies;
  if (bodies.empty() && stage.has_teams()) bodies = {stage.body};
  std::sort(bodies.begin(), bodies.end());
  bodies.erase(std::unique(bodies.begin(), bodies.end()), bodies.end());
  return bodies;
}

int replica_of(const PlanStage& stage, int rank) {
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
    if (stage.ranks[i] == rank) return static_cast<int>(i);
    if (i >= stage.further_ranks.size()) continue;
    const std::vector<int>& further = stage.further_ranks[i];
    if (std::find(further.begin(), further.end(), rank) != further.end()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::size_t member_of(const PlanStage& stage, int rank) {
  const std::vector<int> members =
      stage.members(static_cast<std::size_t>(std::max(0, replica_of(stage, rank))));
  return static_cast<std::size_t>(std::find(members.begin(), members.end(), rank) -
                                  members.begin());
}

std::int64_t member_elements(const Plan& plan, const PlanBucket& bucket, int stage,
                             std::size_t member, std::size_t like) {
  const PlanStage& of = plan.stages[static_cast<std::size_t>(stage)];
  if (!of.has_teams()) return bucket.elements();
  const PlanBody& body = plan.bodies[static_cast<std::size_t>(of.body_of(like))];
  std::int64_t sum = 0;
  for (const BucketMember& one : bucket.members) {
    const BodyTensor* const parameter = find_parameter(body, one.parameter);
    sum += parameter == nullptr
               ? one.elements
               : held_elements(body, *parameter, parameter->forms.front(), member, 1);
  }
  return sum;
}

std::int64_t rank_elements(const Plan& plan, const PlanBucket& bucket, int stage, int rank) {
  const PlanStage& of = plan.stages[static_cast<std::size_t>(stage)];
  return member_elements(plan, bucket, stage, member_of(of, rank),
                         static_cast<std::size_t>(replica_of(of, rank)));
}

Status refuse_unlike_teams(const Plan& plan, std::string_view who) {
  for (const PlanStage& stage : plan.stages) {
    if (!stage.has_unlike_teams()) continue;
    return invalid_input(fmt::format(
        "plan: error: the replicas of stage {} are unlike teams, which {} does not know yet\n"
        "  hint: a plan whose stages have one body each",
        stage.name, who));
  }
  return {};
}

Status refuse_teams(const Plan& plan, std::string_view who) {
  for (const PlanStage& stage : plan.stages) {
    if (!stage.has_teams()) continue;
    return invalid_input(fmt::format(
        "plan: error: stage {} is computed by teams (body t{}), which {} does not know yet\n"
        "  hint: plan with --without teams",
        stage.name, stage.body, who));
  }
  return {};
}

}  // namespace agpcs
