// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/greedy.h"

#include "ir/base/rng.h"
#include "ir/base/shuffle.h"
#include "planner/flows/hops.h"
#include "planner/flows/list_schedule.h"
#include "planner/flows/methods.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr int kAllHops = 1024;  // most servers for which all hops are looked at
constexpr int kNearHops = 64;   // hops of each server, for more servers

/// Makes one all-gather, round by round. The sub-chunk that the fewest servers have goes first,
/// over its shortest hop that fits to a server that lacks it.
class RarestFirst {
 public:
  RarestFirst(const Topology& topology, const std::vector<FlowRoute>& hops, int sub_chunks, Rng rng)
      : topology_(topology),
        hops_(hops),
        servers_(static_cast<std::size_t>(topology.servers)),
        out_(servers_),
        in_(servers_),
        rng_(rng) {
    schedule_ = {topology.servers, sub_chunks, hops, {}, {}};
    for (std::size_t h = 0; h < hops.size(); ++h) {
      out_[static_cast<std::size_t>(hops[h].from)].push_back(static_cast<std::int32_t>(h));
      in_[static_cast<std::size_t>(hops[h].to)].push_back(static_cast<std::int32_t>(h));
    }
    for (std::size_t s = 0; s < servers_; ++s) {
      shuffle_equal(out_[s]);
      shuffle_equal(in_[s]);
    }
    start_chunks();
  }

  /// Returns nothing if nothing could be sent in some round.
  std::optional<FlowSchedule> run() {
    while (!unfinished_.empty()) {
      const std::size_t before = schedule_.all_gather.size();
      play_round();
      if (schedule_.all_gather.size() == before) return std::nullopt;
      ++round_;
    }
    return std::move(schedule_);
  }

 private:
  struct Chunk {
    std::vector<std::int32_t> holders,
        lackers;  // servers; what arrives in this round is in neither
    std::vector<std::int32_t> arriving;
    std::vector<bool> has;  // by server: it has the chunk, or the chunk is arriving there
  };

  // Sorts hops by number of links; equal ones are in drawn order.
  void shuffle_equal(std::vector<std::int32_t>& of_server) {
    shuffle(of_server, rng_);
    std::stable_sort(of_server.begin(), of_server.end(), [&](std::int32_t a, std::int32_t b) {
      return hops_[static_cast<std::size_t>(a)].links.size() <
             hops_[static_cast<std::size_t>(b)].links.size();
    });
  }

  void start_chunks() {
    chunks_.resize(servers_ * static_cast<std::size_t>(schedule_.sub_chunks));
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const int owner = schedule_.owner_of(static_cast<int>(c));
      chunks_[c].has.assign(servers_, false);
      chunks_[c].has[static_cast<std::size_t>(owner)] = true;
      chunks_[c].holders = {owner};
      for (int s = 0; s < topology_.servers; ++s) {
        if (s != owner) chunks_[c].lackers.push_back(s);
      }
      unfinished_.push_back(static_cast<std::int32_t>(c));
    }
  }

  void play_round() {
    open_links();
    shuffle(unfinished_, rng_);
    // Groups chunks by how many servers have them; a chunk that was sent moves on by one.
    std::vector<std::vector<std::int32_t>> by_count(servers_ + 1);
    for (const std::int32_t c : unfinished_) {
      by_count[chunks_[static_cast<std::size_t>(c)].holders.size()].push_back(c);
    }
    for (std::size_t count = 1; count < servers_; ++count) {
      for (std::size_t i = 0; i < by_count[count].size(); ++i) {
        const std::int32_t c = by_count[count][i];
        if (send(c)) by_count[count + 1].push_back(c);
      }
    }
    const auto finished = [&](std::int32_t c) {
      Chunk& chunk = chunks_[static_cast<std::size_t>(c)];
      chunk.holders.insert(chunk.holders.end(), chunk.arriving.begin(), chunk.arriving.end());
      chunk.arriving.clear();
      return chunk.lackers.empty();
    };
    unfinished_.erase(std::remove_if(unfinished_.begin(), unfinished_.end(), finished),
                      unfinished_.end());
  }

  void open_links() {
    left_.clear();
    port_out_.assign(servers_, 0);
    port_in_.assign(servers_, 0);
    for (const Topology::Link& link : topology_.links) {
      left_.push_back(link.capacity);
      if (topology_.is_server(link.from)) {
        port_out_[static_cast<std::size_t>(link.from)] += link.capacity;
      }
      if (topology_.is_server(link.to)) {
        port_in_[static_cast<std::size_t>(link.to)] += link.capacity;
      }
    }
    open_out_.resize(servers_);
    std::iota(open_out_.begin(), open_out_.end(), 0);
    open_in_ = open_out_;
  }

  // Sends the sub-chunk once, if it can. Looks from the side with fewer servers: those that have it
  // or lack it, or those that still have units to send or to receive.
  bool send(std::int32_t c) {
    const Chunk& chunk = chunks_[static_cast<std::size_t>(c)];
    const auto& senders = chunk.holders.size() <= open_out_.size() ? chunk.holders : open_out_;
    const auto& receivers = chunk.lackers.size() <= open_in_.size() ? chunk.lackers : open_in_;
    const bool from_holders = senders.size() <= receivers.size();
    const std::vector<std::int32_t>& side = from_holders ? senders : receivers;
    if (side.empty()) return false;
    const std::size_t first = rng_.below(side.size());
    for (std::size_t i = 0; i < side.size(); ++i) {
      const std::int32_t server = side[(first + i) % side.size()];
      const auto s = static_cast<std::size_t>(server);
      if ((from_holders ? port_out_ : port_in_)[s] == 0) continue;
      if (from_holders ? !holds(chunk, server) : static_cast<bool>(chunk.has[s])) continue;
      for (const std::int32_t h : (from_holders ? out_ : in_)[s]) {
        if (!fits(chunk, hops_[static_cast<std::size_t>(h)], from_holders)) continue;
        record(c, h);
        return true;
      }
    }
    return false;
  }

  static bool holds(const Chunk& chunk, std::int32_t server) {
    return chunk.has[static_cast<std::size_t>(server)] &&
           std::find(chunk.arriving.begin(), chunk.arriving.end(), server) == chunk.arriving.end();
  }

  bool fits(const Chunk& chunk, const FlowRoute& hop, bool from_holders) const {
    const auto from = static_cast<std::size_t>(hop.from), to = static_cast<std::size_t>(hop.to);
    if (from_holders ? port_in_[to] == 0 || chunk.has[to]
                     : port_out_[from] == 0 || !holds(chunk, hop.from)) {
      return false;
    }
    return std::all_of(hop.links.begin(), hop.links.end(),
                       [&](int l) { return left_[static_cast<std::size_t>(l)] > 0; });
  }

  void record(std::int32_t c, std::int32_t h) {
    const FlowRoute& hop = hops_[static_cast<std::size_t>(h)];
    Chunk& chunk = chunks_[static_cast<std::size_t>(c)];
    for (const int l : hop.links) --left_[static_cast<std::size_t>(l)];
    if (--port_out_[static_cast<std::size_t>(hop.from)] == 0) close(open_out_, hop.from);
    if (--port_in_[static_cast<std::size_t>(hop.to)] == 0) close(open_in_, hop.to);
    chunk.has[static_cast<std::size_t>(hop.to)] = true;
    chunk.arriving.push_back(hop.to);
    const auto lacker = std::find(chunk.lackers.begin(), chunk.lackers.end(), hop.to);
    *lacker = chunk.lackers.back();
    chunk.lackers.pop_back();
    schedule_.all_gather.push_back({c, h, round_});
  }

  static void close(std::vector<std::int32_t>& open, std::int32_t server) {
    *std::find(open.begin(), open.end(), server) = open.back();
    open.pop_back();
  }

  const Topology& topology_;
  const std::vector<FlowRoute>& hops_;
  std::size_t servers_;
  std::vector<std::vector<std::int32_t>> out_, in_;  // by server: hops, near ones first
  Rng rng_;
  FlowSchedule schedule_;
  std::vector<Chunk> chunks_;
  std::vector<std::int32_t> unfinished_;
  std::int32_t round_ = 0;
  std::vector<std::int64_t> left_;                // by link: units left in this round
  std::vector<std::int64_t> port_out_, port_in_;  // by server: units left on all its links
  std::vector<std::int32_t> open_out_, open_in_;  // servers with such units
};

}  // namespace

std::optional<FlowSchedule> greedy_all_gather(const Topology& topology, int sub_chunks,
                                              std::int64_t draws,
                                              const std::atomic<bool>* interrupted, Rng rng) {
  const int nearest = topology.servers <= kAllHops ? 0 : kNearHops;
  const auto hops = shortest_hops(topology, nearest, topology.servers <= 128 ? 4 : 1);
  std::optional<FlowSchedule> best;
  for (std::int64_t d = 0; d < std::max<std::int64_t>(1, draws); ++d) {
    if (best && interrupted != nullptr && interrupted->load()) break;
    auto drawn = RarestFirst(topology, hops, sub_chunks, Rng(rng.next())).run();
    if (!drawn) return std::nullopt;
    if (!best || drawn->sub_rounds() < best->sub_rounds()) best = std::move(drawn);
  }
  normalize(*best);
  return best;
}

Result<FlowSchedule> schedule_greedy(const Topology& topology, const FlowOptions& options) {
  AGPCS_RETURN_IF_ERROR(verify_topology(topology));
  const Rng rng = Rng(options.seed).fork("greedy");
  const Topology turned = reversed(topology);
  std::optional<FlowSchedule> best;
  for (int k = 1; k <= std::max(1, options.max_sub_chunks); ++k) {
    const auto gather =
        greedy_all_gather(topology, k, options.effort, options.interrupted, rng.fork("gather"));
    const auto scatter =
        greedy_all_gather(turned, k, options.effort, options.interrupted, rng.fork("scatter"));
    if (!gather || !scatter) {
      return Status(StatusCode::kInfeasible,
                    fmt::format("topology '{}': hops to the {} nearest servers do not join all {}",
                                topology.name, kNearHops, topology.servers));
    }
    FlowSchedule schedule = joined(mirrored(*scatter), *gather);
    if (!options.barrier) schedule = without_barrier(topology, std::move(schedule));
    if (!best || schedule.rounds() < best->rounds()) best = std::move(schedule);
  }
  return std::move(*best);
}

}  // namespace agpcs
