// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/round_simulator.h"

#include "ir/base/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

/// Returns the servers from the owner outward, each after the server that `route_of` joins it to.
/// Servers that are not joined are missing.
std::vector<int> order_from(const FlowForest& forest, const std::vector<std::int32_t>& route_of,
                            int owner, bool up) {
  std::vector<std::vector<int>> children(static_cast<std::size_t>(forest.servers));
  for (int s = 0; s < forest.servers; ++s) {
    const std::int32_t r = route_of[static_cast<std::size_t>(s)];
    if (r < 0) continue;
    const FlowRoute& route = forest.routes[static_cast<std::size_t>(r)];
    children[static_cast<std::size_t>(up ? route.to : route.from)].push_back(s);
  }
  std::vector<int> order = {owner};
  for (std::size_t i = 0; i < order.size(); ++i) {
    const std::vector<int>& below = children[static_cast<std::size_t>(order[i])];
    order.insert(order.end(), below.begin(), below.end());
  }
  return order;
}

Status verify_tree(const FlowForest& forest, const FlowTree& tree, bool up) {
  const std::vector<std::int32_t>& routes = up ? tree.up : tree.down;
  const int owner = tree.chunk / forest.sub_chunks;
  const auto wrong = [&](int server, std::string_view what) {
    return invalid_input(fmt::format("tree of sub-chunk {}, {}: server {} {}", tree.chunk,
                                     up ? "up" : "down", server, what));
  };
  if (routes.size() != static_cast<std::size_t>(forest.servers)) return wrong(0, "has no route");
  for (int s = 0; s < forest.servers; ++s) {
    const std::int32_t r = routes[static_cast<std::size_t>(s)];
    if ((r < 0) != (s == owner)) return wrong(s, r < 0 ? "has no route" : "is the owner");
    if (r >= static_cast<std::int32_t>(forest.routes.size())) return wrong(s, "has no such route");
    if (r < 0) continue;
    const FlowRoute& route = forest.routes[static_cast<std::size_t>(r)];
    if ((up ? route.from : route.to) != s) return wrong(s, "has another server's route");
  }
  const std::vector<int> order = order_from(forest, routes, owner, up);
  if (order.size() != routes.size()) return wrong(owner, "does not reach all others");
  return {};
}

}  // namespace

Status verify_forest(const Topology& topology, const FlowForest& forest) {
  if (forest.servers != topology.servers || forest.sub_chunks < 1 ||
      forest.trees.size() !=
          static_cast<std::size_t>(forest.servers) * static_cast<std::size_t>(forest.sub_chunks)) {
    return invalid_input(
        fmt::format("{} trees of {} servers and {} sub-chunks on a topology of {} "
                    "servers",
                    forest.trees.size(), forest.servers, forest.sub_chunks, topology.servers));
  }
  for (std::size_t t = 0; t < forest.trees.size(); ++t) {
    const FlowTree& tree = forest.trees[t];
    if (tree.chunk != static_cast<int>(t)) {
      return invalid_input(fmt::format("tree {} is of sub-chunk {}", t, tree.chunk));
    }
    AGPCS_RETURN_IF_ERROR(verify_tree(forest, tree, true));
    AGPCS_RETURN_IF_ERROR(verify_tree(forest, tree, false));
  }
  return {};
}

RoundSimulator::RoundSimulator(const Topology& topology, const FlowForest& forest, bool barrier,
                               bool gather_only)
    : topology_(topology), forest_(forest), barrier_(barrier), gather_only_(gather_only) {
  const std::size_t cells = forest.trees.size() * static_cast<std::size_t>(forest.servers);
  left_ = jobs();
  left_up_ = gather_only ? 0 : left_ / 2;
  for (const Topology::Link& link : topology.links) free_.push_back(link.capacity);
  awaited_.assign(cells, 0);
  first_down_.assign(cells, -1);
  next_down_.assign(cells, -1);
  for (auto* figures : {&up_height_, &down_height_, &up_weight_, &down_weight_}) {
    figures->assign(cells, 0);
  }
  schedule_ = {forest.servers, forest.sub_chunks, forest.routes, {}, {}};
  for (const FlowTree& tree : forest.trees) measure_tree(tree);
  for (const FlowTree& tree : forest.trees) {
    if (gather_only) start_gather(tree.chunk);
    if (gather_only) continue;
    for (int s = 0; s < forest.servers; ++s) {
      const std::size_t at = cell(tree.chunk, s);
      if (tree.up[static_cast<std::size_t>(s)] >= 0 && awaited_[at] == 0) {
        make_ready(tree.chunk, s, false);
      }
    }
  }
}

// Finds the children, and, from the leaves inward, how many jobs depend on each job.
void RoundSimulator::measure_tree(const FlowTree& tree) {
  const int owner = tree.chunk / forest_.sub_chunks;
  const auto route = [&](std::int32_t r) -> const FlowRoute& {
    return forest_.routes[static_cast<std::size_t>(r)];
  };
  std::int32_t tallest = 0;
  const std::vector<int> down = order_from(forest_, tree.down, owner, false);
  for (auto s = down.rbegin(); s != down.rend(); ++s) {
    const std::size_t at = cell(tree.chunk, *s);
    if (*s == owner) continue;
    const std::size_t above = cell(tree.chunk, route(tree.down[static_cast<std::size_t>(*s)]).from);
    next_down_[at] = first_down_[above];
    first_down_[above] = *s;
    down_height_[at] += 1;
    down_weight_[at] += 1;
    down_height_[above] = std::max(down_height_[above], down_height_[at]);
    down_weight_[above] += down_weight_[at];
    tallest = std::max(tallest, down_height_[at]);
  }
  if (gather_only_) return;
  const std::vector<int> up = order_from(forest_, tree.up, owner, true);
  for (const int s : up) {
    if (s == owner) continue;
    const int to = route(tree.up[static_cast<std::size_t>(s)]).to;
    const std::size_t at = cell(tree.chunk, s), above = cell(tree.chunk, to);
    ++awaited_[above];
    up_height_[at] = 1 + (to == owner ? tallest : up_height_[above]);
    up_weight_[at] = 1 + (to == owner ? forest_.servers - 1 : up_weight_[above]);
  }
}

const FlowRoute& RoundSimulator::route_of(const Job& job) const {
  const FlowTree& tree = forest_.trees[static_cast<std::size_t>(job.chunk)];
  const auto s = static_cast<std::size_t>(job.server);
  return forest_.routes[static_cast<std::size_t>(job.down ? tree.down[s] : tree.up[s])];
}

int RoundSimulator::jobs() const {
  return (gather_only_ ? 1 : 2) * static_cast<int>(forest_.trees.size()) * (forest_.servers - 1);
}
int RoundSimulator::jobs_left() const { return left_; }

bool RoundSimulator::fits(const Job& job) const {
  const std::vector<int>& links = route_of(job).links;
  return std::all_of(links.begin(), links.end(), [&](int l) { return left_on(l) > 0; });
}

std::int64_t RoundSimulator::left_on(int link) const {
  return free_[static_cast<std::size_t>(link)];
}

Workload RoundSimulator::send(std::size_t index_in_ready) {
  const Job job = ready_[index_in_ready];
  ready_[index_in_ready] = ready_.back();
  ready_.pop_back();
  for (const int l : route_of(job).links) {
    AGPCS_CHECK(left_on(l) > 0, "link {} is full in round {}", l, round_);
    --free_[static_cast<std::size_t>(l)];
    used_.push_back(l);
  }
  const FlowTree& tree = forest_.trees[static_cast<std::size_t>(job.chunk)];
  const auto s = static_cast<std::size_t>(job.server);
  const Workload workload = {job.chunk, job.down ? tree.down[s] : tree.up[s], round_};
  (job.down ? schedule_.all_gather : schedule_.reduce_scatter).push_back(workload);
  sent_.push_back(job);
  --left_;
  return workload;
}

void RoundSimulator::moved(std::int32_t chunk, std::int32_t server, std::int32_t before) {
  // Updates the lists of waiting children; once a sender's workload has arrived, all its children
  // are ready already.
  for (std::int32_t* at = &first_down_[cell(chunk, before)]; *at >= 0;
       at = &next_down_[cell(chunk, *at)]) {
    if (*at != server) continue;
    *at = next_down_[cell(chunk, server)];
    break;
  }
  const bool is_ready = std::any_of(ready_.begin(), ready_.end(), [&](const Job& job) {
    return job.chunk == chunk && job.server == server && job.down;
  });
  if (!is_ready) make_ready(chunk, server, true);
}

void RoundSimulator::next_round() {
  for (const int l : used_) {
    free_[static_cast<std::size_t>(l)] = topology_.links[static_cast<std::size_t>(l)].capacity;
  }
  used_.clear();
  ++round_;
  for (const Job& job : sent_) arrive(job);
  sent_.clear();
}

void RoundSimulator::arrive(const Job& job) {
  if (job.down) {
    for (std::int32_t s = first_down_[cell(job.chunk, job.server)]; s >= 0;
         s = next_down_[cell(job.chunk, s)]) {
      make_ready(job.chunk, s, true);
    }
    return;
  }
  --left_up_;
  const int to = route_of(job).to;
  const int owner = job.chunk / forest_.sub_chunks;
  const bool all_here = --awaited_[cell(job.chunk, to)] == 0;
  if (all_here && to != owner) make_ready(job.chunk, to, false);
  if (all_here && to == owner && !barrier_) start_gather(job.chunk);
  if (barrier_ && left_up_ == 0) {
    for (const FlowTree& tree : forest_.trees) start_gather(tree.chunk);
  }
}

void RoundSimulator::start_gather(std::int32_t chunk) {
  for (std::int32_t s = first_down_[cell(chunk, chunk / forest_.sub_chunks)]; s >= 0;
       s = next_down_[cell(chunk, s)]) {
    make_ready(chunk, s, true);
  }
}

void RoundSimulator::make_ready(std::int32_t chunk, std::int32_t server, bool down) {
  ready_.push_back({chunk, server, down});
}

int RoundSimulator::height_of(const Job& job) const {
  return (job.down ? down_height_ : up_height_)[cell(job.chunk, job.server)];
}
int RoundSimulator::weight_of(const Job& job) const {
  return (job.down ? down_weight_ : up_weight_)[cell(job.chunk, job.server)];
}

FlowSchedule RoundSimulator::schedule() const {
  FlowSchedule result = schedule_;
  normalize(result);
  return result;
}

}  // namespace agpcs
