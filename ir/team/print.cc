// SPDX-License-Identifier: Apache-2.0
#include "ir/team/body.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <iterator>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

std::string operator_line(const Graph& graph, const TeamOp& op) {
  const std::string& name = graph.op(op.op).name;
  if (op.split == kNone) {
    return fmt::format("  {}: whole{}\n", name, op.own_gradient ? ", gradient sum" : "");
  }
  const OpSplit split = splits_of(graph, op.op)[static_cast<std::size_t>(op.split)];
  if (op.division == kNone) return fmt::format("  {}: {}\n", name, split.name);
  const std::string bands =
      op.bands.empty() ? std::string() : fmt::format(" in {}", fmt::join(op.bands, "+"));
  return fmt::format("  {}: {}{} as d{}\n", name, split.name, bands, op.division);
}

std::string exchange_line(const Graph& graph, const TeamBody& body, int form, TeamExchange exchange,
                          std::string_view of, std::int64_t samples, Precision precision) {
  const Tensor& tensor = graph.tensor(body.forms[static_cast<std::size_t>(form)].tensor);
  std::string line = fmt::format("  {} {}{}", name_of(exchange), of, tensor.name);
  if (is_collective(exchange)) {
    fmt::format_to(Out(line), ": {} bytes", exchanged_bytes(tensor, samples, precision));
  }
  return line + "\n";
}

}  // namespace

std::string print_team_body(const Graph& graph, const TeamBody& body, std::int64_t samples,
                            Precision precision) {
  std::string text = fmt::format("members {}\n", fmt::join(body.parts, ":"));
  for (std::size_t d = 0; d < body.divisions.size(); ++d) {
    fmt::format_to(Out(text), "d{} {}\n", d, division_text(body.divisions[d]));
  }
  text += "forward\n";
  for (const TeamStep& step : body.forward) {
    if (step.form != kNone) {
      text += exchange_line(graph, body, step.form, forward_exchange(body, step.form), "", samples,
                            precision);
      continue;
    }
    for (int i = step.first; i <= step.last; ++i) {
      text += operator_line(graph, body.ops[static_cast<std::size_t>(i)]);
    }
  }
  const auto backward_line = [&](const TeamStep& step) {
    return exchange_line(graph, body, step.form, backward_exchange(graph, body, step.form),
                         "gradient of ", samples, precision);
  };
  text += "backward\n";
  for (const TeamStep& step : body.backward) {
    if (step.form != kNone) {
      text += backward_line(step);
      continue;
    }
    const auto name = [&](int i) {
      return graph.op(body.ops[static_cast<std::size_t>(i)].op).name;
    };
    if (step.first == step.last) {
      fmt::format_to(Out(text), "  {}\n", name(step.last));
    } else {
      fmt::format_to(Out(text), "  {}..{}\n", name(step.last), name(step.first));
    }
  }
  if (!body.step_end.empty()) text += "step end\n";
  for (const TeamStep& step : body.step_end) text += backward_line(step);
  text += "parameters\n";
  for (const TeamForm& form : body.forms) {
    const Tensor& tensor = graph.tensor(form.tensor);
    if (tensor.kind != TensorKind::kParameter || form.from != kNone) continue;
    fmt::format_to(Out(text), "  {}: {}\n", tensor.name, team_placement_text(form.placement));
  }
  return text;
}

}  // namespace agpcs
