// SPDX-License-Identifier: Apache-2.0
// Profiles made up from known coefficients, so that fits have something to find.
#pragma once

#include "cost_model/network/link_model.h"
#include "ir/base/check.h"
#include "ir/cluster/profile.h"
#include "ir/graph/op_signature.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

/// Seconds of a pass of a class with so much work.
using PassSeconds = std::function<double(OpClass op_class, double flops, double bytes)>;

inline double seconds_of(const PassFit& fit, double flops, double bytes) {
  return fit.overhead + fit.per_flop * flops + fit.per_byte * bytes;
}

/// All operators of `graph` as measured on device `name` with those numbers of samples.
inline DeviceProfile measured_device(const std::string& name, const Graph& graph,
                                     const std::vector<std::int64_t>& samples,
                                     const PassSeconds& forward, const PassSeconds& backward) {
  DeviceProfile device;
  device.name = name;
  device.models = {graph.name};
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    MeasuredOperator measured{op_signature(graph, op), class_of(graph.op(op)), {}};
    const auto same = [&](const MeasuredOperator& m) { return m.signature == measured.signature; };
    if (std::any_of(device.operators.begin(), device.operators.end(), same)) continue;
    for (const std::int64_t n : samples) {
      const OpCost work = op_cost(graph, op, n, Precision::kFp32);
      const auto time = [&](const PassSeconds& seconds, double flops, double bytes) {
        return Measured{flops + bytes > 0 ? seconds(measured.op_class, flops, bytes) : 0, 0};
      };
      measured.points.push_back({n, work, time(forward, work.forward_flops, work.forward_bytes),
                                 time(backward, work.backward_flops, work.backward_bytes)});
    }
    device.operators.push_back(std::move(measured));
  }
  return device;
}

inline constexpr std::int64_t kMessageSizes[] = {1'000, 8'000, 64'000, 512'000, 4'000'000};

/// Messages over every route of `cluster`, and all-reduces over the groups, as it says itself.
inline Profile measured_network(
    const Cluster& cluster,
    const std::vector<std::pair<AllReduce, std::vector<DeviceId>>>& groups = {}) {
  Profile profile;
  profile.file = "lab.yaml";
  const auto points = [&](const std::function<Exchange(std::int64_t)>& exchange) {
    std::vector<MeasuredMessages> list;
    for (const std::int64_t bytes : kMessageSizes) {
      list.push_back({bytes, {lone_seconds(cluster, exchange(bytes)), 0}});
    }
    return list;
  };
  for (DeviceId from = 0; from < cluster.device_count(); ++from) {
    for (DeviceId to = 0; to < cluster.device_count(); ++to) {
      if (from == to) continue;
      MeasuredPath path{cluster.device_name(from), cluster.device_name(to), {}, {}};
      for (const LinkId id : cluster.route(from, to)) {
        path.links.push_back(cluster.links[static_cast<std::size_t>(id)].name);
      }
      path.points = points([&](std::int64_t n) { return transfer(cluster, from, to, n); });
      profile.paths.push_back(std::move(path));
    }
  }
  for (const auto& [algorithm, devices] : groups) {
    MeasuredCollective collective{algorithm, {}, {}};
    for (const DeviceId id : devices) collective.devices.push_back(cluster.device_name(id));
    collective.points = points(
        [&, a = algorithm, &d = devices](std::int64_t n) { return all_reduce(cluster, d, a, n); });
    profile.collectives.push_back(std::move(collective));
  }
  return profile;
}

/// `cluster` with a profile that its links, and its all-reduces, refer to if it has them.
inline Cluster with_network(Cluster cluster, Profile profile) {
  for (Link& link : cluster.links) {
    for (const MeasuredPath& path : profile.paths) {
      if (std::count(path.links.begin(), path.links.end(), link.name) > 0) {
        link.profile = {0, link.name};
      }
    }
  }
  if (!profile.collectives.empty()) cluster.collectives_profile = {0, ""};
  cluster.profiles = {std::move(profile)};
  return cluster;
}

/// `cluster` whose only kind refers to `device`.
inline Cluster with_device(Cluster cluster, DeviceProfile device) {
  AGPCS_CHECK(cluster.kinds.size() == 1, "{} kinds", cluster.kinds.size());
  cluster.kinds[0].profile = {0, device.name};
  Profile profile;
  profile.file = "lab.yaml";
  profile.devices = {std::move(device)};
  cluster.profiles = {std::move(profile)};
  return cluster;
}

}  // namespace agpcs::testing
