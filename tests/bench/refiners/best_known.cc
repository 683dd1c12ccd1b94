// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/refiners/best_known.h"

#include "planner/evaluate/evaluator.h"
#include "tests/bench/support/mistakes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

namespace agpcs::bench {
namespace {

constexpr std::string_view kHead =
    "# The best known plans of the problems with room (docs/design/policy.md). Written by\n"
    "# find_best_known; steps in seconds, operators as stage x how many in a row.\n";

/// Writes the stages of operators as runs: "0x12 1x7 0x3".
std::string runs_of(const std::vector<int>& stage_of) {
  std::string runs;
  for (std::size_t i = 0; i < stage_of.size();) {
    std::size_t end = i;
    while (end < stage_of.size() && stage_of[end] == stage_of[i]) ++end;
    runs += fmt::format(" {}x{}", stage_of[i], end - i);
    i = end;
  }
  return runs;
}

std::string text_of(const Recomputation& recompute) {
  return recompute ? print_recomputation(recompute) : "keep";
}

std::string print_one(const BestKnown& one) {
  const Strategy& strategy = one.strategy;
  std::string text = fmt::format(
      "\nproblem {}\ndigest {}\nseed-step {}\nbest-step {}\nfound-by {}\npipeline {} {}\n",
      one.candidate, one.digest, one.seed_seconds, one.best_seconds, one.found_by,
      strategy.micro_batches, name_of(strategy.schedule));
  for (const StageSpec& stage : strategy.stages) {
    text += fmt::format("stage {} {} {} {}", fmt::join(stage.devices, ","),
                        fmt::join(stage.shares, ","), text_of(stage.recompute),
                        stage.odd == kNone ? "-" : std::to_string(stage.odd));
    if (stage.state != StateLevel::kWhole) {
      text += fmt::format(" state={}", name_of(stage.state));
    }
    if (stage.in_flight) text += fmt::format(" in-flight={}", *stage.in_flight);
    text += '\n';
  }
  text += fmt::format("operators{}\n", runs_of(strategy.stage_of));
  for (const Bucket& bucket : strategy.buckets) {
    text += fmt::format("bucket {} {} {}\n", bucket.stage, name_of(bucket.algorithm),
                        fmt::join(bucket.parameters, ","));
  }
  return text;
}

template <typename Number>
std::optional<Number> number_in(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stopped != end) return {};
  return number;
}

template <typename Number>
bool read_numbers(const std::string& text, std::vector<Number>& numbers) {
  std::istringstream in(text);
  for (std::string item; std::getline(in, item, ',');) {
    const std::optional<Number> number = number_in<Number>(item);
    if (!number) return false;
    numbers.push_back(*number);
  }
  return !numbers.empty();
}

template <typename Number>
bool read_number(std::istream& in, Number& to) {
  std::string word;
  in >> word;
  const std::optional<Number> number = number_in<Number>(word);
  if (number) to = *number;
  return number.has_value();
}

/// Reads what `text_of` writes.
std::optional<Recomputation> recomputation_in(std::string_view text) {
  if (text == "keep") return Recomputation{};
  if (text == "recompute") return kWholeStage;
  constexpr std::string_view kSegments = "recompute=";
  const std::size_t slash = text.find('/');
  if (text.substr(0, kSegments.size()) != kSegments || slash == std::string_view::npos) return {};
  const auto again = number_in<int>(text.substr(kSegments.size(), slash - kSegments.size()));
  const auto segments = number_in<int>(text.substr(slash + 1));
  if (!again || !segments || *again < 1 || *again > *segments) return {};
  return Recomputation{*segments, *segments - *again};
}

bool read_stage(std::istream& in, Strategy& strategy) {
  std::string devices, shares, kept, odd;
  in >> devices >> shares >> kept >> odd;
  StageSpec stage;
  const std::optional<Recomputation> recompute = recomputation_in(kept);
  if (!recompute) return false;
  stage.recompute = *recompute;
  if (odd != "-") {
    const std::optional<DeviceId> device = number_in<DeviceId>(odd);
    if (!device) return false;
    stage.odd = *device;
  }
  constexpr std::string_view kInFlight = "in-flight=", kState = "state=";
  for (std::string more; in >> more;) {
    if (more.rfind(kState, 0) == 0) {
      const auto level = dividing_level_named(std::string_view(more).substr(kState.size()));
      if (!level) return false;
      stage.state = *level;
    } else if (more.rfind(kInFlight, 0) == 0) {
      stage.in_flight = number_in<std::int64_t>(std::string_view(more).substr(kInFlight.size()));
      if (!stage.in_flight) return false;
    } else {
      return false;
    }
  }
  if (!read_numbers(devices, stage.devices) || !read_numbers(shares, stage.shares)) return false;
  strategy.stages.push_back(std::move(stage));
  return true;
}

bool read_operators(std::istream& in, Strategy& strategy) {
  for (std::string run; in >> run;) {
    const std::size_t x = run.find('x');
    if (x == std::string::npos) return false;
    const std::optional<int> stage = number_in<int>(std::string_view(run).substr(0, x));
    const auto count = number_in<std::size_t>(std::string_view(run).substr(x + 1));
    if (!stage || !count) return false;
    strategy.stage_of.insert(strategy.stage_of.end(), *count, *stage);
  }
  return !strategy.stage_of.empty();
}

bool read_bucket(std::istream& in, Strategy& strategy) {
  Bucket bucket;
  if (!read_number(in, bucket.stage)) return false;
  std::string algorithm, parameters;
  in >> algorithm >> parameters;
  const std::optional<AllReduce> named = all_reduce_named(algorithm);
  if (!named || !read_numbers(parameters, bucket.parameters)) return false;
  bucket.algorithm = *named;
  strategy.buckets.push_back(std::move(bucket));
  return true;
}

bool read_pipeline(std::istream& in, Strategy& strategy) {
  if (!read_number(in, strategy.micro_batches)) return false;
  std::string name;
  in >> name;
  const std::optional<Schedule> schedule = schedule_named(name);
  if (schedule) strategy.schedule = *schedule;
  return schedule.has_value();
}

bool read_line(const std::string& line, BestKnown& one) {
  std::istringstream in(line);
  std::string key;
  in >> key;
  if (key == "digest") return static_cast<bool>(in >> one.digest);
  if (key == "seed-step") return read_number(in, one.seed_seconds);
  if (key == "best-step") return read_number(in, one.best_seconds);
  if (key == "found-by") return static_cast<bool>(std::getline(in >> std::ws, one.found_by));
  if (key == "pipeline") return read_pipeline(in, one.strategy);
  if (key == "stage") return read_stage(in, one.strategy);
  if (key == "operators") return read_operators(in, one.strategy);
  if (key == "bucket") return read_bucket(in, one.strategy);
  return false;
}

}  // namespace

std::string print_best_known(const std::vector<BestKnown>& all) {
  std::string text(kHead);
  for (const BestKnown& one : all) text += print_one(one);
  return text;
}

Result<std::vector<BestKnown>> parse_best_known(std::string_view text, std::string_view file) {
  std::vector<BestKnown> all;
  std::istringstream in{std::string(text)};
  int number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    if (line.empty() || line.front() == '#') continue;
    bool read = false;
    if (line.starts_with("problem ")) {
      all.emplace_back();
      std::istringstream rest(line.substr(8));
      read = read_number(rest, all.back().candidate);
    } else if (!all.empty()) {
      read = read_line(line, all.back());
    }
    if (!read)
      return invalid_input(
          fmt::format("{}:{}: error: '{}' is no line of a best known plan", file, number, line));
  }
  return all;
}

std::string best_known_path() { return AGPCS_BEST_KNOWN; }

std::vector<BestKnown> read_best_known(const std::string& path) {
  need_data(path, "written by find_best_known");
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  Result<std::vector<BestKnown>> all = parse_best_known(text, path);
  if (!all.ok()) end_with(all.status().message());
  return *std::move(all);
}

Result<double> seconds_of(const Problem& problem, const Strategy& strategy) {
  AGPCS_RETURN_IF_ERROR(
      verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch));
  const Score score = Evaluator(problem).evaluate(strategy);
  if (score.fits()) return score.step_seconds;
  return Status{StatusCode::kInfeasible, fmt::format("a device lacks {} bytes", score.lacking)};
}

}  // namespace agpcs::bench
