// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/segments.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <tuple>
#include <unordered_map>

namespace agpcs {
namespace {

/// The places between the operators of a stage; place p is before ops[p].
struct Places {
  std::vector<std::int64_t> made;      // elements that operators before the place make
  std::vector<std::int64_t> crossing;  // those of them that operators after it read
};

Places places_of(const Graph& graph, const std::vector<OpId>& ops) {
  struct Made {
    std::size_t by = 0, last_read = 0;
    std::int64_t elements = 0;
  };
  std::unordered_map<TensorId, Made> tensors;  // by what holds their storage
  Places places;
  places.made.resize(ops.size() + 1);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const TensorId id : graph.op(ops[i]).inputs) {
      const auto made = id == kNone ? tensors.end() : tensors.find(storage_of(graph, id));
      if (made != tensors.end()) made->second.last_read = i;
    }
    std::int64_t elements = 0;
    for (const TensorId id : graph.op(ops[i]).outputs) {
      if (id == kNone || storage_of(graph, id) != id || graph.is_fused_away(id)) continue;
      const std::int64_t own = elements_at(graph.tensor(id).shape, 1);
      tensors[id] = {i, i, own};
      elements += own;
    }
    places.made[i + 1] = places.made[i] + elements;
  }
  std::vector<std::int64_t> changes(ops.size() + 1);  // of what crosses, from place to place
  for (const auto& [id, tensor] : tensors) {
    changes[tensor.by + 1] += tensor.elements;
    if (tensor.last_read < ops.size()) changes[tensor.last_read + 1] -= tensor.elements;
  }
  places.crossing.resize(ops.size() + 1);
  for (std::size_t p = 1; p <= ops.size(); ++p) {
    places.crossing[p] = places.crossing[p - 1] + changes[p];
  }
  return places;
}

/// Returns the place in [first, last] at which segment `number` of `count` best ends.
std::size_t best_end(const Places& places, std::int64_t number, std::int64_t count,
                     std::size_t first, std::size_t last) {
  const std::int64_t all = places.made.back();
  std::size_t best = first;
  auto least = std::tuple(true, std::int64_t{0}, std::int64_t{0});
  for (std::size_t p = first; p <= last; ++p) {
    const std::int64_t away = std::abs(places.made[p] * count - all * number);
    const bool far = 2 * away > all;
    const auto own = std::tuple(far, far ? 0 : places.crossing[p], away);
    if (p == first || own < least) {
      best = p;
      least = own;
    } else if (far && places.made[p] * count > all * number) {
      break;  // and it gets no nearer
    }
  }
  return best;
}

std::vector<std::size_t> all_ends(const Places& places, std::size_t count) {
  const std::size_t ops = places.made.size() - 1;
  std::vector<std::size_t> ends;
  for (std::size_t i = 1; i < count; ++i) {
    const std::size_t first = (ends.empty() ? 0 : ends.back()) + 1;
    ends.push_back(best_end(places, static_cast<std::int64_t>(i), static_cast<std::int64_t>(count),
                            first, ops - (count - i)));
  }
  ends.push_back(ops);
  return ends;
}

}  // namespace

std::vector<std::size_t> segment_ends(const Graph& graph, const std::vector<OpId>& ops,
                                      const Recomputation& recompute) {
  if (!recompute || ops.empty()) return {};
  const std::size_t count =
      std::min({ops.size(), static_cast<std::size_t>(recompute.segments),
                static_cast<std::size_t>(kMostSegments)});
  if (count == 1) return {ops.size()};
  std::vector<std::size_t> ends = all_ends(places_of(graph, ops), count);
  ends.resize(count - std::min(count - 1, static_cast<std::size_t>(recompute.kept)));
  return ends;
}

std::vector<std::size_t> segment_ends(const PlanStage& stage, std::size_t operators) {
  if (!stage.recompute) return {};
  if (stage.segments.empty()) return {operators};
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  for (const std::int64_t segment : stage.segments) {
    ends.push_back(end += static_cast<std::size_t>(segment));
  }
  return ends;
}

std::optional<Recomputation> recomputation_of(const Graph& graph, const std::vector<OpId>& ops,
                                              const std::vector<std::size_t>& ends) {
  if (ends.empty()) return Recomputation{};
  if (ends.size() == 1 && ends.front() == ops.size()) return kWholeStage;
  const Places places = places_of(graph, ops);
  const std::size_t most = std::min(ops.size(), static_cast<std::size_t>(kMostSegments));
  for (std::size_t count = ends.size(); count <= most; ++count) {
    if ((ends.back() == ops.size()) != (count == ends.size())) continue;
    const std::vector<std::size_t> own = all_ends(places, count);
    if (!std::equal(ends.begin(), ends.end(), own.begin())) continue;
    return Recomputation{static_cast<int>(count), static_cast<int>(count - ends.size())};
  }
  return std::nullopt;
}

}  // namespace agpcs
