// SPDX-License-Identifier: Apache-2.0
// The text of a layout.
#include "ir/base/all_values.h"
#include "ir/base/at.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"
#include "ir/base/units.h"
#include "planner/seed/layout/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

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

/// More stages a device only add messages.
constexpr int kMostEach = 64;

/// Parses the "each=3" behind the name of a schedule: how many stages each device has.
Result<int> parse_each(Schedule schedule, std::string_view text, bool given) {
  const bool interleaved = schedule == Schedule::kInterleaved;
  if (!given) return interleaved ? 2 : 1;
  constexpr std::string_view kEach = "each=";
  if (text.substr(0, kEach.size()) != kEach) {
    return usage(fmt::format("layout: '{}' behind a schedule, where each= may stand", text));
  }
  if (!interleaved) {
    return usage(
        fmt::format("layout: schedule={} has one stage on each device, so each= has no "
                    "effect\n  hint: schedule=interleaved",
                    name_of(schedule)));
  }
  int number = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data() + kEach.size(), end, number);
  if (error == std::errc() && rest == end && number >= 2 && number <= kMostEach) return number;
  return usage(fmt::format("layout: '{}' is not a number of stages from 2 to {}", text, kMostEach));
}

/// Checks that stages that are interleaved have neither teams nor numbers in flight.
Status check_single(const std::vector<Layout::Stage>& stages) {
  for (const Layout::Stage& stage : stages) {
    if (stage.in_flight) {
      return usage(
          "layout: schedule=interleaved says how many micro-batches are in flight, so in-flight= "
          "has no effect");
    }
    if (stage.teams.empty()) continue;
    return usage(
        "layout: a stage has teams, and schedule=interleaved gives devices several stages: the two "
        "do not go together yet");
  }
  return {};
}

constexpr std::string_view kInFlight = "in-flight=", kSchedule = "schedule=", kParts = "parts=";

/// Takes "|schedule=zero-bubble" from the end of `text`.
Result<Schedule> take_schedule(std::string_view& text, int& each) {
  const std::size_t bar = text.rfind('|');
  if (bar == std::string_view::npos || text.substr(bar + 1, kSchedule.size()) != kSchedule) {
    return Schedule::k1F1B;
  }
  std::string_view name = text.substr(bar + 1 + kSchedule.size());
  const std::size_t comma = name.find(',');
  const std::string_view more = comma == std::string_view::npos ? "" : name.substr(comma + 1);
  name = name.substr(0, comma);
  text = text.substr(0, bar);
  if (text.find('|') == std::string_view::npos) {
    return usage("layout: schedule= of a single stage has no effect");
  }
  if (const std::optional<Schedule> named = schedule_named(name)) {
    AGPCS_TRY(each, parse_each(*named, more, comma != std::string_view::npos));
    return *named;
  }
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

/// Parts are proportions: larger numbers would say no more.
constexpr std::int64_t kMostPart = 1'000'000;

/// Parses the "5+3" of "parts=5+3".
Result<std::vector<std::int64_t>> parse_parts(std::string_view part) {
  std::vector<std::int64_t> parts;
  for (const std::string_view text : split(part.substr(kParts.size()), '+')) {
    std::int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || rest != end || number < 1 || number > kMostPart) {
      return usage(
          fmt::format("layout: '{}' has '{}', not a number from 1 to {}\n"
                      "  hint: parts=5+3 gives the first member of each team 5/8",
                      part, text, kMostPart));
    }
    parts.push_back(number);
  }
  return parts;
}

/// Parses one stage, word by word.
class StageParser {
 public:
  /// `taken` remembers the devices of the stages before.
  StageParser(std::string_view text, const Cluster& cluster, std::vector<bool>& taken)
      : text_(text), cluster_(cluster), taken_(taken) {}

  Result<Layout::Stage> run() {
    if (text_.empty()) {
      return usage(
          "layout: a stage is empty\n  hint: \"a/0,a/1|b/0\": | is between stages, a comma between "
          "devices");
    }
    for (const std::string_view word : split(text_, ',')) AGPCS_RETURN_IF_ERROR(add(word));
    if (replicas_.empty()) return usage(fmt::format("layout: stage '{}' has no device", text_));
    AGPCS_RETURN_IF_ERROR(check_teams());
    std::ranges::sort(replicas_, {}, [](const Replica& replica) { return replica.members[0]; });
    const bool teams = std::ranges::any_of(
        replicas_, [](const Replica& replica) { return replica.members.size() > 1; });
    for (Replica& replica : replicas_) {
      stage_.devices.push_back(replica.members[0]);
      if (replica.weight > 0) stage_.weights.push_back(replica.weight);
      if (teams) stage_.teams.push_back(std::move(replica.members));
    }
    if (stage_.weights.empty() || stage_.weights.size() == stage_.devices.size()) {
      return std::move(stage_);
    }
    return usage(fmt::format(
        "layout: {} of the {} {} of stage '{}' have a weight\n  hint: give all of them one, or "
        "none: then shares follow speed",
        stage_.weights.size(), stage_.devices.size(), stage_.teams.empty() ? "devices" : "teams",
        text_));
  }

 private:
  struct Replica {
    std::vector<DeviceId> members;
    double weight = 0;  ///< 0 if none is given
  };

  Status add(std::string_view word) {
    if (word.substr(0, kInFlight.size()) == kInFlight) {
      if (stage_.in_flight) return usage(fmt::format("layout: '{}' comes second", word));
      AGPCS_TRY(stage_.in_flight, parse_in_flight(word));
      return {};
    }
    if (word.substr(0, kParts.size()) == kParts) {
      if (!stage_.parts.empty()) return usage(fmt::format("layout: '{}' comes second", word));
      AGPCS_TRY(stage_.parts, parse_parts(word));
      return {};
    }
    const std::size_t colon = word.find(':');
    const std::string_view names = word.substr(0, colon);
    Replica& replica = replicas_.emplace_back();
    for (const std::string_view name : split(names, '+')) {
      const DeviceId device = cluster_.find_device(name);
      if (device < 0) return no_device(cluster_, name);
      if (taken_[at(device)]) {
        return usage(fmt::format("layout: device {} is there twice", name));
      }
      taken_[at(device)] = true;
      replica.members.push_back(device);
    }
    if (colon == std::string_view::npos) return {};
    AGPCS_TRY(replica.weight, parse_weight(word.substr(colon + 1), names));
    return {};
  }

  /// Checks that a stage with parts has teams of so many members.
  Status check_teams() const {
    const std::size_t members = replicas_[0].members.size();
    for (const Replica& replica : replicas_) {
      if (stage_.parts.empty() || replica.members.size() == members) continue;
      return usage(fmt::format(
          "layout: stage '{}' has parts, a replica of {} and one of {}\n"
          "  hint: without parts=, those of teams of unlike size are chosen",
          text_, plural(static_cast<std::int64_t>(members), "device"), replica.members.size()));
    }
    if (stage_.parts.empty() || (stage_.parts.size() == members && members > 1)) return {};
    if (members == 1) {
      return usage(fmt::format(
          "layout: stage '{}' has parts and no team\n  hint: a/0+a/1 is a team of two", text_));
    }
    return usage(fmt::format("layout: stage '{}' has {} for teams of {}", text_,
                             plural(static_cast<std::int64_t>(stage_.parts.size()), "part"),
                             members));
  }

  std::string_view text_;
  const Cluster& cluster_;
  std::vector<bool>& taken_;
  Layout::Stage stage_;
  std::vector<Replica> replicas_;
};

}  // namespace

Result<Layout> parse_layout(std::string_view text, const Cluster& cluster) {
  Layout layout;
  AGPCS_TRY(layout.schedule, take_schedule(text, layout.each));
  std::vector<bool> taken(cluster.devices.size());
  for (const std::string_view part : split(text, '|')) {
    AGPCS_TRY(Layout::Stage stage, StageParser(part, cluster, taken).run());
    layout.stages.push_back(std::move(stage));
  }
  if (layout.schedule == Schedule::kInterleaved) {
    AGPCS_RETURN_IF_ERROR(check_single(layout.stages));
    return layout;
  }
  AGPCS_RETURN_IF_ERROR(check_in_flight(layout.stages));
  for (const Layout::Stage& stage : layout.stages) {
    if (stage.teams.empty() || layout.schedule != Schedule::kZeroBubble) continue;
    return usage(
        "layout: a stage has teams, and schedule=zero-bubble parts backward passes: the two do not "
        "go together yet");
  }
  for (const Layout::Stage& stage : layout.stages) {
    if (layout.schedule != Schedule::kGPipe || !stage.in_flight) continue;
    return usage(
        fmt::format("layout: schedule={} has all micro-batches in flight, so in-flight= "
                    "has no effect",
                    name_of(layout.schedule)));
  }
  return layout;
}

}  // namespace agpcs
