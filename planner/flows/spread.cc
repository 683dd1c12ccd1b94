// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/spread.h"

#include "ir/base/at.h"

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace agpcs {
namespace {

class Spreader {
 public:
  Spreader(const Topology& topology, const FlowForest& forest)
      : topology_(topology),
        forest_(forest),
        first_(at(forest.servers) * forest.trees.size(), -1),
        next_(first_.size(), -1),
        height_(first_.size(), 0),
        left_(topology.links.size(), 0) {
    for (const FlowTree& tree : forest.trees) measure(tree);
    for (const FlowTree& tree : forest.trees) add_children(tree.chunk, owner(tree.chunk));
    start_round();
  }

  FlowSchedule run() {
    FlowSchedule schedule = {forest_.servers, forest_.sub_chunks, forest_.routes, {}, {}};
    std::vector<Job> sent;
    for (std::int32_t round = 0; !ready_.empty(); ++round) {
      for (std::size_t l = 0; l < left_.size(); ++l) left_[l] = topology_.links[l].capacity;
      sent.clear();
      std::size_t kept = 0;
      for (const Job& job : ready_) {
        if (!take(route(job))) {
          ready_[kept++] = job;
          continue;
        }
        sent.push_back(job);
        schedule.all_gather.push_back({job.chunk, route(job), round});
      }
      ready_.resize(kept);
      for (const Job& job : sent) add_children(job.chunk, job.server);
      start_round();
    }
    normalize(schedule);
    return schedule;
  }

 private:
  struct Job {
    std::int32_t height = 0, server = 0, chunk = 0;
    bool operator<(const Job& other) const {
      return std::tie(other.height, server, chunk) < std::tie(height, other.server, other.chunk);
    }
  };

  std::size_t cell(std::int32_t chunk, std::int32_t server) const {
    return at(chunk) * at(forest_.servers) + at(server);
  }
  int owner(std::int32_t chunk) const { return chunk / forest_.sub_chunks; }
  std::int32_t route(const Job& job) const {
    return forest_.trees[at(job.chunk)].down[at(job.server)];
  }

  // Finds the children of every server and the longest chain from it on, leaves first.
  void measure(const FlowTree& tree) {
    for (int s = 0; s < forest_.servers; ++s) {
      if (tree.down[at(s)] < 0) continue;
      const std::size_t parent = cell(tree.chunk, forest_.routes[at(tree.down[at(s)])].from);
      next_[cell(tree.chunk, s)] = first_[parent];
      first_[parent] = s;
    }
    std::vector<std::int32_t> order = {owner(tree.chunk)};
    for (std::size_t i = 0; i < order.size(); ++i) {
      for (std::int32_t c = first_[cell(tree.chunk, order[i])]; c >= 0;
           c = next_[cell(tree.chunk, c)]) {
        order.push_back(c);
      }
    }
    for (auto s = order.rbegin(); s + 1 != order.rend(); ++s) {
      const std::size_t mine = cell(tree.chunk, *s);
      std::int32_t& above = height_[cell(tree.chunk, forest_.routes[at(tree.down[at(*s)])].from)];
      above = std::max(above, ++height_[mine]);
    }
  }

  void add_children(std::int32_t chunk, std::int32_t server) {
    for (std::int32_t c = first_[cell(chunk, server)]; c >= 0; c = next_[cell(chunk, c)]) {
      added_.push_back({height_[cell(chunk, c)], c, chunk});
    }
  }

  void start_round() {
    std::sort(added_.begin(), added_.end());
    const auto before = static_cast<std::ptrdiff_t>(ready_.size());
    ready_.insert(ready_.end(), added_.begin(), added_.end());
    std::inplace_merge(ready_.begin(), ready_.begin() + before, ready_.end());
    added_.clear();
  }

  bool take(std::int32_t route) {
    const std::vector<int>& links = forest_.routes[at(route)].links;
    if (!std::all_of(links.begin(), links.end(), [&](int l) { return left_[at(l)] > 0; }))
      return false;
    for (const int l : links) --left_[at(l)];
    return true;
  }

  const Topology& topology_;
  const FlowForest& forest_;
  std::vector<std::int32_t> first_, next_;  // by sub-chunk and server: children
  std::vector<std::int32_t> height_;        // by sub-chunk and server: height of the workload to it
  std::vector<Job> ready_, added_;
  std::vector<std::int64_t> left_;  // by link: units left in this round
};

}  // namespace

FlowSchedule spread(const Topology& topology, const FlowForest& forest) {
  return Spreader(topology, forest).run();
}

}  // namespace agpcs
