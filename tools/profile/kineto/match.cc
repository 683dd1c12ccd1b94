// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/kineto/match.h"

#include "cost_model/step/cost_table.h"
#include "tools/profile/statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

/// Work of one operator may be counted in two ways, with or without a bias or statistics.
constexpr double kSameFlops = 0.05;
constexpr double kSameBytes = 0.1;
/// A cross entropy does not write the logarithms that PyTorch's log softmax writes.
constexpr double kSameSoftmaxBytes = 0.55;

struct Known {
  OpId op = kNone;
  OpClass op_class = OpClass::kElementwise;
  std::string_view type, module;
  OpCost work;
};

using Pair = std::pair<std::size_t, std::size_t>;  // of a model's operator and a traced one

bool is_close(double a, double b, double tolerance) {
  return std::abs(a - b) <= tolerance * std::max(a, b);
}

/// Returns how surely both are the same operator; 0: they are not.
int likeness(const Known& known, const TimedOp& traced) {
  if (known.op_class != traced.op_class) return 0;
  if (bound_by_arithmetic(known.op_class)) {
    return is_close(known.work.forward_flops, traced.work.forward_flops, kSameFlops) ? 20 : 0;
  }
  const double tolerance = known.op_class == OpClass::kSoftmax ? kSameSoftmaxBytes : kSameBytes;
  if (!is_close(known.work.forward_bytes, traced.work.forward_bytes, tolerance)) return 0;
  return known.type == traced.onnx ? 5 : 2;
}

/// Returns the pairs in both orders whose likenesses add up to the most.
std::vector<Pair> align(const std::vector<Known>& known, const std::vector<TimedOp>& traced) {
  enum Step : std::uint8_t { kPair, kSkipKnown, kSkipTraced };
  const std::size_t rows = known.size(), columns = traced.size();
  std::vector<std::uint8_t> steps(rows * columns);
  std::vector<int> above(columns + 1, 0), here(columns + 1, 0);
  for (std::size_t i = 0; i < rows; ++i) {
    for (std::size_t j = 0; j < columns; ++j) {
      const int alike = likeness(known[i], traced[j]);
      const int paired = alike > 0 ? above[j] + alike : -1;
      const int best = std::max({paired, above[j + 1], here[j]});
      steps[i * columns + j] = best == paired         ? kPair
                               : best == above[j + 1] ? kSkipKnown
                                                      : kSkipTraced;
      here[j + 1] = best;
    }
    std::swap(above, here);
  }
  std::vector<Pair> pairs;
  for (std::size_t i = rows, j = columns; i > 0 && j > 0;) {
    const std::uint8_t step = steps[(i - 1) * columns + j - 1];
    if (step == kPair) pairs.emplace_back(i - 1, j - 1);
    i -= step != kSkipTraced ? 1 : 0;
    j -= step != kSkipKnown ? 1 : 0;
  }
  std::reverse(pairs.begin(), pairs.end());
  return pairs;
}

template <typename Key, typename Value>
std::map<Key, Value> most_frequent(const std::map<std::pair<Key, Value>, int>& counts) {
  std::map<Key, std::pair<int, Value>> best;
  for (const auto& [pair, count] : counts) {
    auto [at, fresh] = best.try_emplace(pair.first, count, pair.second);
    if (!fresh && count > at->second.first) at->second = {count, pair.second};
  }
  std::map<Key, Value> result;
  for (const auto& [key, value] : best) result[key] = value.second;
  return result;
}

/// Drops pairs whose modules belong to others: each module of the file goes with one of the trace.
void keep_modules_together(const std::vector<Known>& known, const std::vector<TimedOp>& traced,
                           std::vector<Pair>& pairs) {
  std::map<std::pair<std::string_view, int>, int> forth;
  std::map<std::pair<int, std::string_view>, int> back;
  const auto named = [&](const Pair& pair) {
    return !known[pair.first].module.empty() && traced[pair.second].module >= 0;
  };
  for (const Pair& pair : pairs) {
    if (!named(pair)) continue;
    ++forth[{known[pair.first].module, traced[pair.second].module}];
    ++back[{traced[pair.second].module, known[pair.first].module}];
  }
  const auto of_file = most_frequent(forth);
  const auto of_trace = most_frequent(back);
  std::erase_if(pairs, [&](const Pair& pair) {
    if (!named(pair)) return false;
    const std::string_view module = known[pair.first].module;
    const int call = traced[pair.second].module;
    return of_file.at(module) != call || of_trace.at(call) != module;
  });
}

double fitted(const PassFit& fit, double flops, double bytes) {
  if (flops == 0 && bytes == 0) return 0;
  return fit.overhead + flops * fit.per_flop + bytes * fit.per_byte;
}

class Matcher {
 public:
  Matcher(const Graph& graph, std::int64_t samples, Precision precision, const KindFit& fit,
          const std::vector<TimedOp>& traced)
      : fit_(fit), traced_(traced) {
    for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
      const OpCost work = op_cost(graph, op, samples, precision);
      const OpClass op_class = class_of(graph.op(op));
      if (op_class == OpClass::kView || work.forward_flops + work.forward_bytes == 0) continue;
      const std::string_view name = graph.op(op).name;
      const std::size_t slash = name.rfind('/');
      known_.push_back({op, op_class, graph.op(op).type,
                        slash == std::string_view::npos ? "" : name.substr(0, slash), work});
    }
    times_.forward.resize(graph.ops.size());
    times_.backward.resize(graph.ops.size());
    times_.operators = static_cast<int>(known_.size());
  }

  ModelTimes match() {
    std::vector<Pair> pairs = align(known_, traced_);
    keep_modules_together(known_, traced_, pairs);
    times_.found = static_cast<int>(pairs.size());
    for (const TimedOp& op : traced_) times_.seconds += op.forward.seconds + op.backward.seconds;
    std::size_t known = 0, traced = 0;
    for (const auto& [i, j] : pairs) {
      divide(known, i, traced, j);
      times_.found_seconds += traced_[j].forward.seconds + traced_[j].backward.seconds;
      divide(i, i + 1, j, j + 1);
      known = i + 1;
      traced = j + 1;
    }
    divide(known, known_.size(), traced, traced_.size());
    return std::move(times_);
  }

 private:
  /// Divides the time of traced operators among operators of the model. If there are none, the
  /// operator before them takes it, or else the one behind them.
  void divide(std::size_t known, std::size_t known_end, std::size_t traced,
              std::size_t traced_end) {
    if (traced == traced_end || known_.empty()) return;
    if (known == known_end) {
      known = known > 0 ? known - 1 : 0;
      known_end = known + 1;
    }
    divide_pass(known, known_end, traced, traced_end, &TimedOp::forward, times_.forward, true);
    divide_pass(known, known_end, traced, traced_end, &TimedOp::backward, times_.backward, false);
  }

  void divide_pass(std::size_t known, std::size_t known_end, std::size_t traced,
                   std::size_t traced_end, Measured TimedOp::*pass, std::vector<Measured>& times,
                   bool forward) {
    Measured sum;  // the spread is that of the parts, by their time
    for (std::size_t j = traced; j < traced_end; ++j) {
      const Measured& part = traced_[j].*pass;
      sum.seconds += part.seconds;
      sum.spread += part.seconds * part.spread;
    }
    if (sum.seconds <= 0) return;
    sum.spread /= sum.seconds;
    std::vector<double> weights;
    double total = 0;
    for (std::size_t i = known; i < known_end; ++i) {
      weights.push_back(estimate(known_[i], forward));
      total += weights.back();
    }
    for (std::size_t i = known; i < known_end; ++i) {
      const double part =
          total > 0 ? weights[i - known] / total : 1 / static_cast<double>(known_end - known);
      Measured& time = times[static_cast<std::size_t>(known_[i].op)];
      const double seconds = part * sum.seconds, all = time.seconds + seconds;
      if (all > 0) {
        time.spread = (time.seconds * time.spread + seconds * sum.spread) / all;
      }
      time.seconds = all;
    }
  }

  double estimate(const Known& known, bool forward) const {
    const KindFit::Class& fit = fit_.classes[static_cast<std::size_t>(known.op_class)];
    const OpCost& work = known.work;
    return forward ? fitted(fit.forward, work.forward_flops, work.forward_bytes)
                   : fitted(fit.backward, work.backward_flops, work.backward_bytes);
  }

  const KindFit& fit_;
  const std::vector<TimedOp>& traced_;
  std::vector<Known> known_;
  ModelTimes times_;
};

}  // namespace

ModelTimes match_model(const Graph& graph, std::int64_t samples, Precision precision,
                       const KindFit& fit, const std::vector<TimedOp>& traced) {
  return Matcher(graph, samples, precision, fit, traced).match();
}

}  // namespace agpcs
