// SPDX-License-Identifier: Apache-2.0
// Plans for the replayer's tests, made without the compiler.
#pragma once

#include <agpcs/plan.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

struct TestCut {
  int from = 0, to = 0;
  /// "a" is a batched tensor of 2 x 3 elements a row; "A", upper case, is one of 5 elements for all
  /// samples; with "!" before it no gradient returns.
  std::vector<std::string> tensors;
};

struct TestPlan {
  /// Samples of each replica, by stage; 0 of idle ranks, last. Ranks are numbered in order; each
  /// pair of them is a host.
  std::vector<std::vector<std::int64_t>> shares;
  std::vector<TestCut> cuts;
  int micro_batches = 1;
  Schedule schedule = Schedule::k1F1B;
  AllReduce algorithm = AllReduce::kRing;         ///< kFlow: a star and two rings, alternating
  std::optional<DType> wire_type = {};            ///< given: buckets are fp32, and travel in it
  std::array<std::int64_t, 2> elements = {4, 3};  ///< of a stage's two buckets
  /// That many samples of the last micro-batches are missing: each stage's last replica of two
  /// samples or more takes one less in as many.
  std::int64_t smaller = 0;
  /// Sets of stages, ascending, each of which has one more bucket, of 5 elements. They come last.
  std::vector<std::vector<int>> shared = {};
  /// Given: by stage, the micro-batches between their passes, where it is not the textbook's.
  std::vector<int> in_flight = {};
  /// Given: the weights by which buckets divide their state (tests/support/shard_plan.h).
  std::vector<std::int64_t> weights = {};
  StateLevel level = StateLevel::kOptimizer;  ///< what they divide
  double max_norm = 0;                        ///< of gradients; 0: they are not clipped
  /// Given: by stage, the pieces of operators that each member of its teams has; empty: replicas
  /// are single ranks. Members divide the first bucket, and have copies of the second. The first
  /// member of a team has its last rank.
  std::vector<std::vector<std::int64_t>> pieces = {};
  /// Given: by replica of the first stage, the pieces that each of its members has, in place of
  /// `pieces[0]`; {1}: it computes alone.
  std::vector<std::vector<std::int64_t>> unlike = {};
  /// With Schedule::kInterleaved: over how many sets of ranks the stages go round.
  std::size_t round = 0;
  /// Given: writes the programs in place of this file, which knows no interleaved ones.
  std::function<void(Plan&)> write_programs = {};
};

/// A verified plan in fp64 with two buckets a stage, and those that stages share.
Plan make_plan(const TestPlan& spec);

}  // namespace agpcs
