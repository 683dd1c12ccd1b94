// SPDX-License-Identifier: Apache-2.0
// Linear: contiguous stages of the topological order on groups of devices, by dynamic programming,
// for several numbers of micro-batches M. For a chain of blocks the result is exact for its cost:
// (M + stages - 1) x the time per micro-batch of the slowest stage or cut (`LinearCosts`), with
// memory respected, over all assignments of numbers of devices of each class to consecutive stages,
// mixed groups included (`lattice_of_classes`). If the lattice had to make units of devices, it
// also tries contiguous runs of several orders of the devices. Where the cluster has memory of
// hosts for the optimizer's state, stages may have it there in a second run.
//
// Pipelines of two stages and few micro-batches are also made for what a step of theirs takes if
// nothing else waits (`two_stage_step`): by the cost above, a short stage beside a long one is far
// worse than two equal ones, and yet its passes fit beside the long one's second forward pass. They
// are not among the seeds, since a search that begins from other seeds ends elsewhere.
//
// Long graphs are cut only at the cheapest place of each of at most 96 (48 with more than 16
// devices) equal parts of the FLOPs, or of twice as many parts as there must be stages. Orders of
// more devices than 32, and than there must be stages, are divided into that many runs.
#include "ir/base/at.h"
#include "planner/evaluate/evaluator.h"
#include "planner/problem/micro_batches.h"
#include "planner/seed/candidates.h"
#include "planner/seed/chain_partition.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/linear_costs.h"
#include "planner/seed/seeder.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

constexpr std::size_t kMostLatticeGroups = 1200;
constexpr int kMostUnits = 32;
constexpr int kUsualStages = 8;
constexpr int kMostStages = 128;
constexpr std::size_t kLinearKept = 8;
/// How much slower than the best plan so far a plan with other micro-batches or groups may be. The
/// rough cost, which compares them later, is more exact.
constexpr double kSlack = 1.15;
/// The part of a device's memory that stages may fill. It is less after a plan turned out to lack
/// memory, of which the program knows too little.
constexpr double kPartsOfMemory[] = {1, 0.85, 0.7, 0.5};

/// The most micro-batches of pipelines of two stages that are costed exactly: with more, what the
/// slower stage takes is nearly all.
constexpr std::int64_t kFewMicroBatches = 8;

int usual_pieces(const Problem& problem) { return problem.cluster.device_count() > 16 ? 48 : 96; }

/// Returns numbers of micro-batches up to eight times the devices or sixteen times the stages, each
/// about twice the last.
std::vector<std::int64_t> counts_to_try(const Problem& problem, int most_stages) {
  if (problem.options.micro_batches > 0) return {problem.options.micro_batches};
  const std::int64_t most =
      std::min<std::int64_t>(8 * problem.cluster.device_count(), 16 * most_stages);
  std::vector<std::int64_t> counts;
  for (const std::int64_t count : micro_batch_numbers(problem.training.batch)) {
    if (count > most) break;
    if (counts.empty() || count >= 2 * counts.back()) counts.push_back(count);
  }
  return counts;
}

Partition partition_of(const ChainPlan& plan, const std::vector<int>& bounds,
                       const DeviceLattice& lattice) {
  Partition partition;
  partition.groups = lattice.devices_of(plan.stages);
  partition.stage_of_block.assign(at(bounds.back()), 0);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    std::fill(partition.stage_of_block.begin() + bounds[at(plan.stages[s].first_piece)],
              partition.stage_of_block.begin() + bounds[at(plan.stages[s].end_piece)],
              static_cast<int>(s));
  }
  return partition;
}

class LinearSeeder : public Seeder {
 public:
  std::string_view name() const override { return "linear"; }

  Result<std::vector<Strategy>> seed(const Problem& problem, Rng) const override {
    const PieceSums whole(problem, {0, problem.blocks.size()});
    const int stages = most_stages(problem, whole);
    const int pieces = std::max(usual_pieces(problem), 2 * stages);
    const PieceSums sums(problem, piece_bounds(problem.blocks, pieces));
    RoughModel model(problem);
    Evaluator evaluator(problem);
    std::vector<Candidate> candidates;
    bool exact = false;
    double best_step = std::numeric_limits<double>::infinity();
    if (const auto lattice = lattice_of_classes(problem.cluster, kMostLatticeGroups, exact)) {
      add_plans(sums, *lattice, stages, model, evaluator, best_step, candidates);
    }
    if (exact) return thin_out(model, evaluator, std::move(candidates), kLinearKept);
    for (const std::vector<DeviceId>& order : device_orders(problem.cluster)) {
      const DeviceLattice lattice =
          lattice_of_runs(problem.cluster, order, std::max(kMostUnits, stages));
      add_plans(sums, lattice, stages, model, evaluator, best_step, candidates);
    }
    if (unwanted()) return std::vector<Strategy>();
    return thin_out(model, evaluator, std::move(candidates), kLinearKept);
  }

 private:
  /// Returns twice as many stages as it takes to hold parameters and optimizer state; at least
  /// kUsualStages.
  static int most_stages(const Problem& problem, const PieceSums& whole) {
    std::int64_t memory = 1;
    for (const Device& device : problem.cluster.devices) {
      memory = std::max(memory, problem.cluster.kinds[at(device.kind)].memory_bytes);
    }
    const double least = whole.resident_bytes() / static_cast<double>(memory);
    return std::max(kUsualStages, static_cast<int>(std::min<double>(2 * least + 1, kMostStages)));
  }

  void add_plans(const PieceSums& sums, const DeviceLattice& lattice, int most_stages,
                 RoughModel& model, Evaluator& evaluator, double& best_step,
                 std::vector<Candidate>& candidates) const {
    const Problem& problem = model.problem();
    LinearCosts costs(sums, lattice, model);
    ChainProblem linear;
    linear.pieces = sums.pieces();
    linear.states = lattice.states;
    linear.groups = lattice.groups;
    linear.most_stages = most_stages;
    linear.within = 1.1;
    linear.stage_seconds = [&](int i, int j, int group, int later, double most) {
      return costs.stage_seconds(i, j, group, later, most);
    };
    linear.cut_seconds = [&](int i, int exit, int entry) {
      return costs.cut_seconds(i, exit, entry);
    };
    linear.least_before = [&](int i, int state) { return costs.least_before(i, state); };
    for (const std::int64_t count : counts_to_try(problem, most_stages)) {
      std::vector<std::pair<Partition, bool>> known;  // and whether their pipelines fit
      for (int offload = 0; offload <= (may_use_hosts(problem) ? 1 : 0); ++offload) {
        for (const double part_of_memory : kPartsOfMemory) {
          if (unwanted()) return;
          costs.set(count, part_of_memory, offload == 1);
          linear.fill = static_cast<double>(count - 1);
          linear.best_step = kSlack * best_step;
          bool fits = true;
          for (const ChainPlan& plan : best_two(partition_chain(linear), linear.fill)) {
            Partition partition = partition_of(plan, sums.bounds(), lattice);
            const auto found = std::find_if(known.begin(), known.end(), [&](const auto& other) {
              return other.first == partition;
            });
            const bool is_new = offload == 0 || found == known.end();
            const bool own = is_new ? add_pipelines(partition, count, model, evaluator, candidates)
                                    : found->second;
            if (is_new) known.emplace_back(std::move(partition), own);
            fits = fits && own;
            if (!fits) continue;
            const auto stages = static_cast<double>(plan.stages.size());
            best_step = std::min(best_step, (linear.fill + stages) * plan.seconds);
          }
          if (fits) break;
        }
      }
    }
  }

  /// Adds the pipelines of a partition. Returns whether all fit, with help where they need it.
  static bool add_pipelines(const Partition& partition, std::int64_t count, RoughModel& model,
                            Evaluator& evaluator, std::vector<Candidate>& candidates) {
    bool fits = true;
    for (Candidate& candidate : pipelines(model, partition, {count})) {
      Strategy helped = candidate.strategy;
      fits = fits && (evaluator.lacking(helped) <= 0 ||
                      fit_memory(model.problem(), evaluator, helped, StateLevel::kOptimizer));
      candidates.push_back(std::move(candidate));
    }
    return fits;
  }

  /// Returns the plans with the two best numbers of stages.
  static std::vector<ChainPlan> best_two(std::vector<ChainPlan> plans, double fill) {
    const auto step = [&](const ChainPlan& plan) {
      return plan.seconds * (fill + static_cast<double>(plan.stages.size()));
    };
    std::stable_sort(plans.begin(), plans.end(),
                     [&](const ChainPlan& a, const ChainPlan& b) { return step(a) < step(b); });
    if (plans.size() > 2) plans.resize(2);
    return plans;
  }
};

/// A pipeline of two stages and what a step of it takes.
struct TwoStages {
  double seconds = 0;
  int cut = 0, first = 0, second = 0;  // the piece after the first stage; groups
};

/// Returns what a step of two stages takes by 1F1B: either the first one is busy from its first
/// micro-batch to its last, but for what the second one and the messages `sent` take beyond its
/// second forward pass, or the second one is, from its first micro-batch to its last.
double two_stage_step(double first, double second, double sent, std::int64_t micro_batches) {
  constexpr double kForward = 1.0 / 3;  // of both passes
  const auto all = static_cast<double>(micro_batches);
  const double waits = std::max(0.0, second + sent - kForward * first);
  return std::max(all * first + waits, first + sent + all * second);
}

/// Returns the `most` fastest pipelines of two stages on groups of the lattice, fastest first.
/// Cost: O(pieces x (groups + pairs of groups that follow one another)).
std::vector<TwoStages> best_of_two_stages(const PieceSums& sums, const DeviceLattice& lattice,
                                          const LinearCosts& costs, std::int64_t micro_batches,
                                          std::size_t most) {
  std::vector<std::vector<int>> from(at(lattice.states));
  std::vector<bool> follows(at(lattice.states));  // the groups from there follow others
  for (std::size_t group = 0; group < lattice.groups.size(); ++group) {
    from[at(lattice.groups[group].from)].push_back(static_cast<int>(group));
    follows[at(lattice.groups[group].to)] = true;
  }
  const auto faster = [](const TwoStages& a, const TwoStages& b) { return a.seconds < b.seconds; };
  std::vector<TwoStages> best;
  std::vector<double> second(lattice.groups.size());
  for (int cut = 1; cut < sums.pieces(); ++cut) {
    for (std::size_t group = 0; group < second.size(); ++group) {
      if (!follows[at(lattice.groups[group].from)]) continue;
      second[group] = costs.stage_seconds(cut, sums.pieces(), static_cast<int>(group), 0);
    }
    for (std::size_t group = 0; group < lattice.groups.size(); ++group) {
      const ChainGroup& of = lattice.groups[group];
      if (from[at(of.to)].empty()) continue;
      const double first = costs.stage_seconds(0, cut, static_cast<int>(group), 1);
      for (const int next : from[at(of.to)]) {
        const double sent = costs.cut_seconds(cut, of.exit, lattice.groups[at(next)].entry);
        const double seconds = two_stage_step(first, second[at(next)], sent, micro_batches);
        if (seconds == std::numeric_limits<double>::infinity()) continue;
        if (best.size() == most && seconds >= best.back().seconds) continue;
        const auto like = [&](const TwoStages& known) {  // groups that look alike
          return known.cut == cut && known.seconds == seconds;
        };
        if (std::ranges::any_of(best, like)) continue;
        const TwoStages found = {seconds, cut, static_cast<int>(group), next};
        best.insert(std::ranges::upper_bound(best, found, faster), found);
        if (best.size() > most) best.pop_back();
      }
    }
  }
  return best;
}

}  // namespace

Result<std::vector<Strategy>> pipelines_of_two_stages(const Problem& problem,
                                                      Evaluator& evaluator) {
  bool exact = false;
  const auto lattice = lattice_of_classes(problem.cluster, kMostLatticeGroups, exact);
  if (!lattice || problem.blocks.size() < 2) return std::vector<Strategy>();
  const PieceSums sums(problem, piece_bounds(problem.blocks, usual_pieces(problem)));
  RoughModel model(problem);
  LinearCosts costs(sums, *lattice, model);
  std::vector<Candidate> candidates;
  for (const std::int64_t count : counts_to_try(problem, 1)) {
    if (count < 2 || count > kFewMicroBatches) continue;
    costs.set(count, 1);
    for (const TwoStages& of : best_of_two_stages(sums, *lattice, costs, count, kLinearKept)) {
      const ChainPlan plan = {of.seconds,
                              {{0, of.cut, of.first}, {of.cut, sums.pieces(), of.second}}};
      std::ranges::move(pipelines(model, partition_of(plan, sums.bounds(), *lattice), {count}),
                        std::back_inserter(candidates));
    }
  }
  if (candidates.empty()) return std::vector<Strategy>();
  return thin_out(model, evaluator, std::move(candidates), kLinearKept);
}

std::unique_ptr<Seeder> make_linear_seeder() { return std::make_unique<LinearSeeder>(); }

}  // namespace agpcs
