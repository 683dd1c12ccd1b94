// SPDX-License-Identifier: Apache-2.0
#include "ir/team/placement.h"

#include "ir/base/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <numeric>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

std::int64_t begin_of(const Division& division, std::size_t member) {
  return member == 0 ? 0 : division.ends[member - 1];
}

}  // namespace

UnitRange Division::range(std::size_t member, std::int64_t units) const {
  AGPCS_CHECK(divides(units), "{} units in {} pieces", units, of);
  const std::int64_t each = units / of;
  return {begin_of(*this, member) * each, ends[member] * each};
}

double Division::part(std::size_t member) const {
  return static_cast<double>(ends[member] - begin_of(*this, member)) / static_cast<double>(of);
}

std::optional<Division> divide(std::int64_t units, const std::vector<std::int64_t>& parts) {
  const auto members = static_cast<std::int64_t>(parts.size());
  if (units < members) return std::nullopt;
  const std::int64_t all = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
  Division division{units, {}};
  double until = 0;
  for (std::int64_t m = 0; m < members; ++m) {
    until += static_cast<double>(parts[static_cast<std::size_t>(m)]);
    const auto ideal = static_cast<std::int64_t>(
        static_cast<double>(units) * until / static_cast<double>(all) + 0.5);
    const std::int64_t begin = m == 0 ? 0 : division.ends.back();
    const std::int64_t left = members - 1 - m;  // each of them needs a unit
    division.ends.push_back(std::clamp(ideal, begin + 1, units - left));
  }
  std::int64_t common = units;
  for (const std::int64_t end : division.ends) common = std::gcd(common, end);
  division.of /= common;
  for (std::int64_t& end : division.ends) end /= common;
  return division;
}

std::string division_text(const Division& division) {
  std::string text;
  for (std::size_t m = 0; m < division.ends.size(); ++m) {
    fmt::format_to(std::back_inserter(text), "{}{}/{}", m == 0 ? "" : " + ",
                   division.ends[m] - begin_of(division, m), division.of);
  }
  return text;
}

std::optional<TeamPlacement> team_placement(const Placement& placement,
                                            const std::vector<std::int64_t>& bands, int division) {
  switch (placement.kind) {
    case Kind::kCopy:
      return TeamPlacement{Kind::kCopy, true};
    case Kind::kSum:
    case Kind::kMean:
      return TeamPlacement{Kind::kSum};
    case Kind::kPart: {
      TeamPlacement part{Kind::kPart, false, placement.axis, {}, division};
      for (const std::int64_t per_unit : placement.bands) {
        for (const std::int64_t units : bands) part.bands.push_back(per_unit * units);
      }
      return part;
    }
    case Kind::kMax:
    case Kind::kMin:
      break;
  }
  return std::nullopt;
}

TeamPlacement gradient_of(const TeamPlacement& placement) {
  if (placement.kind == Kind::kPart) return placement;
  return {placement.gradient_is_sum ? Kind::kSum : Kind::kCopy};
}

std::string team_placement_text(const TeamPlacement& placement) {
  if (placement.kind == Kind::kCopy)
    return placement.gradient_is_sum ? "copy, gradient sum" : "copy";
  if (placement.kind == Kind::kSum) return "sum";
  if (placement.bands.size() == 1) {
    return fmt::format("axis {} as d{}", placement.axis, placement.division);
  }
  return fmt::format("axis {} in {} as d{}", placement.axis, fmt::join(placement.bands, "+"),
                     placement.division);
}

Lying lying_of(const TeamPlacement& placement) {
  if (placement.kind == Kind::kPart) return Lying::kPart;
  if (placement.kind == Kind::kSum) return Lying::kSum;
  return placement.gradient_is_sum ? Lying::kCopySummed : Lying::kCopy;
}

TeamExchange exchange_between(const TeamPlacement& from, const TeamPlacement& to) {
  const bool same = from.axis == to.axis && from.bands == to.bands && from.division == to.division;
  return exchange_between(lying_of(from), lying_of(to), same);
}

TeamExchange gradient_exchange(const TeamPlacement& from, const TeamPlacement& to) {
  return exchange_between(gradient_of(to), gradient_of(from));
}

}  // namespace agpcs
