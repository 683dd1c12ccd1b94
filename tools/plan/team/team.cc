// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/team/team.h"

#include "frontend/cluster/catalog/catalog.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"
#include "ir/graph/op_table.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <numeric>
#include <system_error>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kMostMembers = 1024;
constexpr std::int64_t kGreatestPart = 1'000'000;

Status no_option(std::string what, const std::string& hint = "") {
  if (!hint.empty()) what += "\n  hint: " + hint;
  return {StatusCode::kUsage, std::move(what)};
}

Result<std::vector<std::int64_t>> parse_members(const std::string& text) {
  std::vector<std::int64_t> parts;
  const char* const end = text.data() + text.size();
  for (const char* begin = text.data(); begin <= end;) {
    std::int64_t part = 0;
    const auto [rest, error] = std::from_chars(begin, end, part);
    if (error != std::errc() || part < 1 || part > kGreatestPart || (rest != end && *rest != ':')) {
      parts.clear();
      break;
    }
    parts.push_back(part);
    begin = rest + 1;
  }
  if (parts.size() >= 2 && parts.size() <= kMostMembers) return parts;
  return no_option(fmt::format(
      "--members '{}' is not a whole number from 1 to {} for each of 2 to {} members, such as 5:3",
      text, kGreatestPart, kMostMembers));
}

/// Returns speeds by the catalog.
Result<TeamSpeeds> catalog_speeds(const TeamOptions& options,
                                  const std::vector<std::int64_t>& parts) {
  const AcceleratorKind* device = catalog().find_accelerator(options.accelerator);
  if (device == nullptr) {
    return no_option(fmt::format("unknown accelerator '{}'", options.accelerator),
                     did_you_mean_of_catalog(options.accelerator, catalog().accelerator_names()));
  }
  const NetworkKind* network = catalog().find_network(options.network);
  if (network == nullptr) {
    return no_option(fmt::format("unknown network '{}'", options.network),
                     did_you_mean_of_catalog(options.network, catalog().network_names()));
  }
  const auto peak = device->peak.find(options.precision);
  if (peak == device->peak.end() || device->memory_bandwidth <= 0) {
    return no_option(fmt::format("the catalog does not know how fast {} computes in {}",
                                 device->name, options.precision));
  }
  TeamSpeeds speeds{
      {}, {}, network->bandwidth * network->efficiency, std::max(0.0, network->latency)};
  const auto greatest = static_cast<double>(*std::ranges::max_element(parts));
  for (const std::int64_t part : parts) {
    speeds.flops.push_back(peak->second * static_cast<double>(part) / greatest);
    speeds.memory.push_back(device->memory_bandwidth * static_cast<double>(part) / greatest);
  }
  return speeds;
}

double training_flops(const TeamProblem& problem, OpId op) {
  const OpCost cost = op_cost(problem.graph, op, problem.samples, problem.precision);
  return cost.forward_flops + cost.backward_flops;
}

std::vector<TeamMember> member_figures(const TeamProblem& problem, const TeamBody& body) {
  std::vector<TeamMember> members;
  for (std::size_t m = 0; m < body.members(); ++m) {
    TeamMember member{body.parts[m]};
    const auto part = [&](int division) {
      return division == kNone ? 1 : body.divisions[static_cast<std::size_t>(division)].part(m);
    };
    for (const TeamOp& op : body.ops)
      member.flops += part(op.division) * training_flops(problem, op.op);
    for (const TeamForm& form : body.forms) {
      const Tensor& tensor = problem.graph.tensor(form.tensor);
      if (tensor.kind != TensorKind::kParameter || form.from != kNone) continue;
      member.parameters += static_cast<std::int64_t>(
          part(form.placement.division) * static_cast<double>(elements_at(tensor.shape, 1)) + 0.5);
    }
    members.push_back(member);
  }
  return members;
}

}  // namespace

Result<TeamAnswer> ask_team(const Graph& graph, const TeamOptions& options) {
  TeamAnswer answer;
  answer.options = options;
  AGPCS_TRY(std::vector<std::int64_t> parts, parse_members(options.members));
  const auto precision = value_named(kPrecisions, options.precision);
  if (!precision) {
    return no_option(fmt::format("unknown precision '{}'", options.precision),
                     did_you_mean(options.precision, names_in(kPrecisions), "precisions"));
  }
  answer.precision = *precision;
  AGPCS_TRY(TeamSpeeds speeds, catalog_speeds(options, parts));
  answer.fastest = static_cast<std::size_t>(std::ranges::max_element(parts) - parts.begin());
  TeamProblem problem{graph,      {}, std::move(parts), options.samples, options.micro_batches,
                      *precision, {}};
  problem.ops.resize(graph.ops.size());
  std::iota(problem.ops.begin(), problem.ops.end(), 0);
  problem.costs = roofline_costs(graph, std::move(speeds), options.samples, *precision);
  AGPCS_TRY(answer.choice, choose_team_body(problem));
  AGPCS_RETURN_IF_ERROR(verify_team_body(problem.graph, answer.choice.body));
  answer.seconds = team_seconds(problem, answer.choice.body);
  for (const OpId op : problem.ops) {
    answer.alone_seconds += problem.costs.compute({op, kNone, 0}, answer.fastest, 1);
    answer.flops += training_flops(problem, op);
  }
  answer.members = member_figures(problem, answer.choice.body);
  return answer;
}

}  // namespace agpcs
