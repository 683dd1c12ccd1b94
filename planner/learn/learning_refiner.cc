// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/learning_refiner.h"

#include "planner/refine/dqn.h"

#include <string_view>
#include <utility>

namespace agpcs {
namespace {

class LearningRefiner : public Refiner {
 public:
  LearningRefiner(std::unique_ptr<DqnTrainer> trainer, std::int64_t episodes, double lambda)
      : trainer_(std::move(trainer)), episodes_(episodes), lambda_(lambda) {}
  std::string_view name() const override { return "dqn"; }
  void refine(SearchPoint& point, SearchBudget& budget, Rng rng) const override {
    double best = point.outcome().cost;
    point.keep();
    Rng episodes = rng.fork("episodes");
    std::int64_t next = 0;
    for (std::int64_t e = 0; e < episodes_ && budget.left() > 0; ++e) {
      point.go_to_start(static_cast<int>(e % point.starts()));
      const EpisodeLog log = trainer_->run_episode(point, budget, best, Rng(episodes.next()));
      next = log.episode + 1;
      budget.log(log);
    }
    point.go_back();
    search_with_policy(trainer_->network(), point, budget, rng.fork("search"), lambda_, next);
  }

 private:
  std::unique_ptr<DqnTrainer> trainer_;
  std::int64_t episodes_;
  double lambda_;
};

}  // namespace

std::unique_ptr<Refiner> make_learning_refiner(std::unique_ptr<DqnTrainer> trainer,
                                               std::int64_t episodes, double lambda) {
  return std::make_unique<LearningRefiner>(std::move(trainer), episodes, lambda);
}

}  // namespace agpcs
