// SPDX-License-Identifier: Apache-2.0
// Negotiation: one rank's side of the agreement on what is reduced next, as a state machine:
// messages in, messages out. No threads, no clock, no transport: tests run it through all
// schedules.
//
// A cycle. `cached`: (1) each rank marks what became ready since the last cycle and what other
// ranks were not ready for; (2) a unit whose answer is in the cache gives a bit, another one sets
// the flag "uncached"; (3) the bits are combined up a tree (AND of ready bits, OR of the flag and
// of bits whose cached answer no longer fits), and the result comes down; (4) invalid answers are
// dropped, (5) units with a bit on all ranks are reduced, those without wait for the next cycle,
// (6) if the flag is set on any rank the coordinator is asked about what is not cached, else not.
// Without a cache all is asked of the coordinator: each rank sends it its list, and it answers all
// with the units that have now come from everybody, or with what is wrong.
#pragma once

#include "runtime/response_cache.h"
#include "runtime/tensor_fusion.h"

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
  std::vector<int> ranks;               ///< for messages
  std::vector<int> hosts;               ///< parallel: the tree enters each host once
  std::vector<std::string> names;       ///< of gradients
  std::vector<TensorShape> shapes;      ///< of gradients, as declared
  std::vector<std::vector<int>> units;  ///< gradients that become ready together, each in one unit
  bool cached = true;
  std::size_t capacity = 1024;
  std::int64_t fusion_bytes = std::int64_t{128} << 20;
  std::int64_t alone_bytes = std::int64_t{1} << 20;
};

class Negotiation {
 public:
  /// `setup` outlives it.
  explicit Negotiation(const NegotiationSetup& setup);

  /// Between cycles: a gradient is ready on this rank. Needs: it is not ready already. The order of
  /// calls between two cycles changes nothing.
  void submit(int gradient, const TensorShape& shape);
  /// Whether there is anything that needs another cycle.
  bool pending() const { return !pending_.empty() || !asked_.empty(); }
  /// All members begin the same cycles; who has nothing pending need not yet.
  void begin_cycle();

  struct Message {
    int member = 0;  ///< the receiver
    std::vector<char> bytes;
  };
  /// What to send now, in this order.
  std::vector<Message> take_messages();
  /// The one message that the cycle goes on with; member -1: the cycle is over.
  struct Awaited {
    int member = -1;
    std::size_t bytes = 0;
  };
  Awaited awaited() const;
  /// What no rank of this version says is a `failure`, which names the rank, and ends the cycle.
  void deliver(const std::vector<char>& bytes);

  /// What the cycle decided: the same on all ranks, to be reduced in this order.
  std::vector<FusedTensors> take_decided();
  /// A gradient differs between ranks: the same on all of them. Or what a rank said is nonsense.
  const Status& failure() const { return failure_; }

  struct Counts {
    std::int64_t cycles = 0, coordinated = 0, hits = 0, evictions = 0, invalidations = 0;
  };
  const Counts& counts() const { return counts_; }
  /// All that its future depends on, for tests that look for states they have seen.
  std::string state() const;

 private:
  enum class Phase { kIdle, kBitsUp, kBitsDown, kListSize, kList, kAnswerSize, kAnswer };
  struct Bits {
    bool uncached = false;
    std::vector<char> ready, invalid;  // by bit of the cache
  };
  struct Entry {  // the coordinator's: of a unit that came from some members
    std::vector<char> from;
    int first = 0, count = 0;
    std::vector<TensorShape> shapes;
  };

  std::vector<TensorShape> shapes_of(int unit) const;
  bool is_cached(int unit) const;
  Bits own_bits() const;
  std::vector<char> encode(const Bits& bits) const;
  // What takes a message's bytes is false where they are nonsense.
  bool take(const std::vector<char>& bytes);
  bool combine(const std::vector<char>& bytes);
  bool all_pending(const std::vector<char>& ready) const;
  void bits_are_up();
  void take_bits();
  void drop_invalid();
  void begin_lists();
  /// What is pending and not cached; it counts as asked for.
  std::vector<int> take_uncached();
  void send_list();
  bool take_list(const std::vector<char>& bytes);
  /// False where the unit has come from this member already.
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
  std::set<int> asked_;         // of the coordinator, which has not named them yet
  std::map<int, Entry> table_;  // the coordinator's
  std::size_t most_bytes_ = 0;  // of a list, or an answer

  // Of the running cycle.
  Phase phase_ = Phase::kIdle;
  std::size_t step_ = 0;  // child or member that is waited for
  std::size_t size_ = 0;  // of the message that follows its size
  Bits bits_;
  std::vector<int> complete_;  // the coordinator's: units in the order in which they were completed
  std::vector<int> decided_units_;
  std::vector<FusedTensors> decided_;
  std::vector<Message> messages_;
  std::string complaint_;  // the coordinator's
  Status failure_;
  Counts counts_;
};

}  // namespace agpcs
