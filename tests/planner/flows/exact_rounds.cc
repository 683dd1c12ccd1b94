// SPDX-License-Identifier: Apache-2.0
#include "tests/planner/flows/exact_rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

namespace agpcs {
namespace {

class HopFinder {
 public:
  HopFinder(const Topology& topology, std::size_t most)
      : topology_(topology), most_(most), passed_(static_cast<std::size_t>(topology.nodes())) {}

  std::optional<std::vector<FlowRoute>> find() {
    for (int s = 0; s < topology_.servers; ++s) {
      if (!walk(s, s)) return std::nullopt;
    }
    return std::move(hops_);
  }

 private:
  bool walk(int from, int at) {
    for (std::size_t l = 0; l < topology_.links.size(); ++l) {
      const Topology::Link& link = topology_.links[l];
      if (link.from != at || link.to == from || passed_[static_cast<std::size_t>(link.to)])
        continue;
      path_.push_back(static_cast<int>(l));
      if (topology_.is_server(link.to)) {
        hops_.push_back({from, link.to, path_});
      } else {
        passed_[static_cast<std::size_t>(link.to)] = true;
        if (!walk(from, link.to)) return false;
        passed_[static_cast<std::size_t>(link.to)] = false;
      }
      path_.pop_back();
      if (hops_.size() > most_) return false;
    }
    return true;
  }

  const Topology& topology_;
  std::size_t most_;
  std::vector<bool> passed_;
  std::vector<int> path_;
  std::vector<FlowRoute> hops_;
};

/// What servers have is a set of bits, chunk * servers + server.
class Deepening {
 public:
  Deepening(const Topology& topology, std::vector<FlowRoute> hops, long most_states)
      : topology_(topology), hops_(std::move(hops)), states_left_(most_states) {
    for (const Topology::Link& link : topology.links) left_.push_back(link.capacity);
    port_.assign(static_cast<std::size_t>(topology.servers), 0);
    for (const Topology::Link& link : topology.links) {
      if (topology.is_server(link.to)) port_[static_cast<std::size_t>(link.to)] += link.capacity;
    }
  }

  std::optional<int> run(int least) {
    std::uint64_t start = 0;
    for (int s = 0; s < topology_.servers; ++s) start |= bit(s, s);
    for (int rounds = least;; ++rounds) {
      failed_.clear();
      if (reaches_all(start, rounds)) return rounds;
      if (states_left_ <= 0) return std::nullopt;
    }
  }

 private:
  std::uint64_t bit(int chunk, int server) const {
    return std::uint64_t{1} << (chunk * topology_.servers + server);
  }

  bool reaches_all(std::uint64_t state, int rounds) {
    const int n = topology_.servers;
    if (state == (std::uint64_t{1} << (n * n)) - 1) return true;
    if (rounds == 0 || --states_left_ < 0 || failed_.count({state, rounds}) > 0) return false;
    for (int s = 0; s < n; ++s) {
      std::int64_t lacks = 0;
      for (int c = 0; c < n; ++c) lacks += (state & bit(c, s)) == 0 ? 1 : 0;
      if (lacks > rounds * port_[static_cast<std::size_t>(s)]) return false;
    }
    std::set<std::uint64_t> next;
    deliver(state, state, 0, next);
    std::vector<std::uint64_t> order(next.begin(), next.end());
    std::stable_sort(order.begin(), order.end(), [](std::uint64_t a, std::uint64_t b) {
      return __builtin_popcountll(a) > __builtin_popcountll(b);
    });
    for (const std::uint64_t after : order) {
      if (reaches_all(after, rounds - 1)) return true;
    }
    failed_.insert({state, rounds});
    return false;
  }

  // All states after one round to which nothing could be added; chunks before `from` (a bit) are
  // settled. `state`: before the round.
  void deliver(std::uint64_t state, std::uint64_t after, int from, std::set<std::uint64_t>& next) {
    const int n = topology_.servers;
    if (from == n * n) {
      for (int b = 0; b < n * n; ++b) {
        if ((after >> b & 1) == 0 && any_hop(state, b / n, b % n))
          return;  // another state has more
      }
      next.insert(after);
      return;
    }
    deliver(state, after, from + 1, next);
    const int chunk = from / n, server = from % n;
    if ((after & bit(chunk, server)) != 0) return;
    for (const FlowRoute& hop : hops_) {
      if (hop.to != server || (state & bit(chunk, hop.from)) == 0 || !fits(hop)) continue;
      for (const int l : hop.links) --left_[static_cast<std::size_t>(l)];
      deliver(state, after | bit(chunk, server), from + 1, next);
      for (const int l : hop.links) ++left_[static_cast<std::size_t>(l)];
    }
  }

  bool any_hop(std::uint64_t state, int chunk, int server) const {
    return std::any_of(hops_.begin(), hops_.end(), [&](const FlowRoute& hop) {
      return hop.to == server && (state & bit(chunk, hop.from)) != 0 && fits(hop);
    });
  }
  bool fits(const FlowRoute& hop) const {
    return std::all_of(hop.links.begin(), hop.links.end(),
                       [&](int l) { return left_[static_cast<std::size_t>(l)] > 0; });
  }

  const Topology& topology_;
  std::vector<FlowRoute> hops_;
  long states_left_;
  std::vector<std::int64_t> left_, port_;  // by link, in the round; by server: units into it
  std::set<std::pair<std::uint64_t, int>> failed_;
};

/// The question in clauses: has(c, v, t), server v has chunk c before round t; sent(c, h, t), chunk
/// c goes over hop h in round t.
class Clauses {
 public:
  Clauses(const Topology& topology, const std::vector<FlowRoute>& hops, int rounds)
      : topology_(topology), hops_(hops), rounds_(rounds) {
    const int n = topology.servers;
    sent_ = n * n * (rounds + 1) + 1;
    variables_ = sent_ + n * static_cast<int>(hops.size()) * rounds - 1;
    for (int c = 0; c < n; ++c) {
      for (int v = 0; v < n; ++v) {
        add({c == v ? has(c, v, 0) : -has(c, v, 0)});
        add({has(c, v, rounds)});
        for (int t = 0; t < rounds; ++t) add_arrivals(c, v, t);
      }
    }
    for (std::size_t l = 0; l < topology.links.size(); ++l) {
      for (int t = 0; t < rounds; ++t) add_capacity(static_cast<int>(l), t);
    }
  }

  std::string text() const { return fmt::format("p cnf {} {}\n{}", variables_, count_, text_); }

 private:
  int has(int chunk, int server, int round) const {
    return (round * topology_.servers + chunk) * topology_.servers + server + 1;
  }
  int sent(int chunk, std::size_t hop, int round) const {
    return sent_ + (round * topology_.servers + chunk) * static_cast<int>(hops_.size()) +
           static_cast<int>(hop);
  }

  void add(const std::vector<int>& literals) {
    for (const int literal : literals) text_ += fmt::format("{} ", literal);
    text_ += "0\n";
    ++count_;
  }

  void add_arrivals(int chunk, int server, int round) {
    std::vector<int> why = {-has(chunk, server, round + 1), has(chunk, server, round)};
    for (std::size_t h = 0; h < hops_.size(); ++h) {
      if (hops_[h].to != server) continue;
      why.push_back(sent(chunk, h, round));
      add({-sent(chunk, h, round), has(chunk, hops_[h].from, round)});
    }
    add(why);
  }

  // Sequential counter (Sinz, 2005): at least k of the first i are true.
  void add_capacity(int link, int round) {
    std::vector<int> over;
    for (std::size_t h = 0; h < hops_.size(); ++h) {
      if (std::count(hops_[h].links.begin(), hops_[h].links.end(), link) == 0) continue;
      for (int c = 0; c < topology_.servers; ++c) over.push_back(sent(c, h, round));
    }
    const auto most = static_cast<int>(topology_.links[static_cast<std::size_t>(link)].capacity);
    if (static_cast<int>(over.size()) <= most) return;
    std::vector<int> before(static_cast<std::size_t>(most), 0);
    for (const int literal : over) {
      std::vector<int> now;
      for (int k = 0; k < most; ++k) {
        now.push_back(++variables_);
        const int same = before[static_cast<std::size_t>(k)];
        if (same != 0) add({-same, now.back()});
        const int less = k > 0 ? before[static_cast<std::size_t>(k) - 1] : 0;
        if (k == 0) add({-literal, now.back()});
        if (less != 0) add({-literal, -less, now.back()});
      }
      if (before.back() != 0) add({-literal, -before.back()});
      before = now;
    }
  }

  const Topology& topology_;
  const std::vector<FlowRoute>& hops_;
  int rounds_;
  int sent_ = 0, variables_ = 0;
  long count_ = 0;
  std::string text_;
};

}  // namespace

std::optional<std::vector<FlowRoute>> all_hops(const Topology& topology, std::size_t most) {
  if (topology.routes.empty()) return HopFinder(topology, most).find();
  std::vector<FlowRoute> hops;
  for (int pair = 0; pair < topology.servers * topology.servers; ++pair) {
    const int from = pair / topology.servers, to = pair % topology.servers;
    if (from != to) hops.push_back({from, to, topology.routes[static_cast<std::size_t>(pair)]});
  }
  return hops;
}

std::optional<int> exact_rounds_by_search(const Topology& topology, int least, long most_states) {
  auto hops = all_hops(topology, 1000);
  if (!hops) return std::nullopt;
  return Deepening(topology, std::move(*hops), most_states).run(least);
}

bool have_sat_solver() { return std::system("command -v cadical > /dev/null 2>&1") == 0; }

std::optional<bool> gathers_within(const Topology& topology, int rounds, int seconds) {
  const auto hops = all_hops(topology, 600);
  if (!hops) return std::nullopt;
  std::string path = P_tmpdir "/all_gather.XXXXXX";
  const int made = mkstemp(path.data());
  if (made < 0) return std::nullopt;
  std::FILE* file = fdopen(made, "w");
  std::fputs(Clauses(topology, *hops, rounds).text().c_str(), file);
  std::fclose(file);
  const int status =
      std::system(fmt::format("cadical -q -n -t {} {} > /dev/null 2>&1", seconds, path).c_str());
  std::remove(path.c_str());
  if (!WIFEXITED(status)) return std::nullopt;
  if (WEXITSTATUS(status) == 10) return true;
  if (WEXITSTATUS(status) == 20) return false;
  return std::nullopt;
}

std::optional<int> exact_rounds_by_sat(const Topology& topology, int least, int seconds) {
  for (int rounds = least;; ++rounds) {
    const std::optional<bool> found = gathers_within(topology, rounds, seconds);
    if (!found) return std::nullopt;
    if (*found) return rounds;
  }
}

}  // namespace agpcs
