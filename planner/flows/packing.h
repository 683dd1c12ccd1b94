// SPDX-License-Identifier: Apache-2.0
// FlowPacking: packs an all-gather into a given number of rounds. It pulls sub-chunks out and puts
// them back into free units of links.
#pragma once

#include "cost_model/flows/schedule.h"
#include "ir/base/rng.h"
#include "ir/cluster/topology.h"

#include <cstdint>
#include <span>
#include <vector>

namespace agpcs {

class FlowPacking {
 public:
  /// Makes an empty packing: only its owner has a sub-chunk. `topology` outlives it. Memory:
  /// O(rounds x links + servers^2 x sub-chunks).
  FlowPacking(const Topology& topology, std::span<const FlowRoute> hops, int sub_chunks,
              int rounds);

  /// Returns the number of servers that still lack a sub-chunk, summed over all sub-chunks. 0:
  /// packed.
  std::int64_t missing() const { return missing_; }

  /// Pulls a few sub-chunks out, at least one of which some server lacks, and puts them back in a
  /// drawn order. If more is missing than before, takes that back, unless a draw allows it.
  void shuffle(Rng& rng);

  /// Spreads all sub-chunks as far as there are free units, the rarest first, round by round.
  void fill(Rng& rng);

  FlowSchedule all_gather() const;

  /// Returns the hops and units looked at so far: a search may count these instead of time.
  std::int64_t work() const { return work_; }

 private:
  struct Saved {
    int chunk = 0;
    std::vector<std::int32_t> round, hop;  // by server
  };
  std::size_t cell(int server, int chunk) const {
    return static_cast<std::size_t>(server) * static_cast<std::size_t>(chunks_) +
           static_cast<std::size_t>(chunk);
  }
  std::int64_t& free(int round, int link) {
    return free_[static_cast<std::size_t>(round) * topology_.links.size() +
                 static_cast<std::size_t>(link)];
  }
  bool fits(std::int32_t hop, int round);
  std::int64_t plenty(int server, int chunk) const;
  void tell_neighbours(int server, int chunk);
  void put(int chunk, std::int32_t hop, int round);
  void pull(int chunk);
  void insert(std::span<const int> chunks, Rng& rng);
  bool insert_at(int server, int round, std::span<const int> chunks, Rng& rng);
  bool has_room(int server, int round);
  std::vector<int> choose(Rng& rng) const;
  Saved save(int chunk) const;
  void restore(const Saved& saved);

  const Topology& topology_;
  std::vector<FlowRoute> hops_;
  int sub_chunks_, rounds_, chunks_;
  std::int64_t missing_ = 0, work_ = 0;
  std::vector<std::vector<std::int32_t>> hops_into_;  // by server
  std::vector<std::vector<int>> links_into_;          // by server
  std::vector<std::int64_t> free_;                    // by round, link: units
  std::vector<std::int32_t> round_;  // by server, chunk: round, kMissing; owner: -1
  std::vector<std::int32_t> hop_;    // by server, chunk
  std::vector<int> copies_;          // by chunk: servers that have it

  // These are for filling only.
  bool filling_ = false;
  std::vector<std::int64_t> weight_;                    // by hop: units a round that it can carry
  std::vector<std::vector<std::int32_t>> hops_out_of_;  // by server
  std::vector<std::int64_t> near_;  // by server, chunk: weight of hops from servers that have it
  std::vector<std::int64_t> all_near_;  // by server: weight of all hops
};

}  // namespace agpcs
