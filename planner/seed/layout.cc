// SPDX-License-Identifier: Apache-2.0
#include "planner/seed/layout.h"

#include "cost_model/network/link_model.h"
#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/seed/candidates.h"
#include "planner/seed/fit_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

Status usage(std::string message) { return {StatusCode::kUsage, std::move(message)}; }

Result<double> parse_weight(std::string_view text, std::string_view device) {
  double weight = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, weight);
  if (error == std::errc() && rest == end && std::isfinite(weight) && weight > 0) return weight;
  return usage(
      fmt::format("layout: the weight of device {} is '{}', not a number above 0", device, text));
}

Status no_device(const Cluster& cluster, std::string_view name) {
  std::vector<std::string> names;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) names.push_back(cluster.device_name(id));
  return usage(fmt::format("layout: there is no device '{}'\n  hint: {}", name,
                           did_you_mean(name, names, "devices")));
}

constexpr std::string_view kInFlight = "in-flight=", kSchedule = "schedule=";

/// Takes "|schedule=zero-bubble" from the end of `text`.
Result<Schedule> take_schedule(std::string_view& text) {
  const std::size_t bar = text.rfind('|');
  if (bar == std::string_view::npos || text.substr(bar + 1, kSchedule.size()) != kSchedule) {
    return Schedule::k1F1B;
  }
  const std::string_view name = text.substr(bar + 1 + kSchedule.size());
  text = text.substr(0, bar);
  if (text.find('|') == std::string_view::npos) {
    return usage("layout: schedule= of a single stage has no effect");
  }
  if (const std::optional<Schedule> named = schedule_named(name)) return *named;
  return usage(fmt::format("layout: unknown schedule '{}'\n  hint: {}", name,
                           did_you_mean(name, names_of(kSchedules), "schedules")));
}

Result<std::int64_t> parse_in_flight(std::string_view part) {
  const std::string_view text = part.substr(kInFlight.size());
  std::int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  if (error == std::errc() && rest == end && number > 0) return number;
  return usage(fmt::format("layout: '{}' is not a number of micro-batches above 0", part));
}

/// Checks that no stage has more micro-batches in flight than an earlier one: both would wait for
/// each other.
Status check_in_flight(const std::vector<Layout::Stage>& stages) {
  const auto count = static_cast<std::int64_t>(stages.size());
  std::int64_t before = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t s = 0; s < count; ++s) {
    const std::optional<std::int64_t>& own = stages[at(s)].in_flight;
    if (own && count == 1) return usage("layout: in-flight= of a single stage has no effect");
    const std::int64_t now = own.value_or(std::min(count - s, before));
    if (now > before) {
      return usage(fmt::format(
          "layout: stage {} has {} micro-batches in flight, the one before it {}: they would wait "
          "for each other\n  hint: in-flight={} or more in the earlier stages",
          s, now, before, now));
    }
    before = now;
  }
  return {};
}

/// Parses one "a/0:3,b/0:1". `taken` remembers the devices of the stages before.
Result<Layout::Stage> parse_stage(std::string_view text, const Cluster& cluster,
                                  std::vector<bool>& taken) {
  if (text.empty()) {
    return usage(
        "layout: a stage is empty\n  hint: \"a/0,a/1|b/0\": | is between stages, a comma between "
        "devices");
  }
  std::vector<std::pair<DeviceId, double>> members;  // weight 0 if none is given
  Layout::Stage stage;
  for (const std::string_view part : split(text, ',')) {
    if (part.substr(0, kInFlight.size()) == kInFlight) {
      if (stage.in_flight) return usage(fmt::format("layout: '{}' comes second", part));
      AGPCS_TRY(stage.in_flight, parse_in_flight(part));
      continue;
    }
    const std::size_t colon = part.find(':');
    const std::string_view name = part.substr(0, colon);
    const DeviceId device = cluster.find_device(name);
    if (device < 0) return no_device(cluster, name);
    if (taken[at(device)]) return usage(fmt::format("layout: device {} is there twice", name));
    taken[at(device)] = true;
    double weight = 0;
    if (colon != std::string_view::npos) {
      AGPCS_TRY(weight, parse_weight(part.substr(colon + 1), name));
    }
    members.emplace_back(device, weight);
  }
  if (members.empty()) return usage(fmt::format("layout: stage '{}' has no device", text));
  std::sort(members.begin(), members.end());
  for (const auto& [device, weight] : members) {
    stage.devices.push_back(device);
    if (weight > 0) stage.weights.push_back(weight);
  }
  if (stage.weights.empty() || stage.weights.size() == stage.devices.size()) return stage;
  return usage(fmt::format(
      "layout: {} of the {} devices of stage '{}' have a weight\n  hint: give all of them one, or "
      "none: then shares follow speed",
      stage.weights.size(), stage.devices.size(), text));
}

StageSpec weighted_stage(const Layout::Stage& stage, std::int64_t samples) {
  StageSpec spec;
  spec.devices = stage.devices;
  spec.shares = largest_remainder(samples, stage.weights);
  return spec;
}

bool has_empty_share(const StageSpec& spec) {
  return std::find(spec.shares.begin(), spec.shares.end(), 0) != spec.shares.end();
}

/// Gives each device of the layout's stage a sample. A balance leaves out devices that would slow
/// the stage down, but the user asked for them. The samples come from the device with the most.
void give_each_a_sample(StageSpec& spec, const Layout::Stage& stage) {
  for (const DeviceId device : stage.devices) {
    const auto place = std::lower_bound(spec.devices.begin(), spec.devices.end(), device);
    if (place != spec.devices.end() && *place == device) continue;
    --*std::max_element(spec.shares.begin(), spec.shares.end());
    spec.shares.insert(spec.shares.begin() + (place - spec.devices.begin()), 1);
    spec.devices.insert(place, device);
  }
}

/// Finds the cuts of one layout for one number of micro-batches.
class CutFinder {
 public:
  CutFinder(const Problem& problem, const Layout& layout, std::int64_t samples)
      : problem_(problem), layout_(layout), samples_(samples) {
    StageTimer whole(problem, all_ops(problem));
    for (const Layout::Stage& stage : layout.stages) {
      add_prefix_sums(stage.weights.empty() ? balanced_stage(problem, whole, stage.devices, samples)
                                            : weighted_stage(stage, samples));
    }
    for (int s = 1; s < static_cast<int>(layout.stages.size()); ++s) add_cuts(s);
  }

  /// Returns the stage of each block. Needs: at least as many blocks as stages.
  std::vector<int> stage_of_block() const {
    const int blocks = problem_.blocks.size();
    const int stages = static_cast<int>(layout_.stages.size());
    std::vector<std::vector<Choice>> best(at(stages), std::vector<Choice>(at(blocks) + 1));
    for (int s = 0; s < stages; ++s) {
      for (int end = s + 1; end <= blocks - (stages - 1 - s); ++end) {
        best[at(s)][at(end)] = choose(best, s, end);
      }
    }
    std::vector<int> stage_of(at(blocks));
    int end = blocks;
    for (int s = stages - 1; s >= 0; --s) {
      const int begin = best[at(s)][at(end)].begin;
      std::fill(stage_of.begin() + begin, stage_of.begin() + end, s);
      end = begin;
    }
    return stage_of;
  }

 private:
  struct Choice {
    double seconds = std::numeric_limits<double>::infinity();  // slowest stage or cut so far
    int begin = 0;                                             // first block of the last stage
  };

  Choice choose(const std::vector<std::vector<Choice>>& best, int stage, int end) const {
    if (stage == 0) return {stage_seconds(0, 0, end), 0};
    Choice choice;
    for (int begin = stage; begin < end; ++begin) {
      const double seconds =
          std::max({best[at(stage - 1)][at(begin)].seconds, stage_seconds(stage, begin, end),
                    cuts_[at(stage - 1)][at(begin)]});
      if (seconds < choice.seconds) choice = {seconds, begin};
    }
    return choice;
  }

  void add_prefix_sums(const StageSpec& spec) {
    std::vector<std::vector<double>> sums;  // by device of the stage
    for (std::size_t i = 0; i < spec.devices.size(); ++i) {
      const int kind = problem_.cluster.devices[at(spec.devices[i])].kind;
      std::vector<double> sum = {0};
      for (const Block& block : problem_.blocks.blocks) {
        double seconds = 0;
        for (const OpId op : block.ops) {
          const OpSeconds s = problem_.costs.seconds(kind, op, spec.shares[i]);
          seconds += s.forward + s.backward;
        }
        sum.push_back(sum.back() + seconds);
      }
      sums.push_back(std::move(sum));
    }
    sums_.push_back(std::move(sums));
  }

  double stage_seconds(int stage, int begin, int end) const {
    double slowest = 0;
    for (const std::vector<double>& sum : sums_[at(stage)]) {
      slowest = std::max(slowest, sum[at(end)] - sum[at(begin)]);
    }
    return slowest;
  }

  /// Adds the seconds of one micro-batch's tensors into `stage`, by its first block. Replicas send
  /// side by side.
  void add_cuts(int stage) {
    const auto& from = layout_.stages[at(stage - 1)].devices;
    const auto& to = layout_.stages[at(stage)].devices;
    const double lanes = static_cast<double>(std::min(from.size(), to.size()));
    const double scale =
        static_cast<double>(samples_) / static_cast<double>(problem_.blocks.samples) / lanes;
    std::vector<double> seconds;
    for (const double bytes : problem_.blocks.cut_bytes) {
      seconds.push_back(
          lone_seconds(problem_.cluster, transfer(problem_.cluster, from.back(), to.front(),
                                                  static_cast<std::int64_t>(bytes * scale))));
    }
    cuts_.push_back(std::move(seconds));
  }

  const Problem& problem_;
  const Layout& layout_;
  std::int64_t samples_;
  std::vector<std::vector<std::vector<double>>> sums_;  // by stage, device, blocks before
  std::vector<std::vector<double>> cuts_;               // by stage less one, first block
};

class LayoutSeeder : public Seeder {
 public:
  explicit LayoutSeeder(Layout layout) : layout_(std::move(layout)) {}
  std::string_view name() const override { return "layout"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    const int stages = static_cast<int>(layout_.stages.size());
    if (problem.blocks.size() < stages) return std::vector<Strategy>();
    const bool pipeline = stages > 1 || problem.options.micro_batches > 0;
    return pipeline ? for_all(problem, micro_batch_counts(problem, stages))
                    : for_fewest(problem, micro_batch_numbers(problem.training.batch));
  }

 private:
  std::vector<Strategy> for_all(const Problem& problem,
                                const std::vector<std::int64_t>& counts) const {
    Evaluator evaluator(problem);
    RoughModel model(problem);
    std::vector<Strategy> strategies;
    for (const std::int64_t count : counts) {
      std::optional<Strategy> strategy = with(model, count);
      if (!strategy) continue;
      if (evaluator.lacking(*strategy) > 0) {
        strategies.push_back(helped(problem, evaluator, *strategy));
      }
      strategies.push_back(*std::move(strategy));
    }
    return strategies;
  }

  /// Without a pipeline, more micro-batches than memory asks for only add launches. Returns the
  /// strategies that fit with the fewest, with help and without, or else one that nearly does.
  std::vector<Strategy> for_fewest(const Problem& problem,
                                   const std::vector<std::int64_t>& counts) const {
    Evaluator evaluator(problem);
    RoughModel model(problem);
    std::vector<Strategy> strategies;
    std::optional<Strategy> nearest;
    for (const std::int64_t count : counts) {
      std::optional<Strategy> strategy = with(model, count);
      if (!strategy) continue;
      if (evaluator.lacking(*strategy) <= 0) {
        strategies.push_back(*std::move(strategy));
        break;
      }
      if (!strategies.empty()) continue;
      nearest = helped(problem, evaluator, *strategy);
      if (evaluator.lacking(*nearest) <= 0) strategies.push_back(*nearest);
    }
    if (strategies.empty() && nearest) strategies.push_back(*std::move(nearest));
    return strategies;
  }

  /// Returns nothing if a stage has more devices than a micro-batch has samples, or more
  /// micro-batches in flight than there are.
  std::optional<Strategy> with(RoughModel& model, std::int64_t micro_batches) const {
    const Problem& problem = model.problem();
    const std::int64_t samples = largest_micro_batch(problem, micro_batches);
    const std::int64_t smallest = problem.training.batch / micro_batches;
    for (const Layout::Stage& stage : layout_.stages) {
      if (smallest < static_cast<std::int64_t>(stage.devices.size())) return std::nullopt;
      if (stage.in_flight.value_or(1) > micro_batches) return std::nullopt;
    }
    Partition partition;
    partition.stage_of_block = CutFinder(problem, layout_, samples).stage_of_block();
    for (const Layout::Stage& stage : layout_.stages) partition.groups.push_back(stage.devices);
    Strategy strategy = std::move(pipelines(model, partition, {micro_batches}).front().strategy);
    if (!give_shares(strategy, samples)) return std::nullopt;
    return strategy;
  }

  /// Returns the strategy as it fits, or nearly does, with the devices and the weights of the
  /// layout: with recomputation, divided state, or other shares where the layout has no weights.
  Strategy helped(const Problem& problem, Evaluator& evaluator, const Strategy& strategy) const {
    for (const SampleMoves moves : {SampleMoves::kYes, SampleMoves::kNo}) {
      Strategy fitting = strategy;
      if (!fit_memory(problem, evaluator, fitting, StateLevel::kParameters, moves)) continue;
      if (is_as_asked(fitting, strategy)) return fitting;
    }
    Strategy nearest = strategy;
    need_least_memory(problem, evaluator, nearest);
    return is_as_asked(nearest, strategy) ? nearest : strategy;
  }

  /// Returns whether `changed` has the devices of `strategy`, and its shares where the layout has
  /// weights.
  bool is_as_asked(const Strategy& changed, const Strategy& strategy) const {
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const StageSpec &own = changed.stages[s], &asked = strategy.stages[s];
      if (own.devices != asked.devices) return false;
      if (!layout_.stages[s].weights.empty() && own.shares != asked.shares) return false;
    }
    return true;
  }

  /// Gives weighted shares to the stages that ask for them. Returns false if a weight would give a
  /// device no sample.
  bool give_shares(Strategy& strategy, std::int64_t samples) const {
    for (std::size_t s = 0; s < layout_.stages.size(); ++s) {
      const Layout::Stage& stage = layout_.stages[s];
      StageSpec& spec = strategy.stages[s];
      if (!stage.weights.empty()) {
        spec = weighted_stage(stage, samples);
        if (has_empty_share(spec)) return false;
      }
      give_each_a_sample(spec, stage);
      spec.in_flight = stage.in_flight;
    }
    strategy.schedule = layout_.schedule;
    fit_in_flight(strategy);
    return true;
  }

  Layout layout_;
};

}  // namespace

Result<Layout> parse_layout(std::string_view text, const Cluster& cluster) {
  Layout layout;
  AGPCS_TRY(layout.schedule, take_schedule(text));
  std::vector<bool> taken(cluster.devices.size());
  for (const std::string_view part : split(text, '|')) {
    AGPCS_TRY(Layout::Stage stage, parse_stage(part, cluster, taken));
    layout.stages.push_back(std::move(stage));
  }
  AGPCS_RETURN_IF_ERROR(check_in_flight(layout.stages));
  for (const Layout::Stage& stage : layout.stages) {
    if (layout.schedule != Schedule::kGPipe || !stage.in_flight) continue;
    return usage(
        fmt::format("layout: schedule={} has all micro-batches in flight, so in-flight= "
                    "has no effect",
                    name_of(layout.schedule)));
  }
  return layout;
}

std::unique_ptr<Seeder> make_layout_seeder(Layout layout) {
  return std::make_unique<LayoutSeeder>(std::move(layout));
}

}  // namespace agpcs
