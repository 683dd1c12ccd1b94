// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/splits.h"

#include "ir/graph/op_table.h"
#include "ir/graph/split/split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <vector>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

/// Operators of one type that can be divided in the same ways.
struct Alike {
  std::string type, first, splits;
  int count = 0;
  double flops = 0;
};

/// Returns "copy, axis 1", with "x3" after what three tensors in a row have.
std::string placements_text(const std::vector<Placement>& placements,
                            const std::vector<TensorId>& ids) {
  std::string text;
  for (std::size_t i = 0; i < placements.size();) {
    const auto own = [&](std::size_t k) {
      return ids[k] == kNone ? std::string("-") : placement_text(placements[k]);
    };
    const std::string one = own(i);
    std::size_t end = i + 1;
    while (end < placements.size() && own(end) == one) ++end;
    fmt::format_to(Out(text), "{}{}", text.empty() ? "" : ", ", one);
    if (end - i > 1) fmt::format_to(Out(text), " x{}", end - i);
    i = end;
  }
  return text;
}

std::string line_of(const Op& op, const OpSplit& split) {
  std::string text = fmt::format("  {:<14}  {:>7}  {} -> {}", split.name,
                                 split.units == 0 ? "any" : fmt::to_string(split.units),
                                 placements_text(split.inputs, op.inputs),
                                 placements_text(split.outputs, op.outputs));
  for (std::size_t i = 0; i < split.inside.size(); ++i) {
    fmt::format_to(Out(text), "{}{}", i == 0 ? ", reducing within: " : ", ",
                   placement_text({split.inside[i]}));
  }
  return text + "\n";
}

std::string type_of(const Op& op) {
  return op.domain.empty() ? op.type : op.domain + "." + op.type;
}

/// Returns the groups with the most work first.
std::vector<Alike> alike_operators(const Graph& graph) {
  std::vector<Alike> groups;
  std::map<std::string, std::size_t> known;
  for (OpId id = 0; id < static_cast<OpId>(graph.ops.size()); ++id) {
    const Op& op = graph.op(id);
    std::string text;
    for (const OpSplit& split : splits_of(graph, id)) text += line_of(op, split);
    const auto [entry, added] = known.emplace(type_of(op) + "\n" + text, groups.size());
    if (added) groups.push_back({type_of(op), op.name, text});
    Alike& group = groups[entry->second];
    ++group.count;
    group.flops += op_cost(graph, id, 1, Precision::kFp32).forward_flops;
  }
  std::ranges::stable_sort(groups, std::greater<>(), &Alike::flops);
  return groups;
}

std::string share_text(double part, double all) {
  return fmt::format("{:.1f}% of the FLOPs", all > 0 ? 100 * part / all : 0);
}

/// Returns "12 MatMul, the first is h0/q".
std::string heading_of(const Alike& group) {
  return group.count == 1
             ? fmt::format("{} {}", group.type, group.first)
             : fmt::format("{} {}, the first is {}", group.count, group.type, group.first);
}

std::string reason_of(const Graph& graph, const Alike& group) {
  const Op& op = graph.op(graph.find_op(group.first));
  const std::string_view why = why_undivided(op.domain, op.type);
  return why.empty() ? "no axis of it can be divided" : std::string(why);
}

}  // namespace

std::string splits_text(const Graph& graph) {
  const std::vector<Alike> groups = alike_operators(graph);
  double flops = 0, divided = 0;
  int count = 0;
  std::string with, without;
  for (const Alike& group : groups) flops += group.flops;
  for (const Alike& group : groups) {
    if (group.splits.empty()) {
      fmt::format_to(Out(without), "  {}: {}\n", heading_of(group), reason_of(graph, group));
      continue;
    }
    divided += group.flops;
    count += group.count;
    fmt::format_to(Out(with), "\n{}: {}\n{}", heading_of(group), share_text(group.flops, flops),
                   group.splits);
  }
  std::string text =
      fmt::format("{}: a team can divide {} of {} operators, with {}\n", graph.called(), count,
                  graph.ops.size(), share_text(divided, flops));
  text += with;
  if (!without.empty()) text += "\nnot divided\n" + without;
  return text +
         "\na row: what is divided, the most members, how inputs -> outputs then lie\n"
         "  axis A by E  parts of axis A, E elements for each unit; E+F, N*E: in several bands\n"
         "  sum          summands, one at each member\n";
}

}  // namespace agpcs
