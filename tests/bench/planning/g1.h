// SPDX-License-Identifier: Apache-2.0
// G1: a GPT of 175e9 parameters for a cluster of five kinds of which only one has room for it.
#pragma once

#include "ir/base/check.h"
#include "planner/problem/problem.h"
#include "tests/bench/planning/gpt.h"
#include "tests/support/builders.h"

#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

namespace agpcs::bench {

/// Hosts of eight: 20 with H100; unless `h100_alone`, also 8 with A100-40, 8 with V100-32, 16 with
/// P100-16, and 76 with K80, of 12 GB. H100 and A100 compute products of fp32 in TF32.
inline Cluster g1_cluster(bool h100_alone) {
  struct Hosts {
    int count;
    const char *kind, *figures;
  };
  std::string text =
      "kind h100 memory=85899345920 bandwidth=3350e9 fp32=494.5e12\n"
      "kind a100 memory=42949672960 bandwidth=1555e9 fp32=156e12\n"
      "kind v100 memory=34359738368 bandwidth=900e9 fp32=15.7e12\n"
      "kind p100 memory=17179869184 bandwidth=732e9 fp32=9.3e12\n"
      "kind k80 memory=12e9 bandwidth=240e9 fp32=4.4e12\n";
  const Hosts all[] = {{20, "h100", "bandwidth=400e9 nic=25e9"},
                       {8, "a100", "bandwidth=300e9 nic=12.5e9"},
                       {8, "v100", "bandwidth=150e9 nic=12.5e9"},
                       {16, "p100", "bandwidth=11e9 nic=3.125e9"},
                       {76, "k80", "bandwidth=10e9 nic=1.25e9"}};
  for (const Hosts& hosts : all) {
    for (int i = 0; i < hosts.count; ++i) {
      text += fmt::format("host {}-{} {} 8 {}\n", hosts.kind, i, hosts.kind, hosts.figures);
    }
    if (h100_alone) break;
  }
  return testing::cluster_of(text);
}

inline Graph g1_graph() {
  GptSize size;
  size.tokens = 2048;
  size.groups = 1;
  return gpt(size);
}

/// Sequences of 2,048, fp32, Adam, a batch of 2,048.
inline std::unique_ptr<const Problem> g1_problem(Graph graph, Cluster cluster) {
  Training training;
  training.batch = 2048;
  training.optimizer.kind = OptimizerKind::kAdam;
  auto made = Problem::make(std::move(graph), std::move(cluster), training);
  AGPCS_CHECK(made.ok(), "{}", made.status().message());
  return *std::move(made);
}

}  // namespace agpcs::bench
