// SPDX-License-Identifier: Apache-2.0
#include "planner/bound/sweep.h"

#include "ir/base/at.h"
#include "ir/strategy/plan_graph.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

constexpr double kBarred = std::numeric_limits<double>::infinity();
/// The most readers of a tensor that are told apart.
constexpr std::size_t kMostReaders = 4;

}  // namespace

/// Prices by combination of places: the place of the operator at digit d is digit d of the index.
struct RowSweep::Table {
  std::vector<double> price;
  std::vector<double> load;   // [entry x resources + resource]
  std::size_t resources = 0;  // 0: without loads
};

/// Decides which operators are in the table when.
class RowSweep::Maker {
 public:
  Maker(const Problem& problem, const BoundPlaces& places, const std::vector<bool>& crossing,
        double most)
      : problem_(problem),
        crossing_(crossing),
        places_(places.places.size()),
        apart_(places.groups.size() > 1),
        most_(most),
        until_(problem.graph.ops.size()),
        ending_(problem.graph.ops.size()) {}

  std::vector<Step> run() {
    const auto count = static_cast<OpId>(problem_.graph.ops.size());
    std::vector<Step> steps(at(count));
    for (OpId op = 0; op < count; ++op) until_[at(op)] = op;
    for (OpId op = 0; op < count && apart_; ++op) find_tensors(op);
    for (OpId op = 0; op < count; ++op) make(op, steps[at(op)]);
    return steps;
  }
  double work() const { return work_; }

 private:
  void find_tensors(OpId op) {
    for (const TensorId id : problem_.graph.op(op).outputs) {
      if (id == kNone || problem_.graph.tensor(id).consumers.empty()) continue;
      const agpcs::Tensor& tensor = problem_.graph.tensor(id);
      if (!crossing_[at(id)]) {
        for (const OpId reader : tensor.consumers) end({op, {reader}, false, 0, 0}, reader);
      } else if (depends_on_batch(tensor.shape)) {
        const CutTensor cut = cut_tensor(tensor, problem_.training.precision);
        const double bytes = static_cast<double>(problem_.training.batch) *
                             static_cast<double>(cut.elements_per_row()) *
                             static_cast<double>(size_of(cut.type));
        std::vector<OpId> readers = tensor.consumers;
        if (readers.size() > kMostReaders) {
          readers.erase(readers.begin() + kMostReaders - 1, readers.end() - 1);
        }
        end({op, readers, true, bytes, cut.gradient ? bytes : 0}, readers.back());
      }
    }
  }

  /// Notes that a tensor, with operators instead of digits, is complete with operator `last`.
  void end(Tensor tensor, OpId last) {
    until_[at(tensor.producer)] = std::max(until_[at(tensor.producer)], last);
    for (const OpId op : tensor.readers) until_[at(op)] = std::max(until_[at(op)], last);
    ending_[at(last)].push_back(std::move(tensor));
  }

  int digit_of(OpId op) const {
    const auto found = std::find(live_.begin(), live_.end(), op);
    return found == live_.end() ? -1 : static_cast<int>(found - live_.begin());
  }

  void make(OpId op, Step& step) {
    double entries = static_cast<double>(places_);
    for (std::size_t i = 0; i < live_.size(); ++i) entries *= static_cast<double>(places_);
    for (; entries > most_ && !live_.empty(); entries /= static_cast<double>(places_)) {
      const auto longest = std::max_element(live_.begin(), live_.end(), [&](OpId a, OpId b) {
        return until_[at(a)] < until_[at(b)];
      });
      step.early.push_back(static_cast<int>(longest - live_.begin()));
      live_.erase(longest);
    }
    work_ += entries;
    live_.push_back(op);
    for (Tensor& tensor : ending_[at(op)]) {
      tensor.producer = digit_of(tensor.producer);
      for (int& reader : tensor.readers) reader = digit_of(reader);
      std::erase(tensor.readers, -1);
      if (tensor.producer >= 0) step.tensors.push_back(std::move(tensor));
    }
    for (int digit = static_cast<int>(live_.size()); digit-- > 0;) {
      if (until_[at(live_[at(digit)])] > op) continue;
      step.late.push_back(digit);
      live_.erase(live_.begin() + digit);
    }
  }

  const Problem& problem_;
  const std::vector<bool>& crossing_;
  const std::size_t places_;
  const bool apart_;
  const double most_;                        // combinations
  std::vector<OpId> until_;                  // by operator: the last that needs it in the table
  std::vector<std::vector<Tensor>> ending_;  // by operator
  std::vector<OpId> live_;                   // the operators in the table
  double work_ = 0;
};

RowSweep::RowSweep(const Problem& problem, const BoundPlaces& places,
                   const std::vector<bool>& crossing, double most)
    : places_(places) {
  Maker maker(problem, places, crossing, most);
  steps_ = maker.run();
  work_ = maker.work();
}

/// Adds a digit, the highest, for the next operator.
void RowSweep::enter(const BoundPrices& prices, const double* seconds, Table& table) const {
  const std::size_t size = table.price.size(), count = places_.places.size();
  table.price.resize(size * count);
  table.load.resize(size * count * table.resources);
  for (std::size_t place = count; place-- > 0;) {
    const double price = prices.device[place] * seconds[place];
    const double load = seconds[place] / places_.places[place].devices;
    for (std::size_t i = 0; i < size; ++i) {
      const std::size_t to = place * size + i;
      table.price[to] = table.price[i] + price;
      for (std::size_t r = 0; r < table.resources; ++r) {
        table.load[to * table.resources + r] =
            table.load[i * table.resources + r] + (r == place ? load : 0);
      }
    }
  }
}

/// Takes a digit away: what is left is the least over its places.
void RowSweep::leave(int digit, Table& table) const {
  const std::size_t count = places_.places.size();
  std::size_t low = 1;
  for (int i = 0; i < digit; ++i) low *= count;
  const std::size_t size = table.price.size() / count;
  for (std::size_t i = 0; i < size; ++i) {  // entries are read before they are written
    const std::size_t first = i % low + i / low * low * count;
    std::size_t best = first;
    for (std::size_t place = 1; place < count; ++place) {
      if (table.price[first + place * low] < table.price[best]) best = first + place * low;
    }
    table.price[i] = table.price[best];
    for (std::size_t r = 0; r < table.resources; ++r) {
      table.load[i * table.resources + r] = table.load[best * table.resources + r];
    }
  }
  table.price.resize(size);
  table.load.resize(size * table.resources);
}

/// Adds what a tensor costs from one group to another: its bytes forward, its gradient's back.
void RowSweep::move(const Tensor& tensor, int from, int to, const BoundPrices& prices,
                    std::size_t entry, Table& table) const {
  const std::size_t a = at(from), b = at(to), groups = places_.groups.size();
  table.price[entry] += tensor.forward * (prices.out[a] + prices.in[b]) +
                        tensor.backward * (prices.out[b] + prices.in[a]);
  if (table.resources == 0) return;
  double* const out = &table.load[entry * table.resources + places_.places.size()];
  double* const in = out + groups;
  out[a] += tensor.forward / places_.groups[a].out;
  in[b] += tensor.forward / places_.groups[b].in;
  out[b] += tensor.backward / places_.groups[b].out;
  in[a] += tensor.backward / places_.groups[a].in;
}

void RowSweep::add(const Tensor& tensor, const BoundPrices& prices, Table& table) const {
  const std::size_t count = places_.places.size();
  const auto power = [&](int digit) {
    std::size_t result = 1;
    for (int i = 0; i < digit; ++i) result *= count;
    return result;
  };
  const std::size_t producer = power(tensor.producer);
  std::vector<std::size_t> readers;
  for (const int reader : tensor.readers) readers.push_back(power(reader));
  std::vector<int> reached;
  for (std::size_t i = 0; i < table.price.size(); ++i) {
    const std::size_t place = i / producer % count;
    reached.assign(1, places_.places[place].group);
    for (const std::size_t reader : readers) {
      const std::size_t its = i / reader % count;
      if (!tensor.crosses && its != place) table.price[i] = kBarred;
      if (!tensor.crosses) continue;
      const int group = places_.places[its].group;
      if (std::find(reached.begin(), reached.end(), group) != reached.end()) continue;
      move(tensor, reached.front(), group, prices, i, table);
      reached.push_back(group);
    }
  }
}

RowSweep::Table RowSweep::sweep(const BoundPrices& prices, const std::vector<double>& seconds,
                                bool with_load) const {
  Table table;
  table.resources = with_load ? places_.resources() : 0;
  table.price.assign(1, 0);
  table.load.assign(table.resources, 0);
  for (std::size_t op = 0; op < steps_.size(); ++op) {
    const Step& step = steps_[op];
    for (const int digit : step.early) leave(digit, table);
    enter(prices, &seconds[op * places_.places.size()], table);
    for (const Tensor& tensor : step.tensors) add(tensor, prices, table);
    for (const int digit : step.late) leave(digit, table);
  }
  return table;
}

double RowSweep::price(const BoundPrices& prices, const std::vector<double>& seconds) const {
  return sweep(prices, seconds, false).price.front();
}

RowCost RowSweep::cost(const BoundPrices& prices, const std::vector<double>& seconds) const {
  Table table = sweep(prices, seconds, true);
  return {table.price.front(), std::move(table.load)};
}

}  // namespace agpcs
