// SPDX-License-Identifier: Apache-2.0
// Evaluations per second of the simulator. Run from the source folder:
//     build/release/tests/simulate_bench
#include "codegen/lower.h"
#include "cost_model/step/simulator.h"
#include "frontend/cluster/file.h"
#include "ir/base/rng.h"
#include "planner/evaluate/evaluate.h"
#include "planner/evaluate/evaluator.h"
#include "tests/bench/planning/gpt.h"
#include "tests/bench/support/strategies.h"
#include "tests/cost_model/step/models.h"
#include "tests/support/builders.h"

#include <benchmark/benchmark.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

ClusterFile cluster_named(const std::string& name) {
  Result<ClusterFile> file = read_cluster("samples/clusters/" + name + ".yaml");
  AGPCS_CHECK(file.ok(), "{}", file.status().message());
  return *std::move(file);
}

/// Arguments: stages, micro-batches, samples per device and micro-batch.
void simulate_step(benchmark::State& state, const std::string& model, const std::string& cluster) {
  const Graph graph = testing::training_graph_of(model);
  ClusterFile file = cluster_named(cluster);
  const int stages = static_cast<int>(state.range(0));
  const std::int64_t micro_batches = state.range(1);
  const std::int64_t batch = micro_batches * state.range(2) * file.cluster.device_count() / stages;
  file.training.batch = batch;
  const Result<CostTable> costs = CostTable::make(graph, file.cluster, file.training);
  AGPCS_CHECK(costs.ok(), "{}", costs.status().message());
  const Strategy strategy =
      bench::pipeline(graph, file.cluster, *costs, stages, micro_batches, batch);
  const Result<Plan> plan = lower(graph, file.cluster, file.training, strategy, {});
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  double step = 0;
  for (auto _ : state) {
    const Result<Estimate> estimate = simulate(*plan, graph, file.cluster, *costs);
    AGPCS_CHECK(estimate.ok(), "{}", estimate.status().message());
    step = estimate->step_seconds;
  }
  state.SetItemsProcessed(state.iterations());
  state.counters["step_ms"] = step * 1e3;
}

void resnet50_on_8(benchmark::State& state) {
  simulate_step(state, "resnet50", "v100x4-rtx3090x4");
}
void bert_on_8(benchmark::State& state) { simulate_step(state, "bert_base", "v100x4-rtx3090x4"); }
void resnet50_on_32(benchmark::State& state) { simulate_step(state, "resnet50", "mixed-32"); }
void bert_on_32(benchmark::State& state) { simulate_step(state, "bert_base", "mixed-32"); }

/// All of them: data parallel, then pipelines with few and with many micro-batches.
void shapes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"stages", "micro_batches", "samples"})->Unit(benchmark::kMillisecond);
  for (const auto& [stages, micro_batches] : {std::pair{1, 1}, {1, 8}, {4, 8}, {4, 64}, {8, 64}}) {
    bench->Args({stages, micro_batches, 8});
  }
}

BENCHMARK(resnet50_on_8)->Apply(shapes);
BENCHMARK(bert_on_8)->Apply(shapes);
BENCHMARK(resnet50_on_32)->Apply(shapes);
BENCHMARK(bert_on_32)->Apply(shapes);

/// A model on a cluster with a strategy of equal stages.
struct Start {
  std::unique_ptr<const Problem> problem;
  Strategy strategy;

  Start(Graph graph, Cluster cluster, Training training, int stages, std::int64_t micro_batches,
        std::int64_t samples) {
    training.batch = micro_batches * samples * cluster.device_count() / stages;
    Result<std::unique_ptr<const Problem>> made =
        Problem::make(std::move(graph), std::move(cluster), training);
    AGPCS_CHECK(made.ok(), "{}", made.status().message());
    problem = *std::move(made);
    strategy = bench::pipeline(problem->graph, problem->cluster, problem->costs, stages,
                               micro_batches, training.batch);
    strategy.buckets.clear();  // grouped by whoever evaluates
  }
};

/// The walk of a search: each strategy differs from the one before by a boundary moved by one
/// operator (3 of 10 moves, where it may be moved), by recomputation (1 of 10), or by a sample that
/// moves to another device.
std::vector<Strategy> walk(const Start& start, int moves) {
  Rng rng(1);
  const Problem& problem = *start.problem;
  std::vector<Strategy> strategies = {start.strategy};
  while (static_cast<int>(strategies.size()) < moves) {
    Strategy next = strategies.back();
    const std::size_t stage = rng.below(next.stages.size());
    const std::uint64_t sort = rng.below(10);
    if (sort < 3 && stage > 0) {
      const int to = static_cast<int>(stage);
      const auto first = std::find(next.stage_of.begin(), next.stage_of.end(), to);
      rng.below(2) == 0 ? *(first - 1) = to : * first = to - 1;
      const Status status =
          verify_strategy(next, problem.graph, problem.cluster, problem.training.batch);
      if (!status.ok()) continue;
    } else if (sort == 3) {
      next.stages[stage].recompute = next.stages[stage].recompute ? Recomputation{} : kWholeStage;
    } else {
      std::vector<std::int64_t>& shares = next.stages[stage].shares;
      const std::size_t from = rng.below(shares.size()), to = rng.below(shares.size());
      if (from == to || shares[from] == 1) continue;
      --shares[from];
      ++shares[to];
    }
    strategies.push_back(std::move(next));
  }
  return strategies;
}

/// Arguments: stages, micro-batches; 8 samples a device and micro-batch. `fresh`: every thousand
/// moves with a new evaluator that knows nothing; else moves that it has seen before.
void evaluate_walk(benchmark::State& state, const std::string& model, const std::string& cluster,
                   bool fresh) {
  const ClusterFile file = cluster_named(cluster);
  const Start start(testing::training_graph_of(model), file.cluster, file.training,
                    static_cast<int>(state.range(0)), state.range(1), 8);
  const std::vector<Strategy> strategies = walk(start, 1000);
  auto evaluator = std::make_unique<Evaluator>(*start.problem);
  for (const Strategy& strategy : strategies) evaluator->evaluate(strategy);
  for (auto _ : state) {
    if (fresh) evaluator = std::make_unique<Evaluator>(*start.problem);
    for (const Strategy& strategy : strategies) {
      benchmark::DoNotOptimize(evaluator->evaluate(strategy));
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(strategies.size()));
}

/// The same walk through lower and simulate.
void simulate_walk(benchmark::State& state, const std::string& model, const std::string& cluster) {
  const ClusterFile file = cluster_named(cluster);
  const Start start(testing::training_graph_of(model), file.cluster, file.training,
                    static_cast<int>(state.range(0)), state.range(1), 8);
  const std::vector<Strategy> strategies = walk(start, 20);
  const Problem& problem = *start.problem;
  for (auto _ : state) {
    for (Strategy strategy : strategies) {
      const Result<Plan> plan = plan_of(problem, strategy, MadeBy());
      AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
      benchmark::DoNotOptimize(simulate(*plan, problem.graph, problem.cluster, problem.costs));
    }
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(strategies.size()));
}

void pipelines(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"stages", "micro_batches"})->Unit(benchmark::kMillisecond);
  for (const auto& [stages, micro_batches] : {std::pair{1, 1}, {1, 8}, {4, 8}}) {
    bench->Args({stages, micro_batches});
  }
}
BENCHMARK_CAPTURE(evaluate_walk, resnet50_on_8_seen, "resnet50", "v100x4-rtx3090x4", false)
    ->Apply(pipelines);
BENCHMARK_CAPTURE(evaluate_walk, resnet50_on_8_new, "resnet50", "v100x4-rtx3090x4", true)
    ->Apply(pipelines);
BENCHMARK_CAPTURE(simulate_walk, resnet50_on_8, "resnet50", "v100x4-rtx3090x4")->Apply(pipelines);
BENCHMARK_CAPTURE(evaluate_walk, bert_on_32_seen, "bert_base", "mixed-32", false)->Apply(pipelines);
BENCHMARK_CAPTURE(evaluate_walk, bert_on_32_new, "bert_base", "mixed-32", true)->Apply(pipelines);
BENCHMARK_CAPTURE(simulate_walk, bert_on_32, "bert_base", "mixed-32")->Apply(pipelines);

/// `hosts` hosts of eight devices.
Cluster hosts_of_eight(int hosts) {
  std::string text = "kind gpu memory=80e9 bandwidth=2e12 fp32=20e12\n";
  for (int host = 0; host < hosts; ++host) {
    text += "host h" + std::to_string(host) + " gpu 8 bandwidth=300e9 nic=25e9\n";
  }
  return testing::cluster_of(text);
}

/// Growth. Arguments: layers, hosts, stages, micro-batches. One whole simulation of a plan; and one
/// evaluation by the evaluator, which runs the same events and little else.
void simulate_gpt(benchmark::State& state, bool evaluator) {
  bench::GptSize size;
  size.layers = static_cast<int>(state.range(0));
  const Start start(bench::gpt(size), hosts_of_eight(static_cast<int>(state.range(1))), Training(),
                    static_cast<int>(state.range(2)), state.range(3), 1);
  const Problem& problem = *start.problem;
  Strategy strategy = start.strategy;
  const Result<Plan> plan = plan_of(problem, strategy, MadeBy());
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  Evaluator evaluate(problem);
  evaluate.evaluate(strategy);
  double step = 0;
  for (auto _ : state) {
    if (evaluator) {
      step = evaluate.evaluate(strategy).step_seconds;
    } else {
      step = simulate(*plan, problem.graph, problem.cluster, problem.costs)->step_seconds;
    }
  }
  state.counters["operators"] = static_cast<double>(problem.graph.ops.size());
  state.counters["devices"] = problem.cluster.device_count();
  state.counters["step_s"] = step;
}
void growth(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"layers", "hosts", "stages", "micro_batches"})->Unit(benchmark::kMillisecond);
  bench->Args({96, 128, 1, 1})->Args({96, 128, 8, 16})->Args({96, 128, 16, 32});
  for (const int layers : {24, 48}) bench->Args({layers, 128, 8, 16});
  for (const int hosts : {16, 32, 64}) bench->Args({96, hosts, 8, 16});
  for (const int micro_batches : {8, 32, 64}) bench->Args({96, 128, 8, micro_batches});
}
BENCHMARK_CAPTURE(simulate_gpt, simulate, false)->Apply(growth);
BENCHMARK_CAPTURE(simulate_gpt, evaluator, true)->Apply(growth);

/// The price of an operator, which every search asks for most.
void op_seconds(benchmark::State& state) {
  const Graph graph = testing::training_graph_of("resnet50");
  const ClusterFile file = cluster_named("v100x4-rtx3090x4");
  const Result<CostTable> costs = CostTable::make(graph, file.cluster, file.training);
  AGPCS_CHECK(costs.ok(), "{}", costs.status().message());
  for (auto _ : state) benchmark::DoNotOptimize(costs->speed(0, 32));
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(graph.ops.size()));
}
BENCHMARK(op_seconds);

}  // namespace
}  // namespace agpcs

BENCHMARK_MAIN();
