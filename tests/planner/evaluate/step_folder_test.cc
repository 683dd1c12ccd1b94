// SPDX-License-Identifier: Apache-2.0
#include "planner/evaluate/step_folder.h"

#include "codegen/lower.h"
#include "cost_model/step/engine.h"
#include "cost_model/step/model.h"
#include "ir/base/all_values.h"
#include "planner/evaluate/group_gradients.h"
#include "tests/planner/evaluate/random_strategies.h"
#include "tests/planner/problem/problems.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::between;
using testing::chain;
using testing::cluster_of;
using testing::problem_of;

/// Hosts of four devices of two kinds; some have another network.
Cluster eight_hosts() {
  std::string text =
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12 fp16=100e12\n"
      "kind slow memory=16e9 bandwidth=300e9 fp32=5e12 fp16=40e12\n";
  for (int host = 0; host < 8; ++host) {
    text += "host h" + std::to_string(host) + (host < 5 ? " fast" : " slow") +
            " 4 nic=" + (host == 7 ? "1e9" : "2e9") + "\n";
  }
  return cluster_of(text);
}

/// Stages of equal numbers of whole hosts with equal shares; in every second one, several things
/// may make replicas differ.
Strategy even_strategy(Rng& rng, const Problem& problem) {
  const std::uint64_t differs = rng.below(2);
  for (;;) {
    Strategy strategy;
    const int hosts = 1 << between(rng, 0, 2);
    const int stages = between(rng, 1, 8 / hosts);
    strategy.stage_of = testing::random_stages(rng, problem, stages);
    strategy.micro_batches = between(rng, 1, 32);
    const std::int64_t samples =
        largest_micro_batch(problem.training.batch, strategy.micro_batches);
    strategy.schedule = kPlainSchedules[rng.below(kPlainSchedules.size())];
    if (samples % (4 * hosts) != 0) continue;
    for (int s = 0; s < stages; ++s) {
      StageSpec spec;
      for (int i = 0; i < 4 * hosts; ++i) spec.devices.push_back(s * 4 * hosts + i);
      spec.shares.assign(spec.devices.size(), samples / (4 * hosts));
      if (differs * rng.below(3) == 1) spec.odd = spec.devices[rng.below(spec.devices.size())];
      if (differs * rng.below(8) == 1 && spec.shares[0] > 1) {
        --spec.shares.front();
        ++spec.shares.back();
      }
      if (differs * rng.below(8) == 1) {
        const std::int64_t all = spec.shares.back() + spec.shares[spec.shares.size() - 2];
        spec.devices.pop_back();
        spec.shares.pop_back();
        spec.shares.back() = all;
        spec.odd = kNone;
      }
      strategy.stages.push_back(std::move(spec));
    }
    if (!verify_strategy(strategy, problem.graph, problem.cluster, problem.training.batch).ok()) {
      continue;
    }
    const std::int64_t sizes[] = {1, 100'000, 25'000'000};
    strategy = group_gradients(problem, std::move(strategy), sizes[rng.below(3)]);
    for (Bucket& bucket : strategy.buckets) {
      if (differs * rng.below(2) == 1)
        bucket.algorithm = kAllReduces[rng.below(kAllReduces.size())];
    }
    return strategy;
  }
}

/// Runs the steps of strategies as they are and folded, which must be equal to the last bit.
/// Returns how many were folded.
int compare(Graph graph, Cluster cluster, std::int64_t batch, std::uint64_t seed, int rounds) {
  const auto problem = problem_of(std::move(graph), std::move(cluster), batch);
  StepFolder folder(problem->cluster);
  StepEngine whole(problem->cluster), engine(problem->cluster);
  Rng rng(seed);
  int folded = 0;
  for (int round = 0; round < rounds; ++round) {
    const Strategy strategy = even_strategy(rng, *problem);
    const Result<Plan> plan =
        lower(problem->graph, problem->cluster, problem->training, strategy, MadeBy());
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    const auto model = make_step_model(*plan, problem->graph, problem->cluster, problem->costs);
    EXPECT_TRUE(model.ok());
    FlatStep step;
    flatten(*plan, *model, step);
    EXPECT_TRUE(whole.run(step));
    const FlatStep& fold = folder.fold(step);
    EXPECT_TRUE(engine.run(fold));
    folded += fold.ranks.size() < step.ranks.size() ? 1 : 0;
    EXPECT_EQ(whole.result().seconds, engine.result().seconds) << "round " << round;
    for (int rank = 0; rank < static_cast<int>(step.ranks.size()); ++rank) {
      const RankRun& a = whole.result().ranks[at(rank)];
      const RankRun& b = engine.result().ranks[at(folder.rank_of(rank))];
      EXPECT_EQ(a.exposed_communication, b.exposed_communication) << "round " << round;
      EXPECT_EQ(a.compute_seconds, b.compute_seconds) << "round " << round;
    }
  }
  return folded;
}

TEST(StepFolder, FoldedStepsTakeAsLongToTheLastBit) {
  EXPECT_GT(compare(chain(16), eight_hosts(), 256, 1, 200), 30);
}

TEST(StepFolder, FoldedStepsOfUnequalMicroBatchesTakeAsLongToTheLastBit) {
  EXPECT_GT(compare(chain(16), eight_hosts(), 249, 2, 200), 8);
}

TEST(StepFolder, FoldedStepsOnHostsWithMessageOverheadTakeAsLongToTheLastBit) {
  Cluster cluster = eight_hosts();
  cluster.kinds[0].message_overhead = 3e-6;
  cluster.kinds[1].message_overhead = 5e-6;
  cluster.kinds[0].message_compute = 2e-6;
  cluster.collectives = {CollectiveFit{2e-6, 1.3}, CollectiveFit{1e-6, 1.1}};
  EXPECT_GT(compare(chain(16), std::move(cluster), 256, 3, 200), 30);
}

TEST(StepFolder, LeavesStepsWhereMessagesSlowComputingAsTheyAre) {
  Cluster cluster = eight_hosts();
  cluster.kinds[0].overlap = {1e-11, 0.9};
  EXPECT_EQ(compare(chain(16), std::move(cluster), 256, 4, 20), 0);
}

}  // namespace
}  // namespace agpcs
