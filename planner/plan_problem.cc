// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_problem.h"

#include "ir/check.h"
#include "ir/memory.h"
#include "planner/evaluate.h"
#include "planner/evaluator.h"
#include "planner/seeder.h"

#include <agpcs/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace agpcs {
namespace {

/// Runs candidates and remembers the best.
class Search {
 public:
  Search(const Problem& problem, const PlanOptions& options)
      : problem_(problem), options_(options), evaluator_(problem) {}

  Result<Planned> run() {
    AGPCS_TRY(const auto seeders, chosen());
    const int steps = static_cast<int>(seeders.size()) + 2;
    const Rng rng = Rng(options_.seed).fork("seed");
    Planned planned;
    for (const std::unique_ptr<Seeder>& seeder : seeders) {
      report(seeder->name(), steps);
      AGPCS_TRY(const std::vector<Strategy> strategies,
                seeder->seed(problem_, rng.fork(seeder->name())));
      AGPCS_TRY(Attempt attempt, try_all(std::string(seeder->name()), strategies, &best_));
      planned.seeders.push_back(std::move(attempt));
    }
    AGPCS_RETURN_IF_ERROR(measure_baselines(planned, steps));
    if (!best_) return nothing_fits();
    planned.bound = lower_bound(problem_);
    planned.best = std::move(*best_);
    planned.best.plan.expect = expectations(planned.best.plan, planned.best.estimate);
    AGPCS_RETURN_IF_ERROR(verify_plan_against(planned.best.plan, problem_.graph, problem_.cluster));
    return planned;
  }

 private:
  Result<std::vector<std::unique_ptr<Seeder>>> chosen() const {
    std::vector<std::unique_ptr<Seeder>> result;
    if (options_.layout) {
      result.push_back(make_layout_seeder(*options_.layout));
      return result;
    }
    if (options_.seeders.empty()) {
      for (const SeederEntry& entry : seeders()) result.push_back(entry.make());
    }
    for (const std::string& name : options_.seeders) {
      AGPCS_TRY(std::unique_ptr<Seeder> seeder, make_seeder(name));
      result.push_back(std::move(seeder));
    }
    return result;
  }

  void report(std::string_view what, int of) {
    if (options_.progress) options_.progress(what, ++step_, of);
  }

  MadeBy made_by(const std::string& name) const {
    return {std::string(version()), options_.seed, name, "none"};
  }

  /// Evaluates `strategies`; `best` becomes the fastest of them if it is faster than what it was.
  Result<Attempt> try_all(const std::string& name, const std::vector<Strategy>& strategies,
                          std::optional<Evaluated>* best) {
    Attempt attempt;
    attempt.name = name;
    attempt.candidates = static_cast<int>(strategies.size());
    for (const Strategy& strategy : strategies) {
      if (kVerifyEveryCandidate) {
        AGPCS_RETURN_IF_ERROR(
            verify_strategy(strategy, problem_.graph, problem_.cluster, problem_.training.batch));
      }
      const Score score = evaluator_.evaluate(strategy);
      if (score.fits()) {
        ++attempt.feasible;
        const double seconds = score.step_seconds;
        attempt.step_seconds = std::min(seconds, attempt.step_seconds.value_or(seconds));
        if (best == nullptr || (*best && seconds >= (*best)->estimate.step_seconds)) continue;
      }
      // Only what may be chosen or reported needs a plan.
      MemoryFit fit;
      Result<Evaluated> evaluated = evaluate(problem_, strategy, made_by(name), &fit);
      if (evaluated.ok()) {
        AGPCS_CHECK(score.fits(), "a plan that fits was said to lack {} bytes", score.lacking);
        *best = std::move(*evaluated);
      } else if (evaluated.status().code() == StatusCode::kInfeasible) {
        attempt.why_not = evaluated.status().message();
        if (best != nullptr && (!nearest_ || fit.lacking() < nearest_->lacking())) nearest_ = fit;
      } else {
        return evaluated.status();
      }
    }
    if (attempt.step_seconds) attempt.why_not.clear();
    if (strategies.empty()) attempt.why_not = "no such strategy for this model and cluster";
    return attempt;
  }

  Status measure_baselines(Planned& planned, int steps) {
    report("baseline data_parallel", steps);
    AGPCS_TRY(Strategy plain, plain_data_parallelism(problem_));
    AGPCS_TRY(Attempt attempt, try_all("data_parallel", {std::move(plain)}, nullptr));
    planned.baselines.push_back(std::move(attempt));
    report("baseline degree", steps);
    for (const Attempt& done : planned.seeders) {
      if (done.name != "degree") continue;
      planned.baselines.push_back(done);
      return {};
    }
    const Rng rng = Rng(options_.seed).fork("seed").fork("degree");
    AGPCS_TRY(const std::vector<Strategy> strategies, make_degree_seeder()->seed(problem_, rng));
    AGPCS_TRY(Attempt degree, try_all("degree", strategies, nullptr));
    planned.baselines.push_back(std::move(degree));
    return {};
  }

  Status nothing_fits() const {
    if (nearest_) return infeasible(problem_, *nearest_);
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
  std::optional<Evaluated> best_;
  std::optional<MemoryFit> nearest_;  // of the candidates that do not fit
  int step_ = 0;
};

}  // namespace

Result<Planned> plan_problem(const Problem& problem, const PlanOptions& options) {
  return Search(problem, options).run();
}

}  // namespace agpcs
