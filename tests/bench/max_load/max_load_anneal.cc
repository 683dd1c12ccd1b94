// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/max_load/max_load_anneal.h"

#include "ir/base/at.h"
#include "ir/base/shuffle.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

constexpr double kExcessWeight = 4;     // of exceeding an accelerator's memory by all of it
constexpr int kClusterItems = 12;       // most items of a cluster that moves
constexpr int kWorkOfStep = 6;          // of a proposal, beside the nets it touches
constexpr int kCoarsestPerDevice = 10;  // items
constexpr double kLeastShrink = 0.95;
// The cost is a norm of exponent 2^doublings: while hot it sees all loads, when cold the greatest.
constexpr int kFewestDoublings = 3;
constexpr int kMostDoublings = 12;
constexpr double kSharpness = 0.1;  // exponent x temperature, at most

/// Items of a random pin of a random net of `item`; itself when it has none.
int random_neighbour(const MaxLoadItems& items, int item, Rng& rng) {
  const int first = items.first_net[at(item)], read = items.first_read[at(item)];
  const int made = items.first_net[at(item) + 1] - first;
  const int reads = items.first_read[at(item) + 1] - read;
  if (made + reads == 0) return item;
  const int pick = static_cast<int>(rng.below(static_cast<std::uint64_t>(made + reads)));
  const MaxLoadNet& net =
      items.nets[at(pick < made ? first + pick : items.reads[at(read + pick - made)])];
  const auto sinks = static_cast<std::uint64_t>(net.end_sink - net.first_sink);
  if (pick >= made && rng.below(2) == 0) return net.source;
  return items.sinks[at(net.first_sink + static_cast<int>(rng.below(sinks)))];
}

class Annealer {
 public:
  Annealer(MaxLoadState& state, const AnnealOptions& options, Rng& rng)
      : state_(state), items_(state.items()), options_(options), rng_(rng) {
    scale_ = 1 / static_cast<double>(std::max<std::int64_t>(1, state.max_load()));
    memory_ = kExcessWeight / static_cast<double>(std::max<std::int64_t>(1, items_.capacity));
  }

  void run() {
    if (items_.size() == 0) return;
    remember();
    double cost = this->cost();
    const double ratio = std::log(options_.cold / options_.hot);
    double temperature = options_.hot;
    for (std::int64_t work = 0, step = 0; work < options_.work; ++step) {
      if (step % 64 == 0) {
        const double done = static_cast<double>(work) / static_cast<double>(options_.work);
        temperature = options_.hot * std::exp(ratio * done);
        doublings_ = kFewestDoublings;
        while (doublings_ < kMostDoublings && (2 << doublings_) * temperature < kSharpness) {
          ++doublings_;
        }
        cost = this->cost();
      }
      undo_.clear();
      work += kWorkOfStep + propose();
      if (undo_.empty()) continue;
      const double fresh = this->cost();
      const double worse = fresh - cost;
      if (worse <= 0 || rng_.uniform() < std::exp(-worse / temperature)) {
        cost = fresh;
        if (better()) remember();
      } else {
        for (std::size_t i = undo_.size(); i-- > 0;) {
          state_.move(undo_[i].first, undo_[i].second);
        }
      }
    }
    state_.assign(best_);
  }

 private:
  /// The 2^doublings_-norm of the loads, and what memory is exceeded by.
  double cost() const {
    const double most = std::max(1.0, static_cast<double>(state_.max_load()));
    double sum = 0;
    for (const std::int64_t load : state_.loads()) {
      double x = static_cast<double>(load) / most;
      for (int i = 0; i < doublings_; ++i) x *= x;
      sum += x;
    }
    for (int i = 0; i < doublings_; ++i) sum = std::sqrt(sum);
    return most * scale_ * sum + memory_ * static_cast<double>(state_.excess());
  }

  bool better() const {
    return std::pair(state_.excess(), state_.max_load()) < std::pair(best_excess_, best_load_);
  }
  void remember() {
    best_ = state_.devices();
    best_excess_ = state_.excess();
    best_load_ = state_.max_load();
  }

  int random_item() { return static_cast<int>(rng_.below(items_.items.size())); }
  int random_device() { return static_cast<int>(rng_.below(at(items_.devices) + 1)); }

  /// Moves and remembers how to go back; gives the work.
  int move(int item, int device) {
    undo_.emplace_back(item, state_.device(item));
    return state_.move(item, device);
  }

  int propose() {
    const int item = random_item();
    const std::uint64_t kind = rng_.below(16);
    if (kind < 5) return swap(item, random_item());
    const int device =
        kind < 11 ? state_.device(random_neighbour(items_, item, rng_)) : random_device();
    if (device == state_.device(item)) return 0;
    if (kind < 14) return state_.may_be_on(item, device) ? move(item, device) : 0;
    return move_cluster(item, device);
  }

  int swap(int a, int b) {
    const int on_a = state_.device(a), on_b = state_.device(b);
    if (on_a == on_b || !state_.may_be_on(a, on_b) || !state_.may_be_on(b, on_a)) return 0;
    const int work = move(a, on_b);
    return work + move(b, on_a);
  }

  /// A random walk over items of one device takes along what it visits.
  int move_cluster(int item, int device) {
    const int from = state_.device(item);
    const int steps = 1 + static_cast<int>(rng_.below(kClusterItems));
    int work = 0;
    for (int i = 0, here = item; i < steps; ++i) {
      if (state_.device(here) == from && state_.may_be_on(here, device)) work += move(here, device);
      const int next = random_neighbour(items_, here, rng_);
      if (state_.device(next) == from || state_.device(next) == device) here = next;
      work += kWorkOfStep / 2;
    }
    return work;
  }

  MaxLoadState& state_;
  const MaxLoadItems& items_;
  const AnnealOptions options_;
  Rng& rng_;
  double scale_ = 1, memory_ = 0;
  int doublings_ = kFewestDoublings;
  std::vector<std::pair<int, int>> undo_;
  std::vector<int> best_;
  std::int64_t best_excess_ = 0, best_load_ = 0;
};

/// Pairs items that talk much for their weight, at random among alike; gives the number of groups.
class Matching {
 public:
  Matching(const MaxLoadItems& items, const std::vector<int>& label)
      : items_(items), label_(label), rating_(items.items.size(), 0) {
    for (const MaxLoadItem& item : items.items) total_ += static_cast<double>(item.time);
    heaviest_ = total_ / (2.5 * items.devices);
  }

  int match(std::vector<int>& group_of, Rng& rng) {
    const int count = items_.size();
    std::vector<int> order(at(count));
    std::iota(order.begin(), order.end(), 0);
    shuffle(order, rng);
    group_of.assign(at(count), -1);
    int groups = 0;
    for (const int item : order) {
      if (group_of[at(item)] >= 0) continue;
      group_of[at(item)] = groups;
      if (const int other = partner(item, group_of, rng); other >= 0) group_of[at(other)] = groups;
      ++groups;
    }
    return groups;
  }

 private:
  void rate(int other, double rating) {
    if (rating_[at(other)] == 0) touched_.push_back(other);
    rating_[at(other)] += rating;
  }

  int partner(int item, const std::vector<int>& group_of, Rng& rng) {
    touched_.clear();
    for (int n = items_.first_net[at(item)]; n < items_.first_net[at(item) + 1]; ++n) {
      rate_net(items_.nets[at(n)], item);
    }
    for (int r = items_.first_read[at(item)]; r < items_.first_read[at(item) + 1]; ++r) {
      rate_net(items_.nets[at(items_.reads[at(r)])], item);
    }
    int best = -1;
    double most = 0;
    for (const int other : touched_) {
      const double rating = rating_[at(other)] * (0.5 + rng.uniform()) / weight(item, other);
      rating_[at(other)] = 0;
      if (group_of[at(other)] < 0 && rating > most && may_join(item, other)) {
        most = rating;
        best = other;
      }
    }
    return best;
  }

  void rate_net(const MaxLoadNet& net, int item) {
    const double rating = static_cast<double>(net.cost) / (net.end_sink - net.first_sink);
    if (net.source != item) rate(net.source, rating);
    for (int i = net.first_sink; i < net.end_sink; ++i) {
      if (items_.sinks[at(i)] != item) rate(items_.sinks[at(i)], rating);
    }
  }

  double weight(int a, int b) const {
    return 0.02 * total_ / items_.size() +
           static_cast<double>(items_.items[at(a)].time + items_.items[at(b)].time);
  }

  bool may_join(int a, int b) const {
    const MaxLoadItem &x = items_.items[at(a)], &y = items_.items[at(b)];
    return label_[at(a)] == label_[at(b)] && x.accelerator == y.accelerator && x.cpu == y.cpu &&
           x.size + y.size <= items_.capacity && static_cast<double>(x.time + y.time) <= heaviest_;
  }

  const MaxLoadItems& items_;
  const std::vector<int>& label_;
  std::vector<double> rating_;
  std::vector<int> touched_;
  double total_ = 0, heaviest_ = 0;
};

struct Level {
  MaxLoadItems items;
  std::vector<int> group_of;  ///< of the items one level finer
};

/// Of the groups from that of their items.
std::vector<int> lifted(const std::vector<int>& values, const std::vector<int>& group_of,
                        int groups) {
  std::vector<int> result(at(groups));
  for (std::size_t i = 0; i < values.size(); ++i) result[at(group_of[i])] = values[i];
  return result;
}

/// Items by falling time, each where the max load grows least.
std::vector<int> placed_greedily(const MaxLoadItems& items) {
  std::vector<int> order(items.items.size()), devices;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return items.items[at(a)].time > items.items[at(b)].time; });
  for (const MaxLoadItem& item : items.items) devices.push_back(item.accelerator ? 1 : 0);
  std::vector<std::int64_t> load(at(items.devices) + 1, 0);
  for (const int i : order) {
    if (!items.items[at(i)].accelerator) continue;
    const auto least = std::min_element(load.begin() + 1, load.end());
    devices[at(i)] = static_cast<int>(least - load.begin());
    *least += items.items[at(i)].time;
  }
  return devices;
}

}  // namespace

void anneal_max_load(MaxLoadState& state, const AnnealOptions& options, Rng& rng) {
  Annealer(state, options, rng).run();
}

std::vector<int> multilevel_max_load(const MaxLoadItems& items, const std::vector<int>& start,
                                     const std::vector<int>& label, const AnnealOptions& options,
                                     Rng& rng) {
  std::vector<Level> levels;
  std::vector<int> labels = label, devices = start;
  const MaxLoadItems* coarsest = &items;
  while (coarsest->size() > kCoarsestPerDevice * (items.devices + 1)) {
    Level level;
    const int groups = Matching(*coarsest, labels).match(level.group_of, rng);
    if (groups > kLeastShrink * coarsest->size()) break;
    level.items = join_items(*coarsest, level.group_of, groups);
    labels = lifted(labels, level.group_of, groups);
    if (!start.empty()) devices = lifted(devices, level.group_of, groups);
    levels.push_back(std::move(level));
    coarsest = &levels.back().items;
  }
  if (start.empty()) devices = placed_greedily(*coarsest);
  AnnealOptions here = options;
  here.work = options.work / static_cast<std::int64_t>(levels.size() + 1);
  for (std::size_t i = levels.size() + 1; i-- > 0;) {
    MaxLoadState state(i == 0 ? items : levels[i - 1].items, std::move(devices));
    anneal_max_load(state, here, rng);
    here.hot = std::max(here.hot * 0.6, here.cold * 10);
    devices = state.devices();
    if (i == 0) break;
    std::vector<int> finer;
    for (const int group : levels[i - 1].group_of) finer.push_back(devices[at(group)]);
    devices = std::move(finer);
  }
  return devices;
}

}  // namespace agpcs
