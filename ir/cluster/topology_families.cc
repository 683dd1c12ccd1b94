// SPDX-License-Identifier: Apache-2.0
// Generators of topologies. Each numbers servers and switches as its source paper does.
#include "ir/base/check.h"
#include "ir/base/rng.h"
#include "ir/base/shuffle.h"
#include "ir/cluster/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

using Parameters = std::vector<std::int64_t>;

/// Returns the product of `factors`, or of the first of them that already exceed kMaxServers.
std::int64_t bounded_product(const Parameters& factors) {
  std::int64_t product = 1;
  for (const std::int64_t factor : factors) {
    if (factor > kMaxServers) return kMaxServers + 1;
    product *= factor;
    if (product > kMaxServers) return product;
  }
  return product;
}

Status check_servers(std::int64_t servers) {
  if (servers > kMaxServers) {
    return invalid_input(fmt::format("more than {} servers", kMaxServers));
  }
  if (servers < 2) return invalid_input(fmt::format("{} server", servers));
  return {};
}

Topology nodes(std::int64_t servers, std::int64_t switches) {
  Topology topology;
  topology.servers = static_cast<int>(servers);
  topology.switches = static_cast<int>(switches);
  for (int s = 0; s < topology.servers; ++s) topology.node_names.push_back(fmt::format("s{}", s));
  for (int w = 0; w < topology.switches; ++w) topology.node_names.push_back(fmt::format("w{}", w));
  return topology;
}

void add_cable(Topology& topology, std::int64_t a, std::int64_t b, std::int64_t capacity = 1) {
  topology.links.push_back({static_cast<int>(a), static_cast<int>(b), capacity});
  topology.links.push_back({static_cast<int>(b), static_cast<int>(a), capacity});
}

/// Makes BCube(n, k) (Guo et al., SIGCOMM 2009): n^(k + 1) servers, whose numbers have k + 1 digits
/// to base n; a switch of level l joins the n servers whose numbers differ in digit l only.
Result<Topology> make_bcube(const Parameters& parameters, std::uint64_t) {
  const std::int64_t n = parameters[0], k = parameters[1];
  if (n < 2) return invalid_input("a switch must have at least 2 servers");
  if (k > 16) return check_servers(kMaxServers + 1);
  const std::int64_t servers = bounded_product(Parameters(static_cast<std::size_t>(k + 1), n));
  AGPCS_RETURN_IF_ERROR(check_servers(servers));
  const std::int64_t per_level = servers / n;
  Topology topology = nodes(servers, (k + 1) * per_level);
  std::int64_t step = 1;
  for (std::int64_t level = 0; level <= k; ++level, step *= n) {
    for (std::int64_t s = 0; s < servers; ++s) {
      const std::int64_t in_level = s / (step * n) * step + s % step;
      add_cable(topology, s, servers + level * per_level + in_level);
    }
  }
  return topology;
}

/// Joins the parts of DCell(n, l) (Guo et al., SIGCOMM 2008, section 2.2). A DCell of level 0 is n
/// servers and a switch. A DCell of level l consists of (servers of level l - 1) + 1 DCells of
/// level l - 1, where server j - 1 of part i is joined to server i of part j, for i < j.
void join_parts(Topology& topology, std::int64_t first, std::int64_t servers, std::int64_t n) {
  if (servers == n) return;
  std::int64_t below = n;  // servers of one part
  while (below * (below + 1) < servers) below *= below + 1;
  for (std::int64_t part = 0; part <= below; ++part) {
    join_parts(topology, first + part * below, below, n);
  }
  for (std::int64_t i = 0; i <= below; ++i) {
    for (std::int64_t j = i + 1; j <= below; ++j) {
      add_cable(topology, first + i * below + j - 1, first + j * below + i);
    }
  }
}

Result<Topology> make_dcell(const Parameters& parameters, std::uint64_t) {
  const std::int64_t n = parameters[0];
  if (n < 2) return invalid_input("a cell must have at least 2 servers");
  AGPCS_RETURN_IF_ERROR(check_servers(n));
  std::int64_t servers = n;
  for (std::int64_t level = 0; level < parameters[1]; ++level) {
    servers = bounded_product({servers, servers + 1});
    AGPCS_RETURN_IF_ERROR(check_servers(servers));
  }
  Topology topology = nodes(servers, servers / n);
  for (std::int64_t s = 0; s < servers; ++s) add_cable(topology, s, servers + s / n);
  join_parts(topology, 0, servers, n);
  return topology;
}

/// Draws a graph in which every switch has `degree` cables, each to another switch. It uses the
/// pairing model, and swaps pairs that would be loops or repeats with others. The result is empty
/// if it cannot finish.
std::vector<std::pair<int, int>> draw_regular_graph(int switches, int degree, Rng& rng) {
  std::vector<int> ends;
  for (int w = 0; w < switches; ++w) ends.insert(ends.end(), static_cast<std::size_t>(degree), w);
  shuffle(ends, rng);
  std::vector<std::pair<int, int>> cables;
  std::vector<std::vector<int>> joined(static_cast<std::size_t>(switches));
  const auto fits = [&](int a, int b) {
    const std::vector<int>& of_a = joined[static_cast<std::size_t>(a)];
    return a != b && std::find(of_a.begin(), of_a.end(), b) == of_a.end();
  };
  while (ends.size() >= 2) {
    const int a = ends.back();
    ends.pop_back();
    int tries = 0;
    std::size_t other = rng.below(ends.size());
    while (!fits(a, ends[other]) && ++tries < 200) other = rng.below(ends.size());
    if (tries == 200) return {};
    const int b = ends[other];
    ends.erase(ends.begin() + static_cast<std::ptrdiff_t>(other));
    joined[static_cast<std::size_t>(a)].push_back(b);
    joined[static_cast<std::size_t>(b)].push_back(a);
    cables.emplace_back(std::min(a, b), std::max(a, b));
  }
  std::sort(cables.begin(), cables.end());
  return cables;
}

/// Makes Jellyfish (Singla et al., NSDI 2012): a random regular graph of switches with a server
/// each. The third parameter is the number of cables between switches; surplus cables are removed
/// at random.
Result<Topology> make_jellyfish(const Parameters& parameters, std::uint64_t seed) {
  const std::int64_t servers = parameters[0], degree = parameters[1];
  AGPCS_RETURN_IF_ERROR(check_servers(servers));
  if (degree >= servers || degree < 2) {
    return invalid_input(fmt::format("degree {} of {} switches; it must be from 2 to {}", degree,
                                     servers, servers - 1));
  }
  if (servers * degree % 2 != 0) {
    return invalid_input(
        fmt::format("no graph of {} switches has degree {}: {} ends of cables "
                    "are odd",
                    servers, degree, servers * degree));
  }
  const std::int64_t full = servers * degree / 2;
  const std::int64_t wanted = parameters.size() > 2 ? parameters[2] : full;
  if (wanted > full || wanted < servers - 1) {
    return invalid_input(fmt::format("links={} between {} switches of degree {}; from {} to {}",
                                     wanted, servers, degree, servers - 1, full));
  }
  Rng rng = Rng(seed).fork("jellyfish");
  for (int draw = 0; draw < 1000; ++draw) {
    auto cables = draw_regular_graph(static_cast<int>(servers), static_cast<int>(degree), rng);
    if (cables.empty()) continue;
    while (static_cast<std::int64_t>(cables.size()) > wanted) {
      cables.erase(cables.begin() + static_cast<std::ptrdiff_t>(rng.below(cables.size())));
    }
    Topology topology = nodes(servers, servers);
    topology.name = "jellyfish";
    for (std::int64_t s = 0; s < servers; ++s) add_cable(topology, s, servers + s);
    for (const auto& [a, b] : cables) add_cable(topology, servers + a, servers + b);
    if (verify_topology(topology).ok()) return topology;
  }
  return invalid_input("no connected graph was found");
}

/// Makes a fat tree of k-port switches (Al-Fares et al., SIGCOMM 2008): k pods of k/2 edge and k/2
/// aggregation switches, (k/2)^2 core switches, k/2 servers on each edge switch.
Result<Topology> make_fat_tree(const Parameters& parameters, std::uint64_t) {
  const std::int64_t k = parameters[0], half = k / 2;
  if (k % 2 != 0) return invalid_input(fmt::format("switches of {} ports; k must be even", k));
  const std::int64_t servers = bounded_product({k, half, half});
  AGPCS_RETURN_IF_ERROR(check_servers(servers));
  Topology topology = nodes(servers, 2 * k * half + half * half);
  const std::int64_t edges = servers, aggregations = edges + k * half;
  const std::int64_t cores = aggregations + k * half;
  for (std::int64_t s = 0; s < servers; ++s) add_cable(topology, s, edges + s / half);
  for (std::int64_t pod = 0; pod < k; ++pod) {
    for (std::int64_t a = 0; a < half; ++a) {
      for (std::int64_t b = 0; b < half; ++b) {
        add_cable(topology, edges + pod * half + b, aggregations + pod * half + a);
        add_cable(topology, aggregations + pod * half + a, cores + a * half + b);
      }
    }
  }
  return topology;
}

/// Makes a torus: servers on a grid of two or three dimensions that closes on itself, joined to
/// their neighbours. A dimension of size 2 has one cable, and one of size 1 has none.
Result<Topology> make_torus(const Parameters& parameters, std::uint64_t) {
  const std::int64_t servers = bounded_product(parameters);
  AGPCS_RETURN_IF_ERROR(check_servers(servers));
  Topology topology = nodes(servers, 0);
  std::int64_t step = 1;
  for (const std::int64_t size : parameters) {
    for (std::int64_t s = 0; s < servers; ++s) {
      const std::int64_t at = s / step % size;
      if (size == 1 || (size == 2 && at == 1)) continue;
      add_cable(topology, s, s + ((at + 1) % size - at) * step);
    }
    step *= size;
  }
  return topology;
}

Result<Topology> make_switch(const Parameters& parameters, std::uint64_t) {
  AGPCS_RETURN_IF_ERROR(check_servers(parameters[0]));
  Topology topology = nodes(parameters[0], 1);
  for (std::int64_t s = 0; s < parameters[0]; ++s) add_cable(topology, s, parameters[0]);
  return topology;
}

/// Makes hosts of several devices like DGX machines: a fast switch inside each host, a network card
/// of capacity 1 for each device, and one switch between the hosts.
Result<Topology> make_dgx(const Parameters& parameters, std::uint64_t) {
  const std::int64_t hosts = parameters[0], devices = parameters[1];
  const std::int64_t ratio = parameters.size() > 2 ? parameters[2] : 12;
  if (ratio > 1'000'000) return invalid_input(fmt::format("a ratio of {}", ratio));
  const std::int64_t servers = bounded_product({hosts, devices});
  AGPCS_RETURN_IF_ERROR(check_servers(servers));
  Topology topology = nodes(servers, hosts + 1);
  for (std::int64_t s = 0; s < servers; ++s) {
    add_cable(topology, s, servers + s / devices, ratio);
    add_cable(topology, s, servers + hosts);
  }
  return topology;
}

}  // namespace

const std::vector<TopologyFamily>& topology_families() {
  static const std::vector<TopologyFamily> families = {
      {"bcube", "n,k", "bcube:n,k: n^(k+1) servers with k+1 ports, on switches of n", 2, 2,
       make_bcube},
      {"dcell", "n,l",
       "dcell:n,l: cells of n servers and a switch, joined server to server over l "
       "levels",
       2, 2, make_dcell},
      {"jellyfish", "servers,degree",
       "jellyfish:servers,degree[,links=L][,seed=S]: a random regular graph of switches with a "
       "server each",
       2, 2, make_jellyfish},
      {"fat_tree", "k", "fat_tree:k: k^3/4 servers below three layers of switches with k ports", 1,
       1, make_fat_tree},
      {"torus", "a,b[,c]", "torus:a,b[,c]: servers on a grid that closes on itself", 1, 3,
       make_torus},
      {"switch", "servers", "switch:servers: all servers on one switch", 1, 1, make_switch},
      {"dgx", "hosts,devices[,ratio]",
       "dgx:hosts,devices[,ratio]: hosts whose devices are joined ratio (12) times as fast as "
       "their network cards",
       2, 3, make_dgx},
  };
  return families;
}

}  // namespace agpcs
