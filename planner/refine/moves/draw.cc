// SPDX-License-Identifier: Apache-2.0
// Draws some of the moves that were listed.
#include "ir/base/at.h"
#include "planner/refine/moves/moves.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// Numbers from 0 on, of which each is drawn once.
class Urn {
 public:
  Urn() = default;
  explicit Urn(std::size_t numbers) : left_(numbers) {}
  bool empty() const { return left_ == 0; }
  std::size_t draw(Rng& rng) {
    const std::size_t place = rng.below(left_--);
    const std::size_t number = at_place(place);
    if (place != left_) put(place, at_place(left_));
    return number;
  }

 private:
  std::size_t at_place(std::size_t place) const {
    for (const auto& [moved, number] : moved_) {
      if (moved == place) return number;
    }
    return place;
  }
  void put(std::size_t place, std::size_t number) {
    for (auto& [moved, known] : moved_) {
      if (moved != place) continue;
      known = number;
      return;
    }
    moved_.emplace_back(place, number);
  }

  std::size_t left_ = 0;
  std::vector<std::pair<std::size_t, std::size_t>> moved_;  // places with another number
};

/// Whether only trying it tells that a listed move changes nothing, as shares are balanced anew.
template <typename M>
constexpr bool kMayBeIdle = std::is_same_v<M, MoveDevices> || std::is_same_v<M, SetShares> ||
                            std::is_same_v<M, Recut> || std::is_same_v<M, Restage>;

}  // namespace

std::vector<DrawnMove> StrategyMoves::draw(const Strategy& strategy, const Strategy& grouped,
                                           MovesFrom& from, std::size_t most, Rng& rng) {
  std::array<Urn, kMoveKindCount> urns;
  for (std::size_t kind = 0; kind < urns.size(); ++kind) {
    urns[kind] = Urn(at(from.first[kind + 1] - from.first[kind]));
  }
  std::vector<DrawnMove> moves;
  moves.reserve(std::min(most, at(from.first.back())));
  bool any = true;
  const auto draw = [&]<typename M>(const std::vector<M>& list) {
    Urn& urn = urns[kKindOf<M>];
    if (urn.empty() || moves.size() == most) return;
    any = true;
    const std::size_t drawn = urn.draw(rng);
    const int number = from.first[kKindOf<M>] + static_cast<int>(drawn);
    std::optional<Strategy> result;
    if constexpr (kMayBeIdle<M>) {
      MovesFrom::Effect& effect = from.effects[at(number)];
      if (effect == MovesFrom::Effect::kUnknown) {
        result = apply(strategy, grouped, list[drawn]);
        effect = result ? MovesFrom::Effect::kSome : MovesFrom::Effect::kNothing;
      }
      if (effect == MovesFrom::Effect::kNothing) return;
    }
    moves.push_back({list[drawn], number, std::move(result)});
  };
  while (any && moves.size() < most) {
    any = false;
    std::apply([&](const auto&... lists) { (draw(lists), ...); }, from.lists);
  }
  return moves;
}

}  // namespace agpcs
