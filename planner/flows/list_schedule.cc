// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/list_schedule.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace agpcs {
namespace {

class ListScheduler {
 public:
  ListScheduler(const Topology& topology, const FlowForest& forest, bool barrier, ListOrder order,
                Rng rng)
      : topology_(topology),
        simulator_(topology, forest, barrier),
        servers_(static_cast<std::size_t>(forest.servers)),
        order_(order),
        rng_(rng),
        place_(2 * forest.trees.size() * servers_, 0),
        awaited_(topology.links.size(), 0) {
    for (const FlowTree& tree : forest.trees) {
      for (const auto* routes : {&tree.up, &tree.down}) {
        for (const std::int32_t r : *routes) {
          if (r >= 0) expect(forest.routes[static_cast<std::size_t>(r)], 1);
        }
      }
    }
  }

  FlowSchedule run() {
    while (!simulator_.done()) {
      take_new_jobs();
      if (order_ == ListOrder::kCritical) sort_anew();
      send_what_fits();
      known_ = simulator_.ready().size();
      simulator_.next_round();
    }
    return simulator_.schedule();
  }

 private:
  struct Entry {
    std::int64_t key;  // small first
    std::uint64_t drawn;
    RoundSimulator::Job job;
    bool operator<(const Entry& other) const {
      return std::tie(key, drawn, job.chunk, job.server, job.down) <
             std::tie(other.key, other.drawn, other.job.chunk, other.job.server, other.job.down);
    }
  };

  std::size_t cell(const RoundSimulator::Job& job) const {
    return 2 * (static_cast<std::size_t>(job.chunk) * servers_ +
                static_cast<std::size_t>(job.server)) +
           (job.down ? 1 : 0);
  }

  // Takes the jobs that became ready since the last round, which lie at the end.
  void take_new_jobs() {
    const auto ready = simulator_.ready();
    const auto before = static_cast<std::ptrdiff_t>(queue_.size());
    for (std::size_t i = known_; i < ready.size(); ++i) {
      const RoundSimulator::Job& job = ready[i];
      place_[cell(job)] = static_cast<std::int32_t>(i);
      queue_.push_back({simulator_.round(), rng_.next(), job});
    }
    std::sort(queue_.begin() + before, queue_.end());
    std::inplace_merge(queue_.begin(), queue_.begin() + before, queue_.end());
  }

  void expect(const FlowRoute& route, std::int64_t units) {
    for (const int l : route.links) awaited_[static_cast<std::size_t>(l)] += units;
  }

  void sort_anew() {
    for (Entry& entry : queue_) {
      std::int64_t most = 0;
      for (const int l : simulator_.route_of(entry.job).links) {
        const auto link = static_cast<std::size_t>(l);
        most = std::max(most, awaited_[link] * kParts / topology_.links[link].capacity);
      }
      entry.key = -most - kParts * simulator_.height_of(entry.job);
    }
    std::sort(queue_.begin(), queue_.end());
  }

  void send_what_fits() {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < queue_.size(); ++i) {
      if (!simulator_.fits(queue_[i].job)) {
        queue_[kept++] = queue_[i];
        continue;
      }
      const auto place = place_[cell(queue_[i].job)];
      expect(simulator_.route_of(queue_[i].job), -1);
      simulator_.send(static_cast<std::size_t>(place));
      // The last ready job took its place.
      const auto ready = simulator_.ready();
      if (static_cast<std::size_t>(place) < ready.size()) {
        place_[cell(ready[static_cast<std::size_t>(place)])] = place;
      }
    }
    queue_.resize(kept);
  }

  static constexpr std::int64_t kParts = 1024;  // of a round

  const Topology& topology_;
  RoundSimulator simulator_;
  std::size_t servers_;
  ListOrder order_;
  Rng rng_;
  std::vector<Entry> queue_;           // in order
  std::vector<std::int32_t> place_;    // by job: index in ready()
  std::vector<std::int64_t> awaited_;  // by link: units that it has yet to carry
  std::size_t known_ = 0;              // jobs of ready() that are in the queue
};

/// The units that links carry in each round.
class LinkCalendar {
 public:
  explicit LinkCalendar(const Topology& topology)
      : topology_(topology), used_(topology.links.size()) {}

  bool fits(const FlowRoute& route, std::int64_t round) const {
    return std::all_of(route.links.begin(), route.links.end(), [&](int l) {
      const std::vector<std::int64_t>& used = used_[static_cast<std::size_t>(l)];
      return round >= static_cast<std::int64_t>(used.size()) ||
             used[static_cast<std::size_t>(round)] <
                 topology_.links[static_cast<std::size_t>(l)].capacity;
    });
  }
  void take(const FlowRoute& route, std::int64_t round) {
    for (const int l : route.links) {
      std::vector<std::int64_t>& used = used_[static_cast<std::size_t>(l)];
      if (round >= static_cast<std::int64_t>(used.size())) {
        used.resize(static_cast<std::size_t>(round) + 1, 0);
      }
      ++used[static_cast<std::size_t>(round)];
    }
  }

 private:
  const Topology& topology_;
  std::vector<std::vector<std::int64_t>> used_;  // by link
};

}  // namespace

FlowSchedule list_schedule(const Topology& topology, const FlowForest& forest, bool barrier,
                           ListOrder order, Rng rng) {
  return ListScheduler(topology, forest, barrier, order, rng).run();
}

FlowSchedule without_barrier(const Topology& topology, FlowSchedule schedule) {
  const auto servers = static_cast<std::size_t>(schedule.servers);
  LinkCalendar calendar(topology);
  // By sub-chunk and server: the first round in which the server can send the whole sum.
  std::vector<std::int32_t> from_round(
      servers * servers * static_cast<std::size_t>(schedule.sub_chunks), 0);
  const auto cell = [&](std::int32_t chunk, int server) -> std::int32_t& {
    return from_round[static_cast<std::size_t>(chunk) * servers + static_cast<std::size_t>(server)];
  };
  for (const Workload& w : schedule.reduce_scatter) {
    const FlowRoute& route = schedule.routes[static_cast<std::size_t>(w.route)];
    calendar.take(route, w.round);
    if (schedule.owner_of(w.chunk) != route.to) continue;
    cell(w.chunk, route.to) = std::max(cell(w.chunk, route.to), w.round + 1);
  }
  for (Workload& w : schedule.all_gather) {
    const FlowRoute& route = schedule.routes[static_cast<std::size_t>(w.route)];
    w.round = cell(w.chunk, route.from);
    while (!calendar.fits(route, w.round)) ++w.round;
    calendar.take(route, w.round);
    cell(w.chunk, route.to) = w.round + 1;
  }
  normalize(schedule);
  return schedule;
}

}  // namespace agpcs
