// SPDX-License-Identifier: Apache-2.0
#include "tools/common/measured_step.h"

#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "tools/common/chrome_trace.h"
#include "tools/common/json.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr std::string_view kFormat = "agpcs-trace 1";
/// Smaller differences are not mentioned: relative to the expected figure, and to the expected
/// step.
constexpr double kDiffers = 0.1, kOfStep = 0.01;

/// A row of the table.
struct Comparison {
  std::string what;     ///< "compute", "all-reduce", "send", "step"
  std::string of;       ///< device or stage
  std::string subject;  ///< "volta/1 computes"
  double expected = 0, measured = 0;
  double factor() const { return measured / expected; }
};

std::vector<Comparison> compare(const Plan& plan, const MeasuredStep& step) {
  const double step_seconds = expected(plan, "step");
  const std::vector<std::string> devices = devices_of_ranks(plan);
  std::vector<Comparison> lines = {{"step", "", "the step takes", step_seconds, step.step_seconds}};
  for (std::size_t r = 0; r < devices.size(); ++r) {
    lines.push_back({"compute", devices[r], devices[r] + " computes",
                     step_seconds * expected(plan, "utilization " + devices[r]),
                     step.seconds[r][0]});
  }
  for (const Program& program : plan.programs) {
    const std::vector<int> stages = plan.stages_of_program(plan.program_of(program.stage));
    const std::string name = names_of_stages(plan, program.stage);
    double seconds = 0;
    for (const int stage : stages) {
      seconds += expected(plan, "all-reduce " + plan.stages[static_cast<std::size_t>(stage)].name);
    }
    // The rank that came last did not wait for others.
    double least = 0;
    const std::vector<int> ranks = plan.stages[static_cast<std::size_t>(program.stage)].all_ranks();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const double own = step.seconds[static_cast<std::size_t>(ranks[i])][1];
      least = i == 0 ? own : std::min(least, own);
    }
    lines.push_back({"all-reduce", name, "all-reduces of " + name + " take", seconds, least});
  }
  for (std::size_t r = 0; r < devices.size(); ++r) {
    lines.push_back({"send", devices[r], "sends of " + devices[r] + " take",
                     expected(plan, "send " + devices[r]), step.seconds[r][2]});
  }
  lines.erase(std::remove_if(lines.begin(), lines.end(),
                             [](const Comparison& line) { return line.expected <= 0; }),
              lines.end());
  return lines;
}

std::string in_words(const Comparison& line) {
  const double factor = line.factor();
  const double times = factor > 1 ? factor : 1 / std::max(factor, 1e-3);
  const char* more = line.what == "compute" ? (factor > 1 ? "slower" : "faster")
                                            : (factor > 1 ? "longer" : "shorter");
  return fmt::format("{} {:.2g} times {} than planned ({}{} a step)", line.subject, times, more,
                     factor > 1 ? "+" : "-", figure(std::abs(line.measured - line.expected), "s"));
}

/// Returns the differences, the largest in seconds first.
std::vector<Comparison> departures(const Plan& plan, const MeasuredStep& step) {
  const double least = kOfStep * expected(plan, "step");
  std::vector<Comparison> lines = compare(plan, step);
  lines.erase(std::remove_if(lines.begin(), lines.end(),
                             [&](const Comparison& line) {
                               const double off = std::abs(line.measured - line.expected);
                               return off <= kDiffers * line.expected || off <= least;
                             }),
              lines.end());
  std::stable_sort(lines.begin(), lines.end(), [](const Comparison& a, const Comparison& b) {
    return std::abs(a.measured - a.expected) > std::abs(b.measured - b.expected);
  });
  return lines;
}

constexpr std::string_view kHint = "agpcs-run --trace FILE writes one";

/// Reads a trace's "otherData".
class AboutReader {
 public:
  AboutReader(const Json& trace, std::string_view file) : file_(file) {
    const auto about = trace.find("otherData");
    if (about != trace.end()) about_ = *about;
  }

  /// Returns the text of a key, or nullopt if it is missing.
  std::optional<std::string> find(const std::string& key) const {
    const auto value = about_.find(key);
    if (value == about_.end()) return std::nullopt;
    return value->is_string() ? value->get<std::string>() : json_line(*value);
  }
  Status error(const std::string& what) const {
    return invalid_input(fmt::format("{}: {}", file_, what));
  }
  /// Reads `count` numbers, at least 0, separated by blanks.
  Result<std::vector<double>> numbers(const std::string& key, std::size_t count) const {
    const std::optional<std::string> text = find(key);
    if (!text) return error(fmt::format("'{}' is missing", key));
    std::vector<double> values;
    const char* at = text->data();
    const char* const end = at + text->size();
    while (at < end) {
      double value = 0;
      const auto [next, code] = std::from_chars(at, end, value);
      if (code != std::errc() || !std::isfinite(value) || value < 0 || value > 1e15) break;
      values.push_back(value);
      at = next;
      if (at < end && *at == ' ') ++at;
    }
    if (at != end || values.size() != count) {
      return error(fmt::format("'{}' has '{}' where {} number{} should be", key, *text, count,
                               count == 1 ? "" : "s"));
    }
    return values;
  }

 private:
  Json about_;
  std::string file_;
};

}  // namespace

std::string measured_trace(const Plan& plan, const MeasuredStep& step, const Estimate* planned) {
  std::vector<std::pair<std::string, std::string>> about = {
      {"format", std::string(kFormat)},
      {"plan", digest_of(print_plan(plan))},
      {"step", std::to_string(step.step)},
      {"steps", std::to_string(step.steps)},
      {"step seconds", fmt::format("{:.9f}", step.step_seconds)}};
  for (std::size_t r = 0; r < step.seconds.size(); ++r) {
    const auto& seconds = step.seconds[r];
    about.emplace_back(fmt::format("rank {}: compute, all-reduce, send", r),
                       fmt::format("{:.9f} {:.9f} {:.9f}", seconds[0], seconds[1], seconds[2]));
  }
  Estimate measured;
  measured.timeline = step.timeline;
  const std::vector<std::string> devices = devices_of_ranks(plan);
  for (std::size_t r = 0; r < devices.size(); ++r) {
    DeviceEstimate& device = measured.devices.emplace_back();
    device.rank = static_cast<int>(r);
    device.device = devices[r];
  }
  std::vector<LabelledStep> steps = {{"measured", &measured}};
  if (planned != nullptr) steps.push_back({"planned", planned});
  return chrome_trace(plan, steps, about);
}

Result<MeasuredStep> read_measured_trace(std::string_view text, std::string_view file,
                                         const Plan& plan) {
  AGPCS_TRY(const Json trace, parse_json(text, {file, kHint}, "traceEvents"));
  const AboutReader about(trace, file);
  const std::optional<std::string> format = about.find("format");
  if (format != kFormat) {
    return about.error(fmt::format("not a trace that agpcs-run wrote: {}\n  hint: {}",
                                   format ? "the format is '" + *format + "'" : "no format",
                                   kHint));
  }
  const std::optional<std::string> digest = about.find("plan");
  const std::string own = digest_of(print_plan(plan));
  if (digest != own) {
    return about.error(
        fmt::format("the trace is of another plan: {} there, {} here\n"
                    "  hint: where a run moved to another plan, that one lies beside the first",
                    digest.value_or("none"), own));
  }
  MeasuredStep step;
  AGPCS_TRY(const auto number, about.numbers("step", 1));
  AGPCS_TRY(const auto steps, about.numbers("steps", 1));
  AGPCS_TRY(const auto seconds, about.numbers("step seconds", 1));
  step.step = static_cast<std::int64_t>(number[0]);
  step.steps = static_cast<std::int64_t>(steps[0]);
  step.step_seconds = seconds[0];
  for (int r = 0; r < plan.rank_count(); ++r) {
    AGPCS_TRY(const auto of_rank,
              about.numbers(fmt::format("rank {}: compute, all-reduce, send", r), kQuantityCount));
    auto& into = step.seconds.emplace_back();
    std::copy(of_rank.begin(), of_rank.end(), into.begin());
  }
  return step;
}

std::string drift_text(const Plan& plan, const MeasuredStep& step) {
  std::string text = fmt::format(
      "medians of {} step{}; the trace shows step {}\n\n{:<12}{:<16}{:>10}{:>10}{:>8}\n",
      step.steps, step.steps == 1 ? "" : "s", step.step, "", "", "planned", "measured", "factor");
  for (const Comparison& line : compare(plan, step)) {
    text += fmt::format("{:<12}{:<16}{:>10}{:>10}{:>8.2f}\n", line.what, line.of,
                        figure(line.expected, "s"), figure(line.measured, "s"), line.factor());
  }
  text += '\n';
  const std::vector<Comparison> off = departures(plan, step);
  if (off.empty()) text += "all is as planned, within 10% and 1% of the step\n";
  for (const Comparison& line : off) text += in_words(line) + "\n";
  return text;
}

std::string drift_json(const Plan& plan, const MeasuredStep& step) {
  const auto figure_json = [](const Comparison& line) {
    Json json = {{"quantity", line.what}};
    if (!line.of.empty()) json["of"] = line.of;
    json["planned_seconds"] = line.expected;
    json["measured_seconds"] = line.measured;
    json["factor"] = line.factor();
    return json;
  };
  return json_text({{"format", "agpcs-plan drift 1"},
                    {"step", step.step},
                    {"steps", step.steps},
                    {"figures", json_array(compare(plan, step), figure_json)},
                    {"departures", json_array(departures(plan, step), in_words)}});
}

}  // namespace agpcs
