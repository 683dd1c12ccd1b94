// SPDX-License-Identifier: Apache-2.0
// Teams in plans: text, faults, who sends what to whom, refusals.
#include "ir/plan/body/body.h"
#include "ir/plan/body/slices.h"
#include "ir/plan/lookup.h"
#include "tests/ir/plan/text.h"

#include <agpcs/plan.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

using testing::plan_with_teams;
using testing::plan_with_unlike_teams;

std::string message_of(std::string_view text) {
  const Result<Plan> plan = parse_plan(text, "m.plan");
  return plan.ok() ? "" : plan.status().message();
}

/// The message about the plan's text with the first `from` replaced.
std::string message_with(std::string_view from, std::string_view to) {
  std::string text = print_plan(plan_with_teams());
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return "no such text: " + std::string(from);
  return message_of(text.replace(at, from.size(), to));
}

/// The fault of a changed plan, without "plan: error: body t0: ".
template <typename Change>
std::string fault_with(Change change) {
  Plan plan = plan_with_teams();
  change(plan, plan.bodies[0]);
  const Status status = verify_plan(plan);
  if (status.ok()) return "";
  constexpr std::string_view kStart = "plan: error: body t0: ";
  const std::string& message = status.message();
  return message.substr(0, kStart.size()) == kStart ? message.substr(kStart.size()) : message;
}

/// The first of several.
template <typename Change>
std::string first_with(Change change) {
  const std::string faults = fault_with(change);
  return faults.substr(0, faults.find("\nplan: error: "));
}

TEST(PlanTeams, AreSaidOnceForAStage) {
  const std::string text = print_plan(plan_with_teams());
  EXPECT_EQ(text.substr(text.find("stage s0"), text.find("cut c0") - text.find("stage s0")),
            "stage s0 ranks=0,2,1,3 devices=a/0,b/1,a/1,b/2 samples=3,1 body=t0 recompute=no "
            "operators=3\n"
            "  operators fc1 .. relu count=2\n"
            "  operators \"odd name\" .. \"odd name\" count=1\n"
            "stage s1 ranks=4 devices=b/0 samples=4 recompute=yes operators=2\n"
            "  operators fc2 .. loss count=2\n"
            "body t0 parts=50,30 operators=3 tensors=3\n"
            "  division d0 pieces=5,3\n"
            "  parameter fc1.weight type=fp32 shape=8x16 forms=part:1:d0\n"
            "  parameter fc1.bias type=fp32 shape=16 forms=part:0:d0\n"
            "  tensor h type=fp32 shape=samplesx16 gradient=yes "
            "forms=part:1:d0,part:1:d0>copy\n"
            "  forward\n"
            "    compute fc1 split=columns by=d0\n"
            "    compute relu split=\"axis 1\" by=d0\n"
            "    all-gather h to=copy\n"
            "    compute \"odd name\" split=whole\n"
            "  backward\n"
            "    compute \"odd name\" .. \"odd name\" count=1\n"
            "    take-part h from=copy\n"
            "    compute relu .. fc1 count=2\n");
  const Result<Plan> again = parse_plan(text, "m.plan");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(print_plan(*again), text);
  EXPECT_EQ(again->stages[0].members(1), (std::vector<int>{1, 3}));
  EXPECT_EQ(again->stages[0].all_ranks(), (std::vector<int>{0, 1, 2, 3}));
}

TEST(PlanTeams, UnlikeReplicasHaveBodiesOfTheirOwn) {
  const std::string text = print_plan(plan_with_unlike_teams());
  EXPECT_EQ(text.substr(text.find("stage s0"), text.find("  operators") - text.find("stage s0")),
            "stage s0 ranks=0,2,1,3,5-6 devices=a/0,b/1,a/1,b/2-4 samples=2,1x2 body=t0,t1,t2 "
            "members=2,1,3 recompute=no operators=3\n");
  const Result<Plan> again = parse_plan(text, "m.plan");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(print_plan(*again), text);
  EXPECT_EQ(again->stages[0].members(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(again->stages[0].members(1), (std::vector<int>{1}));
  EXPECT_EQ(again->stages[0].members(2), (std::vector<int>{3, 5, 6}));
  EXPECT_EQ(again->stages[0].body_of(2), 2);
  EXPECT_EQ(rank_elements(*again, again->buckets[1], 0, 1), 144);
  EXPECT_EQ(rank_elements(*again, again->buckets[1], 0, 2), 54);
  EXPECT_EQ(rank_elements(*again, again->buckets[1], 0, 5), 2 * 16 + 16);
}

std::string unlike_message_with(std::string_view from, std::string_view to) {
  std::string text = print_plan(plan_with_unlike_teams());
  const std::size_t at = text.find(from);
  if (at == std::string::npos) return "no such text: " + std::string(from);
  return message_of(text.replace(at, from.size(), to));
}

TEST(PlanTeams, UnlikeReplicasThatDoNotFitTheirBodiesAreNamed) {
  EXPECT_NE(unlike_message_with("members=2,1,3", "members=2,2,2")
                .find("body t1: parts of 1 members, teams of s0 have 2\n"
                      "  hint: a replica has as many members as its body has parts"),
            std::string::npos);
  EXPECT_NE(
      unlike_message_with("members=2,1,3", "members=2,1,4")
          .find("stage s0 has 6 ranks, 6 devices and 3 bodies for 3 replicas, of 2,1,4 members"),
      std::string::npos);
  EXPECT_NE(
      unlike_message_with("t0,t1,t2 members", "t0,t1 members").find("2 bodies for 3 replicas"),
      std::string::npos);
  EXPECT_NE(unlike_message_with("body=t0,t1,t2", "body=t1,t0,t2")
                .find("stage s0 has body=t1, of 3 bodies"),
            std::string::npos);
  EXPECT_NE(unlike_message_with("body=t0,t1,t2", "body=t0,t0,t0")
                .find("stage s0 names body t0 for each of its replicas"),
            std::string::npos);
}

TEST(PlanTeams, BodiesOfAStageDiffer) {
  Plan plan = plan_with_teams();
  plan.stages[0].bodies = {0, 1};
  plan.bodies.push_back(plan.bodies[0]);
  plan.bodies[1].name = "t1";
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: stage s0: bodies t0 and t1 are the same\n"
            "  hint: replicas that do the same have one body");
}

TEST(PlanTeams, ParametersHaveOneShapeInAllBodiesOfAStage) {
  Plan plan = plan_with_unlike_teams();
  BodyTensor* const own = [&] {
    for (BodyTensor& one : plan.bodies[1].tensors) {
      if (one.parameter && one.shape.size() == 2) return &one;
    }
    return static_cast<BodyTensor*>(nullptr);
  }();
  ASSERT_NE(own, nullptr);
  const std::string before = print_extents(own->shape);
  const std::int64_t elements = own->shape[0].fixed * own->shape[1].fixed;
  own->shape = {{elements, 0}};
  EXPECT_EQ(verify_plan(plan).message(),
            "plan: error: stage s0: parameter '" + own->name + "' has shape " +
                print_extents(own->shape) + " in body t1, and " + before +
                " before\n"
                "  hint: replicas of a stage have the same parameters");
  own->shape = {{0, 1}, {elements, 0}};
  EXPECT_NE(verify_plan(plan).message().find("'" + own->name + "' has shape "), std::string::npos);
}

/// Prints what each set of ranks sums of a bucket, and where each rank has it; "-" where it counts
/// for nothing.
std::string slices_text(const Plan& plan, int bucket) {
  const StageSlices slices(plan, 0);
  std::string text;
  for (const SliceSum& sum : slices.sums(bucket)) {
    text += "sum of " + std::to_string(sum.elements) + ":";
    for (const int rank : slices.groups()[sum.group]) {
      text += " " + std::to_string(rank);
      for (const RankSlice& own : slices.of_rank(bucket, rank)) {
        if (own.group != sum.group) continue;
        EXPECT_EQ(own.elements(), sum.elements);
        for (const ElementRange& run : own.runs) {
          text += (own.counts ? "[" : "-[") + std::to_string(run.begin) + "," +
                  std::to_string(run.end) + ")";
        }
      }
    }
    text += "\n";
  }
  return text;
}

// Of the bias of 16, ranks 0 and 2 have 10 and 6, and ranks 3, 5 and 6 copies, of which one counts.
TEST(PlanTeams, UnlikeReplicasSumSlices) {
  Plan plan = plan_with_unlike_teams();
  plan.buckets[1].members = {{"fc1.bias", 16}};
  EXPECT_EQ(slices_text(plan, 1),
            "sum of 10: 0[0,10) 1[0,10) 3[0,10) 5-[0,10) 6-[0,10)\n"
            "sum of 6: 1[10,16) 2[0,6) 3[10,16) 5-[10,16) 6-[10,16)\n");
}

// Of the weight of 4x4, ranks 0 and 2 have 3 and 1 columns, ranks 3, 5 and 6 have 2, 1 and 1 rows.
TEST(PlanTeams, ColumnsAndRowsAreCutIntoBoxes) {
  Plan plan = plan_with_unlike_teams();
  plan.buckets[1].members = {{"fc1.weight", 16}};
  plan.bodies[0].divisions[0].pieces = {3, 1};
  for (PlanBody& body : plan.bodies) body.tensors[0].shape = {{4, 0}, {4, 0}};
  EXPECT_EQ(slices_text(plan, 1),
            "sum of 6: 0[0,6) 1[0,3)[4,7) 3[0,3)[4,7)\n"
            "sum of 3: 0[6,9) 1[8,11) 5[0,3)\n"
            "sum of 3: 0[9,12) 1[12,15) 6[0,3)\n"
            "sum of 2: 1[3,4)[7,8) 2[0,2) 3[3,4)[7,8)\n"
            "sum of 1: 1[11,12) 2[2,3) 5[3,4)\n"
            "sum of 1: 1[15,16) 2[3,4) 6[3,4)\n");
}

// Each element of a rank is in one slice, and each element of the model is counted once for each
// replica: for random parts, axes and bands.
TEST(PlanTeams, SlicesOfRandomPartsCoverEachElementOnce) {
  std::uint64_t state = 7;
  const auto below = [&](std::uint64_t n) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>((state >> 33) % n);
  };
  for (int turn = 0; turn < 200; ++turn) {
    Plan plan = plan_with_unlike_teams();
    plan.buckets[1].members = {{"fc1.weight", 24 * 24}};
    for (PlanBody& body : plan.bodies) {
      body.tensors[0].shape = {{24, 0}, {24, 0}};
      if (body.members() == 1 || below(4) == 0) {
        body.tensors[0].forms = {{Lying::kCopy}};
        continue;
      }
      const std::int64_t first = 1 + below(3);
      body.divisions = {{body.members() == 2 ? std::vector<std::int64_t>{first, 4 - first}
                                             : std::vector<std::int64_t>{first, 1, 4 - first}}};
      if (body.members() == 3) body.divisions[0].pieces = {2, 1, 1};
      body.tensors[0].forms = {{Lying::kPart, static_cast<int>(below(2)), 0}};
      if (below(2) == 0) body.tensors[0].forms[0].bands = {4, 12, 8};
    }
    const StageSlices slices(plan, 0);
    const PlanStage& stage = plan.stages[0];
    std::int64_t summed = 0;
    for (const SliceSum& sum : slices.sums(1)) summed += sum.elements;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      std::int64_t counted = 0;
      for (const int rank : stage.members(i)) {
        const std::int64_t held = rank_elements(plan, plan.buckets[1], 0, rank);
        std::vector<int> times(static_cast<std::size_t>(held), 0);
        for (const RankSlice& own : slices.of_rank(1, rank)) {
          counted += own.counts ? own.elements() : 0;
          for (const ElementRange& run : own.runs) {
            for (std::int64_t e = run.begin; e < run.end; ++e) {
              ++times.at(static_cast<std::size_t>(e));
            }
          }
        }
        EXPECT_EQ(times, std::vector<int>(times.size(), 1)) << "rank " << rank;
      }
      const bool copies = summed > 24 * 24;  // all replicas have two copies
      EXPECT_EQ(counted, copies ? summed : 24 * 24) << "turn " << turn;
    }
  }
}

TEST(PlanTeams, FormsExtentsAndNumbersAreTheirText) {
  for (const char* const text : {"copy", "copy/sum", "sum,sum>copy", "part:0:d1",
                                 "part:2:d0:512+64+64,part:2:d0:512+64+64>copy/sum",
                                 "copy,copy>copy/sum,copy/sum>part:1:d0"}) {
    const auto forms = parse_forms(text);
    ASSERT_TRUE(forms) << text;
    EXPECT_EQ(print_forms(*forms), text);
  }
  for (const char* const text : {"", ",", "copy,", "copy>sum", "part", "part:0", "part:0:0",
                                 "part:-1:d0", "part:0:d0:", "part:0:d0:1+", "copy/copy"}) {
    const auto forms = parse_forms(text);
    EXPECT_TRUE(!forms || print_forms(*forms) != text) << text;
  }
  for (const char* const text : {"scalar", "samples", "samplesx16", "12samples+1x64", "3"}) {
    const auto shape = parse_extents(text);
    ASSERT_TRUE(shape) << text;
    EXPECT_EQ(print_extents(*shape), text);
  }
  for (const char* const text : {"", "x", "samples-1", "2sample", "samples+"}) {
    EXPECT_FALSE(parse_extents(text)) << text;
  }
}

TEST(PlanTeams, MembersSendAndReceiveByTheirNumbers) {
  const Plan plan = plan_with_teams();
  EXPECT_EQ(plan.rank_count(), 5);
  EXPECT_EQ(plan.stage_of_rank(3), 0);
  EXPECT_EQ(device_of_rank(plan, 3), "b/2");
  EXPECT_EQ(devices_of_ranks(plan), (std::vector<std::string>{"a/0", "a/1", "b/1", "b/2", "b/0"}));
  // Rank 4 takes rows from the first members and returns their gradients to all.
  EXPECT_EQ(transfers(plan, 0, 4, 0).size(), 3U);  // h from two replicas, the table from one
  EXPECT_EQ(transfers(plan, 0, 4, 0, true).size(), 6U);
  EXPECT_TRUE(transfers(plan, 0, 3, 0).empty());
  const std::vector<Transfer> back = transfers(plan, 0, 3, 0, true);
  ASSERT_EQ(back.size(), 1U);
  EXPECT_EQ(back[0].peer, 4);
  EXPECT_EQ(back[0].rows, 1);
  EXPECT_FALSE(sends(plan, 3));
  EXPECT_TRUE(sends(plan, 1));
}

TEST(PlanTeams, MembersHoldTheirPartsOfBuckets) {
  const Plan plan = plan_with_teams();
  EXPECT_EQ(member_elements(plan, plan.buckets[1], 0, 0), 90);
  EXPECT_EQ(member_elements(plan, plan.buckets[1], 0, 1), 54);
  EXPECT_EQ(member_elements(plan, plan.buckets[0], 1, 0), 160);
}

TEST(PlanTeams, TextThatSaysNoTeamsIsNamed) {
  EXPECT_EQ(message_with("samples=3,1 body=t0", "samples=2,1,1 body=t0"),
            "m.plan:8:62: error: stage s0 has 4 ranks and 4 devices for 3 replicas\n"
            "    stage s0 ranks=0,2,1,3 devices=a/0,b/1,a/1,b/2 samples=2,1,1 body=t0 recompute=no "
            "operators=3\n"
            "                                                                 ^~~~~~~\n"
            "  hint: with body=, each number of samples is that of a team, and all teams have "
            "equally many ranks");
  EXPECT_EQ(message_with("    all-gather h to=copy", "    all-reduce h to=copy"),
            "m.plan:21:18: error: 'all-reduce h': what makes form 'copy' is 'all-gather'\n"
            "    all-reduce h to=copy\n"
            "                 ^~~~~~~\n"
            "  hint: the forms of 'h' are part:1:d0,part:1:d0>copy");
  EXPECT_NE(message_with("    all-gather h", "    all-gahter h").find("did you mean 'all-gather'?"),
            std::string::npos);
  EXPECT_NE(
      message_with("all-gather h to=copy", "all-gather h to=sum").find("'h' has no form 'sum'\n"),
      std::string::npos);
  EXPECT_NE(
      message_with("take-part h from", "take-part g from").find("the body lists no tensor 'g'\n"),
      std::string::npos);
  EXPECT_NE(message_with("compute relu .. fc1 count=2", "compute relu .. fc1 count=3")
                .find("count is 3, but 2 operators are from 'relu' back to 'fc1'\n"),
            std::string::npos);
  EXPECT_NE(message_with("compute relu .. fc1", "compute relu .. fc9")
                .find("the body's forward pass has no operator 'fc9'\n"),
            std::string::npos);
  EXPECT_NE(message_with("operators=3 tensors=3", "operators=4 tensors=3")
                .find("operators=4, but its lines have 3\n"),
            std::string::npos);
  EXPECT_NE(message_with("  division d0", "  divison d0").find("did you mean 'division'?"),
            std::string::npos);
  EXPECT_NE(
      message_with("  division d0", "  division d1").find("division d1 where d0 is expected\n"),
      std::string::npos);
  EXPECT_NE(message_with("forms=part:0:d0", "forms=part:0").find("forms is 'part:0'\n"),
            std::string::npos);
  EXPECT_NE(message_with("shape=8x16", "shape=8by16").find("shape is '8by16', not a shape"),
            std::string::npos);
}

TEST(PlanTeams, FaultsOfStagesAreNamed) {
  EXPECT_EQ(fault_with([](Plan& plan, PlanBody&) { plan.stages[0].further_ranks[1] = {0}; }),
            "plan: error: rank 0 is in stage s0 and in stage s0");
  EXPECT_EQ(fault_with([](Plan& plan, PlanBody&) { plan.stages[0].further_devices[1] = {"a/0"}; }),
            "plan: error: device 'a/0' has two ranks");
  EXPECT_EQ(
      fault_with([](Plan& plan, PlanBody&) { plan.stages[0].further_ranks[1].push_back(5); }),
      "plan: error: stage s0: its 2 replicas are not teams of equally many ranks, each with a "
      "device\n"
      "  hint: body= says what teams do; without it, a replica is one rank");
  EXPECT_EQ(fault_with([](Plan& plan, PlanBody&) { plan.stages[0].body = 1; }),
            "plan: error: stage s0 has body=t1, of 1 bodies\n"
            "  hint: each stage with teams has a body of its own, in the order of stages");
  EXPECT_EQ(fault_with([](Plan& plan, PlanBody& body) { plan.bodies.push_back(body); }),
            "plan: error: body t0 is of no stage\n  hint: a stage names its body by body=");
  EXPECT_EQ(fault_with([](Plan& plan, PlanBody&) { plan.stages[0].recompute = true; }),
            "stage s0 has teams, and recompute=yes\n  hint: the two do not go together yet");
}

TEST(PlanTeams, FaultsOfBodiesAreNamed) {
  EXPECT_EQ(fault_with([](Plan&, PlanBody&) {}), "");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.parts = {5, 3, 1};
            }),
            "parts of 3 members, teams of s0 have 2\n"
            "  hint: all replicas of a stage have as many members as its body has parts");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.divisions[0].pieces = {10, 6};
            }),
            "division d0 has pieces 10,6 for 2 members\n"
            "  hint: a piece at least for each member, in lowest terms");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.divisions.push_back({{1, 1}});
            }),
            "division d1 divides no operator");
  EXPECT_EQ(first_with([](Plan&, PlanBody& b) {
              b.divisions[0].pieces = {2, 1};
            }),
            "the parts part:1:d0 of 'fc1.weight' are not all of its axis 1 of 16, each once\n"
            "  hint: d0 makes 3 pieces of each band");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.operators[1].name = "tanh"; }),
            "its operators are not those of stage s0 from 'fc1' to 'relu'\n"
            "  hint: a body computes the operators of its stage, in the model's order");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.operators[2].division = 0; }),
            "'odd name' is whole, and divided");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.tensors.erase(b.tensors.begin());
              b.forward[1].tensor = b.backward[1].tensor = 1;
            }),
            "parameter 'fc1.weight' of bucket b1 is not listed\n"
            "  hint: a body says how each parameter of its stage lies");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.tensors[1].shape = {{24, 0}};
            }),
            "parameter 'fc1.bias' has 24 elements of fp32, bucket b1 has 16 of fp32");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.tensors[1].forms = {{Lying::kSum}}; }),
            "parameter 'fc1.bias' begins as sum\n"
            "  hint: a member holds a copy or a part of a parameter");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.tensors[1].forms.push_back({Lying::kCopy, 0, -1, {}, 0});
            }),
            "parameter 'fc1.bias' is gathered\n  hint: nothing gathers a parameter");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.tensors[2].forms.pop_back(); }),
            "'h' has one form\n"
            "  hint: only parameters, and tensors of several forms, are listed");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.tensors[2].forms[1].from = -1; }),
            "'h' begins in two forms");
}

TEST(PlanTeams, EachExchangeComesOnceInItsOrder) {
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.forward = {{0, 2}};
            }),
            "forward: the exchange of 'h' for copy is missing\n"
            "  hint: the forms of 'h' are part:1:d0,part:1:d0>copy");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.forward.push_back(b.forward[1]); }),
            "forward: the exchange of 'h' for copy comes twice, or is none\n"
            "  hint: each exchange that forms need comes once: parameters' gradients in step-end, "
            "others in backward");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.backward[1] = {0, -1, 0, 0};
            }).substr(0, 63),
            "backward: the exchange of 'fc1.weight' for part:1:d0 comes twic");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.step_end = {{0, -1, 2, 1}};
            }).substr(0, 43),
            "step-end: the exchange of 'h' for copy come");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) {
              b.forward = {{0, 0}, {1, 1}, {0, -1, 2, 1}, {2, 2}};
            }),
            "forward: two runs of operators with nothing between\n  hint: they are one run");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.backward.pop_back(); }),
            "backward: 'relu' is not computed");
  EXPECT_EQ(fault_with([](Plan&, PlanBody& b) { b.backward = b.forward; }),
            "backward: 'relu' comes where 'odd name' is expected\n"
            "  hint: backward passes go from the last operator to the first");
  EXPECT_EQ(
      first_with([](Plan&, PlanBody& b) {  // a third form, made of the copy before it is there
        b.tensors[2].forms.push_back({Lying::kPart, 1, 0, {8, 8}, 1});
        b.forward.insert(b.forward.begin() + 1, {0, -1, 2, 2});
        b.backward.insert(b.backward.begin() + 2, {0, -1, 2, 2});
      }),
      "forward: the exchange of 'h' for part:1:d0:8+8 comes before what it needs\n"
      "  hint: the forms of 'h' are part:1:d0,part:1:d0>copy,copy>part:1:d0:8+8");
}

TEST(PlanTeams, AreRefusedByNameWhereNobodyKnowsThem) {
  EXPECT_EQ(refuse_teams(plan_with_teams(), "agpcs-run").message(),
            "plan: error: stage s0 is computed by teams (body t0), which agpcs-run does not know "
            "yet\n  hint: plan with --without teams");
  EXPECT_TRUE(refuse_teams(*parse_plan(testing::kPlanText, "m.plan"), "agpcs-run").ok());
}

}  // namespace
}  // namespace agpcs
