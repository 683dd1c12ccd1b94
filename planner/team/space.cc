// SPDX-License-Identifier: Apache-2.0
#include "planner/team/space.h"

#include "ir/base/check.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_map>
#include <utility>

namespace agpcs {
namespace {

constexpr double kNearlyAsEven = 1.05;
constexpr std::size_t kMostDivisions = 4;
constexpr std::size_t kMostUnitBands = 4;

using Bands = std::vector<std::int64_t>;

/// Returns how much longer the slowest member takes than if parts were exactly as asked.
double slowdown(const Division& division, const std::vector<std::int64_t>& parts) {
  const auto all =
      static_cast<double>(std::accumulate(parts.begin(), parts.end(), std::int64_t{0}));
  double slowest = 0;
  for (std::size_t m = 0; m < parts.size(); ++m) {
    slowest = std::max(slowest, division.part(m) * all / static_cast<double>(parts[m]));
  }
  return slowest;
}

class SpaceBuilder {
 public:
  explicit SpaceBuilder(const TeamProblem& problem) : problem_(problem) {}

  TeamSpace run() {
    for (std::size_t i = 0; i < problem_.ops.size(); ++i) find_splits(i);
    space_.divisions = team_divisions(problem_);
    prepare();
    space_.tensors.resize(problem_.graph.tensors.size());
    for (const OpId op : problem_.ops) note_bands(op);
    for (const OpId op : problem_.ops) add_operator(op);
    for (const TensorId id : leaving_tensors(problem_.graph, problem_.ops)) {
      space_.tensors[static_cast<std::size_t>(id)].leaves = true;
    }
    for (const TensorId id : touched_) finish(id);
    return std::move(space_);
  }

 private:
  /// Looks up the splits of an operator, once for those that are alike.
  void find_splits(std::size_t index) {
    const int number = problem_.alike.empty() ? static_cast<int>(index) : problem_.alike[index];
    const auto [known, added] = known_splits_.try_emplace(number);
    if (added) known->second = splits_of(problem_.graph, problem_.ops[index]);
    splits_[problem_.ops[index]] = &known->second;
  }
  const std::vector<OpSplit>& splits(OpId op) const { return *splits_.at(op); }

  /// Tells the costs what they will be asked for.
  void prepare() const {
    if (!problem_.costs.prepare) return;
    std::vector<MemberOp> parts;
    for (const OpId op : problem_.ops) {
      parts.push_back({op, kNone, 0});
      const std::vector<OpSplit>& own = splits(op);
      for (int s = 0; s < static_cast<int>(own.size()); ++s) {
        const OpSplit& split = own[static_cast<std::size_t>(s)];
        for (const int division : divisions_of(split)) {
          for (std::size_t m = 0; m < problem_.parts.size(); ++m) {
            parts.push_back(part_of({op, s, division}, split.units, m));
          }
        }
      }
    }
    problem_.costs.prepare(parts);
  }

  MemberOp part_of(const TeamOp& op, std::int64_t units, std::size_t member) const {
    if (op.division == kNone) return {op.op, kNone, 0};
    const Division& division = space_.divisions[static_cast<std::size_t>(op.division)];
    return {op.op, op.split, division.range(member, units).size()};
  }

  TensorForms& forms(TensorId id) { return space_.tensors[static_cast<std::size_t>(id)]; }

  void add_operator(OpId id) {
    const Op& op = problem_.graph.op(id);
    for (const TensorId input : op.inputs) {
      if (input != kNone) touched_.insert(input);
    }
    for (const TensorId output : op.outputs) {
      if (output == kNone) continue;
      touched_.insert(output);
      forms(output).made_here = true;
    }
    const std::vector<OpSplit>& ways = splits(id);
    std::vector<TeamOption>& options = space_.options.emplace_back();
    for (const bool own : {false, true}) {
      add_option({id, kNone, kNone, {}, own}, ways, options);
    }
    for (int s = 0; s < static_cast<int>(ways.size()); ++s) {
      const OpSplit& split = ways[static_cast<std::size_t>(s)];
      for (const int division : divisions_of(split)) {
        add_option({id, s, division}, ways, options);
        for (const Bands& bands : bands_of(op, split)) {
          add_option({id, s, division, bands}, ways, options);
        }
      }
    }
    AGPCS_CHECK(!options.empty(), "'{}' cannot be computed", op.name);
  }

  /// Notes in how many bands axes of an extent are divided.
  void note_bands(OpId id) {
    for (const OpSplit& split : splits(id)) {
      for (const auto* placements : {&split.inputs, &split.outputs}) {
        for (const Placement& placement : *placements) {
          Bands bands = placement.bands;
          if (bands.size() < 2 || bands.size() > kMostUnitBands) continue;
          for (std::int64_t& band : bands) band *= split.units;
          const std::int64_t extent = std::accumulate(bands.begin(), bands.end(), std::int64_t{0});
          bands_[extent].insert(std::move(bands));
        }
      }
    }
  }

  /// Returns the units of each band, for each way to have bands that a tensor of the split may be
  /// in.
  std::set<Bands> bands_of(const Op& op, const OpSplit& split) const {
    std::set<Bands> all;
    if (split.units == 0 || split.indices != kNone) return all;
    const auto add = [&](const std::vector<TensorId>& ids, const std::vector<Placement>& given) {
      for (std::size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == kNone || given[i].bands.size() != 1) continue;
        const std::int64_t each = given[i].bands[0];
        const auto found = bands_.find(each * split.units);
        if (found == bands_.end()) continue;
        for (Bands bands : found->second) {
          const bool whole =
              std::ranges::all_of(bands, [each](std::int64_t band) { return band % each == 0; });
          if (!whole) continue;
          for (std::int64_t& band : bands) band /= each;
          all.insert(std::move(bands));
        }
      }
    };
    add(op.inputs, split.inputs);
    add(op.outputs, split.outputs);
    return all;
  }

  /// Returns the divisions that fit, the most even ones if they are many; kNone: nothing is
  /// divided.
  std::vector<int> divisions_of(const OpSplit& split) const {
    if (split.units == 0) return {kNone};
    std::vector<int> fitting;
    for (std::size_t d = 0; d < space_.divisions.size(); ++d) {
      if (space_.divisions[d].divides(split.units)) fitting.push_back(static_cast<int>(d));
    }
    if (fitting.size() <= kMostDivisions) return fitting;
    std::ranges::stable_sort(fitting, {}, [this](int d) {
      return slowdown(space_.divisions[static_cast<std::size_t>(d)], problem_.parts);
    });
    fitting.resize(kMostDivisions);
    std::ranges::sort(fitting);
    return fitting;
  }

  void add_option(const TeamOp& op, const std::vector<OpSplit>& ways,
                  std::vector<TeamOption>& options) {
    const auto placements = placements_of(problem_.graph, op, ways, space_.divisions);
    if (!placements) return;
    TeamOption option{
        op.split, op.division, op.bands, op.own_gradient, {}, {}, known_seconds(op, ways)};
    const Op& whole = problem_.graph.op(op.op);
    if (!number_forms(whole.inputs, placements->inputs, option.inputs)) return;
    if (!number_forms(whole.outputs, placements->outputs, option.outputs)) return;
    const bool known = std::ranges::any_of(options, [&](const TeamOption& other) {
      return other.inputs == option.inputs && other.outputs == option.outputs &&
             other.seconds <= option.seconds;
    });
    if (!known) options.push_back(std::move(option));
  }

  /// Returns false if a tensor has too many forms already.
  bool number_forms(const std::vector<TensorId>& ids, const std::vector<TeamPlacement>& placements,
                    std::vector<int>& numbers) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      numbers.push_back(kNone);
      if (ids[i] == kNone) continue;
      std::vector<TeamPlacement>& known = forms(ids[i]).placements;
      const auto found = std::ranges::find(known, placements[i]);
      if (found == known.end() && static_cast<int>(known.size()) == kMostForms) return false;
      numbers.back() = static_cast<int>(found - known.begin());
      if (found == known.end()) known.push_back(placements[i]);
    }
    return true;
  }

  /// Looks seconds up, once for operators that are alike; the first one may wait for samples.
  double known_seconds(const TeamOp& op, const std::vector<OpSplit>& ways) {
    const auto index = space_.options.size() - 1;
    if (problem_.alike.empty() || op.op == 0) return seconds_of(op, ways);
    const auto [known, added] =
        seconds_.try_emplace({problem_.alike[index], op.split, op.division}, 0);
    if (added) known->second = seconds_of(op, ways);
    return known->second;
  }

  double seconds_of(const TeamOp& op, const std::vector<OpSplit>& ways) const {
    const OpSplit* const split =
        op.split == kNone ? nullptr : &ways[static_cast<std::size_t>(op.split)];
    double slowest = 0;
    for (std::size_t m = 0; m < problem_.parts.size(); ++m) {
      const double part = op.division == kNone
                              ? 1
                              : space_.divisions[static_cast<std::size_t>(op.division)].part(m);
      const MemberOp own = part_of(op, split == nullptr ? 0 : split->units, m);
      slowest = std::max(slowest, problem_.costs.compute(own, m, part));
    }
    if (split == nullptr) return slowest;
    for (const TeamTraffic& traffic :
         inside_traffic(problem_.graph, op.op, *split, problem_.samples, problem_.parts.size())) {
      slowest += problem_.costs.exchange(traffic);
    }
    return slowest;
  }

  /// Fills in what is known when a tensor has all of its forms.
  void finish(TensorId id) {
    const Tensor& tensor = problem_.graph.tensor(id);
    TensorForms& all = forms(id);
    all.free = !all.made_here && !has_gradient(tensor);
    const auto [known, added] = exchanges_.try_emplace(look_of(tensor, all.placements));
    for (const TeamPlacement& from : all.placements) {
      if (!added) break;
      std::vector<double>& row = known->second.emplace_back();
      for (const TeamPlacement& to : all.placements) {
        row.push_back(exchange_seconds(tensor, from, to));
      }
    }
    all.seconds = known->second;
    if (all.free || all.made_here) return;
    for (int form = 0; form < static_cast<int>(all.placements.size()); ++form) {
      const bool part =
          all.placements[static_cast<std::size_t>(form)].kind == Placement::Kind::kPart;
      if (form == 0 || (part && tensor.kind == TensorKind::kParameter)) {
        all.beginnings.push_back(form);
      }
    }
    if (problem_.held_element == 0 || tensor.kind != TensorKind::kParameter) return;
    const auto elements = static_cast<double>(elements_at(tensor.shape, 1));
    for (const TeamPlacement& placement : all.placements) {
      all.held.push_back(problem_.held_element * elements * largest_part(placement));
    }
  }

  /// All that the seconds of exchanges of a tensor depend on.
  static std::vector<std::int64_t> look_of(const Tensor& tensor,
                                           const std::vector<TeamPlacement>& placements) {
    std::vector<std::int64_t> look = {static_cast<std::int64_t>(tensor.type),
                                      tensor.kind == TensorKind::kParameter, has_gradient(tensor),
                                      static_cast<std::int64_t>(tensor.shape.size())};
    for (const Extent& extent : tensor.shape) {
      look.insert(look.end(), {extent.fixed, extent.per_sample});
    }
    for (const TeamPlacement& one : placements) {
      look.insert(look.end(), {static_cast<std::int64_t>(one.kind), one.gradient_is_sum, one.axis,
                               one.division, static_cast<std::int64_t>(one.bands.size())});
      look.insert(look.end(), one.bands.begin(), one.bands.end());
    }
    return look;
  }

  double largest_part(const TeamPlacement& placement) const {
    if (placement.kind != Placement::Kind::kPart) return 1;
    double largest = 0;
    for (std::size_t m = 0; m < problem_.parts.size(); ++m) {
      largest =
          std::max(largest, space_.divisions[static_cast<std::size_t>(placement.division)].part(m));
    }
    return largest;
  }

  double exchange_seconds(const Tensor& tensor, const TeamPlacement& from,
                          const TeamPlacement& to) const {
    const bool parameter = tensor.kind == TensorKind::kParameter;
    const auto seconds_of = [&](const TeamPlacement& have, const TeamPlacement& need) -> double {
      if (exchange_between(have, need) == TeamExchange::kNothing) return 0;
      return problem_.costs.exchange(team_traffic(space_.divisions, problem_.parts.size(), have,
                                                  need, tensor, problem_.samples,
                                                  problem_.precision));
    };
    // No member holds what it would gather, and none holds a part that no operator reads.
    const TeamExchange forward = exchange_between(from, to);
    if (parameter && (is_collective(forward) || forward == TeamExchange::kFillWithZeros)) {
      return kNeverSeconds;
    }
    double seconds = seconds_of(from, to);
    if (has_gradient(tensor)) {
      seconds += seconds_of(gradient_of(to), gradient_of(from)) /
                 (parameter ? static_cast<double>(problem_.micro_batches) : 1);
    }
    return seconds;
  }

  const TeamProblem& problem_;
  std::map<int, std::vector<OpSplit>> known_splits_;  // by number of the like
  std::unordered_map<OpId, const std::vector<OpSplit>*> splits_;
  TeamSpace space_;
  std::set<TensorId> touched_;
  std::map<std::int64_t, std::set<Bands>> bands_;        // elements of each, by the axis's
  std::map<std::tuple<int, int, int>, double> seconds_;  // by number of the like, split, division
  std::map<std::vector<std::int64_t>, std::vector<std::vector<double>>> exchanges_;  // by look
};

}  // namespace

std::vector<Division> team_divisions(const TeamProblem& problem) {
  std::set<std::int64_t> units;
  std::set<int> seen;
  for (std::size_t i = 0; i < problem.ops.size(); ++i) {
    if (!problem.alike.empty() && !seen.insert(problem.alike[i]).second) continue;
    for (const OpSplit& split : splits_of(problem.graph, problem.ops[i])) units.insert(split.units);
  }
  std::vector<Division> divisions;
  for (const std::int64_t of : units) {
    const std::optional<Division> own = divide(of, problem.parts);
    if (!own) continue;
    const double enough = kNearlyAsEven * slowdown(*own, problem.parts);
    const bool known = std::ranges::any_of(divisions, [&](const Division& division) {
      return division.divides(of) && slowdown(division, problem.parts) <= enough;
    });
    if (!known) divisions.push_back(*own);
  }
  return divisions;
}

TeamSpace team_space(const TeamProblem& problem) { return SpaceBuilder(problem).run(); }

}  // namespace agpcs
