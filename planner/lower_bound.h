// SPDX-License-Identifier: Apache-2.0
// Lower bound: what no strategy of a problem can go below, proven.
#pragma once

#include "planner/problem.h"

#include <string_view>
#include <vector>

namespace agpcs {

struct LowerBound {
  double seconds = 0;  ///< no strategy's simulated step is shorter
  /// Which bound decides, of the way to train that it leaves open: "work" (all samples of all
  /// operators over all devices), "latency" (one micro-batch through the longest path),
  /// "granularity" (whole samples of one operator), "communication" (gradients between replicas),
  /// "report" (the loss's sum at the end).
  std::string_view reason = "work";
};

/// Of any cuts, device groups, shares, numbers of micro-batches (those that the problem's options
/// allow), recomputation and buckets, whether or not they keep to the problem's blocks; memory is a
/// constraint only where one stage's parameters do not fit. A strategy has one stage or several;
/// lower_bound.cc bounds either and takes the less. Deterministic.
/// Cost: O((operators + edges) x kinds x numbers of micro-batches), with a factor of some hundred
/// for the prices of kinds (`spread_work`), and O(hosts^2).
LowerBound lower_bound(const Problem& problem);

/// Work that can be divided: seconds of each item on each kind of device.
struct SpreadWork {
  std::vector<double> devices;  ///< of each kind, positive
  std::vector<double> seconds;  ///< [item x kinds + kind], not negative
};

/// A price per kind, sum of price x devices = 1, that (nearly) maximizes `price_work`; exactly, but
/// for rounding, for one or two kinds.
std::vector<double> price_kinds(const SpreadWork& work);

/// Sum over items of the least price x seconds. At most the time in which the devices can do all
/// items, however these are divided: with x[i][k] the part of item i on kind k and T the time,
/// T = T sum_k price_k devices_k >= sum_k price_k sum_i x[i][k] s[i][k] >= sum_i min_k price_k
/// s[i][k] (weak duality).
double price_work(const SpreadWork& work, const std::vector<double>& prices);

}  // namespace agpcs
