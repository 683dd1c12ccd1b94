// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/schedule.h"

#include "ir/base/check.h"
#include "ir/base/rng.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <tuple>
#include <utility>

namespace agpcs {
namespace {

std::int64_t rounds_of(const std::vector<Workload>& phase) {
  return phase.empty() ? 0 : phase.back().round - phase.front().round + 1;
}

bool earlier(const Workload& a, const Workload& b) {
  return std::tie(a.round, a.chunk, a.route) < std::tie(b.round, b.chunk, b.route);
}

FlowRoute turned(FlowRoute route) {
  std::swap(route.from, route.to);
  std::reverse(route.links.begin(), route.links.end());
  return route;
}

class ScheduleVerifier {
 public:
  ScheduleVerifier(const Topology& topology, const FlowSchedule& schedule)
      : topology_(topology),
        schedule_(schedule),
        servers_(static_cast<std::size_t>(schedule.servers)),
        chunks_(schedule.servers * schedule.sub_chunks) {}

  Status verify() const {
    AGPCS_RETURN_IF_ERROR(verify_shape());
    for (std::size_t r = 0; r < schedule_.routes.size(); ++r) {
      AGPCS_RETURN_IF_ERROR(verify_route(r));
    }
    for (const bool gather : {false, true}) {
      for (const Workload& w : phase(gather)) AGPCS_RETURN_IF_ERROR(verify_workload(w, gather));
      if (!std::is_sorted(phase(gather).begin(), phase(gather).end(), earlier)) {
        return invalid_input(
            fmt::format("{}: not in order of rounds, sub-chunks and routes", name_of(gather)));
      }
    }
    AGPCS_RETURN_IF_ERROR(verify_loads());
    return verify_prefixes();
  }

 private:
  const std::vector<Workload>& phase(bool gather) const {
    return gather ? schedule_.all_gather : schedule_.reduce_scatter;
  }
  static std::string_view name_of(bool gather) { return gather ? "all-gather" : "reduce-scatter"; }
  const FlowRoute& route(const Workload& w) const {
    return schedule_.routes[static_cast<std::size_t>(w.route)];
  }
  std::string chunk_name(int chunk) const {
    return fmt::format("{}.{}", schedule_.owner_of(chunk), chunk % schedule_.sub_chunks);
  }
  std::string text(const Workload& w, bool gather) const {
    return fmt::format("{} round {}: sub-chunk {} from {} to {}", name_of(gather), w.round,
                       chunk_name(w.chunk), topology_.name_of(route(w).from),
                       topology_.name_of(route(w).to));
  }

  Status verify_shape() const {
    if (schedule_.servers == topology_.servers && schedule_.sub_chunks > 0) return {};
    return invalid_input(
        fmt::format("a schedule of {} servers and {} sub-chunks on a topology of "
                    "{} servers",
                    schedule_.servers, schedule_.sub_chunks, topology_.servers));
  }

  Status verify_route(std::size_t index) const {
    const FlowRoute& route = schedule_.routes[index];
    const auto wrong = [&](std::string_view what) {
      return invalid_input(
          fmt::format("route {} from {} to {} {}", index, route.from, route.to, what));
    };
    if (!topology_.is_server(route.from) || !topology_.is_server(route.to) || route.from < 0 ||
        route.to < 0 || route.from == route.to) {
      return wrong("does not join two servers");
    }
    int at = route.from;
    for (const int l : route.links) {
      if (l < 0 || l >= static_cast<int>(topology_.links.size())) {
        return wrong(fmt::format("has link {} of {}", l, topology_.links.size()));
      }
      const Topology::Link& link = topology_.links[static_cast<std::size_t>(l)];
      if (link.from != at) return wrong("is not a path");
      if (at != route.from && topology_.is_server(at)) {
        return wrong(fmt::format("passes server {}", topology_.name_of(at)));
      }
      at = link.to;
    }
    if (at != route.to) return wrong("ends elsewhere");
    if (topology_.routes.empty()) return {};
    const std::size_t pair =
        static_cast<std::size_t>(route.from) * servers_ + static_cast<std::size_t>(route.to);
    return topology_.routes[pair] == route.links ? Status() : wrong("is not the topology's own");
  }

  Status verify_workload(const Workload& w, bool gather) const {
    if (w.chunk < 0 || w.chunk >= chunks_ || w.round < 0 || w.route < 0 ||
        w.route >= static_cast<int>(schedule_.routes.size())) {
      return invalid_input(fmt::format("{}: sub-chunk {} of {}, route {} of {}, round {}",
                                       name_of(gather), w.chunk, chunks_, w.route,
                                       schedule_.routes.size(), w.round));
    }
    const int owner = schedule_.owner_of(w.chunk);
    if (owner != (gather ? route(w).to : route(w).from)) return {};
    return invalid_input(text(w, gather) +
                         (gather ? ": its owner has it already" : ": its owner does not send it"));
  }

  // Checks both phases, round by round.
  Status verify_loads() const {
    std::vector<std::int64_t> load(topology_.links.size(), 0);
    std::size_t at[2] = {0, 0};
    while (at[0] < phase(false).size() || at[1] < phase(true).size()) {
      std::int32_t round = INT32_MAX;
      for (const bool gather : {false, true}) {
        if (at[gather] < phase(gather).size()) {
          round = std::min(round, phase(gather)[at[gather]].round);
        }
      }
      std::vector<int> used;
      for (const bool gather : {false, true}) {
        for (; at[gather] < phase(gather).size() && phase(gather)[at[gather]].round == round;
             ++at[gather]) {
          const Workload& w = phase(gather)[at[gather]];
          for (const int l : route(w).links) {
            used.push_back(l);
            const std::int64_t capacity = topology_.links[static_cast<std::size_t>(l)].capacity;
            if (++load[static_cast<std::size_t>(l)] <= capacity) continue;
            return invalid_input(fmt::format("{}: link {} -> {} carries {} units a round",
                                             text(w, gather), end_of(l, false), end_of(l, true),
                                             capacity));
          }
        }
      }
      for (const int l : used) load[static_cast<std::size_t>(l)] = 0;
    }
    return {};
  }

  const std::string& end_of(int link, bool to) const {
    const Topology::Link& l = topology_.links[static_cast<std::size_t>(link)];
    return topology_.name_of(to ? l.to : l.from);
  }

  std::size_t cell(int chunk, int server) const {
    return static_cast<std::size_t>(chunk) * servers_ + static_cast<std::size_t>(server);
  }

  // By sub-chunk and server: `left` is the round in which the server's sum left it, `has` the round
  // after which the server has the whole sum.
  Status verify_prefixes() const {
    const std::size_t cells = servers_ * static_cast<std::size_t>(chunks_);
    std::vector<std::int32_t> left(cells, -1), has(cells, -1);
    for (const Workload& w : schedule_.reduce_scatter) {
      std::int32_t& mine = left[cell(w.chunk, route(w).from)];
      if (mine >= 0) return invalid_input(text(w, false) + ": sent before");
      mine = w.round;
    }
    AGPCS_RETURN_IF_ERROR(verify_everywhere(left, false));
    for (const Workload& w : schedule_.reduce_scatter) {
      const int to = route(w).to;
      const bool owner = schedule_.owner_of(w.chunk) == to;
      if (owner) has[cell(w.chunk, to)] = std::max(has[cell(w.chunk, to)], w.round);
      if (!owner && left[cell(w.chunk, to)] <= w.round) {
        return invalid_input(text(w, false) + fmt::format(": {} sent its sum in round {}",
                                                          topology_.name_of(to),
                                                          left[cell(w.chunk, to)]));
      }
    }
    for (const Workload& w : schedule_.all_gather) {
      AGPCS_RETURN_IF_ERROR(verify_gathered(w, has));
    }
    return verify_everywhere(has, true);
  }

  // Workloads of a round are sorted by sub-chunk and route, not along the tree. A sender that got
  // its copy in the same round is therefore detected by its round.
  Status verify_gathered(const Workload& w, std::vector<std::int32_t>& has) const {
    const auto [from, to] = std::pair(route(w).from, route(w).to);
    const std::int32_t since = has[cell(w.chunk, from)];
    const bool owns = schedule_.owner_of(w.chunk) == from;
    if (!owns && since < 0) {
      return invalid_input(text(w, true) + ": the sender does not have it");
    }
    if (since >= w.round) {
      return invalid_input(text(w, true) +
                           fmt::format(": the sender has it after round {}", since));
    }
    if (has[cell(w.chunk, to)] >= 0) return invalid_input(text(w, true) + ": received before");
    has[cell(w.chunk, to)] = w.round;
    return {};
  }

  Status verify_everywhere(const std::vector<std::int32_t>& rounds, bool gather) const {
    for (int chunk = 0; chunk < chunks_; ++chunk) {
      for (int server = 0; server < schedule_.servers; ++server) {
        if (schedule_.owner_of(chunk) == server || rounds[cell(chunk, server)] >= 0) continue;
        return invalid_input(fmt::format("{}: {} never {} sub-chunk {}", name_of(gather),
                                         topology_.name_of(server), gather ? "gets" : "sends",
                                         chunk_name(chunk)));
      }
    }
    return {};
  }

  const Topology& topology_;
  const FlowSchedule& schedule_;
  std::size_t servers_;
  int chunks_;
};

/// The numbers that servers hold while a schedule runs.
class Numbers {
 public:
  Numbers(const FlowSchedule& schedule, std::uint64_t seed)
      : schedule_(schedule),
        chunks_(static_cast<std::size_t>(schedule.servers) *
                static_cast<std::size_t>(schedule.sub_chunks)),
        values_(static_cast<std::size_t>(schedule.servers) * chunks_),
        sums_(chunks_, 0) {
    Rng rng = Rng(seed).fork("check sums");
    for (std::size_t i = 0; i < values_.size(); ++i) sums_[i % chunks_] += values_[i] = rng.next();
  }

  void run() {
    const std::vector<Workload>& scatter = schedule_.reduce_scatter;
    const std::vector<Workload>& gather = schedule_.all_gather;
    auto added = scatter.begin(), copied = gather.begin();
    while (added != scatter.end() || copied != gather.end()) {
      std::int32_t round = INT32_MAX;
      if (added != scatter.end()) round = added->round;
      if (copied != gather.end()) round = std::min(round, copied->round);
      const auto in_round = [&](const Workload& w) { return w.round == round; };
      const auto last_added = std::find_if_not(added, scatter.end(), in_round);
      const auto last_copied = std::find_if_not(copied, gather.end(), in_round);
      sent_.clear();
      for (auto w = added; w != last_added; ++w) sent_.push_back(at(route(*w).from, w->chunk));
      for (auto w = copied; w != last_copied; ++w) sent_.push_back(at(route(*w).from, w->chunk));
      auto value = sent_.begin();
      for (; added != last_added; ++added) at(route(*added).to, added->chunk) += *value++;
      for (; copied != last_copied; ++copied) at(route(*copied).to, copied->chunk) = *value++;
    }
  }

  Status compare() const {
    for (std::size_t i = 0; i < values_.size(); ++i) {
      if (values_[i] == sums_[i % chunks_]) continue;
      const int chunk = static_cast<int>(i % chunks_);
      return invalid_input(fmt::format(
          "server {} ends with {} in place of the sum {} of sub-chunk {}.{}", i / chunks_,
          values_[i], sums_[i % chunks_], schedule_.owner_of(chunk), chunk % schedule_.sub_chunks));
    }
    return {};
  }

 private:
  const FlowRoute& route(const Workload& w) const {
    return schedule_.routes[static_cast<std::size_t>(w.route)];
  }
  std::uint64_t& at(int server, int chunk) {
    return values_[static_cast<std::size_t>(server) * chunks_ + static_cast<std::size_t>(chunk)];
  }

  const FlowSchedule& schedule_;
  std::size_t chunks_;
  std::vector<std::uint64_t> values_;  // [servers x chunks], sums modulo 2^64
  std::vector<std::uint64_t> sums_;    // [chunks]
  std::vector<std::uint64_t> sent_;    // values sent in the round
};

}  // namespace

std::int64_t FlowSchedule::reduce_scatter_rounds() const { return rounds_of(reduce_scatter); }
std::int64_t FlowSchedule::all_gather_rounds() const { return rounds_of(all_gather); }
std::int64_t FlowSchedule::sub_rounds() const {
  std::int64_t rounds = 0;
  for (const auto* phase : {&reduce_scatter, &all_gather}) {
    if (!phase->empty()) rounds = std::max<std::int64_t>(rounds, phase->back().round + 1);
  }
  return rounds;
}

FlowSchedule mirrored(const FlowSchedule& all_gather) {
  FlowSchedule result = {all_gather.servers, all_gather.sub_chunks, {}, {}, {}};
  for (const FlowRoute& route : all_gather.routes) result.routes.push_back(turned(route));
  if (all_gather.all_gather.empty()) return result;
  const std::int32_t last = all_gather.all_gather.back().round;
  result.reduce_scatter = all_gather.all_gather;
  for (Workload& w : result.reduce_scatter) w.round = last - w.round;
  std::sort(result.reduce_scatter.begin(), result.reduce_scatter.end(), earlier);
  return result;
}

FlowSchedule joined(const FlowSchedule& first, const FlowSchedule& second) {
  AGPCS_CHECK(first.servers == second.servers && first.sub_chunks == second.sub_chunks,
              "{} servers, {} sub-chunks and {}, {}", first.servers, first.sub_chunks,
              second.servers, second.sub_chunks);
  FlowSchedule result = {first.servers, first.sub_chunks, first.routes, first.reduce_scatter, {}};
  const auto routes = static_cast<std::int32_t>(first.routes.size());
  result.routes.insert(result.routes.end(), second.routes.begin(), second.routes.end());
  result.all_gather = second.all_gather;
  const std::int32_t begin = second.all_gather.empty() ? 0 : second.all_gather.front().round;
  const std::int32_t after =
      first.reduce_scatter.empty() ? 0 : first.reduce_scatter.back().round + 1;
  for (Workload& w : result.all_gather) {
    w.route += routes;
    w.round += after - begin;
  }
  normalize(result);
  return result;
}

void normalize(FlowSchedule& schedule) {
  std::vector<bool> used(schedule.routes.size(), false);
  for (const auto* phase : {&schedule.reduce_scatter, &schedule.all_gather}) {
    for (const Workload& w : *phase) used[static_cast<std::size_t>(w.route)] = true;
  }
  std::map<std::tuple<int, int, std::vector<int>>, std::int32_t> numbers;
  std::vector<std::int32_t> renamed(schedule.routes.size(), -1);
  std::vector<FlowRoute> routes;
  for (std::size_t r = 0; r < used.size(); ++r) {
    if (!used[r]) continue;
    FlowRoute& route = schedule.routes[r];
    const auto [place, is_new] =
        numbers.emplace(std::tuple(route.from, route.to, route.links), routes.size());
    if (is_new) routes.push_back(std::move(route));
    renamed[r] = place->second;
  }
  schedule.routes = std::move(routes);
  for (std::vector<Workload>* phase : {&schedule.reduce_scatter, &schedule.all_gather}) {
    for (Workload& w : *phase) w.route = renamed[static_cast<std::size_t>(w.route)];
    std::sort(phase->begin(), phase->end(), earlier);
  }
}

Status verify_schedule(const Topology& topology, const FlowSchedule& schedule) {
  return ScheduleVerifier(topology, schedule).verify();
}

Status check_sums(const FlowSchedule& schedule, std::uint64_t seed) {
  Numbers numbers(schedule, seed);
  numbers.run();
  return numbers.compare();
}

}  // namespace agpcs
