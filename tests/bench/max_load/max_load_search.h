// SPDX-License-Identifier: Apache-2.0
// MaxLoadSearch: placements of the max-load problem as search points, for any refiner.
#pragma once

#include "planner/refine/search_point.h"
#include "tests/bench/max_load/max_load_state.h"

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <variant>
#include <vector>

namespace agpcs {

/// Moves an item to a device.
struct MoveItem {
  int item = 0, device = 0;
  friend auto operator<=>(const MoveItem&, const MoveItem&) = default;
};

/// Exchanges two items, `first` < `second`.
struct SwapItems {
  int first = 0, second = 0;
  friend auto operator<=>(const SwapItems&, const SwapItems&) = default;
};

/// Moves `item` and what of its device it reaches over nets, at most `most` items, to a device:
/// from source to sinks, or backwards.
struct MoveRun {
  int item = 0, device = 0, most = 0;
  bool backwards = false;
  friend auto operator<=>(const MoveRun&, const MoveRun&) = default;
};

/// Cuts the items of devices `first` < `second` in two anew: runs of an order (max_load_order) of
/// least load, the first run to `first`.
struct Resplit {
  int first = 0, second = 0, order = 0;
  friend auto operator<=>(const Resplit&, const Resplit&) = default;
};

using MaxLoadMove = std::variant<MoveItem, SwapItems, MoveRun, Resplit>;

/// The cost is the max load, relative to start 0's; where an accelerator's memory is exceeded,
/// kBroken and more.
class MaxLoadSearch : public SearchPoint {
 public:
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

  /// Returns what the moves of the last list do.
  const std::vector<MaxLoadMove>& listed() const { return listed_; }
  const MaxLoadState& state() const { return state_; }

 private:
  using Changes = std::vector<std::pair<int, int>>;  // item, its new device

  Changes changes(const Move& move) const;
  Changes changes(const MaxLoadMove& move) const;
  Changes changes_of(const MoveItem& move) const;
  Changes changes_of(const SwapItems& move) const;
  Changes changes_of(const MoveRun& move) const;
  Changes changes_of(const Resplit& move) const;
  /// Whether it names a change that devices allow and that is no MoveItem, unless it is one.
  bool counts(const MaxLoadMove& move) const;
  bool allowed(const Changes& changes) const;
  MaxLoadMove any_move(Rng& rng) const;
  std::vector<MaxLoadMove> all_moves() const;
  std::vector<MaxLoadMove> some_moves(std::size_t most, Rng& rng) const;
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
  std::vector<MaxLoadMove> listed_;
};

}  // namespace agpcs
