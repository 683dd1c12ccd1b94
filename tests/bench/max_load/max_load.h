// SPDX-License-Identifier: Apache-2.0
// The max-load problem: place the nodes of a graph on k equal accelerators and a CPU so that the
// busiest device is least busy. The throughput objective of Tarnawski et al., "Efficient Algorithms
// for Device Placement of DNN Graph Operators" (NeurIPS 2020), without contiguity.
#pragma once

#include "ir/base/rng.h"
#include "planner/seed/metis_partition.h"

#include <agpcs/status.h>

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace agpcs {

struct MaxLoadNode {
  double time = 0;          ///< on an accelerator
  double cpu_time = 0;      ///< on the CPU
  bool accelerator = true;  ///< whether an accelerator can run it
  double size = 0;          ///< of an accelerator's memory
  double out_cost = 0;      ///< time to move its output between an accelerator and the CPU's memory
  int colour = -1;          ///< nodes of the same colour share a device; -1: of none
};

/// Devices are 0, the CPU, and accelerators 1..devices.
///
/// The load of an accelerator is the time of its nodes, and the out-cost of each of them with a
/// consumer elsewhere, and the out-cost of each producer elsewhere that it consumes, each once. The
/// load of the CPU is the cpu_time of its nodes.
struct MaxLoadProblem {
  std::vector<MaxLoadNode> nodes;
  std::vector<std::pair<int, int>> edges;  ///< from producer to consumer
  int devices = 1;
  bool cpu = true;                                            ///< whether the CPU may run nodes
  double capacity = std::numeric_limits<double>::infinity();  ///< of each accelerator's memory
};

/// What a placement is worth, computed afresh.
struct MaxLoadFigures {
  std::vector<double> loads;  ///< by device, the CPU first
  double max_load = 0;
  bool fits = true;       ///< no accelerator's memory is exceeded
  bool colocated = true;  ///< each colour is on one device
  bool runs = true;       ///< each node is on a device that exists and can run it
  bool valid() const { return fits && colocated && runs; }
};
MaxLoadFigures max_load_of(const MaxLoadProblem& problem, const std::vector<int>& device_of_node);

/// Nodes that share a device, for good or at one level of a coarsening. Times and sizes are whole
/// numbers so that incremental sums are exact.
struct MaxLoadItem {
  std::int64_t time = 0, cpu_time = 0, size = 0;
  bool accelerator = true, cpu = true;  ///< where it may be
};

/// Outputs of one item that the same other items read: cut when one of those is elsewhere.
struct MaxLoadNet {
  int source = 0;
  std::int64_t cost = 0;
  int first_sink = 0, end_sink = 0;  ///< in MaxLoadItems::sinks
};

/// The problem over items. Outputs that cost nothing are left out.
struct MaxLoadItems {
  std::vector<MaxLoadItem> items;
  std::vector<MaxLoadNet> nets;  ///< by source
  std::vector<int> sinks;        ///< of each net: ascending, distinct, never the source
  std::vector<int> first_net;    ///< [item]: its first net as a source; one entry more than items
  std::vector<int> first_read;   ///< [item]: into `reads`; one entry more than items
  std::vector<int> reads;        ///< the nets that an item is a sink of
  int devices = 1;
  std::int64_t capacity = 0;
  double tick = 1;  ///< time of one unit of `time` and `cost`

  int size() const { return static_cast<int>(items.size()); }
};

/// One item a colour or uncoloured node; `item_of` receives the item of each node. Errors: an
/// edge's end or a colour that does not exist, less than one device, a node that no device runs, a
/// figure that is negative or not finite.
Result<MaxLoadItems> make_max_load_items(const MaxLoadProblem& problem, std::vector<int>& item_of);

/// Joins items: `group_of[i]` is the item of the result that item i goes to, 0..groups-1.
MaxLoadItems join_items(const MaxLoadItems& items, const std::vector<int>& group_of, int groups);

/// Joins what no placement of a max load below `below` puts on different devices, and what some
/// best placement keeps together: an item that takes no time with the one producer or consumer that
/// it talks to (only if memory is plenty for everything). `group_of` receives the group of each.
MaxLoadItems join_inseparable(const MaxLoadItems& items, std::int64_t below,
                              std::vector<int>& group_of);

/// No placement's max load is less: the work spread over all devices, and each item for itself.
std::int64_t max_load_bound(const MaxLoadItems& items);

/// Seeds. Each gives the device of each item, never one that may not run it.
///
/// METIS's k-way partition of the items, whatever memory is there. Not for concurrent use.
std::vector<int> metis_max_load(const MaxLoadItems& items, const MetisOptions& options);
/// Contiguous runs of `order`, which names each item once, that fit into memory (if any do), of
/// least max load: exact for that order, by dynamic programming in O(items^2 x (degree + devices)).
std::vector<int> linear_max_load(const MaxLoadItems& items, const std::vector<int>& order);
/// Orders in which items that talk to each other are close: `variant` 0 and 1 follow the edges
/// depth first from the ends and from the starts, 2 goes breadth first without directions.
inline constexpr int kMaxLoadOrders = 3;
std::vector<int> max_load_order(const MaxLoadItems& items, int variant);
/// The best of linear_max_load over all orders.
std::vector<int> best_linear_max_load(const MaxLoadItems& items);

struct MaxLoadOptions {
  /// Bounds the search, in pins of nets looked at and evaluations (never seconds): some 4 to 6 s of
  /// one core.
  std::int64_t work = 160'000'000;
};

/// The device of each node: the best of the seeds above, of the refiners greedy and anneal, of
/// multilevel annealing and recombination of what those find, and of the refiners again. Same
/// problem, options and `rng`, same placement. Errors: as make_max_load_items, and kInfeasible if
/// nothing was found that fits into memory.
Result<std::vector<int>> solve_max_load(const MaxLoadProblem& problem,
                                        const MaxLoadOptions& options, Rng rng);

}  // namespace agpcs
