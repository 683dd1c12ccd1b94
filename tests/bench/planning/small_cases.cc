// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/planning/small_cases.h"

#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "planner/evaluate/evaluator.h"
#include "tests/support/builders.h"

#include <agpcs/plan.h>

#include <string>
#include <utility>
#include <vector>

namespace agpcs::bench {
namespace {

int between(Rng& rng, int low, int high) {
  return low + static_cast<int>(rng.below(static_cast<std::uint64_t>(high - low + 1)));
}

std::string extents(const std::vector<int>& list) {
  std::string text;
  for (const int extent : list) text += (text.empty() ? "[" : ",") + std::to_string(extent);
  return text + "]";
}

/// Products, with an activation after some, with a sum with an earlier tensor after some (a
/// residual sum, or branches that meet).
class GraphWriter {
 public:
  /// A sample is a vector, or one for each of `tokens` tokens.
  explicit GraphWriter(Rng rng, int tokens = 0)
      : rng_(rng), tokens_(tokens == 0 ? "]" : "," + std::to_string(tokens) + "]") {}

  std::string run(int most_ops) {
    const int widths[] = {64, 256, 1024, 2048};
    const int width = widths[rng_.below(4)];
    const bool narrow = rng_.below(3) == 0;  // one layer of another width
    text_ = "input x " + rows(width) + "\ninput labels int64[n" + tokens_ + "\n";
    const int products = between(rng_, 1, 5);
    std::string last = "x";
    std::vector<std::string> same = {};  // tensors of the usual width
    int from = width;
    for (int i = 0; i < products && ops_ + 1 < most_ops; ++i) {
      const bool branch = !same.empty() && from == width && rng_.below(4) == 0;
      const std::string source = branch ? same[rng_.below(same.size())] : last;
      const int to = narrow && i == products / 2 && !branch ? width / 4 : width;
      std::string made = product(source, from, to);
      if (ops_ + 1 < most_ops && rng_.below(2) == 0) made = unary(made, to);
      const bool meet = to == width && !same.empty() && ops_ + 1 < most_ops;
      if (meet && (branch || rng_.below(3) == 0)) {
        made = sum(made, branch ? last : same[rng_.below(same.size())], to);
      }
      if (to == width) same.push_back(made);
      last = made;
      from = to;
    }
    return text_ + "l = SoftmaxCrossEntropyLoss(" + last + ", labels) []\noutputs " + last +
           "\nloss l\n";
  }

 private:
  std::string add(const std::string& call, int width) {
    const std::string name = "t" + std::to_string(ops_++);
    text_ += name + " = " + call + " " + rows(width) + "\n";
    return name;
  }
  std::string rows(int width) const { return "[n," + std::to_string(width) + tokens_; }
  std::string product(const std::string& source, int from, int to) {
    const std::string weight = "w" + std::to_string(ops_);
    const bool vectors = tokens_ == "]";
    text_ += "parameter " + weight + " " +
             extents(vectors ? std::vector{from, to} : std::vector{to, from}) + "\n";
    return add("MatMul(" + (vectors ? source + ", " + weight : weight + ", " + source) + ")", to);
  }
  std::string unary(const std::string& source, int width) {
    return add("Relu(" + source + ")", width);
  }
  std::string sum(const std::string& a, const std::string& b, int width) {
    return add("Add(" + a + ", " + b + ")", width);
  }

  Rng rng_;
  std::string tokens_;  // behind the width
  std::string text_;
  int ops_ = 0;
};

std::string cluster_text(Rng rng, int devices) {
  const char* const nics[] = {"0.5e9", "3e9", "12e9", "100e9"};
  const char* const ports[] = {"5e9", "50e9", "300e9"};
  const int hosts = between(rng, 1, std::min(3, devices));
  const int kinds = between(rng, 1, hosts);
  std::string text;
  for (int k = 0; k < kinds; ++k) {
    text += "kind k" + std::to_string(k) +
            " memory=16e9 launch=2e-6 bandwidth=" + std::to_string(between(rng, 2, 9)) +
            "00e9 fp32=" + std::to_string(between(rng, 2, 15)) + "e12\n";
  }
  const std::string nic = nics[rng.below(4)], port = ports[rng.below(3)];
  int left = devices;
  for (int h = 0; h < hosts; ++h) {
    const int count = h + 1 == hosts ? left : between(rng, 1, left - (hosts - h - 1));
    left -= count;
    text += "host h" + std::to_string(h) + " k" + std::to_string(h % kinds) + " " +
            std::to_string(count) + " bandwidth=" + port + " nic=" + nic + "\n";
  }
  return text;
}

std::unique_ptr<const Problem> make(const std::string& graph_text, Cluster cluster,
                                    OptimizerKind optimizer, std::int64_t batch,
                                    const ProblemOptions& options) {
  Graph graph = testing::graph_of(graph_text);
  Training training = testing::training_of(graph, batch);
  training.optimizer.kind = optimizer;
  auto problem = Problem::make(std::move(graph), std::move(cluster), std::move(training), options);
  AGPCS_CHECK(problem.ok(), "{}", problem.status().message());
  return std::move(*problem);
}

/// Without what `best_below` leaves out.
ProblemOptions without_parts() {
  ProblemOptions options;
  options.choose_segments = false;
  options.part_backward = false;
  return options;
}

/// Gives devices a link to their host, which has memory enough.
void add_hosts_memory(Rng rng, Cluster& cluster) {
  const double rates[] = {3e9, 12e9, 50e9};
  for (DeviceKind& kind : cluster.kinds) kind.host_link = {"pcie", rates[rng.below(3)], 5e-6};
  for (Host& host : cluster.hosts) host.memory_bytes = std::int64_t{1} << 34;
}

/// Returns what a device needs that computes as much as any other, and divides nothing.
std::int64_t peak_of_equal_shares(const Problem& problem) {
  Strategy strategy;
  strategy.stage_of.assign(problem.graph.ops.size(), 0);
  StageSpec& stage = strategy.stages.emplace_back();
  for (DeviceId d = 0; d < problem.cluster.device_count(); ++d) {
    stage.devices.push_back(d);
    stage.shares.push_back(problem.training.batch / problem.cluster.device_count());
  }
  Evaluator evaluator(problem);
  return evaluator.lacking(strategy) + problem.cluster.kinds.front().memory_bytes;
}

}  // namespace

std::vector<Strategy> schedules_of(Strategy strategy) {
  strategy.schedule = Schedule::k1F1B;
  for (StageSpec& spec : strategy.stages) spec.in_flight.reset();
  std::vector<Strategy> all = {strategy};
  const std::size_t stages = strategy.stages.size();
  if (stages < 2 || strategy.micro_batches < 2) return all;
  const std::vector<std::int64_t> textbook = in_flight_by_stage(strategy);
  strategy.schedule = Schedule::kGPipe;
  all.push_back(strategy);
  strategy.schedule = Schedule::k1F1B;
  std::vector<std::int64_t> now(stages, 1);
  const std::vector<std::int64_t> last(stages, strategy.micro_batches);
  for (; now != last;) {
    if (now != textbook) {
      for (std::size_t s = 0; s < stages; ++s) strategy.stages[s].in_flight = now[s];
      fit_in_flight(strategy);
      all.push_back(strategy);
    }
    // The next vector that does not rise, in lexical order.
    std::size_t s = stages - 1;
    while (s > 0 && now[s] == now[s - 1]) now[s--] = 1;
    ++now[s];
  }
  return all;
}

std::unique_ptr<const Problem> small_problem(std::uint64_t seed, std::int64_t batch) {
  Rng rng = Rng(seed).fork("small case");
  const int devices = between(rng, 2, 4);
  const int most_ops[] = {9, 9, 9};
  const std::string graph = GraphWriter(rng.fork("graph")).run(most_ops[devices - 2]);
  const std::int64_t batches[][4] = {{4, 8, 12, 16}, {4, 8, 12, 16}, {4, 6, 8, 12}};
  const std::int64_t usual = batches[devices - 2][rng.below(4)];
  if (batch == 0) batch = usual;
  const OptimizerKind optimizer = rng.below(2) == 0 ? OptimizerKind::kSgd : OptimizerKind::kAdam;
  Cluster cluster = testing::cluster_of(cluster_text(rng.fork("cluster"), devices));
  if (rng.below(3) > 0) return make(graph, std::move(cluster), optimizer, batch, without_parts());
  // Short of memory: no device holds all of the parameters' state, all of them together do.
  std::int64_t state = 0;
  const auto ample = make(graph, cluster, optimizer, batch, without_parts());
  const std::int64_t each = optimizer == OptimizerKind::kAdam ? 16 : 8;
  for (const TensorId id : ample->graph.parameters()) {
    state += each * elements_at(ample->graph.tensor(id).shape, 1);
  }
  const int percent = between(rng, 60, 130);
  for (DeviceKind& kind : cluster.kinds) kind.memory_bytes = state * percent / 100 + (1 << 20);
  return make(graph, std::move(cluster), optimizer, batch, without_parts());
}

std::unique_ptr<const Problem> tight_problem(std::uint64_t seed) {
  constexpr int kDevices = 4, kBlocks = 5;
  Rng rng = Rng(seed).fork("tight case");
  const int tokens[] = {16, 128, 1024};
  const std::string graph = GraphWriter(rng.fork("graph"), tokens[rng.below(3)]).run(kBlocks);
  const std::int64_t batch = rng.below(2) == 0 ? 4 : 8;
  const OptimizerKind optimizer = rng.below(4) == 0 ? OptimizerKind::kSgd : OptimizerKind::kAdam;
  Cluster cluster = testing::cluster_of(cluster_text(rng.fork("cluster"), kDevices));
  const bool hosts = rng.below(2) == 0;
  if (hosts) add_hosts_memory(rng.fork("hosts"), cluster);
  const auto ample = make(graph, cluster, optimizer, batch, {});
  const auto peak = static_cast<double>(peak_of_equal_shares(*ample));
  for (DeviceKind& kind : cluster.kinds) {
    kind.memory_bytes = static_cast<std::int64_t>(peak * between(rng, 50, 130) / 100);
  }
  return make(graph, std::move(cluster), optimizer, batch, {});
}

}  // namespace agpcs::bench
