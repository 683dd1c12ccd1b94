// SPDX-License-Identifier: Apache-2.0
// Teams: stages whose replicas are teams of 2, 4 or 8 devices of a host (of any, where no host has
// two), on all devices and on those of each kind alone: the fewest stages of 1, 2, 4, ... whose
// parameters may fit, and as many as there are teams, 16 at most. Devices that make no whole team
// are left out. Where a batch has fewer samples than the fewest stages have teams, those stages are
// tried with the fastest teams, too, one a sample.
//
// A shape is first tried with one number of micro-batches. The one that is roughly fastest is tried
// with the next numbers, too. To choose how teams divide operators takes long, so a shape is left
// out if its devices would be well slower than the best shape so far even if they divided the whole
// batch without end, and had no links.
#include "ir/base/at.h"
#include "ir/strategy/state_parts.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/problem/stage_timers.h"
#include "planner/seed/candidates.h"
#include "planner/seed/layout/layout.h"
#include "planner/seed/seeder.h"
#include "planner/team/stage_teams.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Teams = std::vector<std::vector<DeviceId>>;

constexpr std::size_t kDegrees[] = {2, 4, 8};
constexpr std::size_t kMostStagesOfTeams = 16;
constexpr std::size_t kTeamSeeds = 3;
constexpr double kTeamSlack = 1.15;  // of the best rough step

class TeamSeeds {
 public:
  TeamSeeds(const Problem& problem, const std::function<bool()>& unwanted)
      : problem_(problem),
        unwanted_(unwanted),
        layouts_(problem),
        timers_(problem),
        whole_(problem, all_ops(problem)) {}

  Result<std::vector<Strategy>> run() {
    list_layouts();
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < shapes_.size() && !unwanted_(); ++i) {
      if (least_seconds(shapes_[i].layout) > kTeamSlack * best) continue;
      const std::vector<std::int64_t> counts = counts_of(shapes_[i]);
      AGPCS_TRY(shapes_[i].seconds, try_layout(shapes_[i], counts[counts.size() / 2]));
      best = std::min(best, shapes_[i].seconds.value_or(best));
    }
    std::erase_if(shapes_, [](const Shape& shape) { return !shape.seconds; });
    std::ranges::stable_sort(shapes_, {}, [](const Shape& shape) { return *shape.seconds; });
    if (!shapes_.empty()) {
      const std::vector<std::int64_t> counts = counts_of(shapes_[0]);
      const std::size_t tried = counts.size() / 2;
      for (const std::size_t c : {tried - 1, tried + 1}) {  // before the first: none
        if (c >= counts.size() || unwanted_()) continue;
        AGPCS_RETURN_IF_ERROR(try_layout(shapes_[0], counts[c]).status());
      }
    }
    if (candidates_.empty()) return std::vector<Strategy>();
    return thin_out(layouts_.model(), layouts_.evaluator(), std::move(candidates_), kTeamSeeds,
                    Relief::kNever);
  }

 private:
  struct Shape {
    Layout layout;
    std::optional<double> seconds = std::nullopt;  ///< rough, if there is a strategy
  };

  void list_layouts() {
    std::vector<std::vector<DeviceId>> rows(1);
    std::map<int, std::vector<DeviceId>> of_kind;
    for (DeviceId id = 0; id < problem_.cluster.device_count(); ++id) {
      rows[0].push_back(id);
      of_kind[problem_.cluster.devices[at(id)].kind].push_back(id);
    }
    for (const auto& [kind, devices] : of_kind) {
      if (of_kind.size() > 1) rows.push_back(devices);
    }
    for (const std::vector<DeviceId>& row : rows) {
      for (const std::size_t degree : kDegrees) {
        const Teams teams = teams_within_hosts(problem_.cluster, row, degree);
        const std::size_t most = std::min(
            {teams.size(), kMostStagesOfTeams, static_cast<std::size_t>(problem_.blocks.size())});
        std::size_t fewest = 1;
        while (fewest <= most && !may_fit(row, degree * fewest)) fewest *= 2;
        if (fewest <= most) add_layout(teams, fewest);
        if (fewest < most) add_layout(teams, most);
        const auto samples = static_cast<std::size_t>(problem_.training.batch);
        if (fewest <= most && samples * fewest < teams.size()) {
          add_layout(fastest(teams, samples * fewest), fewest);
        }
      }
    }
  }

  /// Returns the fastest teams, so many, in their order.
  Teams fastest(const Teams& teams, std::size_t count) const {
    std::vector<std::pair<double, std::size_t>> speeds;  // the lower number first among equals
    for (std::size_t t = 0; t < teams.size(); ++t) {
      double speed = 0;
      for (const DeviceId id : teams[t]) {
        speed += problem_.costs.speed(problem_.cluster.devices[at(id)].kind, 1);
      }
      speeds.emplace_back(-speed, t);
    }
    std::ranges::sort(speeds);
    speeds.resize(count);
    std::ranges::sort(speeds, {}, [](const auto& one) { return one.second; });
    Teams chosen;
    for (const auto& [speed, t] : speeds) chosen.push_back(teams[t]);
    return chosen;
  }

  /// Returns whether parameters, gradients and the optimizer's state may fit on a team in each
  /// stage, `devices` devices in all, if all of it is in parts.
  bool may_fit(const std::vector<DeviceId>& row, std::size_t devices) const {
    double largest = 0;
    for (const DeviceId id : row) {
      largest = std::max(largest, static_cast<double>(problem_.cluster.kind_of(id).memory_bytes));
    }
    double bytes = 0;
    for (const TensorId id : problem_.graph.parameters()) {
      if (!problem_.graph.tensor(id).needs_gradient) continue;
      const GradientSize size = gradient_of(problem_, id);
      bytes +=
          static_cast<double>(2 * size.held_bytes + size.elements * state_bytes(problem_.training));
    }
    return bytes <= largest * static_cast<double>(devices);
  }

  void add_layout(const Teams& teams, std::size_t stages) {
    Shape shape;
    shape.layout.stages.resize(stages);
    for (std::size_t t = 0; t < teams.size(); ++t) {
      Layout::Stage& stage = shape.layout.stages[t * stages / teams.size()];
      stage.devices.push_back(teams[t][0]);
      stage.teams.push_back(teams[t]);
    }
    for (Layout::Stage& stage : shape.layout.stages) {
      std::ranges::sort(stage.devices);
      std::ranges::sort(stage.teams);
    }
    shapes_.push_back(std::move(shape));
  }

  /// Returns the seconds of a step if the devices of a layout divided the work of the whole batch
  /// by their speeds.
  double least_seconds(const Layout& layout) {
    double speed = 0;  // steps a second
    for (const Layout::Stage& stage : layout.stages) {
      for (const std::vector<DeviceId>& team : stage.teams) {
        for (const DeviceId id : team) {
          const int kind = problem_.cluster.devices[at(id)].kind;
          speed += 1 / whole_.seconds(kind, problem_.training.batch);
        }
      }
    }
    return 1 / speed;
  }

  /// Returns numbers of micro-batches with which every team may have a sample, ascending; one at
  /// least.
  std::vector<std::int64_t> counts_of(const Shape& shape) const {
    std::size_t replicas = 1;
    for (const Layout::Stage& stage : shape.layout.stages) {
      replicas = std::max(replicas, stage.teams.size());
    }
    const std::int64_t most =
        std::max<std::int64_t>(1, problem_.training.batch / static_cast<std::int64_t>(replicas));
    std::vector<std::int64_t> counts =
        shape.layout.stages.size() > 1
            ? micro_batch_counts(problem_, static_cast<int>(shape.layout.stages.size()))
        : problem_.options.micro_batches > 0 ? std::vector{problem_.options.micro_batches}
                                             : std::vector<std::int64_t>{1, 4, 16, 64};
    for (std::int64_t& count : counts) count = std::min(count, most);
    counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
    return counts;
  }

  /// Adds the candidate with that number of micro-batches; returns its rough step if it fits.
  Result<std::optional<double>> try_layout(const Shape& shape, std::int64_t micro_batches) {
    Result<std::optional<Strategy>> made = layouts_.of(shape.layout, micro_batches);
    if (!made.ok() && made.status().code() == StatusCode::kInfeasible) {
      return std::optional<double>();  // shares a parameter
    }
    AGPCS_TRY(std::optional<Strategy> strategy, std::move(made));
    if (!strategy || layouts_.evaluator().lacking(*strategy) > 0) return std::optional<double>();
    const double seconds = layouts_.model().step(*strategy, timers_.of(*strategy)).seconds;
    candidates_.push_back({*std::move(strategy), seconds});
    return std::optional<double>(seconds);
  }

  const Problem& problem_;
  std::function<bool()> unwanted_;
  LayoutStrategies layouts_;
  StageTimers timers_;
  StageTimer whole_;  // of all operators
  std::vector<Shape> shapes_;
  std::vector<Candidate> candidates_;
};

class TeamsSeeder : public Seeder {
 public:
  std::string_view name() const override { return "teams"; }
  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    if (!problem.options.choose_teams) return std::vector<Strategy>();
    return TeamSeeds(problem, [this] { return unwanted(); }).run();
  }
};

}  // namespace

std::unique_ptr<Seeder> make_teams_seeder() { return std::make_unique<TeamsSeeder>(); }

}  // namespace agpcs
