// SPDX-License-Identifier: Apache-2.0
// A chain of 26 equal layers with profiled times, on half A100-40GB, half V100-16GB. It stands for
// OPT-350M, on which planners for mixed clusters are compared.
//
// * A layer has three operators: MatMul of [n,2048,1024] with [1024,6144], Relu, MatMul with
//   [6144,1024]. That makes 12.6e6 parameters, as many as a layer of OPT-350M.
// * The profile has the times of 1, 2, 4, 8 and 16 samples: 30 us an operator, and for each sample
//   of a layer 0.6 ms on an A100 and 1.6 ms on a V100, of which each MatMul takes 45%. Backward
//   takes twice as long as forward. Where degrees of teams are asked for, it has the times of their
//   members, too: the same 30 us, and that part of the rest.
// * Hosts have devices of one kind, at 250 GB/s each (A100) or 120 GB/s (V100).
#pragma once

#include "cost_model/fit/calibrate.h"
#include "ir/base/check.h"
#include "ir/graph/op_signature.h"
#include "ir/graph/training_graph.h"
#include "tests/support/builders.h"

#include <fmt/format.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::bench {

inline constexpr int kChainLayers = 26;

/// `parts`: layers have one of so many parts of the inner width, as the members of a team do.
inline Graph chain_of_layers(int parts = 1) {
  constexpr std::int64_t kTokens = 2048, kWidth = 1024;
  const std::int64_t inner = 6144 / parts;
  std::string text = fmt::format("input x [n,{},{}]\n", kTokens, kWidth);
  std::string last = "x";
  for (int i = 0; i < kChainLayers; ++i) {
    text += fmt::format(
        "parameter v{0} [{3},{4}]\nparameter w{0} [{4},{3}]\na{0} = MatMul({1}, v{0}) [n,{2},{4}]\n"
        "b{0} = Relu(a{0}) [n,{2},{4}]\nc{0} = MatMul(b{0}, w{0}) [n,{2},{3}]\n",
        i, last, kTokens, kWidth, inner);
    last = fmt::format("c{}", i);
  }
  text += fmt::format("outputs {}\n", last);
  Loss loss;
  loss.kind = LossKind::kMse;
  Result<Graph> with_loss = attach_loss(testing::graph_of(text), loss);
  AGPCS_CHECK(with_loss.ok(), "{}", with_loss.status().message());
  Result<Graph> graph = derive_backward(*std::move(with_loss));
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  return *std::move(graph);
}

/// Adds the operators of a chain, on a device on which a sample of a layer takes `layer` seconds.
inline void measure_chain(const Graph& graph, double layer,
                          std::map<std::string, MeasuredOperator>& by_signature) {
  constexpr double kFixed = 30e-6;
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    const std::string& type = graph.op(op).type;
    if (type != "MatMul" && type != "Relu") continue;
    MeasuredOperator one{op_signature(graph, op), class_of(graph.op(op)), {}};
    const double part = (type == "MatMul" ? 0.45 : 0.1) * layer;
    for (const std::int64_t n : {1, 2, 4, 8, 16}) {
      const double seconds = kFixed + part * static_cast<double>(n);
      one.points.push_back(
          {n, op_cost(graph, op, n, Precision::kFp16), {seconds, 0}, {2 * seconds, 0}});
    }
    by_signature.try_emplace(one.signature, one);
  }
}

/// The layers as measured on device `name`, whole and by members of teams of these degrees.
inline DeviceProfile measured_chain(const std::string& name, const Graph& graph, double layer,
                                    const std::vector<int>& degrees) {
  DeviceProfile device;
  device.name = name;
  device.precision = Precision::kFp16;
  device.models = {graph.name};
  std::map<std::string, MeasuredOperator> by_signature;
  measure_chain(graph, layer, by_signature);
  for (const int degree : degrees) {
    measure_chain(chain_of_layers(degree), layer / degree, by_signature);
  }
  for (auto& [signature, one] : by_signature) device.operators.push_back(std::move(one));
  return device;
}

/// Half of `hosts` have A100s and half V100s, `devices` each; their NICs have `nic` bytes/s.
inline Cluster chain_cluster(int hosts, int devices, double nic, const Graph& graph,
                             const std::vector<int>& degrees = {}) {
  std::string text =
      "kind a100-40 memory=40e9 bandwidth=1555e9 fp16=312e12\n"
      "kind v100-16 memory=16e9 bandwidth=900e9 fp16=125e12\n";
  for (int host = 0; host < hosts; ++host) {
    const bool fast = host < hosts / 2;
    text += fmt::format("host h{} {} {} bandwidth={} latency=3e-6 nic={} nic-latency=10e-6\n", host,
                        fast ? "a100-40" : "v100-16", devices, fast ? "250e9" : "120e9", nic);
  }
  Cluster cluster = testing::cluster_of(text);
  Profile profile;
  profile.file = "chain.yaml";
  profile.devices = {measured_chain("a100-40", graph, 0.6e-3, degrees),
                     measured_chain("v100-16", graph, 1.6e-3, degrees)};
  seal_profile(profile);
  cluster.profiles = {std::move(profile)};
  for (DeviceKind& kind : cluster.kinds) kind.profile = {0, kind.name};
  Result<Calibrated> calibrated = calibrate(std::move(cluster));
  AGPCS_CHECK(calibrated.ok(), "{}", calibrated.status().message());
  return std::move(calibrated->cluster);
}

}  // namespace agpcs::bench
