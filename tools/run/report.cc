// SPDX-License-Identifier: Apache-2.0
#include "tools/run/report.h"

#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "tools/common/json.h"

#include <agpcs/digest.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <optional>
#include <ostream>

namespace agpcs {
namespace {

void print_line(Console console, const Json& line) { console.out << json_line(line) << std::endl; }

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
  }
  return "";
}

/// Returns "a/0, a/1", or of teams "a/0+b/0, a/1+b/1".
std::string replicas_text(const PlanStage& stage) {
  std::vector<std::string> replicas = stage.devices;
  for (std::size_t i = 0; i < stage.further_devices.size(); ++i) {
    for (const std::string& device : stage.further_devices[i]) replicas[i] += "+" + device;
  }
  return fmt::format("{}", fmt::join(replicas, ", "));
}

std::string layout(const Plan& plan) {
  std::vector<std::string> stages;
  for (const PlanStage& stage : plan.stages) {
    if (stage.idle()) {
      stages.push_back(fmt::format("idle: {}", fmt::join(stage.devices, ", ")));
      continue;
    }
    stages.push_back(fmt::format("{} on {} ({})", stage.name, replicas_text(stage),
                                 fmt::join(stage.samples, ":")));
  }
  return fmt::format("{}", fmt::join(stages, "; "));
}

Json change_json(const DriftChange& change) {
  return {{"quantity", agpcs::name_of(change.quantity)},
          {"rank", change.rank},
          {"factor", change.factor},
          {"since", change.since},
          {"cause", agpcs::name_of(change.cause)}};
}

Json link_json(const LinkChange& change) {
  return {{"from", change.from},
          {"to", change.to},
          {"factor", change.factor},
          {"latency_factor", change.latency_factor}};
}

}  // namespace

void print_lost(Console console, const LostRanks& lost) {
  print_line(console, {{"event", "lost"},
                       {"step", lost.step},
                       {"ranks", lost.ranks},
                       {"devices", lost.devices},
                       {"why", lost.why},
                       {"plan", lost.plan}});
}

void StepSeconds::add(double seconds) {
  constexpr std::int64_t kMostKept = 1 << 16;
  ++added_;
  if (added_ <= kMostKept) return kept_.push_back(seconds);
  const auto place = rng_.below(static_cast<std::uint64_t>(added_));
  if (place < kept_.size()) kept_[place] = seconds;
}

RunReport::RunReport(const Plan& plan, bool json, Console console, std::int64_t tokens, int batches)
    : plan_(plan),
      tokens_(tokens),
      batches_(batches),
      json_(json),
      console_(console),
      expected_seconds_(expected(plan, "step") * batches) {}

double RunReport::samples_per_second(double seconds) const {
  return static_cast<double>(plan_.training.batch) * batches_ / seconds;
}

Json RunReport::with_rates(Json json, double seconds) const {
  const double rate = samples_per_second(seconds);
  json["samples_per_second"] = rate;
  if (tokens_ > 0) json["tokens_per_second"] = static_cast<double>(tokens_) * rate;
  json["deviation"] = deviation(seconds);
  return json;
}

void RunReport::start(std::string_view transport) {
  const std::optional<DType> wire = plan_.training.wire_type;
  if (json_) {
    return print_line(console_, {{"event", "start"},
                                 {"model", plan_.model},
                                 {"ranks", plan_.rank_count()},
                                 {"batch", plan_.training.batch},
                                 {"batches", batches_},
                                 {"micro_batches", plan_.micro_batches},
                                 {"wire_type", wire ? Json(agpcs::name_of(*wire)) : Json()},
                                 {"transport", transport},
                                 {"expected_step_seconds", expected_seconds_}});
  }
  console_.out << fmt::format("{}: {}batch {} in {} micro-batch{}, {} rank{} over {}\n",
                              plan_.model, batches_ == 1 ? "" : fmt::format("{} times ", batches_),
                              plan_.training.batch, plan_.micro_batches,
                              plan_.micro_batches == 1 ? "" : "es", plan_.rank_count(),
                              plan_.rank_count() == 1 ? "" : "s", transport)
               << "  " << layout(plan_) << "\n"
               << (wire ? fmt::format("  gradients travel in {}\n", agpcs::name_of(*wire)) : "")
               << "\n"
               << fmt::format(
                      "{:>6}  {:>12}{}  {:>12}{}  {:>10}  {:>10}", "step", "loss",
                      plan_.training.optimizer.clips() ? fmt::format("  {:>10}", "norm") : "",
                      "samples/s", tokens_ > 0 ? fmt::format("  {:>12}", "tokens/s") : "",
                      "step time", "to plan")
               << std::endl;
}

void RunReport::step(const StepReport& report) {
  if (steps_ == 0) first_loss_ = report.loss;
  last_loss_ = report.loss;
  if (steps_ == 1) seconds_ = {};  // drops the first step, which also warms up
  seconds_.add(report.seconds);
  ++steps_;
  if (json_) {
    Json json = {{"event", "step"},
                 {"step", report.step},
                 {"loss", report.loss},
                 {"seconds", report.seconds}};
    if (report.gradient_norm) json["gradient_norm"] = *report.gradient_norm;
    return print_line(console_, with_rates(std::move(json), report.seconds));
  }
  const double rate = samples_per_second(report.seconds);
  const std::string norm =
      report.gradient_norm ? fmt::format("  {:>10.4g}", *report.gradient_norm) : "";
  console_.out << fmt::format("{:>6}  {:>12.6g}{}  {:>12.1f}{}  {:>10}  {:>10}", report.step,
                              report.loss, norm, rate,
                              tokens_ > 0
                                  ? fmt::format("  {:>12.0f}", static_cast<double>(tokens_) * rate)
                                  : "",
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
  expected_seconds_ = expected(plan_, "step") * batches_;
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
  }
}

void RunReport::print_event_json(const TrainerEvent& event) {
  Json json = {{"event", name_of(event.kind)}, {"step", event.step}};
  switch (event.kind) {
    case TrainerEvent::Kind::kDrift:
      json["changes"] = json_array(event.changes, change_json);
      json["links"] = json_array(changed_links(event.before, event.now), link_json);
      break;
    case TrainerEvent::Kind::kKept:
      json["why"] = event.why;
      [[fallthrough]];
    case TrainerEvent::Kind::kProposed:
      json["running_step_seconds"] = event.running_step_seconds;
      json["step_seconds"] = event.step_seconds;
      break;
    case TrainerEvent::Kind::kSwitched:
      json["plan"] = digest_of(print_plan(*event.plan));
      json["expected_step_seconds"] = expected(*event.plan, "step") * batches_;
      json["seconds"] = event.seconds;
      json["bytes_moved"] = event.bytes_moved;
      break;
  }
  print_line(console_, json);
}

void RunReport::recorded(std::int64_t step, const StepRecording& recording) {
  if (json_) {
    return print_line(console_, {{"event", "recorded"},
                                 {"step", step},
                                 {"replayed", recording.replayed},
                                 {"why", recording.why_not}});
  }
  console_.out << (recording.replayed
                       ? "  * steps are replayed as CUDA graphs from now on"
                       : "  * steps are not replayed as CUDA graphs: " + recording.why_not)
               << std::endl;
}

void RunReport::resumed(const std::string& folder, std::int64_t step) {
  if (json_)
    return print_line(console_, {{"event", "resumed"}, {"step", step}, {"folder", folder}});
  console_.out << fmt::format("  * going on from step {}: {}", step, folder) << std::endl;
}

void RunReport::nothing_left(std::int64_t step, std::int64_t steps) {
  if (json_) return;
  console_.out << fmt::format(
                      "  * no step is left to train: {} are done, and --steps {} counts them, too",
                      step, steps)
               << std::endl;
}

void RunReport::validated(std::int64_t step, const Evaluation& of, double seconds) {
  const bool classes = of.counted > 0;
  if (json_) {
    return print_line(console_, {{"event", "validated"},
                                 {"step", step},
                                 {"loss", of.loss},
                                 {"accuracy", classes ? Json(of.correct / of.counted) : Json()},
                                 {"samples", static_cast<std::int64_t>(of.samples)},
                                 {"seconds", seconds}});
  }
  console_.out << fmt::format("  * before step {}: validation loss {:.6g}{}, {} samples in {}",
                              step, of.loss,
                              classes
                                  ? fmt::format(", accuracy {:.2f}%", 100 * of.correct / of.counted)
                                  : "",
                              of.samples, figure(seconds, "s"))
               << std::endl;
}

void RunReport::saved(const std::string& folder, std::int64_t step, double seconds, bool best) {
  if (json_) {
    return print_line(console_, {{"event", "saved"},
                                 {"step", step},
                                 {"folder", folder},
                                 {"seconds", seconds},
                                 {"best", best}});
  }
  console_.out << fmt::format("  * saved the {}checkpoint of step {} in {}: {}",
                              best ? "best " : "", step, figure(seconds, "s"), folder)
               << std::endl;
}

void RunReport::summary(std::int64_t peak_memory_bytes) {
  if (steps_ == 0) return;
  const double typical = seconds_.median();
  if (json_) {
    Json json = with_rates(
        {{"event", "summary"}, {"steps", steps_}, {"median_step_seconds", typical}}, typical);
    json["first_loss"] = first_loss_;
    json["last_loss"] = last_loss_;
    if (peak_memory_bytes > 0) json["peak_memory_bytes"] = peak_memory_bytes;
    return print_line(console_, json);
  }
  console_.out << fmt::format(
                      "\n{} step{}, median {} ({:.1f} samples/s{}): {} to the plan's {}; "
                      "loss {:.6g} -> {:.6g}",
                      steps_, steps_ == 1 ? "" : "s", figure(typical, "s"),
                      samples_per_second(typical),
                      tokens_ > 0
                          ? fmt::format(", {:.0f} tokens/s",
                                        static_cast<double>(tokens_) * samples_per_second(typical))
                          : "",
                      percent(deviation(typical)), figure(expected_seconds_, "s"), first_loss_,
                      last_loss_)
               << std::endl;
}

}  // namespace agpcs
