// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/body/slices.h"

#include "ir/base/check.h"
#include "ir/plan/body/body.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <utility>

namespace agpcs {
namespace {

/// How the members of a replica have a parameter.
class HeldParameter {
 public:
  HeldParameter(const PlanBody& body, const BodyTensor& parameter) {
    for (const BodyExtent& extent : parameter.shape) dims_.push_back(extent.fixed);
    const BodyForm& form = parameter.forms.front();
    if (form.lying != Lying::kPart) return;
    axis_ = static_cast<std::size_t>(form.axis);
    std::vector<std::int64_t> bands = form.bands;
    if (bands.empty()) bands.push_back(dims_[axis_]);
    const BodyDivision& division = body.divisions[static_cast<std::size_t>(form.division)];
    parts_.resize(division.pieces.size());
    std::int64_t begin = 0;
    for (const std::int64_t band : bands) {
      for (std::size_t m = 0; m < parts_.size(); ++m) {
        const std::int64_t size = band / division.of() * division.pieces[m];
        parts_[m].push_back({begin, begin + size});
        begin += size;
      }
    }
  }

  const std::vector<std::int64_t>& dims() const { return dims_; }
  /// Adds where the parts of members begin, by axis.
  void add_cuts(std::vector<std::set<std::int64_t>>& cuts) const {
    for (const std::vector<ElementRange>& part : parts_) {
      for (const ElementRange& range : part) cuts[axis_].insert(range.begin);
    }
  }
  /// Returns whether a member has a box, which no cut goes through.
  bool has(std::size_t member, const std::vector<ElementRange>& box) const {
    return parts_.empty() || find(member, box[axis_]) != parts_[member].end();
  }
  /// Returns the dims of what a member has, and where a box of it begins there.
  std::vector<std::int64_t> own_dims(std::size_t member) const {
    std::vector<std::int64_t> dims = dims_;
    if (!parts_.empty()) dims[axis_] = size_of(parts_[member].begin(), parts_[member].end());
    return dims;
  }
  std::vector<std::int64_t> begin_of(std::size_t member,
                                     const std::vector<ElementRange>& box) const {
    std::vector<std::int64_t> begin;
    for (const ElementRange& range : box) begin.push_back(range.begin);
    if (parts_.empty()) return begin;
    const auto within = find(member, box[axis_]);
    begin[axis_] = size_of(parts_[member].begin(), within) + box[axis_].begin - within->begin;
    return begin;
  }

 private:
  using Part = std::vector<ElementRange>::const_iterator;
  static std::int64_t size_of(Part begin, Part end) {
    return std::accumulate(
        begin, end, std::int64_t{0},
        [](std::int64_t sum, const ElementRange& one) { return sum + one.size(); });
  }
  Part find(std::size_t member, const ElementRange& range) const {
    return std::find_if(parts_[member].begin(), parts_[member].end(), [&](const ElementRange& own) {
      return own.begin <= range.begin && range.end <= own.end;
    });
  }

  std::vector<std::int64_t> dims_;
  std::size_t axis_ = 0;
  std::vector<std::vector<ElementRange>> parts_;  // of the axis, by member; none: copies
};

HeldParameter held_parameter(const Plan& plan, const PlanStage& stage, std::size_t replica,
                             const BucketMember& member) {
  const PlanBody& body = plan.bodies[static_cast<std::size_t>(stage.body_of(replica))];
  const BodyTensor* const parameter = find_parameter(body, member.parameter);
  AGPCS_CHECK(parameter != nullptr, "body {} does not list parameter '{}'", body.name,
              member.parameter);
  return {body, *parameter};
}

/// Returns all boxes between the cuts of each axis, in the order of their first elements.
std::vector<std::vector<ElementRange>> boxes_between(
    const std::vector<std::set<std::int64_t>>& cuts, const std::vector<std::int64_t>& dims) {
  std::vector<std::vector<ElementRange>> boxes = {{}};
  for (std::size_t axis = 0; axis < dims.size(); ++axis) {
    std::vector<std::vector<ElementRange>> longer;
    for (const std::vector<ElementRange>& box : boxes) {
      for (auto at = cuts[axis].begin(); at != cuts[axis].end(); ++at) {
        const auto next = std::next(at);
        longer.push_back(box);
        longer.back().push_back({*at, next == cuts[axis].end() ? dims[axis] : *next});
      }
    }
    boxes = std::move(longer);
  }
  return boxes;
}

/// Returns the sets of ranks that sum a slice of which each replica's `holders` have a copy.
std::vector<std::vector<int>> groups_of(const std::vector<std::vector<int>>& holders) {
  const std::size_t copies = holders.front().size();
  const bool alike = std::all_of(holders.begin(), holders.end(),
                                 [&](const auto& ranks) { return ranks.size() == copies; });
  std::vector<std::vector<int>> groups(alike ? copies : 1);
  for (const std::vector<int>& ranks : holders) {
    for (std::size_t i = 0; i < ranks.size(); ++i) groups[alike ? i : 0].push_back(ranks[i]);
  }
  for (std::vector<int>& group : groups) std::sort(group.begin(), group.end());
  return groups;
}

void add_run(std::int64_t begin, std::int64_t size, std::vector<ElementRange>& runs) {
  if (!runs.empty() && runs.back().end == begin) {
    runs.back().end += size;
  } else {
    runs.push_back({begin, begin + size});
  }
}

/// Adds the elements of a box of a tensor with `dims`, whose first element is element `offset`.
void add_box(std::int64_t offset, const std::vector<std::int64_t>& dims,
             const std::vector<std::int64_t>& begin, const std::vector<ElementRange>& box,
             std::vector<ElementRange>& runs) {
  std::size_t inner = dims.size();  // the axes from here on are whole
  std::int64_t run = 1;
  while (inner > 0 && box[inner - 1].size() == dims[inner - 1]) run *= dims[--inner];
  // The axis before them, along which elements are a run, too.
  const std::int64_t step = run;
  if (inner > 0) run *= box[--inner].size();
  std::vector<std::int64_t> at(inner, 0);
  for (;;) {
    std::int64_t first = 0;
    for (std::size_t axis = 0; axis < inner; ++axis) {
      first = first * dims[axis] + begin[axis] + at[axis];
    }
    if (inner < dims.size()) first = (first * dims[inner] + begin[inner]) * step;
    add_run(offset + first, run, runs);
    std::size_t axis = inner;
    while (axis > 0 && ++at[axis - 1] == box[axis - 1].size()) at[--axis] = 0;
    if (axis == 0) return;
  }
}

std::int64_t elements_of(const std::vector<ElementRange>& box) {
  return std::accumulate(
      box.begin(), box.end(), std::int64_t{1},
      [](std::int64_t all, const ElementRange& one) { return all * one.size(); });
}

}  // namespace

std::int64_t RankSlice::elements() const {
  return std::accumulate(
      runs.begin(), runs.end(), std::int64_t{0},
      [](std::int64_t sum, const ElementRange& run) { return sum + run.size(); });
}

StageSlices::StageSlices(const Plan& plan, int stage)
    : plan_(plan),
      stage_(plan.stages[static_cast<std::size_t>(stage)]),
      slices_(plan.buckets.size()) {
  std::set<std::vector<int>> groups;
  for (std::size_t b = 0; b < slices_.size(); ++b) {
    const PlanBucket& bucket = plan.buckets[b];
    if (!bucket.is_of(stage)) continue;
    for (std::size_t p = 0; p < bucket.members.size(); ++p) cut(bucket, p, slices_[b]);
    for (const Slice& slice : slices_[b]) groups.insert(slice.group);
  }
  groups_.assign(groups.begin(), groups.end());
}

void StageSlices::cut(const PlanBucket& bucket, std::size_t parameter,
                      std::vector<Slice>& slices) const {
  std::vector<HeldParameter> held;
  for (std::size_t i = 0; i < stage_.ranks.size(); ++i) {
    held.push_back(held_parameter(plan_, stage_, i, bucket.members[parameter]));
  }
  const std::vector<std::int64_t>& dims = held.front().dims();
  std::vector<std::set<std::int64_t>> cuts(dims.size(), {0});
  for (const HeldParameter& one : held) one.add_cuts(cuts);
  for (const std::vector<ElementRange>& box : boxes_between(cuts, dims)) {
    std::vector<std::vector<int>> holders;
    for (std::size_t i = 0; i < held.size(); ++i) {
      const std::vector<int> ranks = stage_.members(i);
      std::vector<int>& have = holders.emplace_back();
      for (std::size_t m = 0; m < ranks.size(); ++m) {
        if (held[i].has(m, box)) have.push_back(ranks[m]);
      }
    }
    for (std::vector<int>& group : groups_of(holders)) {
      slices.push_back({parameter, box, std::move(group)});
    }
  }
}

std::size_t StageSlices::number_of(const std::vector<int>& group) const {
  return static_cast<std::size_t>(std::lower_bound(groups_.begin(), groups_.end(), group) -
                                  groups_.begin());
}

std::vector<SliceSum> StageSlices::sums(int bucket) const {
  std::vector<std::int64_t> elements(groups_.size(), 0);
  for (const Slice& slice : slices_[static_cast<std::size_t>(bucket)]) {
    elements[number_of(slice.group)] += elements_of(slice.ranges);
  }
  std::vector<SliceSum> sums;
  for (std::size_t g = 0; g < elements.size(); ++g) {
    if (elements[g] > 0) sums.push_back({g, elements[g]});
  }
  return sums;
}

std::vector<RankSlice> StageSlices::of_rank(int bucket, int rank) const {
  const auto replica = static_cast<std::size_t>(replica_of(stage_, rank));
  const std::vector<int> members = stage_.members(replica);
  const std::size_t member = member_of(stage_, rank);
  const PlanBucket& of = plan_.buckets[static_cast<std::size_t>(bucket)];
  std::vector<std::int64_t> offsets;
  std::vector<HeldParameter> held;
  std::int64_t next = 0;
  for (const BucketMember& one : of.members) {
    held.push_back(held_parameter(plan_, stage_, replica, one));
    const std::vector<std::int64_t> dims = held.back().own_dims(member);
    offsets.push_back(next);
    next += std::accumulate(dims.begin(), dims.end(), std::int64_t{1}, std::multiplies<>());
  }
  std::vector<RankSlice> by_group(groups_.size());
  for (const Slice& slice : slices_[static_cast<std::size_t>(bucket)]) {
    const std::vector<int>& ranks = slice.group;
    if (!std::binary_search(ranks.begin(), ranks.end(), rank)) continue;
    RankSlice& own = by_group[number_of(ranks)];
    own.counts =
        std::none_of(members.begin(), members.begin() + static_cast<std::ptrdiff_t>(member),
                     [&](int r) { return std::binary_search(ranks.begin(), ranks.end(), r); });
    const HeldParameter& parameter = held[slice.parameter];
    add_box(offsets[slice.parameter], parameter.own_dims(member),
            parameter.begin_of(member, slice.ranges), slice.ranges, own.runs);
  }
  std::vector<RankSlice> slices;
  for (std::size_t g = 0; g < by_group.size(); ++g) {
    if (by_group[g].runs.empty()) continue;
    by_group[g].group = g;
    slices.push_back(std::move(by_group[g]));
  }
  return slices;
}

}  // namespace agpcs
