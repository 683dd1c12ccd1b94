// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/strategy.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/group_gradients.h"
#include "planner/first_plan.h"
#include "planner/plan_stages.h"
#include "planner/refine/worker_pool.h"
#include "planner/seed/fit_memory.h"
#include "planner/seed/seeder.h"

#include <algorithm>
#include <atomic>
#include <csignal>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

constexpr int kBaselines = 2;
constexpr double kAnySeconds = std::numeric_limits<double>::infinity();

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

Status no_strategy(const PlanOptions& options) {
  if (options.layout) {
    return {StatusCode::kInfeasible,
            "the model cannot be laid out like that\n"
            "  hint: every stage needs a block of operators, every device a sample of each "
            "micro-batch, a step the micro-batches that are in flight; try fewer stages, fewer "
            "micro-batches or a larger batch"};
  }
  return {StatusCode::kInfeasible,
          "the chosen seeders have no strategy for this model and cluster\n"
          "  hint: pipelines need two devices and a graph that can be cut; try seeder "
          "data_parallel"};
}

/// Evaluates `strategies` and adds them to `pool`.
Result<Attempt> try_all(const Problem& problem, Evaluator& evaluator, const std::string& name,
                        std::vector<Strategy> strategies, SeedPool* pool, bool as_it_is = false) {
  Attempt attempt;
  attempt.name = name;
  attempt.candidates = static_cast<int>(strategies.size());
  if (strategies.empty()) attempt.why_not = "no such strategy for this model and cluster";
  std::optional<Strategy> nearest;
  std::int64_t least = 0;
  for (Strategy& strategy : strategies) {
    if (kVerifyEveryCandidate) {
      AGPCS_RETURN_IF_ERROR(
          verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch));
    }
    Score score = evaluator.evaluate_up_to(strategy, kAnySeconds);
    if (score.fits() && !as_it_is) keep_more(problem, evaluator, strategy, score);
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
    attempt.why_not = evaluate(problem, std::move(*nearest), {}).status().message();
  }
  return attempt;
}

/// Keeps SIGTERM from this thread and those that it starts. METIS handles that signal while it
/// runs, for its own thread alone.
class WithoutTermination {
 public:
  WithoutTermination() {
    sigset_t term;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &term, &old_);
  }
  WithoutTermination(const WithoutTermination&) = delete;
  WithoutTermination& operator=(const WithoutTermination&) = delete;
  ~WithoutTermination() { pthread_sigmask(SIG_SETMASK, &old_, nullptr); }

 private:
  sigset_t old_{};
};

/// What a seeder proposes; nothing if it was not asked.
using Proposal = std::optional<Result<std::vector<Strategy>>>;

using Ask = std::function<Proposal(std::size_t)>;
using Judge = std::function<Status(std::size_t, Proposal)>;

/// Judges proposals in the order of their seeders, whenever they come, on the thread that brings
/// one. While one is judged, the others only leave theirs.
class JudgeInOrder {
 public:
  JudgeInOrder(std::size_t seeders, const Judge& judge) : proposals_(seeders), judge_(judge) {}

  void bring(std::size_t i, Proposal proposal) {
    std::unique_lock<std::mutex> lock(mutex_);
    proposals_[i] = std::move(proposal);
    if (judges_) return;
    judges_ = true;
    while (status_.ok() && next_ < proposals_.size() && proposals_[next_]) {
      const std::size_t number = next_++;
      Proposal one = *std::exchange(proposals_[number], std::nullopt);
      lock.unlock();
      const Status status = judge_(number, std::move(one));
      lock.lock();
      status_ = status;
    }
    judges_ = false;
  }

  const Status& status() const { return status_; }

 private:
  std::vector<std::optional<Proposal>> proposals_;  // those that were brought and not judged yet
  const Judge& judge_;
  std::mutex mutex_;
  std::size_t next_ = 0;
  bool judges_ = false;
  Status status_;
};

/// Calls `ask(i)` for each seeder, several at a time, and `judge(i, proposal)` in their order, one
/// at a time, as soon as the ones before are judged.
Status ask_all(std::size_t seeders, int threads, const Ask& ask, const Judge& judge) {
  if (threads < 2 || seeders < 2) {
    for (std::size_t i = 0; i < seeders; ++i) AGPCS_RETURN_IF_ERROR(judge(i, ask(i)));
    return {};
  }
  JudgeInOrder judges(seeders, judge);
  const WithoutTermination held;
  std::atomic<std::size_t> next = 0;
  WorkerPool pool(std::min(threads, static_cast<int>(seeders)));
  pool.run([&](int) {
    for (std::size_t i = next++; i < seeders; i = next++) judges.bring(i, ask(i));
  });
  return judges.status();
}

void report(const PlanOptions& options, std::string_view what, int number) {
  if (options.progress) options.progress(what, number, PlanSteps(options).all);
}

}  // namespace

PlanSteps::PlanSteps(const PlanOptions& options)
    : refines(options.refiner != nullptr && !options.layout) {
  const std::size_t asked =
      options.seeders.empty() ? agpcs::seeders().size() : options.seeders.size();
  seeders = options.layout ? 1 : static_cast<int>(asked);
  all = seeders + kBaselines + (refines ? 1 : 0);
}

std::optional<Seed> first_seed(const Problem& problem, Evaluator& evaluator,
                               const PlanOptions& options) {
  if (options.layout || !options.seeders.empty()) return std::nullopt;
  std::optional<FirstPlan> first = first_plan(problem, evaluator);
  if (!first) return std::nullopt;
  const Score score = evaluator.evaluate(first->strategy);
  if (options.found) options.found(score.step_seconds, first->seeder);
  return Seed{std::move(first->strategy), score, std::string(first->seeder), false};
}

namespace {

/// What the threads that seed have in common.
class Seeding {
 public:
  Seeding(const Problem& problem, Evaluator& evaluator, const PlanOptions& options,
          const std::optional<Seed>& first)
      : problem_(problem),
        evaluator_(evaluator),
        options_(options),
        rng_(Rng(options.seed).fork("seed")),
        fits_(first.has_value()) {}

  Status add_known() {
    if (options_.starts.empty()) return {};
    AGPCS_TRY(Attempt attempt,
              try_all(problem_, evaluator_, "running", options_.starts, &seeds_.known));
    for (const Seed& start : seeds_.known.all()) seeds_.pool.add(start);
    add(std::move(attempt));
    return {};
  }

  Proposal ask(Seeder& seeder) {
    if (unwanted()) return std::nullopt;
    {
      const std::lock_guard<std::mutex> lock(reporting_);
      report(options_, seeder.name(), ++number_);
    }
    seeder.ask([this] { return unwanted(); });
    Proposal proposal = seeder.seed(problem_, rng_.fork(seeder.name()));
    if (unwanted()) return std::nullopt;
    return proposal;
  }

  Status judge(const Seeder& seeder, Proposal proposal) {
    if (!proposal) {
      seeds_.interrupted = true;
      return {};
    }
    AGPCS_TRY(std::vector<Strategy> strategies, *std::move(proposal));
    AGPCS_TRY(Attempt attempt, try_all(problem_, evaluator_, std::string(seeder.name()),
                                       std::move(strategies), &seeds_.pool, seeder.as_it_is()));
    add(std::move(attempt));
    return {};
  }

  Seeds take() { return std::move(seeds_); }

 private:
  /// Returns whether the best so far is to be the plan, and there is one.
  bool unwanted() const {
    return options_.interrupted != nullptr && options_.interrupted->load() && fits_;
  }

  void add(Attempt attempt) {
    if (attempt.step_seconds) {
      fits_ = true;
      const std::lock_guard<std::mutex> lock(reporting_);
      if (options_.found) options_.found(*attempt.step_seconds, attempt.name);
    }
    seeds_.attempts.push_back(std::move(attempt));
  }

  const Problem& problem_;
  Evaluator& evaluator_;
  const PlanOptions& options_;
  const Rng rng_;
  Seeds seeds_;
  std::atomic<bool> fits_;  // any plan so far
  std::mutex reporting_;
  int number_ = 0;  // of seeders that were asked
};

}  // namespace

Result<Seeds> seed(const Problem& problem, Evaluator& evaluator, const PlanOptions& options,
                   const std::optional<Seed>& first) {
  AGPCS_TRY(const auto seeders, chosen_seeders(options));
  Seeding seeding(problem, evaluator, options, first);
  AGPCS_RETURN_IF_ERROR(seeding.add_known());
  AGPCS_RETURN_IF_ERROR(ask_all(
      seeders.size(), options.threads, [&](std::size_t i) { return seeding.ask(*seeders[i]); },
      [&](std::size_t i, Proposal proposal) {
        return seeding.judge(*seeders[i], std::move(proposal));
      }));
  Seeds seeds = seeding.take();
  const bool none_fits = seeds.pool.empty() || !seeds.pool.best().score.fits();
  if (seeds.interrupted && none_fits && first) seeds.pool.add(*first);
  if (seeds.pool.empty()) return no_strategy(options);
  return seeds;
}

Result<std::vector<Attempt>> measure_baselines(const Problem& problem, Evaluator& evaluator,
                                               const PlanOptions& options) {
  const int seeders = PlanSteps(options).seeders;
  report(options, "baseline data_parallel", seeders + 1);
  AGPCS_TRY(Strategy plain, plain_data_parallelism(problem));
  AGPCS_TRY(Attempt data_parallel,
            try_all(problem, evaluator, "data_parallel", {std::move(plain)}, nullptr));
  report(options, "baseline degree", seeders + 2);
  const Rng rng = Rng(options.seed).fork("seed").fork("degree");
  AGPCS_TRY(std::vector<Strategy> strategies, make_degree_seeder()->seed(problem, rng));
  for (Strategy& strategy : strategies) {
    strategy = group_gradients(problem, std::move(strategy), kHorovodFusionBytes);
  }
  AGPCS_TRY(Attempt degree, try_all(problem, evaluator, "degree", std::move(strategies), nullptr));
  return std::vector<Attempt>{std::move(data_parallel), std::move(degree)};
}

Result<std::vector<Strategy>> seed_strategies(const Problem& problem, std::uint64_t seed,
                                              std::size_t most) {
  PlanOptions options;
  options.seed = seed;
  Evaluator evaluator(problem);
  AGPCS_TRY(const Seeds seeds, agpcs::seed(problem, evaluator, options, {}));
  return seeds.pool.known_to_moves().starts(most);
}

}  // namespace agpcs
