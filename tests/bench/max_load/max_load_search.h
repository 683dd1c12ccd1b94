// SPDX-License-Identifier: Apache-2.0
// MaxLoadSearch: placements of the max-load problem as search points, for any refiner.
#pragma once

#include "planner/max_load_state.h"
#include "planner/search_point.h"

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {

/// The cost is the max load, relative to start 0's; where an accelerator's memory is exceeded,
/// kBroken and more.
class MaxLoadSearch : public SearchPoint {
 public:
  /// Move::kind.
  enum Kind : int {
    kMove,     ///< item a to device b
    kSwap,     ///< items a < b change places
    kRun,      ///< a and what of its device it reaches over nets, at most c items, to device b;
               ///< forwards from source to sinks if d = 0, else backwards
    kResplit,  ///< the items of devices a < b are cut in two anew: runs of order c (max_load_order)
               ///< of least load, the first run to a
  };

  /// Needs: `items` outlives it; `starts` not empty, the best first.
  MaxLoadSearch(const MaxLoadItems& items, std::vector<std::vector<int>> starts);

  Outcome outcome() const override;
  std::vector<Move> moves(std::size_t most, Rng& rng) override;
  /// As strategy_features.h where a placement has the like: devices that are loaded are stages,
  /// items blocks, the max load is the step. Changes of loads count times only, not communication;
  /// the one-hot of the kind is not filled, for these moves have other kinds.
  void describe(std::span<const Move> moves, std::span<Features> features) override;
  void evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) override;
  void take(const Move& move) override;
  void keep() override { kept_ = state_.devices(); }
  void go_back() override { state_.assign(kept_); }
  int starts() const override { return static_cast<int>(starts_.size()); }
  void go_to_start(int start) override { state_.assign(starts_[static_cast<std::size_t>(start)]); }

  const MaxLoadState& state() const { return state_; }

 private:
  using Changes = std::vector<std::pair<int, int>>;  // item, its new device

  Changes changes(const Move& move) const;
  Changes run(const Move& move) const;
  Changes resplit(const Move& move) const;
  /// Whether it names a change that devices allow and that is none of kind kMove.
  bool counts(const Move& move) const;
  bool allowed(const Changes& changes) const;
  Move any_move(Rng& rng) const;
  std::vector<Move> all_moves() const;
  std::int64_t time_of(int item, int device) const;
  Features features_of_state() const;
  void describe(const Move& move, Features& features) const;

  const MaxLoadItems& items_;
  std::vector<std::vector<int>> starts_;
  MaxLoadState state_;
  double unit_;           ///< start 0's max load
  double heaviest_ = 0;   ///< time of the heaviest item, of all
  double all_times_ = 1;  ///< on an accelerator
  std::vector<int> kept_;
  std::vector<std::vector<int>> orders_;
};

}  // namespace agpcs
