// SPDX-License-Identifier: Apache-2.0
#include "tools/compile/report.h"

#include "ir/base/units.h"
#include "ir/graph/executed.h"
#include "ir/graph/fused_attention.h"
#include "ir/graph/loss_summary.h"
#include "ir/plan/body/body.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tools/common/joined_rows.h"
#include "tools/common/json.h"
#include "tools/common/words/plan_words.h"
#include "tools/compile/bound_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

struct DeviceRow {
  const DeviceEstimate* estimate;
  int stage;           ///< its first
  std::string stages;  ///< "s0", or "s0,s2" of a device with several
  std::int64_t samples;
  std::int64_t capacity;
};

/// Returns what each rank does, by rank.
std::vector<DeviceRow> device_rows(const Compiled& compiled) {
  const Plan& plan = compiled.planned.best.plan;
  std::vector<DeviceRow> rows;
  for (const DeviceEstimate& estimate : compiled.planned.best.estimate.devices) {
    const int stage = plan.stage_of_rank(estimate.rank);
    const PlanStage& of = plan.stages[static_cast<std::size_t>(stage)];
    const int replica = replica_of(of, estimate.rank);
    const Cluster& cluster = compiled.problem->cluster;
    rows.push_back({&estimate, stage, names_of_stages(plan, stage),
                    of.samples[static_cast<std::size_t>(replica)],
                    cluster.kind_of(cluster.find_device(estimate.device)).memory_bytes});
  }
  return rows;
}

std::int64_t buckets_of(const Plan& plan, int stage) {
  return std::count_if(plan.buckets.begin(), plan.buckets.end(),
                       [&](const PlanBucket& bucket) { return bucket.is_of(stage); });
}

/// Returns "25.6M", "109M", "512".
std::string count_text(std::int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.3g}G", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.3g}M", value / 1e6);
  if (count >= 10'000) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{}", count);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// Returns " and improved by 3.2% in 2000 evaluations of dqn".
std::string refinement(const Planned& planned) {
  const MadeBy& made_by = planned.best.plan.made_by;
  const std::optional<double>& start = planned.refinement.start_seconds;
  if (made_by.refiner == "none") return "";
  const std::string end = fmt::format(" in {} of {}{}", plural(made_by.evaluations, "evaluation"),
                                      made_by.refiner, made_by.interrupted ? ", interrupted" : "");
  if (!start) return " and made to fit" + end;
  const double gain = 1 - planned.best.estimate.step_seconds / *start;
  if (gain <= 0) return ", already the best found" + end;
  if (gain < 0.0005) return " and improved by less than 0.1%" + end;
  return fmt::format(" and improved by {:.1f}%{}", 100 * gain, end);
}

std::string title(const Compiled& compiled) {
  const Plan& plan = compiled.planned.best.plan;
  const std::int64_t used = plan.rank_count() - idle_ranks(plan);
  return fmt::format("{} on {}: {} over {} of {} devices, found by seeder {}{}\n", plan.model,
                     plan.cluster, plan_kind(plan), used, compiled.problem->cluster.device_count(),
                     plan.made_by.seeder, refinement(compiled.planned));
}

/// Returns 0 if samples have no tokens.
double tokens_per_second(const Compiled& compiled) {
  return static_cast<double>(tokens_per_sample(compiled.problem->graph)) *
         compiled.planned.best.estimate.samples_per_second;
}

/// Returns a line about attention, unless the plan leaves in steps what is in steps.
std::string attention_line(const Problem& problem) {
  if (problem.training.attention == AttentionForm::kSteps) return {};
  const std::size_t count = count_fused_attentions(problem.graph);
  if (count == 0) return "  attention     fused, but the model has none that can be\n";
  const std::size_t in_steps = problem.graph.fused.size();
  if (in_steps == 0) return fmt::format("  attention     fused: {} of them\n", count);
  return fmt::format(
      "  attention     fused: {} of them; agpcs-run computes {} in steps, in more memory\n", count,
      in_steps);
}

std::string headline(const Compiled& compiled) {
  const Evaluated& best = compiled.planned.best;
  const std::optional<DType> wire = best.plan.training.wire_type;
  const double tokens = tokens_per_second(compiled);
  const std::string loss = describe_loss(compiled.problem->graph, best.plan.training.loss);
  return fmt::format(
      "\n{}{}  throughput    {}{}\n  step time     {} for {} samples in {}\n{}"
      "  bytes sent    {} a step, over all devices{}\n",
      loss.empty() ? "" : fmt::format("  loss          {}\n", loss),
      attention_line(*compiled.problem), figure(best.estimate.samples_per_second, "samples/s"),
      tokens > 0 ? ", " + figure(tokens, "") + " tokens/s" : "",
      figure(best.estimate.step_seconds, "s"), best.plan.training.batch,
      plural(best.plan.micro_batches, "micro-batch", "es"), bound_lines(compiled),
      byte_figure(best.estimate.bytes_sent),
      wire ? fmt::format("; gradients travel in {}", name_of(*wire)) : "");
}

std::string_view baseline_title(const std::string& name) {
  return name == "degree" ? "partition by node degree" : "plain data parallelism";
}

std::string comparison(const Compiled& compiled) {
  std::string text = "\ncompared with\n";
  const double step = compiled.planned.best.estimate.step_seconds;
  for (const Attempt& baseline : compiled.planned.baselines) {
    const std::string_view name = baseline_title(baseline.name);
    if (baseline.step_seconds) {
      text += fmt::format("  {:<26} {:>7}   this plan is {:.2f} times as fast\n", name,
                          figure(*baseline.step_seconds, "s"), *baseline.step_seconds / step);
    } else {
      text += fmt::format("  {:<26} impossible: {}\n", name, first_line(baseline.why_not));
    }
  }
  return text;
}

RowFigure counted(std::int64_t count) {
  return {static_cast<double>(count), fmt::format("{}", count), ""};
}

RowFigure seconds_figure(double seconds) { return {seconds, figure(seconds, "s"), ""}; }

/// Returns the cells of a line: the row's name, then its figures.
std::vector<std::string> named_cells(const TableRow& row) {
  std::vector<std::string> cells = cells_of(row);
  cells.insert(cells.begin(), row.name);
  return cells;
}

/// Returns "-", "48%" or "all": how many of a stage's operators its backward pass computes again.
RowFigure recomputed_figure(const PlanStage& stage) {
  const double part = static_cast<double>(recomputed_operators(stage)) /
                      static_cast<double>(std::max<std::int64_t>(operator_count(stage), 1));
  return {part, part == 0 ? "-" : part == 1 ? "all" : fmt::format("{:.0f}%", 100 * part), ""};
}

/// Returns "-", "optimizer", "gradients" or "parameters": the most that a stage's devices divide.
RowFigure divided_figure(const Plan& plan, int stage) {
  const StateLevel level = divided_state(plan, stage);
  return {static_cast<double>(level),
          level == StateLevel::kWhole ? "-" : std::string(name_of(level)), ""};
}

/// Returns "device" or "host": where something of a stage lies.
RowFigure place_figure(bool in_host) {
  return {in_host ? 1.0 : 0.0, in_host ? "host" : "device", ""};
}

/// The ways in which stages of a plan save memory, which are columns where some stage does so.
struct Savings {
  bool recompute = false, divide = false, state_in_host = false, activations_in_host = false;
};

Savings savings_of(const Plan& plan) {
  Savings savings;
  for (const PlanStage& stage : plan.stages) {
    savings.recompute = savings.recompute || stage.recompute;
    savings.state_in_host = savings.state_in_host || stage.state_in_host;
    savings.activations_in_host = savings.activations_in_host || stage.activations_in_host;
  }
  savings.divide = std::any_of(plan.buckets.begin(), plan.buckets.end(),
                               [](const PlanBucket& bucket) { return bucket.is_sharded(); });
  return savings;
}

TableRow stage_row(const Evaluated& best, std::size_t s, const Savings& savings) {
  const PlanStage& stage = best.plan.stages[s];
  const StageEstimate& times = best.estimate.stages[s];
  const int index = static_cast<int>(s);
  const std::int64_t parameters = parameter_count(best.plan, index);
  TableRow row = {
      stage.name,
      {counted(static_cast<std::int64_t>(stage.all_ranks().size())),
       counted(operator_count(stage)),
       {static_cast<double>(parameters), count_text(parameters), ""},
       counted(buckets_of(best.plan, index))},
      {fmt::format("{}", s * kMostRows / best.plan.stages.size())}};  // joins neighbours
  if (savings.recompute) row.figures.push_back(recomputed_figure(stage));
  if (savings.divide) row.figures.push_back(divided_figure(best.plan, index));
  if (savings.activations_in_host) row.figures.push_back(place_figure(stage.activations_in_host));
  if (savings.state_in_host) row.figures.push_back(place_figure(stage.state_in_host));
  row.figures.push_back(seconds_figure(times.forward_seconds));
  row.figures.push_back(seconds_figure(times.backward_seconds));
  return row;
}

std::string stage_table(const Compiled& compiled) {
  const Evaluated& best = compiled.planned.best;
  const Plan& plan = best.plan;
  const Savings savings = savings_of(plan);
  std::vector<TableRow> rows;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    if (!plan.stages[s].idle()) rows.push_back(stage_row(best, s, savings));
  }
  std::vector<std::vector<std::string>> cells;
  for (const TableRow& row : joined_rows(std::move(rows))) cells.push_back(named_cells(row));
  std::vector<TableColumn> columns = {
      {"stage", 5, true}, {"devices"}, {"operators"}, {"parameters"}, {"buckets"}};
  if (savings.recompute) columns.push_back({"recomputed"});
  if (savings.divide) columns.push_back({"divided"});
  if (savings.activations_in_host) columns.push_back({"activations in"});
  if (savings.state_in_host) columns.push_back({"state in"});
  columns.insert(columns.end(), {{"forward"}, {"backward"}});
  std::string text = table_text(columns, cells);
  return "\n" + text.insert(text.find('\n'), "  of a micro-batch") + teams_lines(plan);
}

/// Makes the row of a device. Devices are joined if they have the same kind, stage and samples; if
/// that leaves too many rows, if they have fewer of these in common. A cluster has few kinds.
TableRow table_row(const Compiled& compiled, const DeviceRow& row) {
  const DeviceEstimate& e = *row.estimate;
  const Cluster& cluster = compiled.problem->cluster;
  const std::string& kind = cluster.kind_of(cluster.find_device(e.device)).name;
  TableRow shown;
  shown.name = e.device;
  shown.figures = {{static_cast<double>(row.stage), row.stages, ""},
                   counted(row.samples),
                   {e.utilization, fmt::format("{:.0f}%", 100 * e.utilization), ""},
                   seconds_figure(e.exposed_communication),
                   {static_cast<double>(e.memory.total()), byte_figure(e.memory.total()),
                    fmt::format(" of {}", byte_figure(row.capacity))},
                   {static_cast<double>(e.bytes_sent), byte_figure(e.bytes_sent), ""}};
  shown.alike = {fmt::format("{} {} {}", row.stage, row.samples, kind),
                 fmt::format("{} {}", row.stage, kind), kind};
  return shown;
}

std::string device_table(const Compiled& compiled) {
  std::vector<TableRow> rows;
  for (const DeviceRow& row : device_rows(compiled)) rows.push_back(table_row(compiled, row));
  std::vector<std::vector<std::string>> cells;
  for (const TableRow& row : joined_rows(std::move(rows))) cells.push_back(named_cells(row));
  return "\n" + table_text({{"device", 0, true},
                            {"stage", 5, true},
                            {"samples"},
                            {"busy"},
                            {"waiting for network"},
                            {"peak memory", 17, true},
                            {"sent", 6}},
                           cells);
}

/// Returns the kinds that devices are of, with where their costs come from. Empty if no kind has a
/// profile.
std::vector<std::pair<const DeviceKind*, Coverage>> coverages(const Compiled& compiled) {
  const Problem& problem = *compiled.problem;
  std::vector<std::pair<const DeviceKind*, Coverage>> list;
  bool profiled = false;
  for (std::size_t k = 0; k < problem.cluster.kinds.size(); ++k) {
    const std::vector<Device>& devices = problem.cluster.devices;
    const int kind = static_cast<int>(k);
    if (std::none_of(devices.begin(), devices.end(),
                     [&](const Device& device) { return device.kind == kind; })) {
      continue;
    }
    list.emplace_back(&problem.cluster.kinds[k],
                      problem.costs.coverage(kind, problem.blocks.samples));
    profiled = profiled || problem.cluster.kinds[k].profile.given();
  }
  if (!profiled) list.clear();
  return list;
}

/// Returns the relative error with which the class fits of a kind's profile explain their
/// measurements: the median error of the class that is explained worst.
double stand_in_error(const Compiled& compiled, const DeviceKind& kind) {
  double worst = 0;
  const std::string end = " on " + kind.profile.entry;
  for (const FitReport& fit : compiled.fits) {
    if (fit.stands_in && fit.what.ends_with(end)) worst = std::max(worst, fit.median_error);
  }
  return worst;
}

std::string costs_text(const Compiled& compiled) {
  std::string text;
  for (const auto& [kind, coverage] : coverages(compiled)) {
    text += text.empty() ? "\n" : "";
    if (!kind->profile.given()) {
      text += fmt::format("costs of {}: by its datasheet\n", kind->name);
      continue;
    }
    text += fmt::format("costs of {}: {} of {} operators measured ({:.0f}% of the time)",
                        kind->name, coverage.measured, coverage.operators,
                        100 * coverage.measured_fraction_of_seconds);
    if (coverage.fitted > 0) {
      text += fmt::format(", {} by fitted efficiencies (median error up to {:.0f}%)",
                          coverage.fitted, 100 * stand_in_error(compiled, *kind));
    }
    if (coverage.datasheet > 0) text += fmt::format(", {} by the datasheet", coverage.datasheet);
    text += '\n';
  }
  return text;
}

std::string not_executed_text(const Compiled& compiled) {
  std::string types;
  for (const NotExecuted& op : not_executed(compiled.problem->graph)) {
    types += fmt::format("{}{} ({})", types.empty() ? "" : ", ", op.type, plural(op.nodes, "node"));
  }
  if (types.empty()) return "";
  return fmt::format(
      "\nagpcs-run cannot train by this plan: it does not run {}\n"
      "  hint: docs/reference/executed_operators.md lists what it runs\n",
      types);
}

Json not_executed_json(const Compiled& compiled) {
  return json_array(not_executed(compiled.problem->graph), [](const NotExecuted& op) -> Json {
    return {{"type", op.type}, {"nodes", op.nodes}};
  });
}

Json costs_json(const Compiled& compiled) {
  return json_array(coverages(compiled), [](const auto& costs) -> Json {
    const auto& [kind, coverage] = costs;
    return {{"kind", kind->name},
            {"operators", coverage.operators},
            {"measured", coverage.measured},
            {"fitted", coverage.fitted},
            {"datasheet", coverage.datasheet},
            {"measured_fraction_of_seconds", coverage.measured_fraction_of_seconds}};
  });
}

Json fit_json(const FitReport& fit) {
  return {{"what", fit.what},
          {"points", fit.points},
          {"outliers", fit.outliers},
          {"median_error", fit.median_error},
          {"worst_error", fit.worst_error},
          {"explains", fit.explains()}};
}

/// Returns the step of an attempt, or why there is none.
Json attempt_json(const Attempt& attempt) {
  return {{"step_seconds", json_or_null(attempt.step_seconds)},
          {"infeasible", attempt.step_seconds ? Json() : Json(attempt.why_not)}};
}

Json baselines_json(const Planned& planned) {
  Json baselines = Json::object();
  for (const Attempt& baseline : planned.baselines) {
    baselines[baseline.name] = attempt_json(baseline);
  }
  return baselines;
}

Json seeder_json(const Attempt& seeder) {
  Json json = {
      {"name", seeder.name}, {"candidates", seeder.candidates}, {"feasible", seeder.feasible}};
  json.update(attempt_json(seeder));
  return json;
}

/// Returns the members of a stage's largest replica.
std::size_t most_members(const PlanStage& stage) {
  std::size_t most = 1;
  for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
    most = std::max(most, stage.members(i).size());
  }
  return most;
}

Json stages_json(const Evaluated& best) {
  Json stages = Json::array();
  for (std::size_t s = 0; s < best.plan.stages.size(); ++s) {
    const PlanStage& stage = best.plan.stages[s];
    stages.push_back({{"name", stage.name},
                      {"devices", stage.devices},
                      {"samples", stage.samples},
                      {"members", most_members(stage)},
                      {"operators", operator_count(stage)},
                      {"parameters", parameter_count(best.plan, static_cast<int>(s))},
                      {"buckets", buckets_of(best.plan, static_cast<int>(s))},
                      {"recomputed_operators", recomputed_operators(stage)},
                      {"state", name_of(divided_state(best.plan, static_cast<int>(s)))},
                      {"forward_seconds", best.estimate.stages[s].forward_seconds},
                      {"backward_seconds", best.estimate.stages[s].backward_seconds}});
    if (stage.activations_in_host) stages.back()["activations_in"] = "host";
    if (stage.state_in_host) stages.back()["state_in"] = "host";
  }
  return stages;
}

Json device_json(const DeviceRow& row) {
  const DeviceEstimate& e = *row.estimate;
  return {{"device", e.device},
          {"rank", e.rank},
          {"stage", row.stages},
          {"samples", row.samples},
          {"compute_seconds", e.compute_seconds},
          {"utilization", e.utilization},
          {"exposed_communication_seconds", e.exposed_communication},
          {"bytes_sent", e.bytes_sent},
          {"peak_memory_bytes", e.memory.total()},
          {"memory_capacity_bytes", row.capacity},
          {"memory",
           {{"parameters", e.memory.parameters},
            {"gradients", e.memory.gradients},
            {"optimizer", e.memory.optimizer},
            {"activations", e.memory.activations},
            {"transfers", e.memory.transfers},
            {"workspace", e.memory.workspace}}}};
}

/// Returns how the plan was made and what it does, as single values.
Json headline_json(const Compiled& compiled, const std::string& plan_file) {
  const Evaluated& best = compiled.planned.best;
  const Plan& plan = best.plan;
  const std::optional<DType> wire = plan.training.wire_type;
  std::int64_t peak = 0;
  for (const DeviceEstimate& device : best.estimate.devices) {
    peak = std::max(peak, device.memory.total());
  }
  Json json = {{"format", "agpcs-compile 1"},
               {"version", plan.made_by.version},
               {"model", plan.model},
               {"cluster", plan.cluster},
               {"plan", plan_file},
               {"batch", plan.training.batch},
               {"micro_batches", plan.micro_batches},
               {"schedule", name_of(plan.schedule)},
               {"precision", name_of(plan.training.precision)},
               {"attention", name_of(plan.training.attention)},
               {"fused_attentions", count_fused_attentions(compiled.problem->graph)},
               {"wire_type", wire ? Json(name_of(*wire)) : Json()},
               {"seed", plan.made_by.seed},
               {"seeder", plan.made_by.seeder},
               {"refiner", plan.made_by.refiner},
               {"evaluations", plan.made_by.evaluations},
               {"interrupted", plan.made_by.interrupted},
               {"seed_step_seconds", json_or_null(compiled.planned.refinement.start_seconds)},
               {"step_seconds", best.estimate.step_seconds}};
  json.update(bound_json(compiled));
  json["samples_per_second"] = best.estimate.samples_per_second;
  json["peak_memory_bytes"] = peak;
  json["bytes_sent"] = best.estimate.bytes_sent;
  json["parameters"] = compiled.problem->graph.parameter_elements();
  const double tokens = tokens_per_second(compiled);
  if (tokens > 0) json["tokens_per_second"] = tokens;
  const std::string loss = describe_loss(compiled.problem->graph, plan.training.loss);
  if (!loss.empty()) json["loss"] = loss;
  return json;
}

}  // namespace

std::string compile_summary(const Compiled& compiled) {
  return title(compiled) + headline(compiled) + comparison(compiled) + stage_table(compiled) +
         device_table(compiled) + costs_text(compiled) + not_executed_text(compiled);
}

std::string compile_json(const Compiled& compiled, const std::string& plan_file) {
  Json json = headline_json(compiled, plan_file);
  json["baselines"] = baselines_json(compiled.planned);
  json["seeders"] = json_array(compiled.planned.seeders, seeder_json);
  json["stages"] = stages_json(compiled.planned.best);
  json["devices"] = json_array(device_rows(compiled), device_json);
  json["costs"] = costs_json(compiled);
  json["fits"] = json_array(compiled.fits, fit_json);
  json["not_executed"] = not_executed_json(compiled);
  return json_text(json);
}

}  // namespace agpcs
