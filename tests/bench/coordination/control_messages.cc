// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/coordination/control_messages.h"

#include "ir/base/check.h"

#include <algorithm>

namespace agpcs {
namespace {

/// The ranks that `rank` has below it, nearest first: `f(child)`.
template <typename F>
void for_each_child(ControlShape shape, std::size_t rank, std::size_t ranks, const F& f) {
  switch (shape) {
    case ControlShape::kStar:
      for (std::size_t child = 1; rank == 0 && child < ranks; ++child) f(child);
      return;
    case ControlShape::kTree:
      for (std::size_t bit = 1; rank + bit < ranks && (rank & bit) == 0; bit *= 2) f(rank + bit);
      return;
    case ControlShape::kBinary:
      for (std::size_t child = 2 * rank + 1; child < std::min(ranks, 2 * rank + 3); ++child) {
        f(child);
      }
      return;
    case ControlShape::kRing:
      if (rank + 1 < ranks) f(rank + 1);
      return;
  }
}

double seconds_of(const ControlCosts& costs, int parts, std::int64_t bytes) {
  return costs.message * parts + costs.byte * static_cast<double>(bytes);
}

/// What the ends of the messages take in sum, when they share processors; else nothing.
double least_seconds(const ControlCosts& costs, const ControlTraffic& sent) {
  if (costs.processors <= 0) return 0;
  const double work = 2 * (costs.message * static_cast<double>(sent.messages) +
                           costs.byte * static_cast<double>(sent.bytes));
  return work / costs.processors;
}

/// Up to rank 0; `joined(rank)` bytes leave `rank` once its children's are there.
template <typename Joined>
double to_first(ControlShape shape, const ControlCosts& costs, std::span<const double> ready,
                const Joined& joined, ControlTraffic& traffic) {
  AGPCS_CHECK(!ready.empty(), "no ranks");
  const std::size_t ranks = ready.size();
  ControlTraffic sent;
  std::vector<double> leaves(ranks);  // when a rank's message is in flight; rank 0: has it all
  std::vector<std::int64_t> carried(ranks);
  for (std::size_t rank = ranks; rank-- > 0;) {
    double free = ready[rank];
    std::int64_t below = 0;
    for_each_child(shape, rank, ranks, [&](std::size_t child) {
      free = std::max(free, leaves[child] + costs.latency) +
             seconds_of(costs, traffic.parts, carried[child]);
      below += carried[child];
    });
    carried[rank] = joined(rank, below);
    leaves[rank] = free;
    if (rank == 0) break;
    leaves[rank] += seconds_of(costs, traffic.parts, carried[rank]);
    sent.messages += traffic.parts;
    sent.bytes += carried[rank];
  }
  traffic.messages += sent.messages;
  traffic.bytes += sent.bytes;
  const double first = *std::min_element(ready.begin(), ready.end());
  return std::max(leaves[0], first + least_seconds(costs, sent));
}

}  // namespace

std::string_view name_of(ControlShape shape) {
  switch (shape) {
    case ControlShape::kStar:
      return "star";
    case ControlShape::kTree:
      return "tree";
    case ControlShape::kBinary:
      return "binary";
    case ControlShape::kRing:
      return "ring";
  }
  return "";
}

std::vector<int> children_of(ControlShape shape, int rank, int ranks) {
  std::vector<int> children;
  for_each_child(shape, static_cast<std::size_t>(rank), static_cast<std::size_t>(ranks),
                 [&](std::size_t child) { children.push_back(static_cast<int>(child)); });
  return children;
}

double gather_to_first(ControlShape shape, const ControlCosts& costs, std::span<const double> ready,
                       std::span<const std::int64_t> bytes, ControlTraffic& traffic) {
  AGPCS_CHECK(ready.size() == bytes.size(), "{} ranks, bytes of {}", ready.size(), bytes.size());
  return to_first(
      shape, costs, ready,
      [&](std::size_t rank, std::int64_t below) { return bytes[rank] + below; }, traffic);
}

double combine_to_first(ControlShape shape, const ControlCosts& costs,
                        std::span<const double> ready, std::int64_t bytes,
                        ControlTraffic& traffic) {
  return to_first(
      shape, costs, ready, [bytes](std::size_t, std::int64_t) { return bytes; }, traffic);
}

void spread_from_first(ControlShape shape, const ControlCosts& costs, double begin,
                       std::int64_t bytes, std::span<double> done, ControlTraffic& traffic) {
  AGPCS_CHECK(!done.empty(), "no ranks");
  const std::size_t ranks = done.size();
  const double one = seconds_of(costs, traffic.parts, bytes);
  done[0] = begin;
  double last = begin;
  std::vector<std::size_t> children;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    children.clear();
    for_each_child(shape, rank, ranks, [&](std::size_t child) { children.push_back(child); });
    for (std::size_t i = children.size(); i-- > 0;) {
      done[rank] += one;
      done[children[i]] = done[rank] + costs.latency + one;
    }
    last = std::max(last, done[rank]);
  }
  const auto edges = static_cast<std::int64_t>(ranks) - 1;
  const ControlTraffic sent = {traffic.parts, edges * traffic.parts, edges * bytes};
  const double late = begin + least_seconds(costs, sent) - last;
  if (late > 0) {
    for (double& time : done) time += late;
  }
  traffic.messages += sent.messages;
  traffic.bytes += sent.bytes;
}

}  // namespace agpcs
