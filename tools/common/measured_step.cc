// SPDX-License-Identifier: Apache-2.0
#include "tools/measured_step.h"

#include "ir/plan_lookup.h"
#include "ir/units.h"
#include "tools/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr std::string_view kFormat = "agpcs-trace 1";
constexpr std::array<std::string_view, kQuantityCount> kQuantities = {"compute", "all-reduce",
                                                                      "send"};
/// Less than this is not worth a word: of the expected figure, and of the expected step.
constexpr double kDiffers = 0.1, kOfStep = 0.01;

/// A line of the table.
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
  for (const PlanStage& stage : plan.stages) {
    const double seconds = expected(plan, "all-reduce " + stage.name);
    // Who came last did not wait for others.
    double least = 0;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const double own = step.seconds[static_cast<std::size_t>(stage.ranks[i])][1];
      least = i == 0 ? own : std::min(least, own);
    }
    lines.push_back(
        {"all-reduce", stage.name, "all-reduces of " + stage.name + " take", seconds, least});
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

/// What differs, the most seconds first.
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

/// The strings of "otherData", which `chrome_trace` writes a line each.
std::map<std::string, std::string, std::less<>> about_of(std::string_view text) {
  std::map<std::string, std::string, std::less<>> about;
  const std::size_t begin = text.find("\"otherData\": {\n");
  if (begin == std::string_view::npos || begin > 100) return about;
  std::size_t at = text.find('\n', begin) + 1;
  constexpr std::size_t kMostLines = 1'000'000;
  for (std::size_t line = 0; line < kMostLines && at < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view words = text.substr(at, end - at);
    at = end + 1;
    if (!words.empty() && words.back() == ',') words.remove_suffix(1);
    const std::size_t middle = words.find("\": \"");
    if (words.size() < 6 || words.front() != '"' || words.back() != '"' ||
        middle == std::string_view::npos) {
      break;
    }
    about.emplace(words.substr(1, middle - 1), words.substr(middle + 4, words.size() - middle - 5));
  }
  return about;
}

class AboutReader {
 public:
  AboutReader(std::string_view text, std::string_view file) : about_(about_of(text)), file_(file) {}

  const std::string* find(std::string_view key) const {
    const auto it = about_.find(key);
    return it == about_.end() ? nullptr : &it->second;
  }
  Status error(const std::string& what) const {
    return invalid_input(fmt::format("{}: {}", file_, what));
  }
  /// `count` numbers, at least 0, between blanks.
  Result<std::vector<double>> numbers(const std::string& key, std::size_t count) const {
    const std::string* text = find(key);
    if (text == nullptr) return error(fmt::format("'{}' is missing", key));
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
  std::map<std::string, std::string, std::less<>> about_;
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
  const AboutReader about(text, file);
  const std::string* format = about.find("format");
  if (format == nullptr || *format != kFormat) {
    return about.error(fmt::format(
        "not a trace that agpcs-run wrote: {}\n"
        "  hint: agpcs-run --trace FILE writes one",
        format == nullptr ? std::string("no format") : "the format is '" + *format + "'"));
  }
  const std::string* digest = about.find("plan");
  const std::string own = digest_of(print_plan(plan));
  if (digest == nullptr || *digest != own) {
    return about.error(
        fmt::format("the trace is of another plan: {} there, {} here\n"
                    "  hint: where a run moved to another plan, that one lies beside the first",
                    digest == nullptr ? std::string("none") : *digest, own));
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
      "medians of {} step{} up to step {}\n\n{:<12}{:<16}{:>10}{:>10}{:>8}\n", step.steps,
      step.steps == 1 ? "" : "s", step.step, "", "", "planned", "measured", "factor");
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
  JsonWriter json;
  json.begin_object().key("format").value("agpcs-plan drift 1");
  json.key("step").value(step.step).key("steps").value(step.steps);
  json.key("figures").begin_array();
  for (const Comparison& line : compare(plan, step)) {
    json.begin_object().key("quantity").value(line.what);
    if (!line.of.empty()) json.key("of").value(line.of);
    json.key("planned_seconds").value(line.expected).key("measured_seconds").value(line.measured);
    json.key("factor").value(line.factor()).end_object();
  }
  json.end_array().key("departures").begin_array();
  for (const Comparison& line : departures(plan, step)) json.value(in_words(line));
  json.end_array().end_object();
  return json.text();
}

}  // namespace agpcs
