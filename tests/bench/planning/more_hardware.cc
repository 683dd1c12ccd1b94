// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/planning/more_hardware.h"

#include "ir/base/at.h"
#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "ir/plan/choices.h"
#include "planner/evaluate/evaluator.h"
#include "planner/learn/problems/cluster_builder.h"
#include "planner/problem/micro_batches.h"
#include "tests/support/builders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::bench {
namespace {

struct SomeHost {
  Datasheet sheet;
  int devices = 1;
  Nic nic;
  double faster_nic = 1, faster_ports = 1;
};

/// `memory`: the part of a device's memory that it has, by kind's name.
struct SomeCluster {
  std::vector<SomeHost> hosts;
  double memory = 1;
  std::string_view larger;  // the kind with more memory
  double larger_by = 1;

  Cluster build() const {
    std::string kinds, lines;
    for (const SomeHost& host : hosts) {
      const Datasheet& sheet = host.sheet;
      const std::string kind = fmt::format("kind {} ", sheet.name);
      if (kinds.find(kind) == std::string::npos) {
        const double bytes = memory * (sheet.name == larger ? larger_by : 1) *
                             static_cast<double>(sheet.memory_gib << 30);
        kinds += fmt::format("{}memory={} bandwidth={} fp32={} fp16={}\n", kind, bytes,
                             sheet.memory_gbs * 1e9, sheet.fp32 * 1e12, sheet.fp16 * 1e12);
      }
      lines += fmt::format("host h{} {} {} bandwidth={} nic={} nic-latency={}\n",
                           std::count(lines.begin(), lines.end(), '\n'), sheet.name, host.devices,
                           host.faster_ports * sheet.link_gbs * 1e9,
                           host.faster_nic * host.nic.gbits / 8 * 1e9, host.nic.micros * 1e-6);
    }
    return testing::cluster_of(kinds + lines);
  }
};

SomeCluster some_cluster(Rng& rng, const std::vector<Datasheet>& kinds) {
  SomeCluster cluster;
  const Nic nic = one_of(rng, kNics);
  const bool one_network = rng.below(2) == 0;
  const int hosts = std::max(static_cast<int>(kinds.size()), some(rng, 1, 4));
  const int devices[] = {1, 2, 2, 4};
  for (int i = 0; i < hosts; ++i) {
    cluster.hosts.push_back({kinds[at(i) % kinds.size()], one_of(rng, devices),
                             one_network ? nic : one_of(rng, kNics)});
  }
  return cluster;
}

/// Returns the part of its memory that a cluster keeps. In two of three problems little is left.
double part_of_memory(Rng& rng, const Cluster& cluster, const GeneratedProblem& problem) {
  if (rng.below(3) == 0) return 1;
  double state = 0, largest = 0;
  const int copies = 2 + variant_of(problem.training.optimizer).state_tensors;
  for (const TensorId id : problem.graph.parameters()) {
    const auto elements = static_cast<double>(elements_at(problem.graph.tensor(id).shape, 1));
    state += 4 * copies * elements;
    largest = std::max(largest, 4 * copies * elements);
  }
  double memory = 0, most = 0;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) {
    const auto bytes = static_cast<double>(cluster.kind_of(id).memory_bytes);
    memory += bytes;
    most = std::max(most, bytes);
  }
  constexpr double kTimes[] = {1.2, 1.6, 2, 3, 5};
  return std::max(one_of(rng, kTimes) * state / memory, 1.1 * largest / most);
}

void add_more(Rng& rng, SomeCluster& cluster, More more, const Datasheet& new_kind) {
  constexpr double kFactors[] = {1.25, 2, 4};
  const double factor = one_of(rng, kFactors);
  const SomeHost some = cluster.hosts[rng.below(cluster.hosts.size())];
  if (more == More::kMemory) {
    cluster.larger = some.sheet.name;
    cluster.larger_by = factor;
  } else if (more == More::kBandwidth) {
    const bool ports = rng.below(2) == 0, all = rng.below(2) == 0;
    for (SomeHost& host : cluster.hosts) {
      if (!all && host.sheet.name != some.sheet.name) continue;
      (ports ? host.faster_ports : host.faster_nic) = factor;
    }
  } else {
    SomeHost host = some;
    if (more == More::kKind) host = {new_kind, host.devices, one_of(rng, kNics)};
    const auto place = static_cast<std::ptrdiff_t>(rng.below(cluster.hosts.size() + 1));
    cluster.hosts.insert(cluster.hosts.begin() + place, host);
  }
}

class HandMaker {
 public:
  explicit HandMaker(const Problem& problem) : problem_(problem), evaluator_(problem) {}

  HandMade run() {
    const Cluster& cluster = problem_.cluster;
    const auto memory = [&](int k) {
      return -static_cast<double>(cluster.kinds[at(k)].memory_bytes);
    };
    const auto speed = [&](int k) { return -cluster.kinds[at(k)].peak_flops.begin()->second; };
    add_order(memory);
    add_order(speed);
    return std::move(best_);
  }

 private:
  template <typename F>
  void add_order(F key) {
    std::vector<int> kinds(problem_.cluster.kinds.size());
    for (std::size_t k = 0; k < kinds.size(); ++k) kinds[k] = static_cast<int>(k);
    std::stable_sort(kinds.begin(), kinds.end(), [&](int a, int b) { return key(a) < key(b); });
    std::vector<DeviceId> row;
    for (const int kind : kinds) {
      for (DeviceId id = 0; id < problem_.cluster.device_count(); ++id) {
        if (problem_.cluster.devices[at(id)].kind == kind) row.push_back(id);
      }
      add_row(row);
    }
  }

  void add_row(const std::vector<DeviceId>& row) {
    for (std::size_t stages = 1; stages <= std::min(row.size(), at(problem_.blocks.size()));
         ++stages) {
      for (std::size_t replicas = 1; stages * replicas <= row.size(); ++replicas) {
        for (const std::int64_t count : divisors(problem_.training.batch)) {
          if (count > kMostMicroBatches || count * static_cast<std::int64_t>(stages) > 4096) break;
          add_pipeline(row, stages, replicas, count);
        }
      }
    }
  }

  void add_pipeline(const std::vector<DeviceId>& row, std::size_t stages, std::size_t replicas,
                    std::int64_t count) {
    const std::int64_t samples = problem_.training.batch / count;
    const auto each = static_cast<std::int64_t>(replicas);
    if (samples < each) return;
    Strategy strategy;
    strategy.micro_batches = count;
    strategy.stage_of = stage_of_ops(problem_.blocks, equal_stages(stages));
    for (std::size_t s = 0; s < stages; ++s) {
      StageSpec& stage = strategy.stages.emplace_back();
      const auto first = row.begin() + static_cast<std::ptrdiff_t>(s * replicas);
      stage.devices.assign(first, first + each);
      std::sort(stage.devices.begin(), stage.devices.end());
      for (std::int64_t r = 0; r < each; ++r) {
        stage.shares.push_back(samples / each + (r < samples % each ? 1 : 0));
      }
    }
    for (const bool recompute : {false, true}) {
      for (StageSpec& stage : strategy.stages)
        stage.recompute = recompute ? kWholeStage : Recomputation{};
      const Score score = evaluator_.evaluate(strategy);
      if (!score.fits() || score.step_seconds >= best_.seconds) continue;
      best_ = {score.step_seconds, strategy};
    }
  }

  /// Returns the stage of each block: equal FLOPs, as near as blocks allow, and no stage is empty.
  std::vector<int> equal_stages(std::size_t stages) const {
    const std::vector<Block>& blocks = problem_.blocks.blocks;
    double total = 0, before = 0;
    for (const Block& block : blocks) total += block.flops;
    std::vector<int> stage_of;
    int stage = 0;
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      const auto last = static_cast<int>(stages) - 1;
      const double middle = before + blocks[b].flops / 2;
      const bool due = middle > total * (stage + 1) / static_cast<double>(stages);
      const bool needed = static_cast<int>(blocks.size() - b) <= last - stage;
      const bool alone = stage_of.empty() || stage_of.back() < stage;
      if (stage < last && !alone && (due || needed)) ++stage;
      stage_of.push_back(stage);
      before += blocks[b].flops;
    }
    return stage_of;
  }

  const Problem& problem_;
  Evaluator evaluator_;
  HandMade best_;
};

}  // namespace

GrowingProblem growing_problem(int index) {
  GrowingProblem problem;
  problem.more = static_cast<More>(index % 4);
  problem.before = generate_problem(2111, index);
  Rng rng = Rng(2111).fork("more hardware").fork(std::to_string(index));
  std::vector<Datasheet> kinds = some_kinds(rng, 2, 4, Purpose::kRegression);
  std::rotate(kinds.begin(), kinds.begin() + 1, kinds.end());
  const Datasheet new_kind = kinds.back();
  kinds.pop_back();
  SomeCluster cluster = some_cluster(rng, kinds);
  cluster.memory = part_of_memory(rng, cluster.build(), problem.before);
  problem.before.cluster = cluster.build();
  constexpr std::int64_t kBatches[] = {16, 32, 48, 64, 128, 256};
  problem.before.training.batch = one_of(rng, kBatches);
  add_more(rng, cluster, problem.more, new_kind);
  problem.after = cluster.build();
  return problem;
}

std::unique_ptr<const Problem> problem_on(const GeneratedProblem& generated,
                                          const Cluster& cluster) {
  auto problem = Problem::make(generated.graph, cluster, generated.training);
  AGPCS_CHECK(problem.ok(), "{}: {}", generated.name, problem.status().message());
  return *std::move(problem);
}

HandMade best_hand_made(const Problem& problem) { return HandMaker(problem).run(); }

}  // namespace agpcs::bench
