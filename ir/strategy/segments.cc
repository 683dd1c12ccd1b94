// SPDX-License-Identifier: Apache-2.0
#include "ir/strategy/segments.h"

#include "ir/base/at.h"
#include "ir/graph/op_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <string>
#include <tuple>

namespace agpcs {

Segments::Segments(const Graph& graph)
    : graph_(graph), elements_(graph.tensors.size()), last_read_(graph.tensors.size()) {
  for (TensorId id = 0; id < static_cast<TensorId>(graph.tensors.size()); ++id) {
    root_.push_back(storage_of(graph, id));
    if (root_.back() == id && !graph.is_fused_away(id)) {
      elements_[at(id)] = elements_at(graph.tensor(id).shape, 1);
    }
  }
}

void Segments::find_places(const std::vector<OpId>& ops) {
  sum_elements(ops);
  places_.clear();
  std::size_t free = 0;  // no earlier place is outside of the attentions so far
  for (std::size_t p = 0; p <= ops.size(); ++p) {
    if (p >= free || p == ops.size()) {
      made_[places_.size()] = made_[p];
      crossing_[places_.size()] = crossing_[p];
      places_.push_back(p);
    }
    if (p == ops.size() || graph_.op(ops[p]).fused == kNone) continue;
    const OpId last = graph_.fused[at(graph_.op(ops[p]).fused)].ops.back();
    const auto found = std::lower_bound(ops.begin(), ops.end(), last);
    free = std::max(free, static_cast<std::size_t>(found - ops.begin()) + 1);
  }
  made_.resize(places_.size());
  crossing_.resize(places_.size());
}

void Segments::sum_elements(const std::vector<OpId>& ops) {
  const std::size_t places = ops.size() + 1;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const TensorId id : graph_.op(ops[i]).inputs) {
      if (id != kNone) last_read_[at(root_[at(id)])] = i + 1;
    }
  }
  made_.assign(places, 0);
  crossing_.assign(places + 1, 0);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    for (const TensorId id : graph_.op(ops[i]).outputs) {
      if (id == kNone) continue;
      const std::int64_t elements = elements_[at(id)];
      made_[i + 1] += elements;
      if (last_read_[at(id)] <= i + 1) continue;
      crossing_[i + 1] += elements;
      crossing_[last_read_[at(id)]] -= elements;
    }
  }
  std::partial_sum(made_.begin(), made_.end(), made_.begin());
  std::partial_sum(crossing_.begin(), crossing_.end(), crossing_.begin());
  for (const OpId op : ops) {
    for (const TensorId id : graph_.op(op).inputs) {
      if (id != kNone) last_read_[at(root_[at(id)])] = 0;
    }
  }
}

/// Returns the number of the place in [first, last] at which segment `number` of `count` best ends.
std::size_t Segments::best_end(std::int64_t number, std::int64_t count, std::size_t first,
                               std::size_t last) const {
  const std::int64_t all = made_.back();
  std::size_t best = first;
  auto least = std::tuple(true, std::int64_t{0}, std::int64_t{0});
  for (std::size_t p = first; p <= last; ++p) {
    const std::int64_t away = std::abs(made_[p] * count - all * number);
    const bool far = 2 * away > all;
    const auto own = std::tuple(far, far ? 0 : crossing_[p], away);
    if (p == first || own < least) {
      best = p;
      least = own;
    } else if (far && made_[p] * count > all * number) {
      break;  // and it gets no nearer
    }
  }
  return best;
}

std::vector<std::size_t> Segments::all_ends(std::size_t count) const {
  const std::size_t last = places_.size() - 1;
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  for (std::size_t i = 1; i < count; ++i) {
    end = best_end(static_cast<std::int64_t>(i), static_cast<std::int64_t>(count), end + 1,
                   last - (count - i));
    ends.push_back(places_[end]);
  }
  ends.push_back(places_[last]);
  return ends;
}

std::vector<std::size_t> Segments::ends(const std::vector<OpId>& ops,
                                        const Recomputation& recompute) {
  if (!recompute || ops.empty()) return {};
  if (recompute.segments == 1) return {ops.size()};
  find_places(ops);
  const std::size_t count = std::min(
      {places_.size() - 1, static_cast<std::size_t>(recompute.segments), at(kMostSegments)});
  std::vector<std::size_t> ends = all_ends(count);
  ends.resize(count - std::min(count - 1, static_cast<std::size_t>(recompute.kept)));
  return ends;
}

std::optional<Recomputation> Segments::recomputation_of(const std::vector<OpId>& ops,
                                                        const std::vector<std::size_t>& ends) {
  if (ends.empty()) return Recomputation{};
  if (ends.size() == 1 && ends.front() == ops.size()) return kWholeStage;
  find_places(ops);
  for (std::size_t count = ends.size(); count <= std::min(places_.size() - 1, at(kMostSegments));
       ++count) {
    if ((ends.back() == ops.size()) != (count == ends.size())) continue;
    const std::vector<std::size_t> own = all_ends(count);
    if (!std::equal(ends.begin(), ends.end(), own.begin())) continue;
    return Recomputation{static_cast<int>(count), static_cast<int>(count - ends.size())};
  }
  return std::nullopt;
}

std::vector<std::size_t> segment_ends(const PlanStage& stage, std::size_t operators) {
  if (!stage.recompute && !stage.activations_in_host) return {};
  if (stage.segments.empty()) return {operators};
  std::vector<std::size_t> ends;
  std::size_t end = 0;
  for (const std::int64_t segment : stage.segments) {
    ends.push_back(end += static_cast<std::size_t>(segment));
  }
  return ends;
}

std::string print_recomputation(const Recomputation& recompute) {
  if (!recompute) return {};
  const int less = recompute.segments - recompute.kept;
  const std::string part = fmt::format("{}/{}", less, recompute.segments);
  std::string text;
  if (recompute.again) text = recompute.segments == 1 ? "recompute" : "recompute=" + part;
  if (recompute.in_host) text += (text.empty() ? "" : " ") + ("activations-in=host:" + part);
  return text;
}

}  // namespace agpcs
