// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/waits.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

/// Goes through the rounds and keeps what servers know of each other.
class WaitFinder {
 public:
  explicit WaitFinder(const FlowSchedule& schedule)
      : schedule_(schedule),
        servers_(at(schedule.servers)),
        known_(servers_ * servers_, 0),
        begun_(known_) {
    for (const FlowRoute& route : schedule.routes) {
      for (const int link : route.links) last_.resize(std::max(last_.size(), at(link) + 1));
    }
  }

  std::vector<RoundWait> run() {
    auto reduce = schedule_.reduce_scatter.begin();
    auto gather = schedule_.all_gather.begin();
    const auto end_of = [](auto from, auto end, std::int32_t round) {
      return std::find_if(from, end, [&](const Workload& w) { return w.round != round; });
    };
    while (reduce != schedule_.reduce_scatter.end() || gather != schedule_.all_gather.end()) {
      std::int32_t round = std::numeric_limits<std::int32_t>::max();
      if (reduce != schedule_.reduce_scatter.end()) round = reduce->round;
      if (gather != schedule_.all_gather.end()) round = std::min(round, gather->round);
      std::vector<const FlowRoute*> routes;
      for (auto* phase : {&reduce, &gather}) {
        const auto& all = phase == &reduce ? schedule_.reduce_scatter : schedule_.all_gather;
        for (const auto end = end_of(*phase, all.end(), round); *phase != end; ++*phase) {
          routes.push_back(&schedule_.routes[at((*phase)->route)]);
        }
      }
      play(round, routes);
    }
    return std::move(waits_);
  }

 private:
  /// The ends of the messages that used a link in the last round with a use, and in the one before
  /// that.
  struct LinkUse {
    std::int32_t round = -1;
    std::vector<std::pair<int, int>> ends, before;
    std::int32_t round_before = -1;
  };

  /// Returns the round of `other` up to which, as `server` knows, all earlier rounds are over.
  std::int32_t& known(int server, int other) { return known_[at(server) * servers_ + at(other)]; }

  void play(std::int32_t round, const std::vector<const FlowRoute*>& routes) {
    for (int server = 0; server < schedule_.servers; ++server) known(server, server) = round;
    begun_ = known_;
    const std::size_t first = waits_.size();
    for (const FlowRoute* route : routes) {
      for (const int link : route->links) wait_for_link(round, *route, last_[at(link)]);
    }
    std::sort(waits_.begin() + static_cast<std::ptrdiff_t>(first), waits_.end());
    // An end that has sent or received knows that the other end had begun the round.
    begun_ = known_;
    for (const FlowRoute* route : routes) {
      learn(route->from, route->to);
      learn(route->to, route->from);
    }
  }

  void wait_for_link(std::int32_t round, const FlowRoute& route, LinkUse& use) {
    if (use.round != round) {
      use.round_before = std::exchange(use.round, round);
      use.before.clear();
      use.before.swap(use.ends);
    }
    use.ends.emplace_back(route.from, route.to);
    for (const auto& ends : use.before) {
      const auto [from, to] = ends;
      const auto knows = [&, from = from, to = to](int server) {
        return known(server, from) > use.round_before || known(server, to) > use.round_before;
      };
      if (knows(route.from) || knows(route.to)) continue;
      waits_.push_back({round, to, route.from});
      learn(route.from, to);
    }
  }

  /// Adds to the knowledge of `server` what `other` knew when it began the round, including its own
  /// progress.
  void learn(int server, int other) {
    for (std::size_t i = 0; i < servers_; ++i) {
      std::int32_t& mine = known_[at(server) * servers_ + i];
      mine = std::max(mine, begun_[at(other) * servers_ + i]);
    }
  }

  const FlowSchedule& schedule_;
  const std::size_t servers_;
  std::vector<std::int32_t> known_, begun_;  // by server that knows, then the other server
  std::vector<LinkUse> last_;                // by link
  std::vector<RoundWait> waits_;
};

}  // namespace

std::vector<RoundWait> link_waits(const FlowSchedule& schedule) {
  return WaitFinder(schedule).run();
}

}  // namespace agpcs
