// SPDX-License-Identifier: Apache-2.0
// Two boxes of eight V100, as tests and benchmarks have them: hybrid cube meshes of NVLinks, and a
// card of 12.5 GB/s in each box.
#pragma once

#include "ir/cluster/topology.h"

#include <fmt/format.h>

namespace agpcs {

/// Bytes a second of a link of capacity 1: a card, or what joins a GPU and its box's switch.
inline constexpr double kCardBandwidth = 12.5e9;
inline constexpr double kBoxLatency = 2e-6;  ///< of each link

/// The boxes of a DGX-1V: half of its cables between GPUs are two NVLinks of 25 GB/s. With
/// `doubled` false each of them is one.
inline Topology two_cube_meshes(bool doubled) {
  struct Cable {
    int from, to, links;
  };
  constexpr Cable kCables[] = {{0, 1, 1}, {0, 2, 1}, {0, 3, 2}, {0, 4, 2}, {1, 2, 2}, {1, 3, 1},
                               {1, 5, 2}, {2, 3, 2}, {2, 6, 1}, {3, 7, 1}, {4, 5, 1}, {4, 6, 1},
                               {4, 7, 2}, {5, 6, 2}, {5, 7, 1}, {6, 7, 2}};
  Topology topology;
  topology.name = doubled ? "two DGX-1V" : "two cube meshes";
  topology.servers = 16;
  topology.switches = 2;
  for (int gpu = 0; gpu < 16; ++gpu) topology.node_names.push_back(fmt::format("s{}", gpu));
  for (int box = 0; box < 2; ++box) topology.node_names.push_back(fmt::format("w{}", box));
  const auto join = [&](int from, int to, int capacity) {
    topology.links.push_back({from, to, capacity});
    topology.links.push_back({to, from, capacity});
  };
  for (int box = 0; box < 2; ++box) {
    for (const Cable& cable : kCables) {
      join(8 * box + cable.from, 8 * box + cable.to, 2 * (doubled ? cable.links : 1));
    }
    for (int gpu = 0; gpu < 8; ++gpu) join(8 * box + gpu, 16 + box, 1);
  }
  join(16, 17, 1);
  return topology;
}

}  // namespace agpcs
