// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/coordination/coordination_model.h"

#include "cost_model/network/link_model.h"
#include "cost_model/step/cost_table.h"
#include "frontend/onnx/import_onnx.h"
#include "ir/base/check.h"
#include "ir/graph/training_graph.h"
#include "tests/bench/support/mistakes.h"
#include "tests/support/builders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr int kDevices = 6;  // of a host
constexpr int kMostHosts = 512;
constexpr double kNic = 25e9, kNicLatency = 1.5e-6, kPortLatency = 3e-6;

template <typename T>
T need(Result<T> result) {
  AGPCS_CHECK(result.ok(), "{}", result.status().message());
  return *std::move(result);
}

Cluster cluster_of_hosts(int hosts) {
  std::string text = "kind v100 memory=16e9 bandwidth=900e9 fp32=15.7e12\n";
  for (int h = 0; h < hosts; ++h) {
    text += fmt::format("host h{} v100 {} bandwidth=50e9 latency={} nic={} nic-latency={}\n", h,
                        kDevices, kPortLatency, kNic, kNicLatency);
  }
  return testing::cluster_of(text);
}

/// Seconds of a ring's steps between `hosts` hosts.
double ring_between(int hosts, std::int64_t bytes) {
  const double steps = 2.0 * (hosts - 1);
  return steps * 2 * (kNicLatency + kPortLatency) +
         steps / hosts * static_cast<double>(bytes) / kNic;
}

}  // namespace

ModelGradients gradients_of_model(const std::string& path, std::int64_t samples) {
  Result<Imported> imported = import_onnx(path);
  if (!imported.ok()) bench::end_with(imported.status().message());
  Loss loss;
  Graph graph = need(attach_loss(std::move(imported->graph), loss));
  graph = need(derive_backward(std::move(graph)));
  Training training;
  training.batch = samples;
  training.loss = loss;
  const CostTable costs = need(CostTable::make(graph, cluster_of_hosts(1), training));

  std::vector<double> done(graph.ops.size());  // by operator: when its backward is over
  ModelGradients gradients;
  for (OpId op = 0; op < static_cast<OpId>(done.size()); ++op) {
    gradients.compute += costs.seconds(0, op, samples).forward;
  }
  for (std::size_t op = done.size(); op-- > 0;) {
    gradients.compute += costs.seconds(0, static_cast<OpId>(op), samples).backward;
    done[op] = gradients.compute;
  }
  // In order of first use; backward comes to the first use last.
  std::vector<TensorId> parameters = graph.parameters();
  std::reverse(parameters.begin(), parameters.end());
  for (const TensorId id : parameters) {
    const Tensor& tensor = graph.tensor(id);
    gradients.ready.push_back(done[static_cast<std::size_t>(tensor.consumers.front())]);
    gradients.bytes.push_back(elements_at(tensor.shape, samples) * 4);
  }
  return gradients;
}

SummitReduce::SummitReduce(int ranks) : ranks_(ranks), hosts_((ranks + kDevices - 1) / kDevices) {}

double SummitReduce::lone(AllReduce algorithm, int hosts, std::int64_t bytes) {
  const auto [at, added] = clusters_.try_emplace(hosts);
  if (added) at->second = cluster_of_hosts(hosts);
  std::vector<DeviceId> devices(
      static_cast<std::size_t>(hosts == hosts_ ? ranks_ : hosts * kDevices));
  std::iota(devices.begin(), devices.end(), 0);
  return lone_seconds(at->second, all_reduce(at->second, devices, algorithm, bytes));
}

double SummitReduce::hierarchical(std::int64_t bytes) {
  if (hosts_ <= kMostHosts) return lone(AllReduce::kHierarchical, hosts_, bytes);
  return lone(AllReduce::kHierarchical, kMostHosts / 2, bytes) -
         ring_between(kMostHosts / 2, bytes) + ring_between(hosts_, bytes);
}

/// The tree of hosts is a heap: of twice as many it has a level more, all of which are alike.
double SummitReduce::tree(std::int64_t bytes) {
  int hosts = hosts_, levels = 0;
  for (; hosts > kMostHosts; hosts /= 2) ++levels;
  const double seconds = lone(AllReduce::kTree, hosts, bytes);
  if (levels == 0) return seconds;
  return seconds + levels * (seconds - lone(AllReduce::kTree, hosts / 2, bytes));
}

double SummitReduce::operator()(std::int64_t bytes) {
  if (ranks_ < 2) return 0;
  const auto [at, added] = known_.try_emplace(bytes);
  if (added) {
    at->second = std::min(hierarchical(bytes), tree(bytes));
    if (hosts_ <= kMostHosts)
      at->second = std::min(at->second, lone(AllReduce::kRing, hosts_, bytes));
  }
  return at->second;
}

double continuation_error(std::int64_t bytes) {
  const auto direct = [&](AllReduce algorithm, int hosts) {
    const Cluster cluster = cluster_of_hosts(hosts);
    std::vector<DeviceId> devices(cluster.devices.size());
    std::iota(devices.begin(), devices.end(), 0);
    return lone_seconds(cluster, all_reduce(cluster, devices, algorithm, bytes));
  };
  const double ring = direct(AllReduce::kHierarchical, kMostHosts / 2) -
                      ring_between(kMostHosts / 2, bytes) + ring_between(kMostHosts, bytes);
  const double half = direct(AllReduce::kTree, kMostHosts / 2);
  const double tree = 2 * half - direct(AllReduce::kTree, kMostHosts / 4);
  return std::max(std::abs(ring / direct(AllReduce::kHierarchical, kMostHosts) - 1),
                  std::abs(tree / direct(AllReduce::kTree, kMostHosts) - 1));
}

}  // namespace agpcs
