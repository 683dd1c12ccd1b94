// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/max_load/max_load_search.h"

#include "ir/base/at.h"
#include "planner/refine/features.h"

#include <algorithm>
#include <cmath>

namespace agpcs {
namespace {

constexpr int kRunItems[] = {2, 4, 8, 16, 32};
constexpr std::size_t kTriesPerMove = 8;

int random_below(int bound, Rng& rng) {
  return static_cast<int>(rng.below(static_cast<std::uint64_t>(bound)));
}

void set(Features& features, Feature feature, double value) {
  features[static_cast<std::size_t>(feature)] = static_cast<float>(value);
}

}  // namespace

MaxLoadSearch::MaxLoadSearch(const MaxLoadItems& items, std::vector<std::vector<int>> starts)
    : items_(items), starts_(std::move(starts)), state_(items, starts_.front()) {
  unit_ = static_cast<double>(std::max<std::int64_t>(1, state_.max_load()));
  kept_ = state_.devices();
  double sum = 0, heaviest = 0;
  for (const MaxLoadItem& item : items_.items) {
    sum += static_cast<double>(item.time);
    heaviest = std::max(heaviest, static_cast<double>(item.time));
  }
  all_times_ = std::max(1.0, sum);
  heaviest_ = heaviest / all_times_;
  for (int i = 0; i < kMaxLoadOrders; ++i) orders_.push_back(max_load_order(items, i));
}

Outcome MaxLoadSearch::outcome() const {
  Outcome result;
  result.cost = static_cast<double>(state_.max_load()) / unit_;
  result.communication = static_cast<double>(state_.communication()) / unit_;
  if (state_.excess() > 0) {
    const auto capacity = static_cast<double>(std::max<std::int64_t>(1, items_.capacity));
    result.cost += kBroken * (1 + static_cast<double>(state_.excess()) / capacity);
  }
  return result;
}

MaxLoadSearch::Changes MaxLoadSearch::changes(const Move& move) const {
  return changes(listed_[at(move.index)]);
}

MaxLoadSearch::Changes MaxLoadSearch::changes(const MaxLoadMove& move) const {
  return std::visit([&](const auto& one) { return changes_of(one); }, move);
}

MaxLoadSearch::Changes MaxLoadSearch::changes_of(const MoveItem& move) const {
  return {{move.item, move.device}};
}

MaxLoadSearch::Changes MaxLoadSearch::changes_of(const SwapItems& move) const {
  return {{move.first, state_.device(move.second)}, {move.second, state_.device(move.first)}};
}

MaxLoadSearch::Changes MaxLoadSearch::changes_of(const MoveRun& move) const {
  const int from = state_.device(move.item);
  Changes result = {{move.item, move.device}};
  const auto visit = [&](int item) {
    if (static_cast<int>(result.size()) >= move.most || state_.device(item) != from) return;
    for (const auto& [seen, device] : result) {
      if (seen == item) return;
    }
    result.emplace_back(item, move.device);
  };
  for (std::size_t head = 0; head < result.size(); ++head) {
    const int item = result[head].first;
    if (!move.backwards) {
      for (int n = items_.first_net[at(item)]; n < items_.first_net[at(item) + 1]; ++n) {
        const MaxLoadNet& net = items_.nets[at(n)];
        for (int i = net.first_sink; i < net.end_sink; ++i) visit(items_.sinks[at(i)]);
      }
    } else {
      for (int r = items_.first_read[at(item)]; r < items_.first_read[at(item) + 1]; ++r) {
        visit(items_.nets[at(items_.reads[at(r)])].source);
      }
    }
  }
  return result;
}

MaxLoadSearch::Changes MaxLoadSearch::changes_of(const Resplit& move) const {
  std::vector<int> row;
  for (const int item : orders_[at(move.order)]) {
    const int device = state_.device(item);
    if (device == move.first || device == move.second) row.push_back(item);
  }
  MaxLoadState trial = state_;  // all to the second, then one by one to the first
  for (const int item : row) trial.move(item, move.second);
  const auto load = [&] {
    return std::max(trial.loads()[at(move.first)], trial.loads()[at(move.second)]);
  };
  std::int64_t least = load();
  std::size_t first = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    trial.move(row[i], move.first);
    if (load() < least) least = load(), first = i + 1;
  }
  Changes result;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const int device = i < first ? move.first : move.second;
    if (state_.device(row[i]) != device) result.emplace_back(row[i], device);
  }
  return result;
}

bool MaxLoadSearch::allowed(const Changes& changes) const {
  return std::all_of(changes.begin(), changes.end(), [&](const auto& change) {
    return state_.may_be_on(change.first, change.second);
  });
}

bool MaxLoadSearch::counts(const MaxLoadMove& move) const {
  if (const auto* one = std::get_if<MoveItem>(&move)) {
    return state_.device(one->item) != one->device && allowed(changes(move));
  }
  if (const auto* two = std::get_if<SwapItems>(&move)) {
    return two->first < two->second && state_.device(two->first) != state_.device(two->second) &&
           allowed(changes(move));
  }
  if (const auto* run = std::get_if<MoveRun>(&move)) {
    if (state_.device(run->item) == run->device) return false;
    const Changes all = changes(move);  // shorter runs have a move of their own
    return static_cast<int>(all.size()) > run->most / 2 && all.size() > 1 && allowed(all);
  }
  const Resplit& split = std::get<Resplit>(move);
  return split.first < split.second && !changes(move).empty();
}

std::vector<MaxLoadMove> MaxLoadSearch::all_moves() const {
  std::vector<MaxLoadMove> result;
  const auto add = [&](const MaxLoadMove& move) {
    if (counts(move)) result.push_back(move);
  };
  for (int i = 0; i < items_.size(); ++i) {
    for (int device = 0; device <= items_.devices; ++device) {
      add(MoveItem{i, device});
      for (const int most : kRunItems) {
        for (const bool backwards : {false, true}) add(MoveRun{i, device, most, backwards});
      }
    }
    for (int j = i + 1; j < items_.size(); ++j) add(SwapItems{i, j});
  }
  for (int a = 1; a <= items_.devices; ++a) {
    for (int b = a + 1; b <= items_.devices; ++b) {
      for (int order = 0; order < kMaxLoadOrders; ++order) add(Resplit{a, b, order});
    }
  }
  return result;
}

MaxLoadMove MaxLoadSearch::any_move(Rng& rng) const {
  const int item = random_below(items_.size(), rng);
  const int device = random_below(items_.devices + 1, rng);
  const int kind = random_below(100, rng);
  if (kind < 45) return MoveItem{item, device};
  if (kind < 75) {
    const int other = random_below(items_.size(), rng);
    return SwapItems{std::min(item, other), std::max(item, other)};
  }
  if (kind < 98) {
    const int most = kRunItems[random_below(static_cast<int>(std::size(kRunItems)), rng)];
    return MoveRun{item, device, most, random_below(2, rng) == 1};
  }
  const int a = 1 + random_below(items_.devices, rng), b = 1 + random_below(items_.devices, rng);
  return Resplit{std::min(a, b), std::max(a, b), random_below(kMaxLoadOrders, rng)};
}

std::vector<Move> MaxLoadSearch::moves(std::size_t most, Rng& rng) {
  listed_ = some_moves(most, rng);
  std::vector<Move> moves;
  for (const MaxLoadMove& move : listed_) {
    moves.push_back({static_cast<int>(move.index()), static_cast<int>(moves.size())});
  }
  return moves;
}

std::vector<MaxLoadMove> MaxLoadSearch::some_moves(std::size_t most, Rng& rng) const {
  const auto items = items_.items.size();
  if (items == 0 || most == 0) return {};
  const std::size_t bound = items * (items / 2 + 11 * (at(items_.devices) + 1));
  std::vector<MaxLoadMove> result;
  if (bound <= 2 * most) {
    result = all_moves();
    for (std::size_t i = 0; result.size() > most && i < most; ++i) {
      std::swap(result[i], result[i + rng.below(result.size() - i)]);
    }
    if (result.size() > most) result.resize(most);
    return result;
  }
  std::vector<MaxLoadMove> sorted;
  for (std::size_t tries = 0; tries < kTriesPerMove * most && result.size() < most; ++tries) {
    const MaxLoadMove move = any_move(rng);
    const auto place = std::lower_bound(sorted.begin(), sorted.end(), move);
    if ((place != sorted.end() && *place == move) || !counts(move)) continue;
    sorted.insert(place, move);
    result.push_back(move);
  }
  return result;
}

std::int64_t MaxLoadSearch::time_of(int item, int device) const {
  const MaxLoadItem& it = items_.items[at(item)];
  return device == 0 ? it.cpu_time : it.time;
}

Features MaxLoadSearch::features_of_state() const {
  Features features{};
  const std::vector<std::int64_t>& loads = state_.loads();
  double sum = 0, used = 0;
  for (const std::int64_t load : loads) {
    sum += static_cast<double>(load);
    used += load > 0 ? 1 : 0;
  }
  const auto most = static_cast<double>(std::max<std::int64_t>(1, state_.max_load()));
  const auto count = static_cast<double>(loads.size());
  const double mean = sum > 0 ? sum / used : most;
  set(features, Feature::kOne, 1);
  set(features, Feature::kLacksBefore, state_.excess() > 0 ? 1 : 0);
  set(features, Feature::kStages, std::log2(std::max(1.0, used)) / 4);
  set(features, Feature::kUtilization, mean / most);
  set(features, Feature::kExposed,
      static_cast<double>(state_.communication()) / (std::max(1.0, used) * most));
  set(features, Feature::kUnused, 1 - used / count);
  set(features, Feature::kHeaviest, heaviest_);
  set(features, Feature::kImbalance, most / mean - 1);
  set(features, Feature::kDevices, std::log2(count) / 10);
  set(features, Feature::kBlocks, std::log2(std::max(1.0, 1.0 * items_.size())) / 10);
  return features;
}

void MaxLoadSearch::describe(const Move& move, Features& features) const {
  std::vector<std::int64_t> loads = state_.loads(), sizes = state_.sizes();
  const auto most = static_cast<double>(std::max<std::int64_t>(1, state_.max_load()));
  double busy = 0, moved = 0;
  bool bottleneck = false;
  for (const auto& [item, device] : changes(move)) {
    const int from = state_.device(item);
    const std::int64_t less = time_of(item, from), more = time_of(item, device);
    bottleneck = bottleneck || state_.loads()[at(from)] == state_.max_load() ||
                 state_.loads()[at(device)] == state_.max_load();
    loads[at(from)] -= less;
    loads[at(device)] += more;
    sizes[at(from)] -= items_.items[at(item)].size;
    sizes[at(device)] += items_.items[at(item)].size;
    busy += static_cast<double>(more - less);
    moved += static_cast<double>(items_.items[at(item)].time);
  }
  const double change =
      (static_cast<double>(*std::max_element(loads.begin(), loads.end())) - most) / most;
  std::int64_t excess = 0;
  for (std::size_t d = 1; d < sizes.size(); ++d) {
    excess += std::max<std::int64_t>(0, sizes[d] - items_.capacity);
  }
  const auto capacity = static_cast<double>(std::max<std::int64_t>(1, items_.capacity));
  set(features, Feature::kRoughChange, change);
  set(features, Feature::kSlowestStage, change);
  set(features, Feature::kBusy, busy / all_times_);
  set(features, Feature::kLacksAfter, excess > 0 ? 1 : 0);
  set(features, Feature::kLackingChange, static_cast<double>(excess - state_.excess()) / capacity);
  set(features, Feature::kTouchesBottleneck, bottleneck ? 1 : 0);
  set(features, Feature::kMoved, moved / all_times_);
}

void MaxLoadSearch::describe(std::span<const Move> moves, std::span<Features> features) {
  const Features state = features_of_state();
  for (std::size_t i = 0; i < moves.size(); ++i) describe(moves[i], features[i] = state);
}

void MaxLoadSearch::evaluate(std::span<const Move> moves, std::span<Outcome> outcomes) {
  Changes back;
  for (std::size_t i = 0; i < moves.size(); ++i) {
    back.clear();
    for (const auto& [item, device] : changes(moves[i])) {
      back.emplace_back(item, state_.device(item));
      state_.move(item, device);
    }
    outcomes[i] = outcome();
    for (std::size_t j = back.size(); j-- > 0;) state_.move(back[j].first, back[j].second);
  }
}

void MaxLoadSearch::take(const Move& move) {
  for (const auto& [item, device] : changes(move)) state_.move(item, device);
}

}  // namespace agpcs
