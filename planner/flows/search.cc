// SPDX-License-Identifier: Apache-2.0
// The search: proves a bound first, then makes schedules that take no time, then packs towards the
// bound.
#include "planner/flows/bound.h"
#include "planner/flows/greedy.h"
#include "planner/flows/hops.h"
#include "planner/flows/list_schedule.h"
#include "planner/flows/methods.h"
#include "planner/flows/packing.h"
#include "planner/flows/rings/groups.h"
#include "planner/flows/rings/pendants.h"
#include "planner/flows/rings/rings.h"
#include "planner/flows/spread.h"
#include "planner/flows/trees/balanced_forest.h"
#include "planner/flows/trees/forests.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kRingTries = 8, kQuickRingTries = 1;  // the latter without effort
constexpr int kMostPacked = 128;                    // most servers for which it packs
constexpr int kMostCut = 400;                       // most servers for which greedy cuts chunks
// The work of one attempt (FlowPacking::work): for each workload, and the most in all.
constexpr std::int64_t kPackingWork = 200'000, kMostPackingWork = 400'000'000;
constexpr int kPatience = 8;          // an attempt ends after 1 / this of its work without progress
constexpr int kQuickPart = 32;        // first attempts take 1 / this of the work
constexpr double kNear = 1.01;        // times the bound: good enough where packing is out of reach
constexpr int kThoroughAttempts = 3;  // numbers of rounds, and times that each is tried
constexpr int kNearHops = 16;         // hops of a server at which packing looks
constexpr int kAlternatives = 2;
constexpr int kSweeps = 24;  // of balancing trees

/// Searches for an all-gather, the fewest rounds first.
class GatherSearch {
 public:
  GatherSearch(const Topology& topology, const FlowRatio& bound, const FlowOptions& options,
               std::string_view phase)
      : topology_(topology),
        bound_(bound),
        options_(options),
        rng_(Rng(options.seed).fork("search").fork(phase)) {}

  Result<FlowSchedule> run() {
    try_rings();
    try_groups();
    AGPCS_RETURN_IF_ERROR(try_greedy());
    if (topology_.servers <= kMostPacked) pack();
    return std::move(*best_);
  }

 private:
  /// Returns the rounds of whole chunks that no schedule of at most K sub-chunks beats.
  double goal() const {
    double least = rounds(1, bound_.sub_rounds(1));
    for (int k = 2; k <= options_.max_sub_chunks; ++k) {
      least = std::min(least, rounds(k, bound_.sub_rounds(k)));
    }
    return least;
  }
  static double rounds(int sub_chunks, std::int64_t sub_rounds) {
    return static_cast<double>(sub_rounds) / sub_chunks;
  }
  double best_rounds() const { return rounds(best_->sub_chunks, best_->all_gather_rounds()); }
  bool done() const { return interrupted() || (best_ && best_rounds() <= goal()); }
  bool interrupted() const {
    return options_.interrupted != nullptr && options_.interrupted->load();
  }
  void consider(FlowSchedule schedule) {
    if (!best_ || rounds(schedule.sub_chunks, schedule.all_gather_rounds()) < best_rounds()) {
      best_ = std::move(schedule);
    }
  }

  int ring_tries() const { return options_.effort == 0 ? kQuickRingTries : kRingTries; }

  void try_rings() {
    for (int count = options_.max_sub_chunks; count >= 1 && !done(); --count) {
      if (best_ && rounds(count, topology_.servers - 1) >= best_rounds()) continue;
      if (rounds(count, topology_.servers - 1) < bound_.value()) continue;
      const std::vector<FlowRing> rings =
          find_rings(topology_, count, rng_.fork("rings"), ring_tries());
      if (!rings.empty()) consider(all_gather_along(rings));
    }
    if (best_) return;
    const std::optional<FlowForest> forest =
        ring_with_pendants(topology_, rng_.fork("pendants"), ring_tries());
    if (forest) consider(spread(topology_, *forest));
  }

  /// Tries trees that are scheduled downward only; upward ones go the same way back in time.
  void try_groups() {
    for (int k = options_.max_sub_chunks; k >= 1 && !done(); --k) {
      for (const FlowForest& forest : group_forests(topology_, k, rng_.fork("groups"))) {
        consider(spread(topology_, forest));
      }
    }
  }

  /// Tries greedy if there is nothing better. Chunks of many servers stay whole: cutting them gains
  /// little.
  Status try_greedy() {
    const int most = topology_.servers <= kMostCut ? options_.max_sub_chunks : 1;
    for (int k = 1; k <= most; ++k) {
      if (best_ && (done() || best_rounds() <= kNear * goal())) return {};
      std::optional<FlowSchedule> schedule =
          greedy_all_gather(topology_, k, 1, options_.interrupted, rng_.fork("greedy"));
      if (schedule) consider(std::move(*schedule));
    }
    if (best_) return {};
    return {StatusCode::kInfeasible,
            fmt::format("topology '{}': no hops to near servers join all {}", topology_.name,
                        topology_.servers)};
  }

  /// Attempts with little work each until one is packed, in growing steps. Then attempts fewer
  /// rounds with more work.
  void pack() {
    const std::vector<FlowRoute> hops = shortest_hops(topology_, kNearHops, kAlternatives);
    Rng rng = rng_.fork("packing");
    for (const auto& [sub_rounds, sub_chunks] : attempts(2)) {
      if (done() || rounds(sub_chunks, sub_rounds) >= best_rounds()) break;
      attempt(hops, sub_chunks, static_cast<int>(sub_rounds), kQuickPart, rng);
    }
    for (int tried = 0; const auto& [sub_rounds, sub_chunks] : attempts(0)) {
      if (done() || rounds(sub_chunks, sub_rounds) >= best_rounds()) break;
      if (options_.effort == 0 || ++tried > kThoroughAttempts) break;
      for (int again = 0; again < kThoroughAttempts; ++again) {
        if (attempt(hops, sub_chunks, static_cast<int>(sub_rounds), 1, rng)) break;
      }
    }
  }

  /// Returns the rounds and K that would be better than the best, the fewest rounds first, then the
  /// fewest sub-chunks. A step is longer than 1 by the distance to the bound / `growth`; with 0 all
  /// steps are 1.
  std::vector<std::pair<std::int64_t, int>> attempts(int growth) const {
    std::vector<std::pair<std::int64_t, int>> attempts;
    for (int k = 1; k <= options_.max_sub_chunks; ++k) {
      const std::int64_t least = bound_.sub_rounds(k);
      for (std::int64_t r = least; rounds(k, r) < best_rounds();
           r += 1 + (growth == 0 ? 0 : (r - least) / growth)) {
        attempts.emplace_back(r, k);
      }
    }
    std::stable_sort(attempts.begin(), attempts.end(), [](const auto& a, const auto& b) {
      return a.first * b.second < b.first * a.second;
    });
    return attempts;
  }

  /// Returns whether it was packed.
  bool attempt(const std::vector<FlowRoute>& hops, int sub_chunks, int sub_rounds, int part,
               Rng& rng) {
    FlowPacking packing(topology_, hops, sub_chunks, sub_rounds);
    packing.fill(rng);
    const std::int64_t workloads = std::int64_t{topology_.servers} * topology_.servers * sub_chunks;
    const std::int64_t work = std::min(kPackingWork * workloads, kMostPackingWork) / part *
                              std::max<std::int64_t>(1, options_.effort);
    std::int64_t least = packing.missing(), until = packing.work() + work / kPatience;
    while (packing.missing() > 0 && packing.work() < std::min(work, until) && !interrupted()) {
      packing.shuffle(rng);
      if (packing.missing() >= least) continue;
      least = packing.missing();
      until = packing.work() + work / kPatience;
    }
    if (packing.missing() > 0) return false;
    consider(packing.all_gather());
    return true;
  }

  const Topology& topology_;
  const FlowRatio& bound_;
  const FlowOptions& options_;
  Rng rng_;
  std::optional<FlowSchedule> best_;
};

/// Cuts every sub-chunk into `parts`, and each round into as many.
FlowSchedule cut_finer(const FlowSchedule& all_gather, int parts) {
  FlowSchedule result = {
      all_gather.servers, all_gather.sub_chunks * parts, all_gather.routes, {}, {}};
  for (const Workload& w : all_gather.all_gather) {
    for (int p = 0; p < parts; ++p) {
      result.all_gather.push_back({w.chunk * parts + p, w.route, w.round * parts + p});
    }
  }
  normalize(result);
  return result;
}

/// Returns the best schedule without a barrier: `schedule` moved together, or trees that suit both
/// phases at once.
FlowSchedule overlapped(const Topology& topology, FlowSchedule schedule,
                        const FlowOptions& options) {
  FlowSchedule best = without_barrier(topology, std::move(schedule));
  if (topology.servers > kMostPacked) return best;
  for (int k = 1; k <= options.max_sub_chunks; ++k) {
    if (options.interrupted != nullptr && options.interrupted->load()) break;
    const FlowForest forest =
        make_forest(topology, {ForestKind::kBalanced, k, options.seed, kSweeps, true}, true);
    FlowSchedule listed = list_schedule(topology, forest, false, ListOrder::kCritical,
                                        Rng(options.seed).fork("overlapped"));
    if (listed.rounds() < best.rounds()) best = std::move(listed);
  }
  return best;
}

}  // namespace

Result<FlowSchedule> schedule_search(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  const FlowBound bound = flow_bound(topology);
  const auto search = [&](const Topology& on, const FlowRatio& least, std::string_view phase) {
    return GatherSearch(on, least, options, phase).run();
  };
  AGPCS_TRY(FlowSchedule down, search(topology, bound.exact_all_gather, "all-gather"));
  FlowSchedule up;
  if (has_equal_twins(topology)) {
    up = down;
    up.routes = on_twins(std::move(up.routes));
  } else {
    AGPCS_TRY(up, search(reversed(topology), bound.exact_reduce_scatter, "reduce-scatter"));
    const int both = std::lcm(down.sub_chunks, up.sub_chunks);
    up = cut_finer(up, both / up.sub_chunks);
    down = cut_finer(down, both / down.sub_chunks);
  }
  FlowSchedule schedule = joined(mirrored(up), down);
  return options.barrier ? schedule : overlapped(topology, std::move(schedule), options);
}

}  // namespace agpcs
