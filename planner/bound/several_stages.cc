// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/plan_graph.h"
#include "ir/strategy/weight_pass.h"
#include "planner/bound/places.h"
#include "planner/bound/prices.h"
#include "planner/bound/sweep.h"
#include "planner/bound/ways.h"
#include "planner/bound/wires.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// What the search for prices may take, in sums.
constexpr double kPriceWork = 4e8;
/// Combinations of places that a sweep keeps, while prices are sought and with those that are
/// found; fewer if there are many operators, so that a sweep computes some ten million prices at
/// most.
constexpr double kFewEntries = 1024, kManyEntries = 4096, kFewestEntries = 64, kMostPrices = 1e7;

double most_entries(const Problem& problem, double most) {
  return std::clamp(kMostPrices / static_cast<double>(problem.graph.ops.size()), kFewestEntries,
                    most);
}

/// What holds of the passes of an operator, and of all that have larger forward passes, on every
/// device: the least parts of its seconds that are the forward pass, and that are the forward and
/// the input pass. `most_seconds` is the operator's alone, of a pass there and back.
struct PassParts {
  double forward = 1, not_put_off = 1, most_seconds = 0;
};

class SeveralStages {
 public:
  explicit SeveralStages(const BoundFacts& facts)
      : facts_(facts),
        graph_(facts.problem.graph),
        costs_(facts.costs),
        places_(bound_places(facts.problem.cluster)),
        crossing_(can_cross(graph_)),
        rows_(facts.problem, places_, crossing_, most_entries(facts.problem, kManyEntries)),
        parts_(facts.problem.options.part_backward && has_weight_passes()) {}

  /// The work falls with fewer micro-batches. So once it alone is no better than what was found,
  /// more micro-batches are no better either.
  SeveralStagesLimits run(double enough) {
    Limit best, interleaved;
    find_beside();
    set_floors(facts_.largest);
    find_prices();
    if (parts_) find_pass_parts();
    const double report = 2 * least_latency(facts_.problem.cluster);
    for (const std::int64_t number : facts_.numbers) {
      set_floors(largest_micro_batch(facts_.batch, number));
      const double computing = rows_.price(prices_, seconds_);
      Limit limit{computing + price_updates(), "work"};
      if (limit.seconds >= std::min(best.seconds, enough)) break;
      raise(limit, computing + report, "report");
      raise(limit, longest_path(facts_.batch / number), "latency");
      lower(interleaved, limit);
      raise(limit, with_waiting(computing, number), "pipeline");
      lower(best, limit);
    }
    const double heaviest = heaviest_operator();
    raise(best, heaviest, "granularity");
    raise(interleaved, heaviest, "granularity");
    return {best, interleaved};
  }

 private:
  bool has_weight_passes() const {
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      if (weight_part(graph_, op) > 0) return true;
    }
    return false;
  }

  /// Sets floors: every sample of every operator is computed on some device. There it takes at
  /// least the least seconds a sample among passes of up to `most` samples, a micro-batch.
  void set_floors(std::int64_t most) {
    floors_.clear();
    seconds_.clear();
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      for (const BoundPlace& place : places_.places) {
        floors_.push_back(costs_.floor(place.kind, op, most));
        seconds_.push_back(static_cast<double>(facts_.batch) *
                           floors_.back().least_per_sample.sum());
      }
    }
  }

  /// Finds prices. The search for them begins where all places are paid alike for all of the work.
  void find_prices() {
    const std::size_t count = places_.places.size();
    std::vector<double> money(places_.resources()), totals(count);
    for (std::size_t i = 0; i < seconds_.size(); ++i) totals[i % count] += seconds_[i];
    double sum = 0;
    for (std::size_t p = 0; p < count; ++p) {
      sum += money[p] = places_.places[p].devices / std::max(totals[p], 1e-100);
    }
    for (double& m : money) m /= sum;
    const RowSweep rows(facts_.problem, places_, crossing_,
                        most_entries(facts_.problem, kFewEntries));
    const double work = rows.work() * static_cast<double>(places_.resources());
    const int calls = static_cast<int>(std::clamp(kPriceWork / work, 5.0, 200.0));
    money = best_money(std::move(money), calls, [&](const std::vector<double>& now) {
      return rows.cost(bound_prices(places_, now), seconds_).load;
    });
    prices_ = bound_prices(places_, std::move(money));
  }

  /// Sets `pass_parts_`. `not_put_off` is first that of the operator itself.
  void find_pass_parts() {
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      PassParts parts;
      for (const int kind : facts_.kinds) {
        const OpRange own = costs_.range(kind, op, facts_.largest);
        parts.forward = std::min(parts.forward, own.forward_part);
        parts.most_seconds = std::max(parts.most_seconds, own.most_seconds);
      }
      parts.not_put_off = 1 - weight_part(graph_, op) * (1 - parts.forward);
      pass_parts_.push_back(parts);
    }
    std::sort(pass_parts_.begin(), pass_parts_.end(),
              [](const PassParts& a, const PassParts& b) { return a.forward < b.forward; });
    double least = 1;
    for (std::size_t i = pass_parts_.size(); i-- > 0;) {
      least = pass_parts_[i].not_put_off = std::min(least, pass_parts_[i].not_put_off);
    }
  }

  /// Sets `beside_`: which operators are not in the largest set that is joined by tensors that
  /// cannot be cut, or that are rows with gradients. Wherever that set is cut, the samples of two
  /// stages meet. Beside it are masks and the like.
  void find_beside() {
    std::vector<OpId> root(graph_.ops.size());
    std::iota(root.begin(), root.end(), 0);
    const auto find = [&](OpId op) {
      while (root[at(op)] != op) op = root[at(op)] = root[at(root[at(op)])];
      return op;
    };
    for (OpId op = 0; op < static_cast<OpId>(root.size()); ++op) {
      for (const TensorId id : graph_.op(op).outputs) {
        if (id == kNone) continue;
        const Tensor& tensor = graph_.tensor(id);
        const bool rows = depends_on_batch(tensor.shape) && tensor.needs_gradient;
        if (crossing_[at(id)] && !rows) continue;
        for (const OpId reader : tensor.consumers) root[at(find(op))] = find(reader);
      }
    }
    std::vector<int> sizes(root.size());
    for (OpId op = 0; op < static_cast<OpId>(root.size()); ++op) ++sizes[at(find(op))];
    const auto largest =
        static_cast<OpId>(std::max_element(sizes.begin(), sizes.end()) - sizes.begin());
    for (OpId op = 0; op < static_cast<OpId>(root.size()); ++op) {
      beside_.push_back(find(op) != largest);
    }
  }

  /// Bounds the step by what the work costs, `computing`, and by what some device wastes while it
  /// waits.
  ///
  /// Let samples go from device e to device d of a later stage, and their gradients back. Then d
  /// waits for the first pass of e, and ends before the last pass of e begins. With m micro-batches
  /// of equal size these two take at least 1 / m of what e computes. So d is idle for (T - idle
  /// time of e) / m of the step T, and both idle times, priced, are at least the lesser of price(d)
  /// T / m and price(e) T. If sizes are unequal, e may have no sample of the last micro-batch, and
  /// nothing is said.
  ///
  /// Of interleaved stages this does not hold: a pass of e is one of all its stages then, and the
  /// first of them may be as short as an operator.
  ///
  /// If no samples meet so, a stage has none but operators beside the joined ones, and a device
  /// that computes no more than all samples of these (twice, as it may recompute) is idle
  /// otherwise.
  double with_waiting(double computing, std::int64_t number) const {
    if (facts_.batch % number != 0) return computing;
    const double cheapest = *std::min_element(prices_.device.begin(), prices_.device.end());
    const double meeting = parts_ ? with_first_passes(computing, cheapest, number)
                                  : computing / (1 - cheapest / static_cast<double>(number));
    if (std::none_of(beside_.begin(), beside_.end(), [](bool beside) { return beside; })) {
      return meeting;
    }
    const bool measured = !facts_.problem.cluster.profiles.empty();
    if (measured) return computing;
    const double alone = (computing - cheapest * most_beside(number)) / (1 - cheapest);
    return std::max(computing, std::min(meeting, alone));
  }

  /// Does so for samples that meet where backward passes may be parted. Then d may compute weight
  /// passes to the end, but it still waits for the first forward pass of e, and e for the first
  /// forward and input pass of d. Some operators may have small such passes. What a device computes
  /// of these is no more than all their samples, `others`, so the idle part is one of T - others,
  /// whichever operators these are.
  double with_first_passes(double computing, double cheapest, std::int64_t number) const {
    double best = computing, others = 0;
    for (const PassParts& parts : pass_parts_) {
      const double idle = cheapest * least_idle(parts, static_cast<double>(number));
      best = std::max(best, (computing - idle * others) / (1 - idle));
      others += parts.most_seconds * static_cast<double>(number);
    }
    return best;
  }

  /// Returns the least part of the step that e and d are idle together. Let them be idle for x and
  /// y of it, f be the least part of forward passes, and g that of forward and input passes.
  /// - d waits for the first of e's m forward passes: y >= f (1 - x) / m.
  /// - The first input pass of e comes after its first forward pass F and those of d. Before it, e
  ///   has nothing to compute but m forward passes: x >= F + g (1 - y) / m - m F, and y >= F.
  /// Without F, the second says x + (m - 1) y >= g (1 - y) / m. If m = 1, both together say what is
  /// returned; else the least x + y is at x = 0.
  static double least_idle(const PassParts& parts, double m) {
    const double f = parts.forward, g = parts.not_put_off;
    if (m > 1) return std::max(f / m, g / (m * (m - 1) + g));
    return f < 1 ? (g * (1 - f) + f * (1 - g)) / (1 - f * g) : 1;
  }

  /// Returns the most seconds that a device computes operators beside the joined ones.
  double most_beside(std::int64_t number) const {
    double most = 0;
    for (const int kind : facts_.kinds) {
      double seconds = 0;
      for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
        if (!beside_[at(op)]) continue;
        const std::int64_t samples = largest_micro_batch(facts_.batch, number);
        seconds += 2 * costs_.seconds(kind, op, samples).sum() * static_cast<double>(number);
      }
      most = std::max(most, seconds);
    }
    return most;
  }

  /// Prices the updates: for every parameter, at least one device zeroes the gradient and makes the
  /// update. Devices that divide its state make it in parts. A part takes a beginning, then seconds
  /// in proportion, which is concave, so nothing costs less than the whole on the best device.
  /// These are further items of the work, at the same prices.
  double price_updates() const {
    double total = 0;
    for (const GradientSize& gradient : facts_.gradients) {
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t p = 0; p < places_.places.size(); ++p) {
        const int kind = places_.places[p].kind;
        const double seconds = costs_.begin_seconds(kind, gradient.elements) +
                               costs_.update_seconds(kind, gradient.elements, 1);
        least = std::min(least, prices_.device[p] * seconds);
      }
      total += least;
    }
    return total;
  }

  /// Bounds a pass of an operator on a micro-batch of `samples` samples, on average over the
  /// samples. The replica that has n of them takes a + b n or more, so the average is at least the
  /// least a (+ b, as n >= 1), and sum n (a + b n) / samples >= a + samples / sum(1 / b) (Cauchy,
  /// Schwarz).
  double pass(OpId op, std::int64_t samples, double OpSeconds::*which) const {
    constexpr double kForever = std::numeric_limits<double>::infinity();
    double one = kForever, fixed = kForever, speed = 0;
    for (std::size_t p = 0; p < places_.places.size(); ++p) {
      const OpFloor& floor = floors_[at(op) * places_.places.size() + p];
      const double a = floor.fixed.*which, b = floor.per_sample.*which;
      one = std::min(one, a + b);
      fixed = std::min(fixed, a);
      speed += b > 0 ? places_.places[p].devices / b : kForever;
    }
    return std::max(one, fixed + static_cast<double>(samples) / speed);
  }

  /// Bounds the latency. A sample's rows go forward along a path, operator after operator: those of
  /// a stage run one after another, and a stage waits for the replica that has the row. The
  /// sample's gradients go back along another path that starts where the first ends. Where backward
  /// passes may be parted, that is without weight passes, but for that of the operator at which the
  /// path ends: it comes after the input pass of its stage. The averages of a path's operators over
  /// the samples add up, and some sample takes no less than the average.
  double longest_path(std::int64_t samples) const {
    std::vector<double> there(graph_.ops.size()), back(graph_.ops.size());
    double longest = 0;
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      for (const TensorId id : graph_.op(op).inputs) {
        if (id == kNone || graph_.tensor(id).producer == kNone) continue;
        const Tensor& tensor = graph_.tensor(id);
        const bool follows = !crossing_[at(id)] || depends_on_batch(tensor.shape);
        if (!follows) continue;
        there[at(op)] = std::max(there[at(op)], there[at(tensor.producer)]);
        if (!tensor.needs_gradient && crossing_[at(id)]) continue;
        back[at(op)] = std::max(back[at(op)], back[at(tensor.producer)]);
      }
      there[at(op)] += pass(op, samples, &OpSeconds::forward);
      const double backward = pass(op, samples, &OpSeconds::backward);
      const double put_off = parts_ ? weight_part(graph_, op) * backward : 0;
      back[at(op)] = std::max(back[at(op)], put_off) + (backward - put_off);
      longest = std::max(longest, there[at(op)] + back[at(op)]);
    }
    return longest;
  }

  /// Bounds the granularity: an operator belongs to one stage, whose devices share whole samples.
  double heaviest_operator() {
    OpId heaviest = 0;
    double most = -1;
    set_floors(facts_.largest);
    for (OpId op = 0; op < static_cast<OpId>(graph_.ops.size()); ++op) {
      const double seconds = seconds_[at(op) * places_.places.size()];
      if (seconds > most) heaviest = op;
      most = std::max(most, seconds);
    }
    const Cluster& cluster = facts_.problem.cluster;
    return least_time(facts_, count_devices(cluster, 0, cluster.device_count()),
                      std::numeric_limits<double>::infinity(), [&](int kind, std::int64_t n) {
                        return costs_.least_seconds(kind, heaviest, n, facts_.largest).sum() *
                               static_cast<double>(facts_.numbers.front());
                      });
  }

  const BoundFacts& facts_;
  const Graph& graph_;
  const CostTable& costs_;
  const BoundPlaces places_;
  const std::vector<bool> crossing_;
  const RowSweep rows_;
  const bool parts_;          // backward passes may be parted, and there is something to put off
  std::vector<bool> beside_;  // by operator
  BoundPrices prices_;
  std::vector<PassParts> pass_parts_;  // the least forward passes first; empty: none are parted
  std::vector<OpFloor> floors_;        // by operator, then place
  std::vector<double> seconds_;        // of all samples, by operator, then place
};

}  // namespace

SeveralStagesLimits several_stages_limits(const BoundFacts& facts, double enough) {
  const Problem& problem = facts.problem;
  if (problem.cluster.device_count() < 2 || problem.graph.ops.size() < 2) return {};
  return SeveralStages(facts).run(enough);
}

}  // namespace agpcs
