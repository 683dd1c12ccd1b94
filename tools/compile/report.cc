// SPDX-License-Identifier: Apache-2.0
#include "tools/compile_report.h"

#include "ir/units.h"
#include "tools/joined_rows.h"
#include "tools/json.h"

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
  int stage;
  std::int64_t samples;
  std::int64_t capacity;
};

/// What each rank does, by rank.
std::vector<DeviceRow> device_rows(const Compiled& compiled) {
  const Plan& plan = compiled.planned.best.plan;
  std::vector<DeviceRow> rows;
  for (const DeviceEstimate& estimate : compiled.planned.best.estimate.devices) {
    const int stage = plan.stage_of_rank(estimate.rank);
    const PlanStage& of = plan.stages[static_cast<std::size_t>(stage)];
    const auto replica = std::find(of.ranks.begin(), of.ranks.end(), estimate.rank);
    const Cluster& cluster = compiled.problem->cluster;
    rows.push_back({&estimate, stage,
                    of.samples[static_cast<std::size_t>(replica - of.ranks.begin())],
                    cluster.kind_of(cluster.find_device(estimate.device)).memory_bytes});
  }
  return rows;
}

std::int64_t operators_of(const PlanStage& stage) {
  std::int64_t count = 0;
  for (const PlanStage::Run& run : stage.operators) count += run.count;
  return count;
}

std::int64_t parameters_of(const Plan& plan, int stage) {
  std::int64_t count = 0;
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.stage == stage) count += bucket.elements();
  }
  return count;
}

std::int64_t buckets_of(const Plan& plan, int stage) {
  return std::count_if(plan.buckets.begin(), plan.buckets.end(),
                       [&](const PlanBucket& bucket) { return bucket.stage == stage; });
}

/// "25.6M", "109M", "512".
std::string count_text(std::int64_t count) {
  const auto value = static_cast<double>(count);
  if (count >= 1'000'000'000) return fmt::format("{:.3g}G", value / 1e9);
  if (count >= 1'000'000) return fmt::format("{:.3g}M", value / 1e6);
  if (count >= 10'000) return fmt::format("{:.3g}k", value / 1e3);
  return fmt::format("{}", count);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

/// " and improved by 3.2% in 2000 evaluations of dqn".
std::string refinement(const Planned& planned) {
  const Refinement& r = planned.refinement;
  if (r.name == "none") return "";
  const std::string end = fmt::format(" in {} of {}{}", plural(r.evaluations, "evaluation"), r.name,
                                      r.interrupted ? ", interrupted" : "");
  if (!r.start_seconds) return " and made to fit" + end;
  const double gain = 1 - planned.best.estimate.step_seconds / *r.start_seconds;
  if (gain <= 0) return ", already the best found" + end;
  if (gain < 0.0005) return " and improved by less than 0.1%" + end;
  return fmt::format(" and improved by {:.1f}%{}", 100 * gain, end);
}

std::string title(const Compiled& compiled) {
  const Plan& plan = compiled.planned.best.plan;
  const auto used = compiled.planned.best.estimate.devices.size();
  return fmt::format(
      "{} on {}: {} over {} of {} devices, found by seeder {}{}\n", plan.model, plan.cluster,
      plan.stages.size() == 1 ? "data parallel"
                              : fmt::format("pipeline of {} stages", plan.stages.size()),
      used, compiled.problem->cluster.device_count(), plan.made_by.seeder,
      refinement(compiled.planned));
}

/// By how much the step is longer than the lower bound, as a fraction of the bound.
double gap_of(const Compiled& compiled) {
  const Planned& planned = compiled.planned;
  return planned.best.estimate.step_seconds / planned.bound.seconds - 1;
}

std::string headline(const Compiled& compiled) {
  const Evaluated& best = compiled.planned.best;
  const LowerBound& bound = compiled.planned.bound;
  const double percent = std::max(0.0, 100 * gap_of(compiled));
  const std::string gap = percent < 100 ? fmt::format("{:.{}f}%", percent, percent < 10 ? 1 : 0)
                                        : fmt::format("a factor of {:.1f}", 1 + percent / 100);
  const std::optional<DType> wire = best.plan.training.wire_type;
  return fmt::format(
      "\n  throughput    {}\n  step time     {} for {} samples in {}\n"
      "                within {} of the best possible: no plan takes less than {} ({})\n"
      "  bytes sent    {} a step, over all devices{}\n",
      figure(best.estimate.samples_per_second, "samples/s"),
      figure(best.estimate.step_seconds, "s"), best.plan.training.batch,
      plural(best.plan.micro_batches, "micro-batch", "es"), gap, figure(bound.seconds, "s"),
      bound.reason, byte_figure(best.estimate.bytes_sent),
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

/// A line of cells: the row's name, then its figures.
std::vector<std::string> named_cells(const TableRow& row) {
  std::vector<std::string> cells = cells_of(row);
  cells.insert(cells.begin(), row.name);
  return cells;
}

std::string stage_table(const Compiled& compiled) {
  const Evaluated& best = compiled.planned.best;
  const std::size_t stages = best.plan.stages.size();
  std::vector<TableRow> rows;
  for (std::size_t s = 0; s < stages; ++s) {
    const PlanStage& stage = best.plan.stages[s];
    const StageEstimate& times = best.estimate.stages[s];
    const int index = static_cast<int>(s);
    const std::int64_t parameters = parameters_of(best.plan, index);
    rows.push_back({stage.name,
                    {counted(static_cast<std::int64_t>(stage.ranks.size())),
                     counted(operators_of(stage)),
                     {static_cast<double>(parameters), count_text(parameters), ""},
                     counted(buckets_of(best.plan, index)),
                     seconds_figure(times.forward_seconds),
                     seconds_figure(times.backward_seconds)},
                    {fmt::format("{}", s * kMostRows / stages)}});  // neighbours
  }
  std::vector<std::vector<std::string>> cells;
  for (const TableRow& row : joined_rows(std::move(rows))) cells.push_back(named_cells(row));
  std::string text = table_text({{"stage", 5, true},
                                 {"devices"},
                                 {"operators"},
                                 {"parameters"},
                                 {"buckets"},
                                 {"forward"},
                                 {"backward"}},
                                cells);
  return "\n" + text.insert(text.find('\n'), "  of a micro-batch");
}

/// Equal devices are those of one kind that have the same samples in one stage, or fewer of these
/// in common where that leaves too many: a cluster has few kinds.
TableRow table_row(const Compiled& compiled, const DeviceRow& row) {
  const DeviceEstimate& e = *row.estimate;
  const Cluster& cluster = compiled.problem->cluster;
  const std::string& kind = cluster.kind_of(cluster.find_device(e.device)).name;
  TableRow shown;
  shown.name = e.device;
  shown.figures = {{static_cast<double>(row.stage), fmt::format("s{}", row.stage), ""},
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

/// The kinds that some device is of, with where their costs come from; none where no kind has a
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

/// By what fraction the class fits of a kind's profile miss what they were made from: the median of
/// the class that they explain worst.
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

void write_costs(JsonWriter& json, const Compiled& compiled) {
  json.key("costs").begin_array();
  for (const auto& [kind, coverage] : coverages(compiled)) {
    json.begin_object().key("kind").value(kind->name);
    json.key("operators").value(coverage.operators).key("measured").value(coverage.measured);
    json.key("fitted").value(coverage.fitted).key("datasheet").value(coverage.datasheet);
    json.key("measured_fraction_of_seconds").value(coverage.measured_fraction_of_seconds);
    json.end_object();
  }
  json.end_array().key("fits").begin_array();
  for (const FitReport& fit : compiled.fits) {
    json.begin_object().key("what").value(fit.what);
    json.key("points").value(static_cast<std::int64_t>(fit.points));
    json.key("outliers").value(static_cast<std::int64_t>(fit.outliers));
    json.key("median_error").value(fit.median_error).key("worst_error").value(fit.worst_error);
    json.key("explains").value(fit.explains()).end_object();
  }
  json.end_array();
}

void write_attempt(JsonWriter& json, const Attempt& attempt) {
  json.key("step_seconds");
  attempt.step_seconds ? json.value(*attempt.step_seconds) : json.null();
  json.key("infeasible");
  attempt.step_seconds ? json.null() : json.value(attempt.why_not);
}

void write_stages(JsonWriter& json, const Evaluated& best) {
  json.key("stages").begin_array();
  for (std::size_t s = 0; s < best.plan.stages.size(); ++s) {
    const PlanStage& stage = best.plan.stages[s];
    json.begin_object().key("name").value(stage.name);
    json.key("devices").begin_array();
    for (const std::string& device : stage.devices) json.value(device);
    json.end_array().key("samples").begin_array();
    for (const std::int64_t samples : stage.samples) json.value(samples);
    json.end_array();
    json.key("operators").value(operators_of(stage));
    json.key("parameters").value(parameters_of(best.plan, static_cast<int>(s)));
    json.key("buckets").value(buckets_of(best.plan, static_cast<int>(s)));
    json.key("forward_seconds").value(best.estimate.stages[s].forward_seconds);
    json.key("backward_seconds").value(best.estimate.stages[s].backward_seconds);
    json.end_object();
  }
  json.end_array();
}

void write_devices(JsonWriter& json, const Compiled& compiled) {
  json.key("devices").begin_array();
  for (const DeviceRow& row : device_rows(compiled)) {
    const DeviceEstimate& e = *row.estimate;
    json.begin_object().key("device").value(e.device).key("rank").value(e.rank);
    json.key("stage").value(fmt::format("s{}", row.stage)).key("samples").value(row.samples);
    json.key("compute_seconds").value(e.compute_seconds);
    json.key("utilization").value(e.utilization);
    json.key("exposed_communication_seconds").value(e.exposed_communication);
    json.key("bytes_sent").value(e.bytes_sent);
    json.key("peak_memory_bytes").value(e.memory.total());
    json.key("memory_capacity_bytes").value(row.capacity);
    json.key("memory").begin_object();
    json.key("parameters").value(e.memory.parameters);
    json.key("gradients").value(e.memory.gradients);
    json.key("optimizer").value(e.memory.optimizer);
    json.key("activations").value(e.memory.activations);
    json.key("transfers").value(e.memory.transfers);
    json.key("workspace").value(e.memory.workspace);
    json.end_object().end_object();
  }
  json.end_array();
}

void write_attempts(JsonWriter& json, const Planned& planned) {
  json.key("baselines").begin_object();
  for (const Attempt& baseline : planned.baselines) {
    json.key(baseline.name).begin_object();
    write_attempt(json, baseline);
    json.end_object();
  }
  json.end_object().key("seeders").begin_array();
  for (const Attempt& seeder : planned.seeders) {
    json.begin_object().key("name").value(seeder.name);
    json.key("candidates").value(seeder.candidates).key("feasible").value(seeder.feasible);
    write_attempt(json, seeder);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string compile_summary(const Compiled& compiled) {
  return title(compiled) + headline(compiled) + comparison(compiled) + stage_table(compiled) +
         device_table(compiled) + costs_text(compiled);
}

std::string compile_json(const Compiled& compiled, const std::string& plan_file) {
  const Evaluated& best = compiled.planned.best;
  const Plan& plan = best.plan;
  std::int64_t peak = 0;
  for (const DeviceEstimate& device : best.estimate.devices) {
    peak = std::max(peak, device.memory.total());
  }
  JsonWriter json;
  json.begin_object().key("format").value("agpcs-compile 1");
  json.key("version").value(plan.made_by.version);
  json.key("model").value(plan.model).key("cluster").value(plan.cluster);
  json.key("plan").value(plan_file);
  json.key("batch").value(plan.training.batch).key("micro_batches").value(plan.micro_batches);
  json.key("schedule").value(name_of(plan.schedule));
  json.key("precision").value(plan.training.precision).key("wire_type");
  const std::optional<DType> wire = plan.training.wire_type;
  wire ? json.value(name_of(*wire)) : json.null();
  json.key("seed").value(plan.made_by.seed);
  json.key("seeder").value(plan.made_by.seeder).key("refiner").value(plan.made_by.refiner);
  json.key("evaluations").value(plan.made_by.evaluations);
  json.key("interrupted").value(plan.made_by.interrupted).key("seed_step_seconds");
  const std::optional<double>& seed_step = compiled.planned.refinement.start_seconds;
  seed_step ? json.value(*seed_step) : json.null();
  json.key("step_seconds").value(best.estimate.step_seconds);
  json.key("lower_bound_seconds").value(compiled.planned.bound.seconds);
  json.key("lower_bound_reason").value(compiled.planned.bound.reason);
  json.key("gap").value(gap_of(compiled));
  json.key("samples_per_second").value(best.estimate.samples_per_second);
  json.key("peak_memory_bytes").value(peak);
  json.key("bytes_sent").value(best.estimate.bytes_sent);
  json.key("parameters").value(compiled.problem->graph.parameter_elements());
  write_attempts(json, compiled.planned);
  write_stages(json, best);
  write_devices(json, compiled);
  write_costs(json, compiled);
  return json.end_object().text();
}

}  // namespace agpcs
