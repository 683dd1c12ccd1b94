// SPDX-License-Identifier: Apache-2.0
#include "planner/max_load_search.h"

#include "ir/at.h"
#include "planner/strategy_features.h"

#include <algorithm>
#include <cmath>
#include <tuple>

namespace agpcs {
namespace {

constexpr int kRunItems[] = {2, 4, 8, 16, 32};
constexpr std::size_t kTriesPerMove = 8;

bool before(const Move& x, const Move& y) {
  return std::tie(x.kind, x.a, x.b, x.c, x.d) < std::tie(y.kind, y.a, y.b, y.c, y.d);
}

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
  switch (move.kind) {
    case kMove:
      return {{move.a, move.b}};
    case kSwap:
      return {{move.a, state_.device(move.b)}, {move.b, state_.device(move.a)}};
    case kRun:
      return run(move);
    default:
      return resplit(move);
  }
}

MaxLoadSearch::Changes MaxLoadSearch::run(const Move& move) const {
  const int from = state_.device(move.a);
  Changes result = {{move.a, move.b}};
  const auto visit = [&](int item) {
    if (static_cast<int>(result.size()) >= move.c || state_.device(item) != from) return;
    for (const auto& [seen, device] : result) {
      if (seen == item) return;
    }
    result.emplace_back(item, move.b);
  };
  for (std::size_t head = 0; head < result.size(); ++head) {
    const int item = result[head].first;
    if (move.d == 0) {
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

MaxLoadSearch::Changes MaxLoadSearch::resplit(const Move& move) const {
  std::vector<int> row;
  for (const int item : orders_[at(move.c)]) {
    const int device = state_.device(item);
    if (device == move.a || device == move.b) row.push_back(item);
  }
  MaxLoadState trial = state_;  // all to b, then one by one to a
  for (const int item : row) trial.move(item, move.b);
  const auto load = [&] { return std::max(trial.loads()[at(move.a)], trial.loads()[at(move.b)]); };
  std::int64_t least = load();
  std::size_t first = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    trial.move(row[i], move.a);
    if (load() < least) least = load(), first = i + 1;
  }
  Changes result;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const int device = i < first ? move.a : move.b;
    if (state_.device(row[i]) != device) result.emplace_back(row[i], device);
  }
  return result;
}

bool MaxLoadSearch::allowed(const Changes& changes) const {
  return std::all_of(changes.begin(), changes.end(), [&](const auto& change) {
    return state_.may_be_on(change.first, change.second);
  });
}

bool MaxLoadSearch::counts(const Move& move) const {
  switch (move.kind) {
    case kMove:
      return state_.device(move.a) != move.b && allowed(changes(move));
    case kSwap:
      return move.a < move.b && state_.device(move.a) != state_.device(move.b) &&
             allowed(changes(move));
    case kRun: {
      if (state_.device(move.a) == move.b) return false;
      const Changes run = changes(move);  // shorter runs have a move of their own
      return static_cast<int>(run.size()) > move.c / 2 && run.size() > 1 && allowed(run);
    }
    default:
      return move.a < move.b && !changes(move).empty();
  }
}

std::vector<Move> MaxLoadSearch::all_moves() const {
  std::vector<Move> result;
  const auto add = [&](const Move& move) {
    if (counts(move)) result.push_back(move);
  };
  for (int i = 0; i < items_.size(); ++i) {
    for (int device = 0; device <= items_.devices; ++device) {
      add({kMove, i, device});
      for (const int length : kRunItems) {
        for (int way = 0; way < 2; ++way) add({kRun, i, device, length, way});
      }
    }
    for (int j = i + 1; j < items_.size(); ++j) add({kSwap, i, j});
  }
  for (int a = 1; a <= items_.devices; ++a) {
    for (int b = a + 1; b <= items_.devices; ++b) {
      for (int order = 0; order < kMaxLoadOrders; ++order) add({kResplit, a, b, order});
    }
  }
  return result;
}

Move MaxLoadSearch::any_move(Rng& rng) const {
  const int item = random_below(items_.size(), rng);
  const int device = random_below(items_.devices + 1, rng);
  const int kind = random_below(100, rng);
  if (kind < 45) return {kMove, item, device};
  if (kind < 75) {
    const int other = random_below(items_.size(), rng);
    return {kSwap, std::min(item, other), std::max(item, other)};
  }
  if (kind < 98) {
    const int length = kRunItems[random_below(static_cast<int>(std::size(kRunItems)), rng)];
    return {kRun, item, device, length, random_below(2, rng)};
  }
  const int a = 1 + random_below(items_.devices, rng), b = 1 + random_below(items_.devices, rng);
  return {kResplit, std::min(a, b), std::max(a, b), random_below(kMaxLoadOrders, rng)};
}

std::vector<Move> MaxLoadSearch::moves(std::size_t most, Rng& rng) {
  const auto items = items_.items.size();
  if (items == 0 || most == 0) return {};
  const std::size_t bound = items * (items / 2 + 11 * (at(items_.devices) + 1));
  std::vector<Move> result;
  if (bound <= 2 * most) {
    result = all_moves();
    for (std::size_t i = 0; result.size() > most && i < most; ++i) {
      std::swap(result[i], result[i + rng.below(result.size() - i)]);
    }
    if (result.size() > most) result.resize(most);
    return result;
  }
  std::vector<Move> sorted;
  for (std::size_t tries = 0; tries < kTriesPerMove * most && result.size() < most; ++tries) {
    const Move move = any_move(rng);
    const auto place = std::lower_bound(sorted.begin(), sorted.end(), move, before);
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
