// SPDX-License-Identifier: Apache-2.0
// From format 1 to format 2: the lines of flows have other words, as `reduce_scatter` and
// `all_gather` became instructions. Printing the plan says the rest, such as `repeat`.
#include "tools/plan/upgrade.h"

#include "ir/plan/text.h"

#include <agpcs/plan.h>

#include <fmt/format.h>

namespace agpcs {
namespace {

constexpr std::string_view kFormat1 = "agpcs-plan 1\n";

/// Returns a line of a flow in the words of format 2; other lines are the same.
std::string upgraded_line(std::string_view line) {
  constexpr std::string_view kReduceScatter = "  reduce_scatter ", kAllGather = "  all_gather ";
  if (line.substr(0, kReduceScatter.size()) == kReduceScatter) {
    return fmt::format("  add {}", line.substr(kReduceScatter.size()));
  }
  if (line.substr(0, kAllGather.size()) == kAllGather) {
    return fmt::format("  copy {}", line.substr(kAllGather.size()));
  }
  return std::string(line);
}

std::string upgraded(std::string_view text) {
  std::string result = fmt::format("agpcs-plan {}\n", kPlanVersion);
  text.remove_prefix(kFormat1.size());
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    result += upgraded_line(text.substr(0, end));
    if (end == std::string_view::npos) break;
    result += '\n';
    text.remove_prefix(end + 1);
  }
  return result;
}

}  // namespace

Result<std::string> upgrade_plan(std::string_view text, std::string_view file) {
  const bool is_old = text.substr(0, kFormat1.size()) == kFormat1;
  AGPCS_TRY(const Plan plan, parse_any_spelling(is_old ? upgraded(text) : std::string(text), file));
  return print_plan(plan);
}

}  // namespace agpcs
