// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/packing.h"

#include "ir/base/at.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr std::int32_t kMissing = std::numeric_limits<std::int32_t>::max();
constexpr std::uint64_t kOneInMakesItWorse = 200;  // one in so many shuffles may miss one more

}  // namespace

FlowPacking::FlowPacking(const Topology& topology, std::span<const FlowRoute> hops, int sub_chunks,
                         int rounds)
    : topology_(topology),
      hops_(hops.begin(), hops.end()),
      sub_chunks_(sub_chunks),
      rounds_(rounds),
      chunks_(topology.servers * sub_chunks),
      missing_(static_cast<std::int64_t>(chunks_) * (topology.servers - 1)),
      hops_into_(at(topology.servers)),
      links_into_(at(topology.servers)),
      round_(at(topology.servers) * at(chunks_), kMissing),
      hop_(round_.size(), -1),
      copies_(at(chunks_), 1),
      hops_out_of_(at(topology.servers)),
      all_near_(at(topology.servers), 0) {
  for (std::size_t h = 0; h < hops_.size(); ++h) {
    hops_into_[at(hops_[h].to)].push_back(static_cast<std::int32_t>(h));
    hops_out_of_[at(hops_[h].from)].push_back(static_cast<std::int32_t>(h));
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (const int l : hops_[h].links) least = std::min(least, topology.links[at(l)].capacity);
    weight_.push_back(least);
    all_near_[at(hops_[h].to)] += least;
  }
  for (std::size_t l = 0; l < topology.links.size(); ++l) {
    const int to = topology.links[l].to;
    if (topology.is_server(to)) links_into_[at(to)].push_back(static_cast<int>(l));
  }
  for (int r = 0; r < rounds; ++r) {
    for (const Topology::Link& link : topology.links) free_.push_back(link.capacity);
  }
  for (int c = 0; c < chunks_; ++c) {
    round_[cell(c / sub_chunks, c)] = -1;
  }
}

// Returns how easily a server could get a sub-chunk later: how many have it, and how near they are.
std::int64_t FlowPacking::plenty(int server, int chunk) const {
  if (!filling_) return copies_[at(chunk)];
  return 1000 * copies_[at(chunk)] / topology_.servers +
         1000 * near_[cell(server, chunk)] / std::max<std::int64_t>(1, all_near_[at(server)]);
}

void FlowPacking::tell_neighbours(int server, int chunk) {
  for (const std::int32_t hop : hops_out_of_[at(server)]) {
    near_[cell(hops_[at(hop)].to, chunk)] += weight_[at(hop)];
  }
}

bool FlowPacking::fits(std::int32_t hop, int round) {
  const std::vector<int>& links = hops_[at(hop)].links;
  return std::all_of(links.begin(), links.end(), [&](int l) { return free(round, l) > 0; });
}

void FlowPacking::put(int chunk, std::int32_t hop, int round) {
  const FlowRoute& route = hops_[at(hop)];
  for (const int l : route.links) --free(round, l);
  round_[cell(route.to, chunk)] = round;
  hop_[cell(route.to, chunk)] = hop;
  ++copies_[at(chunk)];
  if (filling_) tell_neighbours(route.to, chunk);
  --missing_;
}

void FlowPacking::pull(int chunk) {
  for (int s = 0; s < topology_.servers; ++s) {
    std::int32_t& round = round_[cell(s, chunk)];
    if (round < 0 || round == kMissing) continue;
    for (const int l : hops_[at(hop_[cell(s, chunk)])].links) ++free(round, l);
    round = kMissing;
    ++missing_;
  }
  copies_[at(chunk)] = 1;
}

FlowPacking::Saved FlowPacking::save(int chunk) const {
  Saved saved = {chunk, {}, {}};
  for (int s = 0; s < topology_.servers; ++s) {
    saved.round.push_back(round_[cell(s, chunk)]);
    saved.hop.push_back(hop_[cell(s, chunk)]);
  }
  return saved;
}

void FlowPacking::restore(const Saved& saved) {
  for (int s = 0; s < topology_.servers; ++s) {
    const std::int32_t round = saved.round[at(s)];
    if (round >= 0 && round != kMissing) put(saved.chunk, saved.hop[at(s)], round);
  }
}

bool FlowPacking::has_room(int server, int round) {
  const std::vector<int>& links = links_into_[at(server)];
  return std::any_of(links.begin(), links.end(), [&](int l) { return free(round, l) > 0; });
}

// Puts the rarest of `chunks` that some hop can bring to `server` in `round`.
bool FlowPacking::insert_at(int server, int round, std::span<const int> chunks, Rng& rng) {
  const std::vector<std::int32_t>& hops = hops_into_[at(server)];
  const std::size_t first_hop = rng.below(hops.size()), first = rng.below(chunks.size());
  int best = -1;
  std::int32_t by = -1;
  std::int64_t least = 0;
  for (std::size_t h = 0; h < hops.size(); ++h) {
    const std::int32_t hop = hops[(first_hop + h) % hops.size()];
    work_ += static_cast<std::int64_t>(chunks.size());
    bool checked = false;
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      const int chunk = chunks[(first + i) % chunks.size()];
      if (round_[cell(server, chunk)] != kMissing) continue;
      if (round_[cell(hops_[at(hop)].from, chunk)] >= round) continue;
      if (!checked && !fits(hop, round)) break;
      checked = true;
      const std::int64_t score = plenty(server, chunk);
      if (best >= 0 && score >= least) continue;
      least = score;
      best = chunk;
      by = hop;
    }
  }
  if (best < 0) return false;
  put(best, by, round);
  return true;
}

void FlowPacking::insert(std::span<const int> chunks, Rng& rng) {
  for (int round = 0; round < rounds_; ++round) {
    const auto first = static_cast<int>(rng.below(at(topology_.servers)));
    for (int i = 0; i < topology_.servers; ++i) {
      const int server = (first + i) % topology_.servers;
      ++work_;
      while (has_room(server, round) && insert_at(server, round, chunks, rng)) {
      }
    }
  }
}

void FlowPacking::fill(Rng& rng) {
  std::vector<int> all(at(chunks_));
  std::iota(all.begin(), all.end(), 0);
  filling_ = true;
  near_.assign(round_.size(), 0);
  for (int s = 0; s < topology_.servers; ++s) {
    for (int c = 0; c < chunks_; ++c) {
      if (round_[cell(s, c)] != kMissing) tell_neighbours(s, c);
    }
  }
  insert(all, rng);
  filling_ = false;
}

// Chooses a sub-chunk that some server lacks, and others that this server gets meanwhile.
std::vector<int> FlowPacking::choose(Rng& rng) const {
  std::vector<std::pair<int, int>> lacks;
  for (int c = 0; c < chunks_; ++c) {
    if (copies_[at(c)] == topology_.servers) continue;
    for (int s = 0; s < topology_.servers; ++s) {
      if (round_[cell(s, c)] == kMissing) lacks.emplace_back(s, c);
    }
  }
  std::vector<int> chosen = {lacks[rng.below(lacks.size())].second};
  const std::size_t count = 2 + rng.below(4);
  while (chosen.size() < std::min(count, at(chunks_))) {
    const auto c = static_cast<int>(rng.below(at(chunks_)));
    if (std::find(chosen.begin(), chosen.end(), c) == chosen.end()) chosen.push_back(c);
  }
  return chosen;
}

void FlowPacking::shuffle(Rng& rng) {
  const std::int64_t before = missing_;
  if (before == 0) return;
  const std::vector<int> chunks = choose(rng);
  std::vector<Saved> saved;
  for (const int chunk : chunks) saved.push_back(save(chunk));
  for (const int chunk : chunks) pull(chunk);
  insert(chunks, rng);
  if (missing_ <= before + (rng.below(kOneInMakesItWorse) == 0 ? 1 : 0)) return;
  for (const int chunk : chunks) pull(chunk);
  for (const Saved& chunk : saved) restore(chunk);
}

FlowSchedule FlowPacking::all_gather() const {
  FlowSchedule schedule = {topology_.servers, sub_chunks_, hops_, {}, {}};
  for (int s = 0; s < topology_.servers; ++s) {
    for (int c = 0; c < chunks_; ++c) {
      const std::int32_t round = round_[cell(s, c)];
      if (round < 0 || round == kMissing) continue;
      schedule.all_gather.push_back({c, hop_[cell(s, c)], round});
    }
  }
  normalize(schedule);
  return schedule;
}

}  // namespace agpcs
