// SPDX-License-Identifier: Apache-2.0
// The default search of the max-load problem.
#include "ir/base/at.h"
#include "planner/refine/refiner.h"
#include "tests/bench/max_load/max_load_anneal.h"
#include "tests/bench/max_load/max_load_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

constexpr int kRounds = 24;
constexpr std::size_t kPopulation = 6;
constexpr std::int64_t kMostEvaluations = 40'000;  // of each refiner, each time
constexpr std::int64_t kWorkOfEvaluation = 4'000;  // for fewer evaluations where `work` is small

struct Placed {
  std::int64_t excess = 0, load = 0;
  std::vector<int> devices;  ///< by item

  friend bool operator<(const Placed& a, const Placed& b) {
    return std::pair(a.excess, a.load) < std::pair(b.excess, b.load);
  }
};

class Solver {
 public:
  Solver(const MaxLoadItems& items, const MaxLoadOptions& options, Rng rng)
      : items_(items),
        bound_(max_load_bound(items)),
        work_(options.work / kRounds),
        evaluations_(std::min(kMostEvaluations, options.work / kWorkOfEvaluation)),
        rng_(rng) {}

  Placed run() {
    std::vector<Placed> seeds;
    seeds.push_back(placed(best_linear_max_load(items_)));
    for (const MetisObjective objective : {MetisObjective::kCut, MetisObjective::kVolume}) {
      for (const int imbalance : {30, 150}) {
        seeds.push_back(placed(metis_max_load(items_, {rng_.next(), imbalance, objective})));
      }
    }
    std::sort(seeds.begin() + 1, seeds.end());
    best_ = std::min(seeds[0], seeds[1]);
    reduce();
    refine({std::max(seeds[0], seeds[1]).devices});
    for (int round = 0; round < kRounds && !done(); ++round) {
      add(placed(expanded(this->round(round, seeds))));
    }
    refine({});
    return best_;
  }

 private:
  Placed placed(std::vector<int> devices) const {
    const MaxLoadState state(items_, std::move(devices));
    return {state.excess(), state.max_load(), state.devices()};
  }

  bool done() const { return best_.excess == 0 && best_.load <= bound_; }

  /// By refiners, whose moves look at single items whatever is joined, from the best and `others`.
  void refine(const std::vector<std::vector<int>>& others) {
    for (const auto& make : {make_greedy_refiner, make_anneal_refiner}) {
      if (done()) return;
      std::vector<std::vector<int>> starts = {best_.devices};
      starts.insert(starts.end(), others.begin(), others.end());
      MaxLoadSearch search(items_, std::move(starts));
      SearchBudget budget(evaluations_);
      make()->refine(search, budget, Rng(rng_.next()));
      add(placed(search.state().devices()));
    }
  }

  /// Nothing that is worse than the best is looked for from here on.
  void reduce() {
    reduced_ = best_.excess > 0 ? join_inseparable(items_, INT64_MAX, group_of_)
                                : join_inseparable(items_, best_.load, group_of_);
  }

  std::vector<int> expanded(const std::vector<int>& devices) const {
    std::vector<int> result;
    for (const int group : group_of_) result.push_back(devices[at(group)]);
    return result;
  }

  std::vector<int> lifted(const std::vector<int>& devices) const {
    std::vector<int> result(reduced_.items.size());
    for (std::size_t i = 0; i < devices.size(); ++i) result[at(group_of_[i])] = devices[i];
    for (std::size_t i = 0; i < result.size(); ++i) {  // groups of which a part was elsewhere
      const MaxLoadItem& item = reduced_.items[i];
      if (result[i] == 0 ? !item.cpu : !item.accelerator) result[i] = item.accelerator ? 1 : 0;
    }
    return result;
  }

  std::vector<int> round(int round, const std::vector<Placed>& seeds) {
    AnnealOptions options{work_, 0.05, 1e-5};
    if (round < 2) {
      const Placed& seed = seeds[at(round)];
      const std::vector<int> start = lifted(seed.devices);
      options.hot = 0.02;
      return multilevel_max_load(reduced_, start, start, options, rng_);
    }
    if (population_.size() < kPopulation) {
      const std::vector<int> label(reduced_.items.size(), 0);
      return multilevel_max_load(reduced_, {}, label, options, rng_);
    }
    const std::vector<int> start = lifted(pick());
    std::vector<int> label = start;
    if (round % 3 != 0) {  // what two good ones agree on stays together
      const std::vector<int> other = lifted(pick());
      for (std::size_t i = 0; i < label.size(); ++i) label[i] += other[i] * (items_.devices + 1);
    }
    options.hot = round % 2 == 0 ? 0.03 : 0.01;
    return multilevel_max_load(reduced_, start, label, options, rng_);
  }

  /// The better of two.
  const std::vector<int>& pick() {
    const std::size_t a = rng_.below(population_.size()), b = rng_.below(population_.size());
    return population_[std::min(a, b)].devices;
  }

  void add(Placed fresh) {
    if (fresh < best_) {
      best_ = fresh;
      reduce();
    }
    const auto same = std::find_if(population_.begin(), population_.end(),
                                   [&](const Placed& p) { return !(p < fresh) && !(fresh < p); });
    if (same != population_.end() && population_.size() == kPopulation) return;
    population_.insert(std::upper_bound(population_.begin(), population_.end(), fresh), fresh);
    if (population_.size() > kPopulation) population_.pop_back();
  }

  const MaxLoadItems& items_;
  const std::int64_t bound_, work_, evaluations_;
  Rng rng_;
  Placed best_;
  std::vector<Placed> population_;  ///< the best first
  MaxLoadItems reduced_;
  std::vector<int> group_of_;  ///< of items_ in reduced_
};

}  // namespace

Result<std::vector<int>> solve_max_load(const MaxLoadProblem& problem,
                                        const MaxLoadOptions& options, Rng rng) {
  std::vector<int> item_of;
  const Result<MaxLoadItems> items = make_max_load_items(problem, item_of);
  if (!items) return items.status();
  const Placed best = Solver(items.value(), options, rng).run();
  if (best.excess > 0) {
    return Status(StatusCode::kInfeasible,
                  fmt::format("found no placement that fits: {} accelerators of {} units of memory "
                              "lack {} units; add accelerators or memory",
                              items.value().devices, items.value().capacity, best.excess));
  }
  std::vector<int> devices;
  for (const int item : item_of) devices.push_back(best.devices[at(item)]);
  return devices;
}

}  // namespace agpcs
