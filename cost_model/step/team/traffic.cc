// SPDX-License-Identifier: Apache-2.0
#include "cost_model/step/team/traffic.h"

#include "cost_model/network/protocols.h"
#include "ir/base/at.h"
#include "ir/graph/op_table.h"
#include "ir/team/blocks.h"

#include <agpcs/plan.h>

#include <algorithm>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

using Ranges = std::vector<UnitRange>;

std::int64_t size_of_all(const Ranges& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t sum, UnitRange range) { return sum + range.size(); });
}

/// Returns how many elements of an axis two members have in common.
std::int64_t common(const Ranges& a, const Ranges& b) {
  std::int64_t elements = 0;
  for (const UnitRange& one : a) {
    for (const UnitRange& other : b) {
      elements += std::max<std::int64_t>(
          0, std::min(one.end, other.end) - std::max(one.begin, other.begin));
    }
  }
  return elements;
}

/// Parts of a tensor, of which members have elements along an axis.
class Parts {
 public:
  Parts(const std::vector<Division>& divisions, std::size_t members, const TeamPlacement& part,
        const Tensor& tensor, std::int64_t bytes)
      : axis_(part.axis), slice_(bytes / tensor.shape[at(part.axis)].fixed) {
    for (std::size_t m = 0; m < members; ++m) {
      elements_.push_back(part_elements(divisions, part, m));
    }
  }

  int axis() const { return axis_; }
  const Ranges& elements(std::size_t member) const { return elements_[member]; }
  std::int64_t count(std::size_t member) const { return size_of_all(elements_[member]); }
  std::int64_t bytes(std::size_t member) const { return count(member) * slice_; }
  /// Returns the bytes of one element of the axis.
  std::int64_t slice() const { return slice_; }

 private:
  int axis_;
  std::int64_t slice_;
  std::vector<Ranges> elements_;
};

std::vector<std::int64_t> bytes_of_parts(const Parts& parts, std::size_t members) {
  std::vector<std::int64_t> bytes;
  for (std::size_t m = 0; m < members; ++m) bytes.push_back(parts.bytes(m));
  return bytes;
}

/// Returns what each member gives each other one, and keeps. `extent`: of the taken parts' axis.
std::vector<std::int64_t> bytes_between(const Parts& given, const Parts& taken, std::int64_t extent,
                                        std::size_t members) {
  std::vector<std::int64_t> bytes;
  for (std::size_t m = 0; m < members; ++m) {
    for (std::size_t k = 0; k < members; ++k) {
      bytes.push_back(given.axis() == taken.axis()
                          ? common(given.elements(m), taken.elements(k)) * given.slice()
                          : given.bytes(m) / extent * taken.count(k));
    }
  }
  return bytes;
}

/// Returns whether parts of a tensor that lie one behind the other are the whole tensor.
bool lie_behind_one_another(const TeamPlacement& part, const Tensor& tensor, std::int64_t samples) {
  if (part.bands.size() != 1) return false;
  std::int64_t before = 1;
  for (int axis = 0; axis < part.axis; ++axis) before *= tensor.shape[at(axis)].at(samples);
  return before == 1;
}

/// Returns what each member copies of an all-to-all: what it keeps, gives and gets. `bytes`: as in
/// TeamTraffic.
std::vector<std::int64_t> copied_between(const std::vector<std::int64_t>& bytes,
                                         std::size_t members) {
  std::vector<std::int64_t> copied(members);
  for (std::size_t m = 0; m < members; ++m) {
    for (std::size_t k = 0; k < members; ++k) {
      copied[m] += 2 * bytes[m * members + k];
      if (k != m) copied[m] += 2 * bytes[k * members + m];
    }
  }
  return copied;
}

/// Returns the numbers of the members in the order of their ranks.
std::vector<std::size_t> in_rank_order(const std::vector<DeviceId>& devices) {
  std::vector<std::size_t> order(devices.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t m) { return devices[m]; });
  return order;
}

/// Returns the turn of an all-to-all in which each member sends to the one that is so far from it.
Phase turn(const Cluster& cluster, const std::vector<DeviceId>& devices,
           const std::vector<std::int64_t>& bytes, std::size_t distance) {
  Phase phase;
  for (std::size_t m = 0; m < devices.size(); ++m) {
    const std::size_t to = (m + distance) % devices.size();
    const std::int64_t given = bytes[m * devices.size() + to];
    if (given == 0) continue;
    Exchange message = transfer(cluster, devices[m], devices[to], given);
    const double overhead = message_overhead(cluster, message[0].flows[0].links);
    phase.latency = std::max(phase.latency, message[0].latency + overhead);
    phase.flows.push_back(std::move(message[0].flows[0]));
  }
  return phase;
}

Exchange all_to_all(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    const std::vector<std::int64_t>& bytes) {
  Exchange turns;
  for (std::size_t distance = 1; distance < devices.size(); ++distance) {
    Phase phase = turn(cluster, devices, bytes, distance);
    if (!phase.flows.empty()) turns.push_back(std::move(phase));
  }
  return turns;
}

}  // namespace

TeamTraffic team_traffic(const std::vector<Division>& divisions, std::size_t members,
                         const TeamPlacement& from, const TeamPlacement& to, const Tensor& tensor,
                         std::int64_t samples, Precision precision) {
  TeamTraffic traffic{exchange_between(from, to)};
  const std::int64_t bytes = exchanged_bytes(tensor, samples, precision);
  const auto parts = [&](const TeamPlacement& part) {
    return Parts(divisions, members, part, tensor, bytes);
  };
  // Something is read once and written once.
  const auto copied = [&](std::int64_t of_all, const TeamPlacement& part) {
    for (const std::int64_t own : bytes_of_parts(parts(part), members)) {
      traffic.copied.push_back(of_all + 2 * own);
    }
  };
  switch (traffic.exchange) {
    case TeamExchange::kNothing:
      break;
    case TeamExchange::kTakePart:
      // Of a parameter, one range is a view.
      if (tensor.kind != TensorKind::kParameter || to.bands.size() > 1) copied(0, to);
      break;
    case TeamExchange::kKeepOne:
      traffic.copied.assign(members, bytes);
      traffic.copied[0] = 0;
      break;
    case TeamExchange::kFillWithZeros:
      copied(bytes, from);
      break;
    case TeamExchange::kAllReduce:
      traffic.bytes = {bytes};
      break;
    case TeamExchange::kAllGather:
      traffic.bytes = bytes_of_parts(parts(from), members);
      copied(lie_behind_one_another(from, tensor, samples) ? 0 : 2 * bytes, from);
      break;
    case TeamExchange::kReduceScatter:
      traffic.bytes = bytes_of_parts(parts(to), members);
      copied(2 * bytes, to);
      break;
    case TeamExchange::kAllToAll:
      traffic.bytes =
          bytes_between(parts(from), parts(to), tensor.shape[at(to.axis)].fixed, members);
      traffic.copied = copied_between(traffic.bytes, members);
      break;
  }
  return traffic;
}

TeamTraffic forward_traffic(const Graph& graph, const TeamBody& body, int form,
                            std::int64_t samples, Precision precision) {
  const TeamForm& made = body.forms[at(form)];
  if (made.from == kNone) return {};
  return team_traffic(body.divisions, body.members(), body.forms[at(made.from)].placement,
                      made.placement, graph.tensor(made.tensor), samples, precision);
}

TeamTraffic backward_traffic(const Graph& graph, const TeamBody& body, int form,
                             std::int64_t samples, Precision precision) {
  const TeamForm& made = body.forms[at(form)];
  if (made.from == kNone || !has_gradient(graph.tensor(made.tensor))) return {};
  return team_traffic(body.divisions, body.members(), gradient_of(made.placement),
                      gradient_of(body.forms[at(made.from)].placement), graph.tensor(made.tensor),
                      samples, precision);
}

std::vector<TeamTraffic> inside_traffic(const Graph& graph, OpId op, const OpSplit& split,
                                        std::int64_t samples, std::size_t members) {
  std::vector<TeamTraffic> traffic;
  const std::vector<std::int64_t> bytes = inside_bytes(graph, op, split, samples);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    if (split.inside[i] == Placement::Kind::kSum) {
      traffic.push_back({TeamExchange::kAllReduce, {bytes[i]}});
    } else {
      traffic.push_back({TeamExchange::kAllGather, std::vector<std::int64_t>(members, bytes[i])});
    }
  }
  return traffic;
}

Exchange team_exchange(const Cluster& cluster, const std::vector<DeviceId>& devices,
                       const TeamTraffic& traffic) {
  const std::vector<std::size_t> order = in_rank_order(devices);
  std::vector<DeviceId> ranked;
  for (const std::size_t m : order) ranked.push_back(devices[m]);
  std::vector<std::int64_t> bytes;
  const auto take_parts = [&] {
    for (const std::size_t m : order) bytes.push_back(traffic.bytes[m]);
  };
  switch (traffic.exchange) {
    case TeamExchange::kAllReduce:
      return all_reduce(cluster, ranked, AllReduce::kRing, traffic.bytes[0]);
    case TeamExchange::kAllGather:
      take_parts();
      return all_gather(cluster, ranked, AllReduce::kRing, bytes);
    case TeamExchange::kReduceScatter:
      take_parts();
      return reduce_scatter(cluster, ranked, AllReduce::kRing, bytes);
    case TeamExchange::kAllToAll:
      for (const std::size_t m : order) {
        for (const std::size_t k : order) bytes.push_back(traffic.bytes[m * order.size() + k]);
      }
      return all_to_all(cluster, ranked, bytes);
    case TeamExchange::kNothing:
    case TeamExchange::kTakePart:
    case TeamExchange::kKeepOne:
    case TeamExchange::kFillWithZeros:
      break;
  }
  return {};
}

double copy_seconds(const Cluster& cluster, DeviceId device, std::size_t member,
                    const TeamTraffic& traffic) {
  if (traffic.copied.empty()) return 0;
  return static_cast<double>(traffic.copied[member]) / cluster.kind_of(device).memory_bandwidth;
}

double lone_seconds(const Cluster& cluster, const std::vector<DeviceId>& devices,
                    const TeamTraffic& traffic) {
  double copying = 0;
  for (std::size_t m = 0; m < devices.size(); ++m) {
    copying = std::max(copying, copy_seconds(cluster, devices[m], m, traffic));
  }
  return copying + lone_seconds(cluster, team_exchange(cluster, devices, traffic));
}

}  // namespace agpcs
