// SPDX-License-Identifier: Apache-2.0
// StrategySearch: the strategies of a problem as a space to search (search_point.h).
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"
#include "planner/refine/search_point.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace agpcs {

/// A search point whose solutions are strategies. A strategy costs its simulated step relative to
/// that of start 0; memory is the hard constraint. Formula 2's communication is the exposed
/// communication of a device on average, in the same unit.
///
/// An imagined strategy costs its rough step (rough/step.h), scaled so that it is right where the
/// walk began. Memory is counted as always. Imagined strategies have no buckets, so there are no
/// moves of buckets, and no communication (0). On clusters of more than 256 devices there is no
/// imagined point.
class StrategySearch : public SearchPoint {
 public:
  /// Returns the current strategy. If it has no buckets, `group_gradients` groups its gradients.
  virtual const Strategy& strategy() const = 0;
  virtual const Score& score() const = 0;
};

/// The tools of searches of one problem, one search at a time, with what they worked out so far:
/// stages, their seconds and memory, and scores. A search with used tools ends like one with new
/// ones, sooner. `threads` threads evaluate; their number does not change the result. Refers to
/// `problem`.
class SearchTools {
 public:
  SearchTools(const Problem& problem, int threads);
  SearchTools(const SearchTools&) = delete;
  SearchTools& operator=(const SearchTools&) = delete;
  ~SearchTools();
  /// Divides the threads, with their tools, among up to `most` searches that run at a time. Returns
  /// at least one, each of which knows the scores that this knows. Refers to this, which has no
  /// threads left. Needs: this was not made by `divide`.
  std::vector<std::unique_ptr<SearchTools>> divide(int most);
  /// Takes back the threads of `parts`. Needs: `parts` is what `divide` returned.
  void unite(std::vector<std::unique_ptr<SearchTools>> parts);
  /// Returns the evaluator of each thread, for who makes no search meanwhile.
  std::vector<Evaluator*> evaluators();

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  explicit SearchTools(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

/// Whether a move from a strategy that fits to a pipeline that lacks memory leads to that with help
/// (`fit_memory`), if that makes it fit. Such a search finds what needs two changes at once, and
/// takes several times as long.
enum class MoveHelp : std::uint8_t { kNo, kYes };

/// Makes a search. Refers to `tools`. Needs: `starts` is not empty, all of them verify, and the
/// first is the best.
std::unique_ptr<StrategySearch> make_strategy_search(SearchTools& tools,
                                                     std::vector<Strategy> starts,
                                                     MoveHelp help = MoveHelp::kNo);
/// The same with tools of its own.
std::unique_ptr<StrategySearch> make_strategy_search(const Problem& problem,
                                                     std::vector<Strategy> starts, int threads,
                                                     MoveHelp help = MoveHelp::kNo);

}  // namespace agpcs
