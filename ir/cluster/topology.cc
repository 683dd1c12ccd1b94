// SPDX-License-Identifier: Apache-2.0
#include "ir/cluster/topology.h"

#include "ir/base/check.h"
#include "ir/base/diagnostics.h"
#include "ir/base/rng.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <utility>

namespace agpcs {
namespace {

std::optional<std::int64_t> integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

struct Spec {
  std::string_view family;
  std::vector<std::int64_t> parameters;
  std::uint64_t seed = 0;
  double fail = 0;
  std::optional<std::int64_t> links;
};

Status bad_spec(std::string_view spec, std::string_view what, std::string_view hint) {
  return invalid_input(fmt::format("topology '{}': error: {}\n  hint: {}", spec, what, hint));
}

constexpr std::string_view kSpecHint =
    "write family:parameters[,seed=S][,fail=F], for example bcube:4,1 or jellyfish:20,4,seed=3";

Status read_option(std::string_view spec, std::string_view word, std::size_t equals, Spec& read) {
  const std::string_view name = word.substr(0, equals), value = word.substr(equals + 1);
  if (name == "seed" || name == "links") {
    const std::optional<std::int64_t> given = integer(value);
    if (!given || *given < 0) {
      return bad_spec(spec,
                      fmt::format("{} must be an integer of at least 0, is '{}'", name, value),
                      kSpecHint);
    }
    if (name == "links") read.links = *given;
    if (name == "seed") read.seed = static_cast<std::uint64_t>(*given);
    return {};
  }
  if (name != "fail") {
    return bad_spec(spec, fmt::format("unknown option '{}'", name),
                    did_you_mean(std::string(name), {"seed", "fail", "links"}, "options"));
  }
  const std::optional<double> given = number(value);
  if (!given || !(*given >= 0 && *given < 1)) {
    return bad_spec(spec,
                    fmt::format("fail must be a part of the cables in [0, 1), is '{}'", value),
                    kSpecHint);
  }
  read.fail = *given;
  return {};
}

Result<Spec> read_spec(std::string_view spec) {
  Spec read;
  const std::size_t colon = spec.find(':');
  read.family = spec.substr(0, colon);
  std::string_view rest = colon == std::string_view::npos ? "" : spec.substr(colon + 1);
  while (!rest.empty()) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    rest = comma == std::string_view::npos ? "" : rest.substr(comma + 1);
    if (const std::size_t equals = word.find('='); equals != std::string_view::npos) {
      AGPCS_RETURN_IF_ERROR(read_option(spec, word, equals, read));
      continue;
    }
    const std::optional<std::int64_t> value = integer(word);
    if (!value || *value < 1) {
      return bad_spec(spec, fmt::format("a parameter must be a positive integer, is '{}'", word),
                      kSpecHint);
    }
    read.parameters.push_back(*value);
  }
  return read;
}

/// Returns the cables, each as the index of its first link; the link back follows it.
std::vector<int> cables_of(const Topology& topology) {
  std::vector<int> cables;
  for (int l = 0; l + 1 < static_cast<int>(topology.links.size()); ++l) {
    const Topology::Link& a = topology.links[static_cast<std::size_t>(l)];
    const Topology::Link& b = topology.links[static_cast<std::size_t>(l) + 1];
    if (a.from == b.to && a.to == b.from) cables.push_back(l++);
  }
  return cables;
}

using Adjacency = std::vector<std::vector<int>>;  // by node: its neighbours

Adjacency adjacency_of(const Topology& topology, bool back) {
  Adjacency adjacency(static_cast<std::size_t>(topology.nodes()));
  for (const Topology::Link& link : topology.links) {
    const auto [from, to] = back ? std::pair(link.to, link.from) : std::pair(link.from, link.to);
    adjacency[static_cast<std::size_t>(from)].push_back(to);
  }
  return adjacency;
}

/// Returns the first server that server 0 cannot reach along `adjacency`; -1: it reaches all.
int unreached_server(const Topology& topology, const Adjacency& adjacency) {
  std::vector<bool> seen(static_cast<std::size_t>(topology.nodes()), false);
  std::deque<int> queue = {0};
  seen[0] = true;
  while (!queue.empty()) {
    const int at = queue.front();
    queue.pop_front();
    for (const int next : adjacency[static_cast<std::size_t>(at)]) {
      if (seen[static_cast<std::size_t>(next)]) continue;
      seen[static_cast<std::size_t>(next)] = true;
      queue.push_back(next);
    }
  }
  for (int s = 0; s < topology.servers; ++s) {
    if (!seen[static_cast<std::size_t>(s)]) return s;
  }
  return -1;
}

Status verify_links(const Topology& topology) {
  std::vector<bool> out(static_cast<std::size_t>(topology.nodes())), in(out);
  for (std::size_t l = 0; l < topology.links.size(); ++l) {
    const Topology::Link& link = topology.links[l];
    if (link.from < 0 || link.to < 0 || link.from >= topology.nodes() ||
        link.to >= topology.nodes() || link.from == link.to) {
      return invalid_input(fmt::format("topology '{}': link {} leads from node {} to node {} of {}",
                                       topology.name, l, link.from, link.to, topology.nodes()));
    }
    if (link.capacity < 1) {
      return invalid_input(fmt::format(
          "topology '{}': link {} -> {} carries {} units a round\n  hint: leave out links that "
          "carry nothing",
          topology.name, topology.name_of(link.from), topology.name_of(link.to), link.capacity));
    }
    out[static_cast<std::size_t>(link.from)] = in[static_cast<std::size_t>(link.to)] = true;
  }
  for (int s = 0; s < topology.servers; ++s) {
    const auto i = static_cast<std::size_t>(s);
    if (out[i] && in[i]) continue;
    return invalid_input(fmt::format("topology '{}': server {} has no port: no link leads {} it",
                                     topology.name, topology.name_of(s), out[i] ? "to" : "from"));
  }
  return {};
}

Status verify_connected(const Topology& topology) {
  for (const bool back : {false, true}) {
    const int lost = unreached_server(topology, adjacency_of(topology, back));
    if (lost < 0) continue;
    return invalid_input(fmt::format("topology '{}' is not connected: no way from server {} to {}",
                                     topology.name, topology.name_of(back ? lost : 0),
                                     topology.name_of(back ? 0 : lost)));
  }
  return {};
}

Status verify_routes(const Topology& topology) {
  const auto n = static_cast<std::size_t>(topology.servers);
  if (topology.routes.empty()) return {};
  if (topology.routes.size() != n * n) {
    return internal_error(fmt::format("topology '{}' has {} routes for {} servers", topology.name,
                                      topology.routes.size(), topology.servers));
  }
  for (std::size_t pair = 0; pair < n * n; ++pair) {
    const int from = static_cast<int>(pair / n), to = static_cast<int>(pair % n);
    int at = from;
    bool follows = true;
    for (const int l : topology.routes[pair]) {
      const Topology::Link& link = topology.links[static_cast<std::size_t>(l)];
      follows = follows && link.from == at && (at == from || !topology.is_server(at));
      at = link.to;
    }
    if (follows && at == to) continue;
    return invalid_input(
        fmt::format("topology '{}': the route from {} to {} is no path over "
                    "switches",
                    topology.name, topology.name_of(from), topology.name_of(to)));
  }
  return {};
}

}  // namespace

Result<Topology> make_topology(std::string_view spec) {
  AGPCS_TRY(const Spec read, read_spec(spec));
  std::vector<std::string> names;
  for (const TopologyFamily& family : topology_families()) names.emplace_back(family.name);
  const auto& families = topology_families();
  const auto family = std::find_if(families.begin(), families.end(), [&](const auto& candidate) {
    return candidate.name == read.family;
  });
  if (family == families.end()) {
    return bad_spec(spec, fmt::format("unknown family '{}'", read.family),
                    did_you_mean(std::string(read.family), names, "families"));
  }
  const auto count = static_cast<int>(read.parameters.size());
  if (count < family->least || count > family->most) {
    return bad_spec(
        spec,
        fmt::format("{} parameters given, {} takes {}", count, family->name, family->parameters),
        family->help);
  }
  if (read.links && family->name != "jellyfish") {
    return bad_spec(spec, fmt::format("'{}' has no option links", family->name),
                    "only jellyfish has one");
  }
  std::vector<std::int64_t> parameters = read.parameters;
  if (read.links) parameters.push_back(*read.links);
  Result<Topology> topology = family->make(parameters, read.seed);
  if (!topology.ok()) return bad_spec(spec, topology.status().message(), family->help);
  topology->name = spec;
  if (read.fail > 0) return without_cables(std::move(*topology), read.fail, read.seed);
  AGPCS_RETURN_IF_ERROR(verify_topology(*topology));
  return topology;
}

Result<Topology> without_cables(Topology topology, double fraction, std::uint64_t seed) {
  std::vector<int> cables = cables_of(topology);
  const auto wanted = static_cast<std::size_t>(std::max(
      fraction > 0 ? 1.0 : 0.0, std::round(fraction * static_cast<double>(cables.size()))));
  Rng rng = Rng(seed).fork("failed cables");
  std::size_t removed = 0;
  while (removed < wanted && !cables.empty()) {
    const std::size_t drawn = rng.below(cables.size());
    const int cable = cables[drawn];
    cables.erase(cables.begin() + static_cast<std::ptrdiff_t>(drawn));
    Topology less = topology;
    less.links.erase(less.links.begin() + cable, less.links.begin() + cable + 2);
    if (unreached_server(less, adjacency_of(less, false)) >= 0) continue;
    if (unreached_server(less, adjacency_of(less, true)) >= 0) continue;
    topology = std::move(less);
    for (int& other : cables) other -= other > cable ? 2 : 0;
    ++removed;
  }
  if (removed < wanted) {
    return invalid_input(
        fmt::format("topology '{}': only {} of {} cables can be spared\n  hint: "
                    "fail fewer",
                    topology.name, removed, wanted));
  }
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  return topology;
}

Topology reversed(const Topology& topology) {
  Topology result = topology;
  for (Topology::Link& link : result.links) std::swap(link.from, link.to);
  const auto n = static_cast<std::size_t>(topology.servers);
  for (std::size_t pair = 0; pair < topology.routes.size(); ++pair) {
    std::vector<int>& route = result.routes[pair % n * n + pair / n];
    route = topology.routes[pair];
    std::reverse(route.begin(), route.end());
  }
  return result;
}

Status verify_topology(const Topology& topology) {
  if (topology.servers < 2 || topology.servers > kMaxServers || topology.switches < 0) {
    return invalid_input(fmt::format("topology '{}' has {} servers\n  hint: from 2 to {}",
                                     topology.name, topology.servers, kMaxServers));
  }
  AGPCS_CHECK(topology.node_names.size() == static_cast<std::size_t>(topology.nodes()),
              "{} names of {} nodes", topology.node_names.size(), topology.nodes());
  AGPCS_RETURN_IF_ERROR(verify_links(topology));
  AGPCS_RETURN_IF_ERROR(verify_connected(topology));
  return verify_routes(topology);
}

}  // namespace agpcs
