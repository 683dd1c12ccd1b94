// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_problem.h"

#include "ir/check.h"
#include "ir/memory.h"
#include "planner/evaluate.h"
#include "planner/evaluator.h"
#include "planner/group_gradients.h"
#include "planner/seed_pool.h"
#include "planner/seeder.h"
#include "planner/strategy_search.h"

#include <agpcs/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace agpcs {
namespace {

/// Strategies from which a search begins.
constexpr std::size_t kStarts = 6;

Result<std::vector<std::unique_ptr<Seeder>>> chosen_seeders(const PlanOptions& options) {
  std::vector<std::unique_ptr<Seeder>> result;
  if (options.layout) {
    result.push_back(make_layout_seeder(*options.layout));
    return result;
  }
  if (options.seeders.empty()) {
    for (const SeederEntry& entry : seeders()) result.push_back(entry.make());
  }
  for (const std::string& name : options.seeders) {
    AGPCS_TRY(std::unique_ptr<Seeder> seeder, make_seeder(name));
    result.push_back(std::move(seeder));
  }
  return result;
}

class Planner {
 public:
  Planner(const Problem& problem, const PlanOptions& options)
      : problem_(problem), options_(options), evaluator_(problem) {}

  Result<Planned> run() {
    AGPCS_TRY(const auto seeders, chosen_seeders(options_));
    const bool refined = options_.refiner != nullptr && !options_.layout;
    steps_ = static_cast<int>(seeders.size()) + 2 + (refined ? 1 : 0);
    Planned planned;
    AGPCS_RETURN_IF_ERROR(seed(seeders, planned));
    AGPCS_RETURN_IF_ERROR(measure_baselines(planned));
    if (pool_.empty()) return no_strategy();
    const Seed& best = pool_.best();
    planned.refinement.name = "none";
    if (best.score.fits()) planned.refinement.start_seconds = best.score.step_seconds;
    Seed chosen = best;
    if (refined) chosen = {refine(planned.refinement), {}, best.seeder};
    chosen = with_all_reduces(std::move(chosen));
    return finish(std::move(chosen.strategy), chosen.seeder, std::move(planned));
  }

  /// Runs `seeders`; fills the pool.
  Status seed(const std::vector<std::unique_ptr<Seeder>>& seeders, Planned& planned) {
    if (!options_.starts.empty()) {
      AGPCS_TRY(Attempt attempt, try_all("running", options_.starts, &known_));
      for (const Seed& start : known_.all()) pool_.add(start);
      planned.seeders.push_back(std::move(attempt));
    }
    const Rng rng = Rng(options_.seed).fork("seed");
    for (const std::unique_ptr<Seeder>& seeder : seeders) {
      if (interrupted() && !known_.empty()) return {};
      report(seeder->name());
      AGPCS_TRY(std::vector<Strategy> strategies, seeder->seed(problem_, rng.fork(seeder->name())));
      AGPCS_TRY(Attempt attempt, try_all(std::string(seeder->name()), std::move(strategies), &pool_,
                                         seeder->as_it_is()));
      planned.seeders.push_back(std::move(attempt));
    }
    return {};
  }

  const SeedPool& pool() const { return pool_; }

 private:
  void report(std::string_view what) {
    if (options_.progress) options_.progress(what, ++step_, steps_);
  }

  /// Evaluates `strategies`, which go to `pool`.
  Result<Attempt> try_all(const std::string& name, std::vector<Strategy> strategies, SeedPool* pool,
                          bool as_it_is = false) {
    Attempt attempt;
    attempt.name = name;
    attempt.candidates = static_cast<int>(strategies.size());
    if (strategies.empty()) attempt.why_not = "no such strategy for this model and cluster";
    std::optional<Strategy> nearest;
    std::int64_t least = 0;
    for (Strategy& strategy : strategies) {
      if (kVerifyEveryCandidate) {
        AGPCS_RETURN_IF_ERROR(
            verify_strategy(strategy, problem_.graph, problem_.cluster, problem_.training.batch));
      }
      const Score score = evaluator_.evaluate(strategy);
      if (score.fits()) {
        ++attempt.feasible;
        attempt.step_seconds =
            std::min(score.step_seconds, attempt.step_seconds.value_or(score.step_seconds));
      } else if (!nearest || score.lacking < least) {
        nearest = strategy;
        least = score.lacking;
      }
      if (pool != nullptr) pool->add({std::move(strategy), score, name, as_it_is});
    }
    if (!attempt.step_seconds && nearest) {
      attempt.why_not = evaluate(problem_, std::move(*nearest), {}).status().message();
    }
    return attempt;
  }

  Status measure_baselines(Planned& planned) {
    report("baseline data_parallel");
    AGPCS_TRY(Strategy plain, plain_data_parallelism(problem_));
    AGPCS_TRY(Attempt attempt, try_all("data_parallel", {std::move(plain)}, nullptr));
    planned.baselines.push_back(std::move(attempt));
    report("baseline degree");
    const Rng rng = Rng(options_.seed).fork("seed").fork("degree");
    AGPCS_TRY(std::vector<Strategy> strategies, make_degree_seeder()->seed(problem_, rng));
    for (Strategy& strategy : strategies) {
      strategy = group_gradients(problem_, std::move(strategy), kHorovodFusionBytes);
    }
    AGPCS_TRY(Attempt degree, try_all("degree", std::move(strategies), nullptr));
    planned.baselines.push_back(std::move(degree));
    return {};
  }

  bool interrupted() const {
    return options_.interrupted != nullptr && options_.interrupted->load();
  }

  /// The best of all, and the best of the known ones where that is not the same.
  std::vector<Strategy> starts_of_search() const {
    std::vector<Strategy> starts = pool_.starts(kStarts);
    if (known_.empty() || !known_.best().score.fits()) return starts;
    const Strategy& known = known_.best().strategy;
    if (std::find(starts.begin(), starts.end(), known) == starts.end()) starts.push_back(known);
    return starts;
  }

  Strategy refine(Refinement& refinement) {
    report(options_.refiner->name());
    std::vector<Strategy> starts = starts_of_search();
    const double reference = evaluator_.evaluate(starts.front()).step_seconds;
    refinement.name = options_.refiner->name();
    refinement.budget =
        options_.budget > 0 ? options_.budget : default_budget(problem_, starts.front());
    SearchBudget budget(refinement.budget, options_.interrupted,
                        [&](std::int64_t made, std::int64_t of, double best) {
                          if (options_.search_progress && best < kBroken) {
                            options_.search_progress(made, of, best * reference);
                          }
                        });
    const auto search = make_strategy_search(problem_, std::move(starts), options_.threads);
    options_.refiner->refine(*search, budget, Rng(options_.seed).fork("refine"));
    refinement.evaluations = budget.made();
    refinement.interrupted = budget.interrupted() && budget.made() < budget.of();
    refinement.log = budget.take_log();
    return search->strategy();
  }

  /// `chosen`, or a seed that is better once flows serve its buckets: searches do not see flows,
  /// and leave devices out that only a flow reaches well.
  Seed with_all_reduces(Seed chosen) {
    FlowChoiceOptions options = {options_.all_reduce, options_.seed, options_.interrupted};
    const bool flows =
        options.choice == AllReduceChoice::kAuto || options.choice == AllReduceChoice::kFlow;
    std::vector<Seed> others;
    if (flows && !options_.layout) others = pool_.bests(kStarts);
    KnownFlows known;
    const auto choose = [&](Seed& seed, KnownFlows& made) {
      if (seed.as_it_is && options.choice == AllReduceChoice::kAuto) return;
      seed.strategy = choose_flows(problem_, evaluator_, std::move(seed.strategy), options, made);
    };
    choose(chosen, known);
    chosen.score = evaluator_.evaluate(chosen.strategy);
    for (Seed& other : others) {
      choose(other, known);
      if (other.strategy.flows.empty()) continue;
      other.score = evaluator_.evaluate(other.strategy);
      if (is_better(other.score, chosen.score)) chosen = std::move(other);
    }
    if (chosen.strategy.flows.empty()) return chosen;
    options.effort = 1;  // where flows win they are worth a search
    KnownFlows better;
    choose(chosen, better);
    return chosen;
  }

  Result<Planned> finish(Strategy strategy, const std::string& seeder, Planned planned) {
    const Refinement& refinement = planned.refinement;
    const MadeBy made_by = {std::string(version()), options_.seed,          seeder,
                            refinement.name,        refinement.evaluations, refinement.interrupted};
    AGPCS_TRY(planned.best, evaluate(problem_, std::move(strategy), made_by));
    planned.bound = lower_bound(problem_);
    planned.best.plan.expect = expectations(planned.best.plan, planned.best.estimate);
    AGPCS_RETURN_IF_ERROR(verify_plan_against(planned.best.plan, problem_.graph, problem_.cluster));
    return planned;
  }

  Status no_strategy() const {
    if (options_.layout) {
      return {StatusCode::kInfeasible,
              "the model cannot be laid out like that\n"
              "  hint: every stage needs a block of operators, every device a sample of each "
              "micro-batch; try fewer stages, fewer micro-batches or a larger batch"};
    }
    return {StatusCode::kInfeasible,
            "the chosen seeders have no strategy for this model and cluster\n"
            "  hint: pipelines need two devices and a graph that can be cut; try seeder "
            "data_parallel"};
  }

  const Problem& problem_;
  const PlanOptions& options_;
  Evaluator evaluator_;
  SeedPool pool_, known_;  // of all; of PlanOptions::starts
  int step_ = 0, steps_ = 0;
};

}  // namespace

Result<Planned> plan_problem(const Problem& problem, const PlanOptions& options) {
  return Planner(problem, options).run();
}

Result<std::vector<Strategy>> seed_strategies(const Problem& problem, std::uint64_t seed,
                                              std::size_t most) {
  PlanOptions options;
  options.seed = seed;
  AGPCS_TRY(const auto seeders, chosen_seeders(options));
  Planner planner(problem, options);
  Planned planned;
  AGPCS_RETURN_IF_ERROR(planner.seed(seeders, planned));
  return planner.pool().starts(most);
}

std::int64_t default_budget(const Problem& problem, const Strategy& start) {
  std::int64_t devices = 0;
  for (const StageSpec& spec : start.stages)
    devices += static_cast<std::int64_t>(spec.devices.size());
  // In units that take about as long: an operator is looked at to describe and evaluate moves, a
  // device of the cluster to list and apply them, a micro-batch on a device is a few events of the
  // simulator, and sends and receives more in a pipeline.
  const std::int64_t passes = devices * start.micro_batches * (start.stages.size() > 1 ? 4 : 1);
  const std::int64_t work = static_cast<std::int64_t>(problem.graph.ops.size()) +
                            16 * problem.cluster.device_count() + passes;
  return std::clamp<std::int64_t>(8'000'000 / work, 100, 1000);
}

}  // namespace agpcs
