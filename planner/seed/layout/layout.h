// SPDX-License-Identifier: Apache-2.0
// Layout: stages and device groups that a user asks for with agpcs-compile's --layout.
#pragma once

#include "ir/cluster/cluster.h"
#include "planner/evaluate/evaluator.h"
#include "planner/evaluate/rough/step.h"
#include "planner/seed/seeder.h"

#include <agpcs/status.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

namespace agpcs {

struct Layout {
  struct Stage {
    std::vector<DeviceId> devices;  ///< of replicas, of teams one member; ascending
    std::vector<double> weights;    ///< parallel to `devices`; if empty, shares go by speed
    /// Where some replicas are teams, the members of each, parallel to `devices`, and what part
    /// each has of the operators; without parts, they are chosen.
    std::vector<std::vector<DeviceId>> teams = {};
    std::vector<std::int64_t> parts = {};
    std::optional<std::int64_t> in_flight = std::nullopt;  ///< as in StageSpec
  };
  std::vector<Stage> stages;  ///< in pipeline order
  Schedule schedule = Schedule::k1F1B;
  /// With Schedule::kInterleaved, the stages of each of these: they come again so many times in
  /// all.
  int each = 1;
};

/// Parses "a/0:3,b/0:1,in-flight=3|c/0,d/0|schedule=zero-bubble": '|' separates stages, ','
/// devices; after ':' stands the weight by which a device gets samples (all devices of a stage have
/// one, or none has); in-flight= says how many micro-batches the stage has in flight; schedule=, in
/// the last place, is 1f1b if it is left out; "a/0|a/1|schedule=interleaved,each=3" is a pipeline
/// of six stages that go round over two devices (two stages each without each=).
/// "a/0+a/1:3,b/0+b/1:1,parts=5+3" is a stage of two teams (docs/design/teams.md), in each of which
/// the first member has 5/8 of the operators; without parts=, they are chosen. "a/0,b/0+b/1" is a
/// stage of a device and a team of two, whose parts are chosen. Errors are kUsage: a
/// device that does not exist (did you mean) or appears twice, a weight that is not positive, an
/// empty stage, parts of teams of unlike size or not as many as members, a stage that has more
/// in flight than an earlier one, an unknown schedule, one that has no effect, interleaved stages
/// with teams or with numbers in flight.
Result<Layout> parse_layout(std::string_view text, const Cluster& cluster);

/// Makes a seeder whose candidates have exactly that layout, one for each number of micro-batches
/// worth trying. Stages are contiguous in the topological order of blocks. They are cut such that
/// the slowest stage or cut of a micro-batch is fastest (dynamic programming, exact for the shares
/// that the devices have of the whole model). There are no candidates if there are fewer blocks
/// than stages, or fewer samples than devices, or fewer micro-batches than are to be in flight.
/// Errors: kInfeasible where stages that are to be interleaved cannot be (`check_interleaved`).
/// Cost: O(stages x blocks^2) for each.
std::unique_ptr<Seeder> make_layout_seeder(Layout layout);

/// How much longer than the best step, or the best rough step, the rough step of a strategy may be
/// that is looked at further: what decides later is more exact.
inline constexpr double kRoughSlack = 1.15;

/// What is done for the strategy of a layout.
struct LayoutEffort {
  bool quick = false;  ///< as in TeamOrder
  /// Where the rough step is longer than that, there is no strategy. Seconds.
  double most_seconds = std::numeric_limits<double>::infinity();
};

/// The same for several layouts of a problem. It remembers what they have in common. Not for
/// concurrent use. Refers to `problem`.
class LayoutStrategies {
 public:
  explicit LayoutStrategies(const Problem& problem);
  LayoutStrategies(const LayoutStrategies&) = delete;
  LayoutStrategies& operator=(const LayoutStrategies&) = delete;
  ~LayoutStrategies();

  /// Returns the seeder's candidates.
  Result<std::vector<Strategy>> of(const Layout& layout);
  /// Returns the one with that number of micro-batches, helped if it would lack memory; nothing if
  /// there is none, or if a stage's teams would divide nothing. Errors: kInfeasible: a stage with
  /// teams shares a parameter with another one.
  Result<std::optional<Strategy>> of(const Layout& layout, std::int64_t micro_batches,
                                     const LayoutEffort& effort = {});

  /// What it asks, for others that ask about the same strategies.
  Evaluator& evaluator();
  RoughModel& model();
  double rough_seconds(const Strategy& strategy);

  struct Tools;

 private:
  std::unique_ptr<Tools> tools_;
};

}  // namespace agpcs
