// SPDX-License-Identifier: Apache-2.0
#include "tools/run_report.h"

#include "ir/plan_lookup.h"
#include "ir/units.h"
#include "tools/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <optional>
#include <ostream>

namespace agpcs {
namespace {

std::string json_number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string percent(double fraction) { return fmt::format("{:+.1f}%", 100 * fraction); }

std::string_view name_of(TrainerEvent::Kind kind) {
  switch (kind) {
    case TrainerEvent::Kind::kDrift:
      return "drift";
    case TrainerEvent::Kind::kProposed:
      return "proposed";
    case TrainerEvent::Kind::kKept:
      return "kept";
    case TrainerEvent::Kind::kSwitched:
      return "switched";
    case TrainerEvent::Kind::kRecorded:
      return "recorded";
  }
  return "";
}

std::string layout(const Plan& plan) {
  std::vector<std::string> stages;
  for (const PlanStage& stage : plan.stages) {
    if (stage.idle()) {
      stages.push_back(fmt::format("idle: {}", fmt::join(stage.devices, ", ")));
      continue;
    }
    stages.push_back(fmt::format("{} on {} ({})", stage.name, fmt::join(stage.devices, ", "),
                                 fmt::join(stage.samples, ":")));
  }
  return fmt::format("{}", fmt::join(stages, "; "));
}

}  // namespace

void StepSeconds::add(double seconds) {
  constexpr std::int64_t kMostKept = 1 << 16;
  ++added_;
  if (added_ <= kMostKept) return kept_.push_back(seconds);
  const auto place = rng_.below(static_cast<std::uint64_t>(added_));
  if (place < kept_.size()) kept_[place] = seconds;
}

RunReport::RunReport(const Plan& plan, bool json, Console console)
    : plan_(plan), json_(json), console_(console), expected_seconds_(expected(plan, "step")) {}

double RunReport::samples_per_second(double seconds) const {
  return static_cast<double>(plan_.training.batch) / seconds;
}

void RunReport::start(const std::string& transport) {
  const std::optional<DType> wire = plan_.training.wire_type;
  if (json_) {
    console_.out << fmt::format(R"({{"event": "start", "model": {}, "ranks": {}, "batch": {}, )"
                                R"("micro_batches": {}, "wire_type": {}, "transport": "{}", )"
                                R"("expected_step_seconds": {}}})",
                                json_string(plan_.model), plan_.rank_count(), plan_.training.batch,
                                plan_.micro_batches,
                                wire ? fmt::format("\"{}\"", agpcs::name_of(*wire)) : "null",
                                transport, json_number(expected_seconds_))
                 << std::endl;
    return;
  }
  console_.out << fmt::format("{}: batch {} in {} micro-batch{}, {} rank{} over {}\n", plan_.model,
                              plan_.training.batch, plan_.micro_batches,
                              plan_.micro_batches == 1 ? "" : "es", plan_.rank_count(),
                              plan_.rank_count() == 1 ? "" : "s", transport)
               << "  " << layout(plan_) << "\n"
               << (wire ? fmt::format("  gradients travel in {}\n", agpcs::name_of(*wire)) : "")
               << "\n"
               << fmt::format("{:>6}  {:>12}  {:>12}  {:>10}  {:>10}", "step", "loss", "samples/s",
                              "step time", "to plan")
               << std::endl;
}

void RunReport::step(const StepReport& report) {
  if (steps_ == 0) first_loss_ = report.loss;
  last_loss_ = report.loss;
  if (steps_ == 1) seconds_ = {};  // the first step also warms up memory and caches
  seconds_.add(report.seconds);
  ++steps_;
  if (json_) {
    console_.out << fmt::format(R"({{"event": "step", "step": {}, "loss": {}, "seconds": {}, )"
                                R"("samples_per_second": {}, "deviation": {}}})",
                                report.step, json_number(report.loss), json_number(report.seconds),
                                json_number(samples_per_second(report.seconds)),
                                json_number(deviation(report.seconds)))
                 << std::endl;
    return;
  }
  console_.out << fmt::format("{:>6}  {:>12.6g}  {:>12.1f}  {:>10}  {:>10}", report.step,
                              report.loss, samples_per_second(report.seconds),
                              figure(report.seconds, "s"), percent(deviation(report.seconds)))
               << std::endl;
}

void RunReport::event(const TrainerEvent& event) {
  if (json_) {
    print_event_json(event);
  } else {
    print_event(event);
  }
  if (event.kind != TrainerEvent::Kind::kSwitched) return;
  plan_ = *event.plan;
  expected_seconds_ = expected(plan_, "step");
}

void RunReport::print_event(const TrainerEvent& event) {
  const auto say = [&](const std::string& what) { console_.out << "  * " << what << std::endl; };
  switch (event.kind) {
    case TrainerEvent::Kind::kDrift:
      for (const DriftChange& change : event.changes) say(describe(plan_, change));
      for (const LinkChange& change : changed_links(event.before, event.now)) {
        say(describe(plan_, change));
      }
      return;
    case TrainerEvent::Kind::kProposed:
      return say(fmt::format("a better plan: {} a step in place of {}",
                             figure(event.step_seconds, "s"),
                             figure(event.running_step_seconds, "s")));
    case TrainerEvent::Kind::kKept:
      return say("the plan stays: " + event.why);
    case TrainerEvent::Kind::kSwitched:
      return say(fmt::format(
          "moved to the new plan in {}, {} over the network: {}", figure(event.seconds, "s"),
          figure(static_cast<double>(event.bytes_moved), "B"), layout(*event.plan)));
    case TrainerEvent::Kind::kRecorded:
      return say(event.why.empty() ? "steps are replayed as CUDA graphs from now on"
                                   : "steps are not replayed as CUDA graphs: " + event.why);
  }
}

void RunReport::print_event_json(const TrainerEvent& event) {
  std::string line = fmt::format(R"({{"event": "{}", "step": {})", name_of(event.kind), event.step);
  switch (event.kind) {
    case TrainerEvent::Kind::kDrift: {
      std::vector<std::string> changes;
      for (const DriftChange& change : event.changes) {
        changes.push_back(
            fmt::format(R"({{"quantity": "{}", "rank": {}, "factor": {}, "since": {}}})",
                        agpcs::name_of(change.quantity), change.rank, json_number(change.factor),
                        change.since));
      }
      std::vector<std::string> links;
      for (const LinkChange& change : changed_links(event.before, event.now)) {
        links.push_back(fmt::format(
            R"({{"from": {}, "to": {}, "factor": {}, "latency_factor": {}}})", change.from,
            change.to, json_number(change.factor), json_number(change.latency_factor)));
      }
      line += fmt::format(R"(, "changes": [{}], "links": [{}])", fmt::join(changes, ", "),
                          fmt::join(links, ", "));
      break;
    }
    case TrainerEvent::Kind::kKept:
      line += fmt::format(R"(, "why": {})", json_string(event.why));
      [[fallthrough]];
    case TrainerEvent::Kind::kProposed:
      line += fmt::format(R"(, "running_step_seconds": {}, "step_seconds": {})",
                          json_number(event.running_step_seconds), json_number(event.step_seconds));
      break;
    case TrainerEvent::Kind::kSwitched:
      line += fmt::format(
          R"(, "plan": "{}", "expected_step_seconds": {}, "seconds": {}, "bytes_moved": {})",
          digest_of(print_plan(*event.plan)), json_number(expected(*event.plan, "step")),
          json_number(event.seconds), event.bytes_moved);
      break;
    case TrainerEvent::Kind::kRecorded:
      line +=
          fmt::format(R"(, "replayed": {}, "why": {})", event.why.empty(), json_string(event.why));
      break;
  }
  console_.out << line << "}" << std::endl;
}

void RunReport::resumed(const std::string& folder, std::int64_t step) {
  console_.out << (json_ ? fmt::format(R"({{"event": "resumed", "step": {}, "folder": {}}})", step,
                                       json_string(folder))
                         : fmt::format("  * going on from step {}: {}", step, folder))
               << std::endl;
}

void RunReport::saved(const std::string& folder, std::int64_t step, double seconds) {
  console_.out << (json_ ? fmt::format(R"({{"event": "saved", "step": {}, "folder": {}, )"
                                       R"("seconds": {}}})",
                                       step, json_string(folder), json_number(seconds))
                         : fmt::format("  * saved the checkpoint of step {} in {}: {}", step,
                                       figure(seconds, "s"), folder))
               << std::endl;
}

void RunReport::summary() {
  if (steps_ == 0) return;
  const double typical = seconds_.median();
  if (json_) {
    console_.out << fmt::format(R"({{"event": "summary", "steps": {}, "median_step_seconds": {}, )"
                                R"("samples_per_second": {}, "deviation": {}, "first_loss": {}, )"
                                R"("last_loss": {}}})",
                                steps_, json_number(typical),
                                json_number(samples_per_second(typical)),
                                json_number(deviation(typical)), json_number(first_loss_),
                                json_number(last_loss_))
                 << std::endl;
    return;
  }
  console_.out << fmt::format(
                      "\n{} step{}, median {} ({:.1f} samples/s): {} to the plan's {}; "
                      "loss {:.6g} -> {:.6g}",
                      steps_, steps_ == 1 ? "" : "s", figure(typical, "s"),
                      samples_per_second(typical), percent(deviation(typical)),
                      figure(expected_seconds_, "s"), first_loss_, last_loss_)
               << std::endl;
}

}  // namespace agpcs
