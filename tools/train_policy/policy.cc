// SPDX-License-Identifier: Apache-2.0
#include "tools/train_policy/policy.h"

#include "planner/learn/dqn_plugin.h"
#include "planner/refine/features.h"
#include "tools/common/interrupt.h"
#include "tools/train_policy/problems.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <span>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int64_t kEpisodesAVisit = 4;  // episodes on a problem before the next one's turn
constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

class PolicyTraining {
 public:
  PolicyTraining(const TrainPolicyOptions& options, const std::atomic<bool>& interrupted,
                 Console console)
      : options_(options),
        interrupted_(interrupted),
        console_(console),
        on_terminal_(is_terminal(2)),
        progress_(console.err, on_terminal_) {}

  Result<TrainedPolicy> run() {
    std::optional<QNetwork> from;
    if (!options_.from.empty()) {
      AGPCS_TRY(const std::string text, read_input(options_.from, {"policy"}));
      AGPCS_TRY(from, parse_policy(text, options_.from));
    }
    DqnOptions dqn = options_.dqn;
    if (dqn.hidden_units > 1) dqn.guess = static_cast<int>(Feature::kRoughChange);
    AGPCS_TRY(trainer_, load_dqn_trainer(dqn, from ? &*from : nullptr, options_.seed));
    AGPCS_RETURN_IF_ERROR(draw());
    validate();
    AGPCS_RETURN_IF_ERROR(train());
    TrainedPolicy result;
    result.interrupted = interrupted_ && episode_ < options_.episodes;
    result.network = best_ ? std::move(*best_) : trainer_->network();
    result.network.made_by = options_.made_by;
    if (result.interrupted) {
      result.network.made_by += fmt::format(" (interrupted after {} episodes)", episode_);
    }
    result.log = std::move(log_);
    return result;
  }

 private:
  Status draw() {
    AGPCS_TRY(problems_, draw_problems(options_, interrupted_, progress_));
    const auto asked = static_cast<std::size_t>(options_.problems);
    if (interrupted_) return {StatusCode::kCancelled, "interrupted before the first episode"};
    for (std::size_t i = asked; i < problems_.size(); ++i) {
      // A first start that does not fit has no cost to compare with.
      if (problems_[i].starts.empty()) continue;
      if (problems_[i].search(1)->outcome().cost >= kBroken) continue;
      held_aside_.push_back(std::move(problems_[i]));
    }
    problems_.resize(asked);
    std::erase_if(problems_, [](const PolicyProblem& p) { return p.starts.empty(); });
    if (!problems_.empty()) return {};
    return internal_error("no generated problem has a strategy");
  }

  Status train() {
    for (std::size_t turn = 0; episode_ < options_.episodes && !interrupted_; ++turn) {
      visit(problems_[turn % problems_.size()]);
      const bool ends = episode_ == options_.episodes;
      if (!ends && episode_ - validated_ < options_.validate_every) continue;
      validate();
      if (!options_.log.empty()) {
        AGPCS_RETURN_IF_ERROR(write_file(options_.log, print_search_log(log_), console_));
      }
    }
    progress_.done();
    return {};
  }

  /// Runs some episodes on one problem, each from one of its starts.
  void visit(PolicyProblem& problem) {
    const std::unique_ptr<StrategySearch> point = problem.search(options_.threads);
    Rng starts = rng_.fork(fmt::format("start {}", episode_));
    SearchBudget budget(kUnlimited, &interrupted_);
    const double before = problem.best_cost;
    for (std::int64_t i = 0; i < kEpisodesAVisit && episode_ < options_.episodes; ++i) {
      if (interrupted_) break;
      point->go_to_start(
          static_cast<int>(starts.below(static_cast<std::uint64_t>(point->starts()))));
      log_.push_back(trainer_->run_episode(*point, budget, problem.best_cost,
                                           rng_.fork(fmt::format("episode {}", episode_))));
      ++episode_;
      const EpisodeLog& log = log_.back();
      if (!on_terminal_) continue;
      progress_.step(fmt::format("episode {}/{}: epsilon {:.2f}, loss {:.2g}, {}", episode_,
                                 options_.episodes, log.epsilon, log.loss, problem.name));
    }
    if (problem.best_cost >= before) return;
    point->go_back();
    problem.found = {point->strategy()};
  }

  /// Keeps the network if it is the best so far on the problems held aside.
  void validate() {
    validated_ = episode_;
    if (held_aside_.empty()) return;
    QNetwork network = trainer_->network();
    const std::unique_ptr<Refiner> refiner = make_dqn_refiner(network);
    double sum = 0;
    for (const PolicyProblem& problem : held_aside_) {
      const std::unique_ptr<StrategySearch> point = problem.search(options_.threads);
      SearchBudget budget(options_.validation_budget, &interrupted_);
      refiner->refine(*point, budget, Rng(options_.seed).fork("validation"));
      sum += point->outcome().cost;
    }
    if (interrupted_) return;
    const double mean = sum / static_cast<double>(held_aside_.size());
    if (!best_ || mean < best_mean_) {
      best_mean_ = mean;
      best_ = std::move(network);
    }
    progress_.done();
    console_.err << fmt::format("episode {}/{}: mean cost held aside {:.5f}, best {:.5f}\n",
                                episode_, options_.episodes, mean, best_mean_);
  }

  const TrainPolicyOptions& options_;
  const std::atomic<bool>& interrupted_;
  Console console_;
  bool on_terminal_;
  Progress progress_;
  Rng rng_{options_.seed};
  std::unique_ptr<DqnTrainer> trainer_;
  std::vector<PolicyProblem> problems_, held_aside_;
  std::vector<EpisodeLog> log_;
  std::int64_t episode_ = 0, validated_ = 0;
  std::optional<QNetwork> best_;
  double best_mean_ = 0;
};

}  // namespace

Result<TrainedPolicy> train_policy(const TrainPolicyOptions& options,
                                   const std::atomic<bool>& interrupted, Console console) {
  return PolicyTraining(options, interrupted, console).run();
}

int train_policy_command(const std::vector<std::string>& args, Console console) {
  TrainPolicyOptions options;
  if (const auto code = parse_train_policy(args, console, options)) return *code;
  const InterruptFlag interrupt;
  const Result<TrainedPolicy> trained = train_policy(options, interrupt.flag(), console);
  if (!trained.ok()) return finish(trained.status(), kTrainPolicyCommand, console);
  Status status = write_file(options.output, print_policy(trained->network), console);
  if (status.ok() && !options.log.empty()) {
    status = write_file(options.log, print_search_log(trained->log), console);
  }
  if (!status.ok()) return finish(status, kTrainPolicyCommand, console);
  console.err << fmt::format("wrote {}\n", options.output);
  return trained->interrupted ? 130 : 0;  // the exit code of kCancelled
}

}  // namespace agpcs
