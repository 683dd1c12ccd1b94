// SPDX-License-Identifier: Apache-2.0
// Every exchange gives each member what its placement says, over every transport.
#include "runtime/torch/team/link.h"

#include "ir/team/body.h"
#include "runtime/torch/ops/ops.h"
#include "tests/runtime/world.h"
#include "tests/system/executor/team/member_threads.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Kind = Placement::Kind;

const std::vector<std::int64_t> kDims = {12, 3, 16};

TeamBody body() {
  TeamBody body;
  body.parts = {5, 4, 3};
  body.divisions = {{12, {5, 9, 12}}, {4, {2, 3, 4}}};
  return body;
}

std::vector<TeamPlacement> placements() {
  const auto part = [](int axis, std::vector<std::int64_t> bands, int division) {
    return TeamPlacement{Kind::kPart, false, axis, std::move(bands), division};
  };
  return {{Kind::kCopy},    {Kind::kSum},          part(0, {12}, 0),
          part(0, {12}, 1), part(2, {8, 4, 4}, 1), part(2, {16}, 1)};
}

at::Tensor whole_of(at::ScalarType type) {
  return at::arange(12 * 3 * 16, at::kLong).view(kDims).to(type);
}

/// What a member has before: of a sum, the first one has what the others' summands leave.
at::Tensor had_by(const TeamLink& link, const TeamPlacement& placement, const at::Tensor& whole) {
  if (placement.kind == Kind::kPart) return link.part_of(whole, placement).clone();
  if (placement.kind == Kind::kCopy) return whole.clone();
  return link.member() == 0 ? whole - 10 : at::full_like(whole, 5);  // of three members
}

/// Returns the exchanges that went wrong.
std::string wrong_exchanges(const TeamSeat& seat) {
  TeamLink link(seat);
  std::string wrong;
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kLong}) {
    const at::Tensor whole = whole_of(type);
    for (const TeamPlacement& from : placements()) {
      for (const TeamPlacement& to : placements()) {
        at::Tensor got = link.exchange(had_by(link, from, whole), from, to, kDims);
        if (to.kind == Kind::kSum) got = link.sum(std::move(got));
        const at::Tensor want = to.kind == Kind::kPart ? link.part_of(whole, to) : whole;
        if (at::equal(got, want)) continue;
        wrong += team_placement_text(from) + " to " + team_placement_text(to) + "\n";
      }
    }
    const at::Tensor own = whole.remainder(static_cast<std::int64_t>(link.member()) + 5);
    at::Tensor greatest = whole.remainder(5);
    for (const int other : {6, 7}) greatest = at::maximum(greatest, whole.remainder(other));
    if (!at::equal(link.maximum(own), greatest)) wrong += "maximum\n";
  }
  link.settle();
  return wrong;
}

class TeamLinkOver : public ::testing::TestWithParam<WorldKind> {};

TEST_P(TeamLinkOver, GivesEachMemberWhatItsPlacementSays) {
  const WorldKind& world = GetParam();
  if (const std::string obstacle = world.obstacle(); !obstacle.empty()) GTEST_SKIP() << obstacle;
  const TeamBody all = body();
  world.run(3, [&](Transport& transport) {
    TeamSeat seat = testing::take_seat(&all, transport);
    EXPECT_EQ(wrong_exchanges(seat), "");
    // Members need not have the order of their ranks.
    seat.ranks = {1, 2, 0};
    seat.member = std::vector<std::size_t>{2, 0, 1}[seat.member];
    EXPECT_EQ(wrong_exchanges(seat), "");
  });
}

INSTANTIATE_TEST_SUITE_P(Worlds, TeamLinkOver, ::testing::ValuesIn(worlds()),
                         [](const auto& param) { return param.param.name; });

TEST(TeamLink, NamesTheMemberThatWentAway) {
  const TeamBody all = body();
  testing::MemberThreads threads(3, &all);
  std::vector<std::string> failures(3);
  threads.run([&](std::size_t m) {
    if (m == 1) return;
    TeamSeat seat = threads.seat(m);
    seat.over.limit = std::chrono::milliseconds(200);
    TeamLink link(seat);
    try {
      link.sum(at::ones({4}));
    } catch (const KernelError& error) {
      failures[m] = error.what();
    }
  });
  for (const std::size_t m : {0, 2}) {
    EXPECT_NE(failures[m].find("all_reduce of 16 bytes over ranks 0,1,2"), std::string::npos)
        << failures[m];
  }
}

}  // namespace
}  // namespace agpcs
