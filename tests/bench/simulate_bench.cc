// SPDX-License-Identifier: Apache-2.0
// Evaluations per second of the simulator. Run from the source folder:
//     build/release/tests/simulate_bench
#include "codegen/lower.h"
#include "cost_model/simulator.h"
#include "frontend/cluster_file.h"
#include "tests/bench/strategies.h"
#include "tests/cost_model/models.h"

#include <benchmark/benchmark.h>

#include <string>

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
