// SPDX-License-Identifier: Apache-2.0
#include "planner/plan_stages.h"

#include <utility>

namespace agpcs {

Result<Decision> flows(const Problem& problem, Evaluator& evaluator, const Seeds& seeds,
                       const PlanOptions& options, Decision decision) {
  FlowChoiceOptions choice = {options.all_reduce, options.seed, options.interrupted};
  choice.threads = options.threads;
  const bool automatic = choice.choice == AllReduceChoice::kAuto;
  const auto choose = [&](Strategy& strategy, bool as_it_is, KnownFlows& known) {
    if (as_it_is && automatic) return;
    strategy = choose_flows(problem, evaluator, std::move(strategy), choice, known);
  };
  std::vector<Seed> others;
  if ((automatic || choice.choice == AllReduceChoice::kFlow) && !options.layout) {
    others = seeds.pool.known_to_moves().bests(kStartsOfSearch);
  }
  KnownFlows known;
  choose(decision.strategy, decision.as_it_is, known);
  Score least = evaluator.evaluate(decision.strategy);
  for (Seed& other : others) {
    // Flows cannot make sums faster than if they took no time.
    if (least.fits() && evaluator.seconds_without_sums(other.strategy, Evaluator::kEveryStage) >=
                            least.step_seconds) {
      continue;
    }
    choose(other.strategy, other.as_it_is, known);
    if (other.strategy.flows.empty()) continue;
    const Score score = evaluator.evaluate(other.strategy);
    if (!is_better(score, least)) continue;
    least = score;
    decision.strategy = std::move(other.strategy);
    decision.made_by.seeder = other.seeder;
    decision.as_it_is = other.as_it_is;
  }
  if (decision.strategy.flows.empty()) return decision;
  choice.effort = 1;  // where flows win they are worth a search
  KnownFlows better;
  choose(decision.strategy, decision.as_it_is, better);
  return decision;
}

}  // namespace agpcs
