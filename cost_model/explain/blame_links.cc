// SPDX-License-Identifier: Apache-2.0
#include "cost_model/explain/blame_links.h"

#include "ir/base/at.h"
#include "ir/base/median.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

/// The rule that combines the figures of links to the figure of their route.
enum class Along { kSlowest, kSum };

struct Route {
  std::vector<LinkId> links;
  double wanted = 0;  ///< what was measured, in the unit of the links' figures
};

/// Returns what a link's name has in common with links that change together: "x nic" for "x nic
/// out"; "a -> b" for "b -> a" (ends sorted); otherwise the name.
std::string owner_of(const Link& link) {
  const std::string& name = link.name;
  for (const std::string_view end : {" out", " in"}) {
    if (name.ends_with(end)) return name.substr(0, name.size() - end.size());
  }
  const std::size_t arrow = name.find(" -> ");
  if (arrow == std::string::npos) return name;
  std::string a = name.substr(0, arrow), b = name.substr(arrow + 4);
  if (b < a) std::swap(a, b);
  return a + " -> " + b;
}

/// Returns the sets of links that may change together.
std::vector<std::vector<LinkId>> resources_of(const Cluster& cluster) {
  std::map<std::string, std::vector<LinkId>> by_owner;
  std::vector<std::vector<LinkId>> resources;
  for (LinkId link = 0; link < static_cast<LinkId>(cluster.links.size()); ++link) {
    resources.push_back({link});
    by_owner[owner_of(cluster.links[at(link)])].push_back(link);
  }
  for (auto& [owner, links] : by_owner) {
    if (links.size() > 1) resources.push_back(std::move(links));
  }
  std::vector<std::vector<LinkId>> ports(cluster.hosts.size());
  for (const Device& device : cluster.devices) {
    ports[at(device.host)].insert(ports[at(device.host)].end(), {device.out, device.in});
  }
  for (std::vector<LinkId>& links : ports) {
    std::sort(links.begin(), links.end());
    if (links.size() > 2) resources.push_back(std::move(links));
  }
  return resources;
}

bool alike(double a, double b, double same) { return a <= same * b && b <= same * a; }

/// Finds new figures of links that give routes the values measured.
class Explanation {
 public:
  Explanation(std::vector<double> figures, std::vector<Route> routes, Along along, double same)
      : figures_(std::move(figures)), routes_(std::move(routes)), along_(along), same_(same) {
    routes_of_.resize(figures_.size());
    for (std::size_t r = 0; r < routes_.size(); ++r) {
      const std::set<LinkId> links(routes_[r].links.begin(), routes_[r].links.end());
      for (const LinkId link : links) routes_of_[at(link)].push_back(r);
    }
  }

  std::vector<double> find(const std::vector<std::vector<LinkId>>& resources) {
    if (along_ == Along::kSlowest) speed_up();
    // A change is meant to explain at least one more route, so as many as routes are enough.
    for (std::size_t i = 0; i < routes_.size(); ++i) {
      Change best;
      for (const std::vector<LinkId>& links : resources) try_resource(links, best);
      if (best.links == nullptr) break;
      for (const LinkId link : *best.links) figures_[at(link)] *= best.factor;
    }
    return figures_;
  }

 private:
  struct Change {
    const std::vector<LinkId>* links = nullptr;
    double factor = 1;
    int score = 0;
    /// Returns the size of the change on a logarithmic scale, so that halving and doubling are
    /// equal.
    double size() const { return std::abs(std::log(factor)); }
  };

  /// Returns what the route takes when `links` (ascending) are `factor` times slower.
  double taken(const Route& route, const std::vector<LinkId>& links, double factor) const {
    double sum = 0, most = 0;
    for (const LinkId link : route.links) {
      const bool changes = std::binary_search(links.begin(), links.end(), link);
      const double figure = figures_[at(link)] * (changes ? factor : 1);
      sum += figure;
      most = std::max(most, figure);
    }
    return along_ == Along::kSum ? sum : most;
  }

  /// Returns the factor of `links` with which the route takes what was measured; 0: no factor does.
  double factor_for(const Route& route, const std::vector<LinkId>& links) const {
    double own = 0, others = 0;
    for (const LinkId link : route.links) {
      const double figure = figures_[at(link)];
      double& to = std::binary_search(links.begin(), links.end(), link) ? own : others;
      to = along_ == Along::kSum ? to + figure : std::max(to, figure);
    }
    if (own == 0) return 0;
    const double wanted = along_ == Along::kSum ? route.wanted - others : route.wanted;
    return std::max(0.0, wanted / own);
  }

  void speed_up() {
    for (const Route& route : routes_) {
      if (route.wanted * same_ >= taken(route, {}, 1)) continue;
      for (const LinkId link : route.links) {
        figures_[at(link)] = std::min(figures_[at(link)], route.wanted);
      }
    }
  }

  void try_resource(const std::vector<LinkId>& links, Change& best) const {
    std::vector<std::size_t> crossing;
    for (const LinkId link : links) {
      const std::vector<std::size_t>& more = routes_of_[at(link)];
      crossing.insert(crossing.end(), more.begin(), more.end());
    }
    std::sort(crossing.begin(), crossing.end());
    crossing.erase(std::unique(crossing.begin(), crossing.end()), crossing.end());
    for (const std::size_t r : crossing) {
      if (alike(taken(routes_[r], {}, 1), routes_[r].wanted, same_)) continue;
      const double factor = factor_for(routes_[r], links);
      if (factor > 0) try_change(links, factor, crossing, best);
    }
  }

  void try_change(const std::vector<LinkId>& links, double factor,
                  const std::vector<std::size_t>& crossing, Change& best) const {
    Change change{&links, factor, 0};
    std::vector<double> factors;  // one for each route that the change explains
    for (const std::size_t r : crossing) {
      const Route& route = routes_[r];
      const bool before = alike(taken(route, {}, 1), route.wanted, same_);
      const bool after = alike(taken(route, links, factor), route.wanted, same_);
      change.score += static_cast<int>(after) - static_cast<int>(before);
      const double wanted = factor_for(route, links);
      if (after && !before && wanted > 0) factors.push_back(wanted);
    }
    if (change.score <= 0) return;
    change.factor = median(std::move(factors));
    constexpr double kTie = 1e-9;
    const bool first = best.links == nullptr;
    if (!first && change.score != best.score) {
      if (change.score > best.score) best = change;
      return;
    }
    const bool smaller = change.size() < best.size() - kTie;
    const bool equal = change.size() <= best.size() + kTie;
    if (first || smaller || (equal && links.size() < best.links->size())) best = change;
  }

  std::vector<double> figures_;  // by link
  std::vector<Route> routes_;
  Along along_;
  double same_;
  std::vector<std::vector<std::size_t>> routes_of_;  // by link
};

/// Returns the new figures of links, starting from `figures`. `factor(route)` is what was measured
/// of the route, as a multiple.
template <typename Factor>
std::vector<double> explained(const Cluster& cluster, const std::vector<RouteDrift>& drifts,
                              const std::vector<double>& figures, Along along, double same,
                              Factor factor) {
  std::vector<Route> routes;
  for (const RouteDrift& drift : drifts) {
    Route route{cluster.route(drift.from, drift.to), 0};
    double sum = 0, most = 0;
    for (const LinkId link : route.links) {
      sum += figures[at(link)];
      most = std::max(most, figures[at(link)]);
    }
    const double now = along == Along::kSum ? sum : most;
    const double times = factor(drift);
    if (route.links.empty() || now == 0 || !(times > 0)) continue;
    route.wanted = alike(times, 1, same) ? now : now * times;
    routes.push_back(std::move(route));
  }
  return Explanation(figures, std::move(routes), along, same).find(resources_of(cluster));
}

}  // namespace

std::map<LinkId, LinkFactor> blame_links(const Cluster& cluster,
                                         const std::vector<RouteDrift>& routes) {
  std::vector<double> bytes, latencies;
  for (const Link& link : cluster.links) {
    bytes.push_back(1 / link.bandwidth);
    latencies.push_back(link.latency);
  }
  const auto bytes_now = explained(cluster, routes, bytes, Along::kSlowest, kSameRate,
                                   [](const RouteDrift& route) { return route.seconds_per_byte; });
  const auto latencies_now = explained(cluster, routes, latencies, Along::kSum, kSameLatency,
                                       [](const RouteDrift& route) { return route.latency; });
  std::map<LinkId, LinkFactor> blamed;
  for (LinkId id = 0; id < static_cast<LinkId>(cluster.links.size()); ++id) {
    LinkFactor factor;
    factor.seconds_per_byte = bytes_now[at(id)] / bytes[at(id)];
    if (latencies[at(id)] > 0) factor.latency = latencies_now[at(id)] / latencies[at(id)];
    if (!(factor == LinkFactor())) blamed[id] = factor;
  }
  return blamed;
}

}  // namespace agpcs
