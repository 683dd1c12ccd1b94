// SPDX-License-Identifier: Apache-2.0
// What `agpcs-plan splits --members` prints.
#include "ir/base/units.h"
#include "tools/common/joined_rows.h"
#include "tools/common/json.h"
#include "tools/plan/team/team.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

/// Returns "columns as d0", "columns in 768+768+768 as d0", "whole".
std::string choice_text(const Graph& graph, const TeamOp& op) {
  if (op.split == kNone) return op.own_gradient ? "whole, gradient sum" : "whole";
  std::string text = splits_of(graph, op.op)[static_cast<std::size_t>(op.split)].name;
  if (!op.bands.empty()) fmt::format_to(Out(text), " in {}", fmt::join(op.bands, "+"));
  if (op.division != kNone) fmt::format_to(Out(text), " as d{}", op.division);
  return text;
}

/// An exchange, for printing.
struct Shown {
  TeamExchange exchange = TeamExchange::kNothing;
  const Tensor* tensor = nullptr;
  std::int64_t bytes = 0;
};

Shown shown(const Graph& graph, const TeamAnswer& answer, int form, bool forward) {
  const TeamBody& body = answer.choice.body;
  const Tensor& tensor = graph.tensor(body.forms[static_cast<std::size_t>(form)].tensor);
  const TeamExchange exchange =
      forward ? forward_exchange(body, form) : backward_exchange(graph, body, form);
  const std::int64_t bytes = is_collective(exchange)
                                 ? exchanged_bytes(tensor, answer.options.samples, answer.precision)
                                 : 0;
  return {exchange, &tensor, bytes};
}

/// Adds the collectives of a pass, joined by kind and bytes, in the order of their first.
void add_collectives(const Graph& graph, const TeamAnswer& answer, const char* pass,
                     const std::vector<TeamStep>& steps, bool forward,
                     std::vector<std::vector<std::string>>& cells) {
  std::vector<std::pair<Shown, std::int64_t>> groups;
  for (const TeamStep& step : steps) {
    if (step.form == kNone) continue;
    const Shown one = shown(graph, answer, step.form, forward);
    if (!is_collective(one.exchange)) continue;
    auto group = groups.begin();
    while (group != groups.end() &&
           (group->first.exchange != one.exchange || group->first.bytes != one.bytes)) {
      ++group;
    }
    if (group == groups.end()) {
      groups.emplace_back(one, 1);
    } else {
      ++group->second;
    }
  }
  for (const auto& [one, count] : groups) {
    cells.push_back({pass, fmt::to_string(count), std::string(name_of(one.exchange)),
                     byte_figure(one.bytes), byte_figure(count * one.bytes)});
  }
}

/// A line, of which `key` is what it has in common with those of other layers.
struct Line {
  std::string key, text;
};

/// Returns how often the `period` lines from `at` on stand there in a row, but for names.
std::size_t times_in_turn(const std::vector<Line>& lines, std::size_t at, std::size_t period) {
  std::size_t end = at + period;
  while (end < lines.size() && lines[end].key == lines[end - period].key) ++end;
  return (end - at) / period;
}

/// Returns the lines, with blocks that repeat once: those of the first layer.
std::string folded(const std::vector<Line>& lines) {
  constexpr std::size_t kLongestPeriod = 60;
  std::string text;
  for (std::size_t at = 0; at < lines.size();) {
    std::size_t period = 1, times = 1;
    for (std::size_t other = 1; other <= std::min(kLongestPeriod, (lines.size() - at) / 2);
         ++other) {
      const std::size_t count = times_in_turn(lines, at, other);
      if (count > 1 && (count - 1) * other > (times - 1) * period) period = other, times = count;
    }
    if (times > 1) fmt::format_to(Out(text), "  {} times in turn, at first\n", times);
    for (std::size_t i = at; i < at + period; ++i) {
      text += (times > 1 ? "    " : "  ") + lines[i].text + "\n";
    }
    at += period * times;
  }
  return text;
}

Line run_line(const Graph& graph, const TeamBody& body, const TeamStep& step) {
  std::vector<std::pair<std::string, int>> choices;
  for (int i = step.first; i <= step.last; ++i) {
    const std::string choice = choice_text(graph, body.ops[static_cast<std::size_t>(i)]);
    auto known = choices.begin();
    while (known != choices.end() && known->first != choice) ++known;
    if (known == choices.end()) {
      choices.emplace_back(choice, 1);
    } else {
      ++known->second;
    }
  }
  const auto name = [&](int i) -> const std::string& {
    return graph.op(body.ops[static_cast<std::size_t>(i)].op).name;
  };
  Line line;
  for (const auto& [choice, count] : choices) {
    fmt::format_to(Out(line.key), "{}{} {}", line.key.empty() ? "" : ", ", count, choice);
  }
  line.text = step.first == step.last
                  ? fmt::format("{}: {}", name(step.first), line.key)
                  : fmt::format("{} .. {}: {}", name(step.first), name(step.last), line.key);
  return line;
}

Line exchange_line(const Shown& one, std::string_view of) {
  const std::string bytes =
      is_collective(one.exchange) ? ", " + byte_figure(one.bytes) : std::string();
  return {fmt::format("{}{}", name_of(one.exchange), bytes),
          fmt::format("{} {}{}{}", name_of(one.exchange), of, one.tensor->name, bytes)};
}

std::string back_text(const Graph& graph, const TeamAnswer& answer, std::string_view title,
                      const std::vector<TeamStep>& steps) {
  std::vector<Line> lines;
  for (const TeamStep& step : steps) {
    if (step.form == kNone) continue;
    lines.push_back(exchange_line(shown(graph, answer, step.form, false), "gradient of "));
  }
  return lines.empty() ? "" : fmt::format("\n{}\n{}", title, folded(lines));
}

std::string team_members_text(const TeamAnswer& answer) {
  std::int64_t all = 0;
  for (const TeamMember& member : answer.members) all += member.part;
  std::vector<std::vector<std::string>> cells;
  for (std::size_t m = 0; m < answer.members.size(); ++m) {
    const TeamMember& member = answer.members[m];
    cells.push_back({fmt::to_string(m), fmt::format("{}/{}", member.part, all),
                     fmt::to_string(member.parameters),
                     fmt::format("{:.1f}%", 100 * member.flops / answer.flops)});
  }
  return table_text({{"member"}, {"part"}, {"parameters"}, {"FLOPs"}}, cells);
}

Json run_json(const Graph& graph, const TeamBody& body, const TeamStep& step) {
  const auto name = [&](int i) { return graph.op(body.ops[static_cast<std::size_t>(i)].op).name; };
  return {{"first", name(step.first)},
          {"last", name(step.last)},
          {"operators", step.last - step.first + 1}};
}

Json steps_json(const Graph& graph, const TeamAnswer& answer, const std::vector<TeamStep>& steps,
                bool forward) {
  return json_array(steps, [&](const TeamStep& step) -> Json {
    if (step.form == kNone) return run_json(graph, answer.choice.body, step);
    const Shown one = shown(graph, answer, step.form, forward);
    return {
        {"exchange", name_of(one.exchange)}, {"tensor", one.tensor->name}, {"bytes", one.bytes}};
  });
}

Json team_op_json(const Graph& graph, const TeamOp& op) {
  Json json = {{"name", graph.op(op.op).name}, {"type", graph.op(op.op).type}};
  if (op.split == kNone) {
    json["split"] = nullptr;
    return json;
  }
  json["split"] = splits_of(graph, op.op)[static_cast<std::size_t>(op.split)].name;
  if (op.division != kNone) json["division"] = op.division;
  if (!op.bands.empty()) json["bands"] = op.bands;
  return json;
}

Json parameters_json(const Graph& graph, const TeamBody& body) {
  Json all = Json::array();
  for (const TeamForm& form : body.forms) {
    const Tensor& tensor = graph.tensor(form.tensor);
    if (tensor.kind != TensorKind::kParameter || form.from != kNone) continue;
    Json json = {{"name", tensor.name}, {"elements", elements_at(tensor.shape, 1)}};
    if (form.placement.kind == Placement::Kind::kPart) {
      json["axis"] = form.placement.axis;
      json["division"] = form.placement.division;
      json["bands"] = form.placement.bands;
    }
    all.push_back(std::move(json));
  }
  return all;
}

}  // namespace

std::string team_text(const Graph& graph, const TeamAnswer& answer) {
  const TeamBody& body = answer.choice.body;
  const TeamOptions& options = answer.options;
  const double all = answer.seconds.per_micro_batch(options.micro_batches);
  std::string text = fmt::format(
      "{}: {} members, {}, with {} a micro-batch, {} a step\n"
      "by the figures of {} in {} and {}: {} a micro-batch, {} of it exchanges; {} on member {} "
      "alone\n",
      graph.called(), body.members(), options.members, plural(options.samples, "sample"),
      options.micro_batches, options.accelerator, options.precision, options.network,
      figure(all, "s"), figure(all - answer.seconds.compute, "s"),
      figure(answer.alone_seconds, "s"), answer.fastest);
  if (!answer.choice.exact) text += "not proven: states were left out\n";
  text += "\n" + team_members_text(answer);
  if (!body.divisions.empty()) text += "\n";
  for (std::size_t d = 0; d < body.divisions.size(); ++d) {
    fmt::format_to(Out(text), "d{}  {}\n", d, division_text(body.divisions[d]));
  }
  std::vector<std::vector<std::string>> cells;
  add_collectives(graph, answer, "forward", body.forward, true, cells);
  add_collectives(graph, answer, "backward", body.backward, false, cells);
  add_collectives(graph, answer, "step end", body.step_end, false, cells);
  if (!cells.empty()) {
    text +=
        "\n" +
        table_text({{"pass", 0, true}, {"count"}, {"collective", 0, true}, {"each"}, {"together"}},
                   cells);
  }
  std::vector<Line> lines;
  for (const TeamStep& step : body.forward) {
    lines.push_back(step.form == kNone ? run_line(graph, body, step)
                                       : exchange_line(shown(graph, answer, step.form, true), ""));
  }
  text += "\nforward\n" + folded(lines);
  text +=
      back_text(graph, answer, "backward, between the same operators in reverse", body.backward);
  text += back_text(graph, answer, "once a step", body.step_end);
  return text;
}

std::string team_json(const Graph& graph, const TeamAnswer& answer) {
  const TeamBody& body = answer.choice.body;
  const TeamOptions& options = answer.options;
  Json json = {{"model", graph.called()},
               {"samples", options.samples},
               {"micro_batches", options.micro_batches},
               {"precision", options.precision},
               {"accelerator", options.accelerator},
               {"network", options.network},
               {"exact", answer.choice.exact}};
  json["seconds"] = {{"micro_batch", answer.seconds.per_micro_batch(options.micro_batches)},
                     {"compute", answer.seconds.compute},
                     {"exchange", answer.seconds.exchange},
                     {"step_end", answer.seconds.step_end},
                     {"alone", answer.alone_seconds}};
  json["members"] = json_array(answer.members, [](const TeamMember& member) -> Json {
    return {{"part", member.part}, {"parameters", member.parameters}, {"flops", member.flops}};
  });
  json["divisions"] = json_array(body.divisions, [](const Division& division) -> Json {
    return {{"of", division.of}, {"ends", division.ends}};
  });
  json["operators"] =
      json_array(body.ops, [&](const TeamOp& op) { return team_op_json(graph, op); });
  json["parameters"] = parameters_json(graph, body);
  json["forward"] = steps_json(graph, answer, body.forward, true);
  json["backward"] = steps_json(graph, answer, body.backward, false);
  json["step_end"] = steps_json(graph, answer, body.step_end, false);
  return json_text(json);
}

}  // namespace agpcs
