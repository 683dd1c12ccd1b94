// SPDX-License-Identifier: Apache-2.0
// MemoryBound: an upper bound on the memory that a strategy takes, from sums over blocks. Most
// strategies that a search looks at fit with room to spare, and this tells so in a small part of
// the time that exact memory takes (`Evaluator::lacking`).
#pragma once

#include "planner/problem/problem.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs {

/// Not for concurrent use. Refers to `problem`.
class MemoryBound {
 public:
  /// Cost: O(operators + edges).
  explicit MemoryBound(const Problem& problem);
  /// Returns a number of bytes that is no less than `Evaluator::lacking(strategy)`. Needs:
  /// `strategy` verifies.
  ///
  /// A stage holds, of each micro-batch between its passes, at most the tensors of its blocks that
  /// any operator keeps, and all that it receives and sends. A pass adds at most all tensors that
  /// its blocks make, and their gradients. All messages may wait at the same time. A member of a
  /// team may hold a tensor in several forms, so of a strategy with teams nothing is known: the
  /// bound is then the largest number. A host holds at most the whole state of each of its devices
  /// that have it there.
  /// Cost: O(blocks + readers of their tensors + devices).
  std::int64_t most_lacking(const Strategy& strategy);

 private:
  /// Bytes for a number of samples: no less than what they are, as they are convex in it.
  struct Bytes {
    double of_one = 0, of_each_more = 0;
    void add(const Bytes& other) {
      of_one += other.of_one;
      of_each_more += other.of_each_more;
    }
    double at(std::int64_t samples) const {
      return of_one + of_each_more * static_cast<double>(samples - 1);
    }
  };
  /// Of a block or of a stage.
  struct Sums {
    double resident = 0;   // parameters, their gradients and states, constants
    double state = 0;      // the optimizer's part of it
    double gradients = 0;  // of parameters, held and rounded
    double of_update = 0;  // the most gradients of parameters that one operator makes
    double weights =
        0;         // gradients that weight passes make, one for each product, and sums of them
    Bytes inputs;  // of the model
    Bytes kept;    // tensors that it makes and some operator keeps, and what else is kept
    Bytes made;    // all tensors that it makes, and what else is kept
    Bytes received, sent;
    void add(const Sums& other);
  };
  /// Tensors of one block that the same other blocks read.
  struct Net {
    int from = 0;
    std::vector<int> to;
    Bytes bytes;
  };

  template <typename F>
  Bytes convex(F bytes_at) const;
  std::int64_t size(TensorId id, std::int64_t samples) const;
  void add_resident();
  void add_activations();
  void add_nets();
  void sum_up(const Strategy& strategy);
  double most(const Strategy& strategy, std::size_t stage, std::int64_t samples) const;
  double most_lacking_of_hosts(const Strategy& strategy) const;

  const Problem& problem_;
  std::vector<OpId> first_op_;  // by block
  std::vector<Sums> blocks_;
  std::vector<Net> nets_;
  std::vector<TensorId> root_;  // by tensor: whose storage it shares
  // Of the current strategy.
  std::vector<int> stage_of_block_;
  std::vector<Sums> stages_;
  std::vector<const Net*> last_net_;  // that a stage reads
};

}  // namespace agpcs
