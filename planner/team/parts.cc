// SPDX-License-Identifier: Apache-2.0
#include "planner/team/parts.h"

#include "ir/base/at.h"
#include "ir/graph/split/split.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

/// The whole of the parts in a climb: halves, thirds, and down to 1/32 are whole numbers.
constexpr std::int64_t kGrains = 96;
constexpr std::int64_t kSteps[] = {12, 6, 3, 1};
/// Parts that are better by less are not worth a move.
constexpr double kBetter = 1 - 1e-9;

class PartsClimb {
 public:
  PartsClimb(const TeamParts& start, const std::vector<int>& classes,
             const std::function<double(const TeamParts&)>& cost, int most)
      : classes_(classes), cost_(cost), best_(start), least_(cost(start)), left_(most) {
    sizes_.assign(at(*std::ranges::max_element(classes)) + 1, 0);
    grains_.assign(sizes_.size(), 0);
    for (const int of : classes) ++sizes_[at(of)];
    set_grains(start);
  }

  TeamParts run() {
    for (const std::int64_t step : kSteps) {
      for (bool again = true; again;) again = move_some(step);
    }
    return std::move(best_);
  }

 private:
  /// Gives each class the grains that are nearest to its members' parts, at least one.
  void set_grains(const TeamParts& parts) {
    const auto whole = static_cast<double>(std::accumulate(parts.begin(), parts.end(), 0LL));
    double until = 0;
    std::int64_t given = 0;
    const auto count = static_cast<std::int64_t>(grains_.size());
    for (std::int64_t c = 0; c < count; ++c) {
      for (std::size_t m = 0; m < parts.size(); ++m) {
        if (classes_[m] == c) until += static_cast<double>(parts[m]);
      }
      const auto end = static_cast<std::int64_t>(kGrains * until / whole + 0.5);
      grains_[static_cast<std::size_t>(c)] =
          std::clamp(end - given, std::int64_t{1}, kGrains - given - (count - 1 - c));
      given += grains_[static_cast<std::size_t>(c)];
    }
  }

  TeamParts parts_of(const std::vector<std::int64_t>& grains) const {
    std::int64_t common = 1;
    for (const std::int64_t size : sizes_) common = std::lcm(common, size);
    TeamParts parts;
    for (const int of : classes_) parts.push_back(grains[at(of)] * (common / sizes_[at(of)]));
    return in_lowest_terms(std::move(parts));
  }

  /// Moves grains from one class to another, as far as that helps; returns whether it did.
  bool move_some(std::int64_t step) {
    bool moved = false;
    for (std::size_t from = 0; from < grains_.size(); ++from) {
      for (std::size_t to = 0; to < grains_.size(); ++to) {
        while (from != to && grains_[from] > step && try_move(from, to, step)) moved = true;
      }
    }
    return moved;
  }

  bool try_move(std::size_t from, std::size_t to, std::int64_t step) {
    if (left_ == 0) return false;
    --left_;
    std::vector<std::int64_t> grains = grains_;
    grains[from] -= step;
    grains[to] += step;
    TeamParts parts = parts_of(grains);
    const double cost = cost_(parts);
    if (!(cost < least_ * kBetter)) return false;
    grains_ = std::move(grains);
    best_ = std::move(parts);
    least_ = cost;
    return true;
  }

  const std::vector<int>& classes_;
  const std::function<double(const TeamParts&)>& cost_;
  TeamParts best_;
  double least_;
  int left_;                                  // tries
  std::vector<std::int64_t> sizes_, grains_;  // by class
};

}  // namespace

TeamParts in_lowest_terms(TeamParts parts) {
  std::int64_t divisor = 0;
  for (const std::int64_t part : parts) divisor = std::gcd(divisor, part);
  for (std::int64_t& part : parts) part /= divisor;
  return parts;
}

OtherParts::OtherParts(const Graph& graph, const TeamBody& body)
    : body_(body), units_(body.divisions.size(), 0) {
  for (const TeamOp& op : body.ops) {
    if (op.division == kNone) continue;
    std::int64_t& units = units_[at(op.division)];
    if (op.bands.empty()) {
      units = std::gcd(units, splits_of(graph, op.op)[at(op.split)].units);
    }
    for (const std::int64_t band : op.bands) units = std::gcd(units, band);
  }
}

std::optional<TeamBody> OtherParts::with(const TeamParts& parts) const {
  TeamBody body = body_;
  body.parts = parts;
  for (std::size_t d = 0; d < units_.size(); ++d) {
    const std::optional<Division> division = divide(units_[d], parts);
    if (!division) return std::nullopt;
    const auto before = body.divisions.begin() + static_cast<std::ptrdiff_t>(d);
    if (std::find(body.divisions.begin(), before, *division) != before) return std::nullopt;
    body.divisions[d] = *division;
  }
  return body;
}

TeamParts climb_parts(const TeamParts& start, const std::vector<int>& classes,
                      const std::function<double(const TeamParts&)>& cost, int most) {
  return PartsClimb(start, classes, cost, most).run();
}

}  // namespace agpcs
