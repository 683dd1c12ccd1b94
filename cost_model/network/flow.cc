// SPDX-License-Identifier: Apache-2.0
#include "cost_model/network/flow.h"

#include "ir/base/check.h"

#include <algorithm>
#include <limits>

namespace agpcs {
namespace {

/// Marks a flow whose rate still grows.
constexpr double kGrowing = -1;

}  // namespace

FairSharing::FairSharing(std::span<const Link> links)
    : left_(links.size()), crossings_(links.size()) {
  bandwidth_.reserve(links.size());
  for (const Link& link : links) bandwidth_.push_back(link.bandwidth);
}

void FairSharing::load(std::span<const Flow* const> flows) {
  used_.clear();
  for (const Flow* flow : flows) {
    for (const LinkId id : flow->links) {
      const auto link = static_cast<std::size_t>(id);
      if (crossings_[link]++ == 0) {
        left_[link] = bandwidth_[link];
        used_.push_back(link);
      }
    }
  }
}

std::size_t FairSharing::tightest() const {
  std::size_t best = bandwidth_.size();
  double least = std::numeric_limits<double>::infinity();
  for (const std::size_t link : used_) {
    if (crossings_[link] == 0) continue;
    const double share = left_[link] / crossings_[link];
    if (share < least || (share == least && link < best)) {
      least = share;
      best = link;
    }
  }
  return best;
}

void FairSharing::freeze(const Flow& flow, double rate) {
  for (const LinkId id : flow.links) {
    const auto link = static_cast<std::size_t>(id);
    left_[link] -= rate;
    --crossings_[link];
  }
}

void FairSharing::share(std::span<const Flow* const> flows, std::vector<double>& rates) {
  load(flows);
  rates.assign(flows.size(), kGrowing);
  for (std::size_t i = 0; i < flows.size(); ++i) {
    if (flows[i]->links.empty()) rates[i] = std::numeric_limits<double>::infinity();
  }
  for (std::size_t full = tightest(); full < bandwidth_.size(); full = tightest()) {
    const double rate = left_[full] / crossings_[full];
    for (std::size_t i = 0; i < flows.size(); ++i) {
      if (rates[i] != kGrowing) continue;
      const std::vector<LinkId>& links = flows[i]->links;
      if (std::find(links.begin(), links.end(), static_cast<LinkId>(full)) == links.end()) continue;
      rates[i] = rate;
      freeze(*flows[i], rate);
    }
    AGPCS_CHECK(crossings_[full] == 0, "link {} still has {} crossings", full, crossings_[full]);
  }
}

double lone_rate(const Flow& flow, std::span<const Link> links) {
  std::vector<int> crossings(links.size());
  for (const LinkId id : flow.links) ++crossings[static_cast<std::size_t>(id)];
  double rate = std::numeric_limits<double>::infinity();
  for (const LinkId id : flow.links) {
    const auto link = static_cast<std::size_t>(id);
    rate = std::min(rate, links[link].bandwidth / crossings[link]);
  }
  return rate;
}

std::vector<double> fair_rates(std::span<const Flow> flows, std::span<const Link> links) {
  std::vector<const Flow*> pointers;
  pointers.reserve(flows.size());
  for (const Flow& flow : flows) pointers.push_back(&flow);
  std::vector<double> rates;
  FairSharing(links).share(pointers, rates);
  return rates;
}

}  // namespace agpcs
