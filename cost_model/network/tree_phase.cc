// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/tree_phase.h"

#include "cost_model/network/protocols.h"
#include "ir/plan/reduction_tree.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// The ways of pieces up (or down) the tree: for each member, the way between it and the root.
class TreeWays {
 public:
  enum class Heading : std::uint8_t { kUp, kDown };

  TreeWays(const Cluster& cluster, const std::vector<DeviceId>& devices, const ReductionTree& tree,
           Heading heading)
      : cluster_(cluster), devices_(devices), heading_(heading), ways_(tree.members.size()) {
    for (const int parent : tree.order) add_children(tree, parent);
  }

  double latency() const { return latency_; }
  /// Returns the seconds that a byte takes over the longest way, apart from latency.
  double seconds_per_byte() const { return seconds_per_byte_; }
  void add_to(Flow& flow) const {
    flow.links.insert(flow.links.end(), flow_.links.begin(), flow_.links.end());
    flow.senders.insert(flow.senders.end(), flow_.senders.begin(), flow_.senders.end());
    flow.receivers.insert(flow.receivers.end(), flow_.receivers.begin(), flow_.receivers.end());
  }

 private:
  struct Way {
    double latency = 0, seconds_per_byte = 0;
  };

  // A link that leads to or from both children carries one piece of each.
  void add_children(const ReductionTree& tree, int parent) {
    const std::array<int, 2>& children = tree.members[static_cast<std::size_t>(parent)].children;
    std::array<std::size_t, 3> first = {flow_.links.size()};  // of each child's route, and the end
    for (std::size_t c = 0; c < 2; ++c) {
      if (children[c] >= 0) add_hop_between(children[c], parent);
      first[c + 1] = flow_.links.size();
    }
    const auto route_of = [&](std::size_t c) {
      return std::span(flow_.links).subspan(first[c], first[c + 1] - first[c]);
    };
    for (std::size_t c = 0; c < 2; ++c) {
      if (children[c] < 0) continue;
      Way way = ways_[static_cast<std::size_t>(parent)];
      double slowest = 0;
      const std::span<const LinkId> other = route_of(1 - c);
      for (const LinkId id : route_of(c)) {
        const Link& link = cluster_.links[static_cast<std::size_t>(id)];
        const auto shared = std::count(other.begin(), other.end(), id);
        slowest = std::max(slowest, static_cast<double>(1 + shared) / link.bandwidth);
        way.latency += link.latency;
      }
      way.seconds_per_byte += slowest;
      latency_ = std::max(latency_, way.latency);
      seconds_per_byte_ = std::max(seconds_per_byte_, way.seconds_per_byte);
      ways_[static_cast<std::size_t>(children[c])] = way;
    }
  }

  void add_hop_between(int child, int parent) {
    DeviceId from = devices_[static_cast<std::size_t>(child)];
    DeviceId to = devices_[static_cast<std::size_t>(parent)];
    if (heading_ == Heading::kDown) std::swap(from, to);
    cluster_.append_route(from, to, flow_.links);
    flow_.senders.push_back(from);
    flow_.receivers.push_back(to);
  }

  const Cluster& cluster_;
  const std::vector<DeviceId>& devices_;
  const Heading heading_;
  std::vector<Way> ways_;
  Flow flow_;
  double latency_ = 0, seconds_per_byte_ = 0;
};

/// Returns the seconds for a byte on each hop of a flow that has all links to itself.
double lone_seconds_per_byte(const Cluster& cluster, const Flow& flow) {
  std::vector<int> crossings(cluster.links.size());
  for (const LinkId id : flow.links) ++crossings[static_cast<std::size_t>(id)];
  double slowest = 0;
  for (std::size_t i = 0; i < crossings.size(); ++i) {
    slowest = std::max(slowest, crossings[i] / cluster.links[i].bandwidth);
  }
  return slowest;
}

ReductionTree tree_of(const Cluster& cluster, const std::vector<DeviceId>& devices) {
  std::vector<int> hosts;
  hosts.reserve(devices.size());
  for (const DeviceId d : devices) {
    hosts.push_back(cluster.devices[static_cast<std::size_t>(d)].host);
  }
  return reduction_tree(hosts);
}

/// Gives a phase of `halves` halves of an all-reduce the latency of links with protocols.
void settle(const Cluster& cluster, const std::vector<DeviceId>& devices, const CollectiveFit& fit,
            int halves, Phase& phase) {
  if (!have_protocols(cluster, phase.flows.front().links)) return;
  Flow around;  // hops as of a ring
  for (std::size_t i = 0; i < devices.size(); ++i) {
    around.senders.push_back(devices[i]);
    around.receivers.push_back(devices[(i + 1) % devices.size()]);
  }
  TreeLatency tree = tree_latency(cluster, devices, hops_of(cluster, around));
  for (double& latency : tree.latency) latency *= halves / 2.0;
  phase.steps = tree.steps * halves / 2;
  ProtocolChoice choice(cluster);
  choice.add(phase.flows.front(), tree.latency, phase.steps, fit.step_overhead);
  choice.settle(phase);
}

/// Sets bytes that follow a first piece, which takes as long as `first` pieces.
void set_bytes(Flow& flow, const CollectiveFit& fit, double first, std::int64_t bytes) {
  const auto pieces = static_cast<double>(tree_pieces(bytes));
  flow.bytes = bytes;
  flow.stretch = fit.stretch * (first + pieces - 1) / pieces;
}

}  // namespace

// The last piece is down when the first one has been up and down and the others have followed it,
// each later by the time of a piece on the slowest link.
TreeShape tree_shape(const Cluster& cluster, const std::vector<DeviceId>& devices,
                     const CollectiveFit& fit) {
  const ReductionTree tree = tree_of(cluster, devices);
  const TreeWays up(cluster, devices, tree, TreeWays::Heading::kUp);
  const TreeWays down(cluster, devices, tree, TreeWays::Heading::kDown);
  TreeShape shape;
  shape.phase.steps = 2 * tree.depth;
  shape.phase.latency =
      up.latency() + down.latency() + fit.step_overhead * static_cast<double>(shape.phase.steps);
  Flow flow;
  up.add_to(flow);
  down.add_to(flow);
  // Hops of several ways may share a cable, which no piece passes faster.
  shape.first = std::max(1.0, (up.seconds_per_byte() + down.seconds_per_byte()) /
                                  lone_seconds_per_byte(cluster, flow));
  note_shares(cluster, flow);
  shape.phase.flows.push_back(std::move(flow));
  return shape;
}

void set_tree_bytes(TreeShape& shape, const CollectiveFit& fit, std::int64_t bytes) {
  set_bytes(shape.phase.flows.front(), fit, shape.first, bytes);
}

Phase tree_phase(const Cluster& cluster, const std::vector<DeviceId>& devices,
                 const CollectiveFit& fit, std::int64_t bytes) {
  TreeShape shape = tree_shape(cluster, devices, fit);
  set_tree_bytes(shape, fit, bytes);
  settle(cluster, devices, fit, 2, shape.phase);
  return std::move(shape.phase);
}

TreeHalf tree_half(const Cluster& cluster, const std::vector<DeviceId>& devices,
                   const CollectiveFit& fit, bool up, std::int64_t bytes) {
  const ReductionTree tree = tree_of(cluster, devices);
  const TreeWays ways(cluster, devices, tree,
                      up ? TreeWays::Heading::kUp : TreeWays::Heading::kDown);
  TreeHalf half;
  half.root = static_cast<std::size_t>(tree.order.front());
  half.phase.steps = tree.depth;
  half.phase.latency = ways.latency() + fit.step_overhead * static_cast<double>(tree.depth);
  Flow flow;
  ways.add_to(flow);
  const double first =
      std::max(1.0, ways.seconds_per_byte() / lone_seconds_per_byte(cluster, flow));
  set_bytes(flow, fit, first, bytes);
  note_shares(cluster, flow);
  half.phase.flows.push_back(std::move(flow));
  settle(cluster, devices, fit, 1, half.phase);
  return half;
}

}  // namespace agpcs
