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
// batch without end, and had no links. The first of these shapes are the same devices without
// teams, in one stage or one a stage. Where such a stage fits and leaves no device without a
// sample, larger teams only exchange more. So they are left out if the smaller ones are well slower
// than the best, and other numbers of micro-batches if all teams are.
//
// Where devices are of several kinds, the seeder also tries a stage of all devices in which each
// kind has teams of its own size, with a few numbers of micro-batches; where there are more teams
// than samples, the fastest ones, one a sample. It makes few of these strategies: those that could
// be fastest if operators were divided without end and nobody exchanged anything, as long as they
// could be faster than all that is known, roughly. The two that are roughly fastest are seeds.
#include "ir/base/at.h"
#include "ir/strategy/state_parts.h"
#include "planner/problem/micro_batches.h"
#include "planner/problem/shares.h"
#include "planner/problem/stage_timer.h"
#include "planner/seed/candidates.h"
#include "planner/seed/layout/layout.h"
#include "planner/seed/seeder.h"
#include "planner/team/kind_degrees.h"
#include "planner/team/stage_teams.h"
#include "planner/team/unlike_teams.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Teams = std::vector<std::vector<DeviceId>>;

constexpr std::size_t kDegrees[] = {2, 4, 8};
constexpr std::size_t kMostStagesOfTeams = 16;
constexpr std::size_t kTeamSeeds = 3, kKindSeeds = 2;
constexpr std::size_t kMostDegrees = 4;  // degrees of which a strategy is made
constexpr int kMostLacking = 4;          // strategies for which memory lacks
constexpr double kNoStep = std::numeric_limits<double>::infinity();

class TeamSeeds {
 public:
  TeamSeeds(const Problem& problem, const std::function<bool()>& unwanted)
      : problem_(problem),
        unwanted_(unwanted),
        layouts_(problem),
        whole_(problem, all_ops(problem)) {}

  Result<std::vector<Strategy>> run() {
    AGPCS_TRY(std::vector<Strategy> seeds, alike());
    AGPCS_TRY(std::vector<Strategy> more, by_kind());
    std::ranges::move(more, std::back_inserter(seeds));
    return seeds;
  }

 private:
  /// Returns the seeds whose teams all have as many members, whatever their kinds.
  Result<std::vector<Strategy>> alike() {
    list_layouts();
    for (const Row& row : rows_) {
      AGPCS_TRY(const double piped_seconds, piped(row.devices));
      best_ = std::min({best_, row.alone, piped_seconds});
    }
    for (Shape& shape : shapes_) {
      if (unwanted_()) break;
      if (least_seconds(shape.layout) > kRoughSlack * best_ || are_smaller_slower(shape)) continue;
      const std::vector<std::int64_t> counts = counts_of(shape);
      AGPCS_TRY(shape.seconds, try_shape(shape, counts[counts.size() / 2]));
      best_ = std::min(best_, shape.seconds.value_or(best_));
      rows_[shape.row].tried.emplace_back(shape.degree, shape.seconds.value_or(kNoStep));
    }
    std::erase_if(shapes_, [](const Shape& shape) { return !shape.seconds; });
    std::ranges::stable_sort(shapes_, {}, [](const Shape& shape) { return *shape.seconds; });
    if (!shapes_.empty() && *shapes_[0].seconds <= kRoughSlack * best_) {
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

  /// One stage of all devices, in teams of so many members for each kind.
  struct KindShape {
    Layout layout;
    std::size_t number = 0;  ///< of the degrees
    std::int64_t micro_batches = 1;
    double least = 0;  ///< seconds of the step, at least
  };

  /// Returns the seeds in which each kind has teams of its own size.
  Result<std::vector<Strategy>> by_kind() {
    std::vector<Candidate> found;
    std::set<std::size_t> done;  // degrees: more micro-batches than fit only add launches
    int lacking = 0;
    for (const KindShape& shape : kind_shapes()) {
      if (unwanted_() || shape.least >= best_) break;
      if (done.size() == kMostDegrees || lacking == kMostLacking) break;
      if (done.contains(shape.number)) continue;
      const double most = kRoughSlack * best_;
      AGPCS_TRY(std::optional<Strategy> strategy,
                layouts_.of(shape.layout, shape.micro_batches, {.most_seconds = most}));
      if (strategy && layouts_.evaluator().lacking(*strategy) > 0) {
        ++lacking;
        continue;
      }
      done.insert(shape.number);
      if (!strategy) continue;
      const double seconds = layouts_.rough_seconds(*strategy);
      best_ = std::min(best_, seconds);
      found.push_back({*std::move(strategy), seconds});
    }
    std::ranges::stable_sort(found, {}, &Candidate::rough_seconds);
    std::vector<Strategy> seeds;
    for (Candidate& one : found) {
      if (seeds.size() < kKindSeeds && one.rough_seconds <= kRoughSlack * best_) {
        seeds.push_back(std::move(one.strategy));
      }
    }
    return seeds;
  }

  /// Returns the shapes that could be faster than all that is known, the fastest first.
  std::vector<KindShape> kind_shapes() {
    const std::vector<DeviceId>& devices = rows_[0].devices;
    const std::int64_t batch = problem_.training.batch;
    std::vector<KindShape> shapes;
    std::size_t number = 0;
    for (const KindDegrees& degrees : all_kind_degrees(problem_.cluster, devices)) {
      ++number;
      if (!may_fit(degrees) || (are_unlike(degrees) && !problem_.options.choose_unlike)) continue;
      Teams teams = teams_of_kinds(problem_.cluster, devices, degrees);
      if (static_cast<std::int64_t>(teams.size()) > batch) {
        teams = fastest(teams, static_cast<std::size_t>(batch));
        if (are_of_one_kind(teams) || has_no_team(teams)) continue;  // looked at elsewhere
      }
      for (const std::int64_t count : equal_counts(static_cast<std::int64_t>(teams.size()))) {
        const double least = static_cast<double>(count) *
                             least_seconds_of_teams(problem_.cluster, whole_, teams, batch / count);
        if (least < std::min(best_, kWorthUnlike * computing_))
          shapes.push_back({layout_of(teams, 1), number, count, least});
      }
    }
    std::ranges::stable_sort(shapes, {}, &KindShape::least);
    return shapes;
  }

  static bool has_no_team(const Teams& teams) {
    return std::ranges::all_of(teams, [](const auto& team) { return team.size() == 1; });
  }

  bool are_of_one_kind(const Teams& teams) const {
    const auto kind = [&](DeviceId id) { return problem_.cluster.devices[at(id)].kind; };
    return std::ranges::all_of(
        teams, [&](const auto& team) { return kind(team[0]) == kind(teams[0][0]); });
  }

  /// Returns numbers of equal micro-batches with which so many teams may have a sample each: the
  /// least ones from 1, 4, 16 and 64 on.
  std::vector<std::int64_t> equal_counts(std::int64_t teams) const {
    std::vector<std::int64_t> counts;
    std::int64_t next = 1;
    for (const std::int64_t count : micro_batch_numbers(problem_)) {
      const bool asked = problem_.options.micro_batches > 0;
      if (problem_.training.batch % count != 0 || problem_.training.batch / count < teams) continue;
      if (!asked && count < next) continue;
      counts.push_back(count);
      while (next <= count) next *= 4;
      if (next > 64) break;
    }
    return counts;
  }

  /// Devices to make teams of.
  struct Row {
    std::vector<DeviceId> devices;
    double alone = kNoStep;  ///< the rough step of one stage of all of them, without teams
    std::vector<std::pair<std::size_t, double>> tried = {};  ///< degrees, and the rough steps
  };
  struct Shape {
    Layout layout;
    std::size_t row = 0, degree = 0;
    std::optional<double> seconds = std::nullopt;  ///< rough, if there is a strategy
  };

  /// Returns whether larger teams than those tried would only exchange more, and those tried are
  /// well slower than the best shape.
  bool are_smaller_slower(const Shape& shape) const {
    const Row& row = rows_[shape.row];
    if (row.alone == kNoStep) return false;
    const auto is_smaller = [&](const auto& one) { return one.first < shape.degree; };
    return std::ranges::any_of(row.tried, is_smaller) &&
           std::ranges::all_of(row.tried, [&](const auto& one) {
             return !is_smaller(one) || one.second > kRoughSlack * best_;
           });
  }

  /// Returns the rough step of a pipeline with one of these devices a stage; kNoStep if there is
  /// none that fits.
  Result<double> piped(const std::vector<DeviceId>& devices) {
    if (devices.size() < 2 || devices.size() > kMostStagesOfTeams) return kNoStep;
    Layout layout;
    for (const DeviceId id : devices) layout.stages.emplace_back().devices = {id};
    const auto stages = static_cast<int>(devices.size());
    const std::vector<std::int64_t> counts = micro_batch_counts(problem_, stages);
    AGPCS_TRY(const std::optional<Strategy> strategy,
              layouts_.of(layout, counts[counts.size() / 2]));
    if (!strategy || layouts_.evaluator().lacking(*strategy) > 0) return kNoStep;
    return layouts_.rough_seconds(*strategy);
  }

  /// Returns the rough step of one stage of these devices without teams; kNoStep if it does not
  /// fit, or would leave out a device.
  double alone(const std::vector<DeviceId>& devices) {
    Partition partition{std::vector<int>(at(problem_.blocks.size()), 0), {devices}};
    double best = kNoStep;
    for (const std::int64_t count : micro_batch_numbers(problem_)) {
      const Candidate one = std::move(pipelines(layouts_.model(), partition, {count}).front());
      const StageSpec& spec = one.strategy.stages[0];
      const bool leaves_out = spec.devices.size() != devices.size();
      if (layouts_.evaluator().lacking(one.strategy) > 0) {
        if (leaves_out) break;
        continue;
      }
      computing_ = std::min(computing_,
                            static_cast<double>(count) * slowest_seconds(problem_, whole_, spec));
      if (!leaves_out) best = one.rough_seconds;
      break;  // more micro-batches only add launches
    }
    return best;
  }

  void list_layouts() {
    rows_.resize(1);
    std::map<int, std::vector<DeviceId>> of_kind;
    for (DeviceId id = 0; id < problem_.cluster.device_count(); ++id) {
      rows_[0].devices.push_back(id);
      of_kind[problem_.cluster.devices[at(id)].kind].push_back(id);
    }
    for (const auto& [kind, devices] : of_kind) {
      if (of_kind.size() > 1) rows_.push_back({devices});
    }
    for (std::size_t r = 0; r < rows_.size(); ++r) {
      const std::vector<DeviceId>& row = rows_[r].devices;
      rows_[r].alone = alone(row);
      for (const std::size_t degree : kDegrees) {
        const std::size_t before = shapes_.size();
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
        for (std::size_t i = before; i < shapes_.size(); ++i) {
          shapes_[i].row = r;
          shapes_[i].degree = degree;
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
    return parameter_bytes() <= largest * static_cast<double>(devices);
  }

  /// Returns whether they may fit on a team of each kind.
  bool may_fit(const KindDegrees& degrees) const {
    return std::ranges::all_of(degrees, [&](const auto& of) {
      const auto memory = problem_.cluster.kinds[at(of.first)].memory_bytes;
      return parameter_bytes() <= static_cast<double>(memory) * static_cast<double>(of.second);
    });
  }

  /// Returns the bytes of parameters, gradients and the optimizer's state.
  double parameter_bytes() const {
    double bytes = 0;
    for (const TensorId id : problem_.graph.parameters()) {
      if (!problem_.graph.tensor(id).needs_gradient) continue;
      const GradientSize size = gradient_of(problem_, id);
      bytes +=
          static_cast<double>(2 * size.held_bytes + size.elements * state_bytes(problem_.training));
    }
    return bytes;
  }

  static Layout layout_of(const Teams& teams, std::size_t stages) {
    Layout layout;
    layout.stages.resize(stages);
    for (std::size_t t = 0; t < teams.size(); ++t) {
      Layout::Stage& stage = layout.stages[t * stages / teams.size()];
      stage.devices.push_back(teams[t][0]);
      stage.teams.push_back(teams[t]);
    }
    for (Layout::Stage& stage : layout.stages) {
      std::ranges::sort(stage.devices);
      std::ranges::sort(stage.teams);
    }
    return layout;
  }

  void add_layout(const Teams& teams, std::size_t stages) {
    shapes_.push_back({layout_of(teams, stages)});
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

  /// As `try_layout`, but parts of unlike members are searched only if that may be worth it.
  Result<std::optional<double>> try_shape(const Shape& shape, std::int64_t micro_batches) {
    const bool quick = has_unlike_members(shape.layout);
    AGPCS_TRY(const std::optional<double> seconds, try_layout(shape, micro_batches, quick));
    if (!quick || (seconds && *seconds > kRoughSlack * best_)) return seconds;
    if (seconds) candidates_.pop_back();
    return try_layout(shape, micro_batches);
  }

  bool has_unlike_members(const Layout& layout) const {
    const auto kind = [&](DeviceId id) { return problem_.cluster.devices[at(id)].kind; };
    return std::ranges::any_of(layout.stages, [&](const Layout::Stage& stage) {
      return std::ranges::any_of(stage.teams, [&](const std::vector<DeviceId>& team) {
        return std::ranges::any_of(team, [&](DeviceId id) { return kind(id) != kind(team[0]); });
      });
    });
  }

  /// Adds the candidate with that number of micro-batches; returns its rough step if it fits.
  Result<std::optional<double>> try_layout(const Shape& shape, std::int64_t micro_batches,
                                           bool quick = false) {
    Result<std::optional<Strategy>> made =
        layouts_.of(shape.layout, micro_batches, {.quick = quick});
    if (!made.ok() && made.status().code() == StatusCode::kInfeasible) {
      return std::optional<double>();  // shares a parameter
    }
    AGPCS_TRY(std::optional<Strategy> strategy, std::move(made));
    if (!strategy || layouts_.evaluator().lacking(*strategy) > 0) return std::optional<double>();
    const double seconds = layouts_.rough_seconds(*strategy);
    candidates_.push_back({*std::move(strategy), seconds});
    return std::optional<double>(seconds);
  }

  const Problem& problem_;
  std::function<bool()> unwanted_;
  LayoutStrategies layouts_;
  StageTimer whole_;  // of all operators
  std::vector<Row> rows_;
  std::vector<Shape> shapes_;
  double best_ = kNoStep;       // the least rough step so far
  double computing_ = kNoStep;  // of a step without teams, the least
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
