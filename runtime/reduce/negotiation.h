// SPDX-License-Identifier: Apache-2.0
// Negotiation: one rank's side of the agreement on what to reduce next, as a state machine:
// messages in, messages out. It has no threads, no clock and no transport, so that tests can run it
// through all schedules.
//
// A cycle with a cache: (1) Each rank marks what became ready since the last cycle, and what
// waits because other ranks were not ready. (2) A unit whose answer is in the cache sets its bit;
// any other unit sets the flag "uncached". (3) The bits are combined up a tree (AND of ready
// bits, OR of the flag and of the bits whose cached answer no longer fits), and the result comes
// down. (4) All ranks drop invalid answers. (5) Units whose bit all ranks have set are reduced;
// the others wait for the next cycle. (6) If any rank set the flag, the coordinator decides about
// what is not cached.
// Without a cache the coordinator decides everything: each rank sends it its list, and it answers
// all ranks with the units that have now come from everybody, or with an error.
#pragma once

#include "runtime/reduce/response_cache.h"
#include "runtime/reduce/tensor_fusion.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace agpcs {

struct NegotiationSetup {
  int member = 0;                       ///< this rank's index in `ranks`; member 0 coordinates
  std::vector<int> ranks;               ///< by member: its rank
  std::vector<int> hosts;               ///< parallel: the tree enters each host once
  std::vector<std::string> names;       ///< names of gradients
  std::vector<TensorShape> shapes;      ///< shapes of gradients, as declared
  std::vector<std::vector<int>> units;  ///< disjoint sets of gradients that become ready together
  bool cached = true;
  std::size_t capacity = 1024;
  std::int64_t fusion_bytes = std::int64_t{128} << 20;
  std::int64_t alone_bytes = std::int64_t{1} << 20;
};

class Negotiation {
 public:
  /// `setup` must outlive the negotiation.
  explicit Negotiation(const NegotiationSetup& setup);

  /// Notes, between two cycles, that a gradient is ready on this rank. Needs: it is not ready
  /// already. The order of calls between two cycles does not matter.
  void submit(int gradient, const TensorShape& shape);
  /// Returns whether anything needs another cycle.
  bool pending() const { return !pending_.empty() || !asked_.empty(); }
  /// Begins a cycle. All members run the same cycles; a member with nothing pending may begin late.
  void begin_cycle();

  struct Message {
    int member = 0;  ///< the receiver
    std::vector<char> bytes;
  };
  /// Returns the messages to send now, in this order.
  std::vector<Message> take_messages();
  /// The one message that the cycle waits for; member -1: the cycle is over.
  struct Awaited {
    int member = -1;
    std::size_t bytes = 0;
  };
  Awaited awaited() const;
  /// Takes in a message. If no rank of this version would send it, the cycle ends and `failure`
  /// names the rank.
  void deliver(const std::vector<char>& bytes);

  /// Returns what the cycle decided: the same on all ranks, to be reduced in this order.
  std::vector<FusedTensors> take_decided();
  /// Returns the failure: a gradient differs between ranks (all ranks get this error), or a rank
  /// sent nonsense.
  const Status& failure() const { return failure_; }

  struct Counts {
    std::int64_t cycles = 0, coordinated = 0, hits = 0, evictions = 0, invalidations = 0;
  };
  const Counts& counts() const { return counts_; }
  /// Returns all that determines what it does next, for tests that look for states they have seen.
  std::string state() const;

 private:
  enum class Phase { kIdle, kBitsUp, kBitsDown, kListSize, kList, kAnswerSize, kAnswer };
  struct Bits {
    bool uncached = false;
    std::vector<char> ready, invalid;  // by bit of the cache
  };
  struct Entry {  // the coordinator's, for a unit that came from some members
    std::vector<char> from;
    int first = 0, count = 0;
    std::vector<TensorShape> shapes;
  };

  std::vector<TensorShape> shapes_of(int unit) const;
  bool is_cached(int unit) const;
  Bits own_bits() const;
  std::vector<char> encode(const Bits& bits) const;
  // Functions that take a message's bytes return false if these are nonsense.
  bool take(const std::vector<char>& bytes);
  bool combine(const std::vector<char>& bytes);
  bool all_pending(const std::vector<char>& ready) const;
  void bits_are_up();
  void take_bits();
  void drop_invalid();
  void begin_lists();
  /// Returns the pending units that are not cached; from here on they count as asked for.
  std::vector<int> take_uncached();
  void send_list();
  bool take_list(const std::vector<char>& bytes);
  /// Notes that a unit came from a member; false if it had come from this member already.
  bool enter(int unit, int member, const std::vector<TensorShape>& shapes);
  void next_list();
  void answer();
  bool take_answer(const std::vector<char>& bytes);
  void take_unit(int unit);
  void end_cycle();
  void send(int member, std::vector<char> bytes);
  void send_sized(int member, const std::vector<char>& bytes);
  std::string mismatch(int unit, const Entry& entry, int member,
                       const std::vector<TensorShape>& shapes) const;

  const NegotiationSetup* setup_;
  int parent_ = -1;
  std::vector<int> children_;
  std::vector<int> unit_of_;         // by gradient
  std::vector<TensorShape> shapes_;  // by gradient, as submitted last
  std::vector<int> missing_;         // by unit: gradients that have not come
  ResponseCache cache_;
  std::set<int> pending_;       // units that are ready here
  std::set<int> asked_;         // units that the coordinator was asked about and has not yet named
  std::map<int, Entry> table_;  // the coordinator's
  std::size_t most_bytes_ = 0;  // most bytes of a list or an answer

  // State of the running cycle.
  Phase phase_ = Phase::kIdle;
  std::size_t step_ = 0;  // child or member whose message is next
  std::size_t size_ = 0;  // size of the message that follows
  Bits bits_;
  std::vector<int> complete_;  // the coordinator's: units in the order in which they were completed
  std::vector<int> decided_units_;
  std::vector<FusedTensors> decided_;
  std::vector<Message> messages_;
  std::string complaint_;  // the coordinator's: what is wrong
  Status failure_;
  Counts counts_;
};

}  // namespace agpcs
