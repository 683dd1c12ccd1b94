// SPDX-License-Identifier: Apache-2.0
// Lower bound: a step time that no strategy of a problem can beat, proven.
#pragma once

#include "planner/problem/problem.h"

#include <string_view>
#include <vector>

namespace agpcs {

struct LowerBound {
  double seconds = 0;  ///< no strategy's simulated step is shorter
  /// The name of the largest of the bounds on the way to train (with one stage, or with several)
  /// whose step can be the shorter: "work" (all samples of all operators over all devices),
  /// "latency" (one micro-batch through the longest path), "granularity" (whole samples of one
  /// operator), "communication" (gradients between replicas), "report" (the loss's sum at the end).
  std::string_view reason = "work";
};

/// Bounds every strategy: any cuts, device groups, shares, numbers of micro-batches (those that the
/// problem's options allow), recomputation and buckets, including strategies that split blocks.
/// Memory is a constraint only if the parameters of one stage do not fit. A strategy has one stage
/// or several; lower_bound.cc bounds each case and takes the lesser. Deterministic. Cost:
/// O((operators + edges) x kinds x numbers of micro-batches), with a factor of some hundred for the
/// prices of kinds (`spread_work`), and O(hosts^2).
LowerBound lower_bound(const Problem& problem);

/// Work that can be divided: how many seconds each item takes on each kind of device.
struct SpreadWork {
  std::vector<double> devices;  ///< number of devices of each kind, positive
  std::vector<double> seconds;  ///< [item x kinds + kind], not negative
};

/// Returns a price for each kind, with sum of price x devices = 1, that (nearly) maximizes
/// `price_work`. For one or two kinds it is exact but for rounding.
std::vector<double> price_kinds(const SpreadWork& work);

/// Returns the sum over items of the least price x seconds. It is at most the time in which the
/// devices can do all items, however these are divided: with x[i][k] the part of item i on kind k
/// and T the time, T = T sum_k price_k devices_k >= sum_k price_k sum_i x[i][k] s[i][k] >= sum_i
/// min_k price_k s[i][k] (weak duality).
double price_work(const SpreadWork& work, const std::vector<double>& prices);

}  // namespace agpcs
