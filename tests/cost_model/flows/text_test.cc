// SPDX-License-Identifier: Apache-2.0
#include "cost_model/flows/text.h"

#include "ir/base/rng.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace agpcs {
namespace {

using ::testing::HasSubstr;

constexpr char kRing[] =
    "agpcs-flow-schedule 1\n"
    "topology torus:3\n"
    "sub-chunks 1\n"
    "round 0\n"
    "  reduce s0:0 s1 s2\n"
    "  reduce s1:0 s2 s0\n"
    "  reduce s2:0 s0 s1\n"
    "round 1\n"
    "  reduce s0:0 s2 s0\n"
    "  reduce s1:0 s0 s1\n"
    "  reduce s2:0 s1 s2\n"
    "round 2\n"
    "  gather s0:0 s0 s1\n"
    "  gather s1:0 s1 s2\n"
    "  gather s2:0 s2 s0\n"
    "round 3\n"
    "  gather s0:0 s1 s2\n"
    "  gather s1:0 s2 s0\n"
    "  gather s2:0 s0 s1\n";

Topology triangle() { return *make_topology("torus:3"); }

std::string error_of(const std::string& from, const std::string& to) {
  std::string text = kRing;
  text.replace(text.find(from), from.size(), to);
  const Result<FlowSchedule> schedule = parse_flow_schedule(text, "f", triangle());
  return schedule.ok() ? "ok" : schedule.status().message();
}

TEST(FlowText, IsReadAndPrintedAlike) {
  const Result<FlowSchedule> schedule = parse_flow_schedule(kRing, "f", triangle());
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  EXPECT_EQ(verify_schedule(triangle(), *schedule).message(), "");
  EXPECT_EQ(check_sums(*schedule, 1).message(), "");
  EXPECT_EQ(schedule->sub_rounds(), 4);
  EXPECT_EQ(print_flow_schedule(triangle(), *schedule), kRing);
}

TEST(FlowText, NamesSwitchesAndSubChunks) {
  const Topology topology = *make_topology("switch:2");
  const std::string text =
      "agpcs-flow-schedule 1\ntopology switch:2\nsub-chunks 2\n"
      "round 0\n  reduce s0:1 s1 w0 s0\n  reduce s1:0 s0 w0 s1\n"
      "round 1\n  reduce s0:0 s1 w0 s0\n  reduce s1:1 s0 w0 s1\n"
      "round 2\n  gather s0:0 s0 w0 s1\n  gather s1:0 s1 w0 s0\n"
      "round 3\n  gather s0:1 s0 w0 s1\n  gather s1:1 s1 w0 s0\n";
  const Result<FlowSchedule> schedule = parse_flow_schedule(text, "f", topology);
  ASSERT_TRUE(schedule.ok()) << schedule.status().message();
  EXPECT_EQ(verify_schedule(topology, *schedule).message(), "");
  EXPECT_EQ(print_flow_schedule(topology, *schedule), text);
}

TEST(FlowText, SkipsCommentsAndEmptyLines) {
  std::string text = kRing;
  text.insert(text.find("round 1"), "# the second half\n\n");
  EXPECT_TRUE(parse_flow_schedule(text, "f", triangle()).ok());
}

TEST(FlowText, SaysWhatIsWrongWhere) {
  struct Row {
    const char *from, *to, *says;
  };
  for (const Row& row : {
           Row{"agpcs-flow-schedule 1", "agpcs-plan 1", "f:1:1: error: this is no flow schedule"},
           {"schedule 1", "schedule 2", "f:1:21: error: version '2' of the format is not known"},
           {"topology torus:3", "rounds 3", "f:2:1: error: 'rounds' in place of the topology"},
           {"sub-chunks 1", "sub-chunks 0", "f:3:12: error: '0' in place of the sub-chunks"},
           {"round 1", "round x", "f:8:7: error: 'x' is no round"},
           {"round 2", "round 1", "f:12:7: error: round 1 comes after round 1"},
           {"round 0\n", "", "f:4:3: error: a message before the first round"},
           {"reduce s0:0 s1 s2", "reduc s0:0 s1 s2", "did you mean 'reduce'?"},
           {"s0:0 s1 s2", "s0:1 s1 s2", "f:5:10: error: 's0:1' is no sub-chunk"},
           {"s0:0 s1 s2", "s0 s1 s2", "error: 's0' is no sub-chunk"},
           {"s0:0 s1 s2", "s0:0 s1", "error: a message of fewer than two nodes"},
           {"s0:0 s1 s2", "s0:0 s1 s4", "f:5:18: error: the topology has no node 's4'"},
           {"s0:0 s1 s2", "s0:0 s1 s2 s0", "f:5:18: error: 's2' is a server"},
           {"s0:0 s1 s2", "s0:0 s1 s1", "error: no link leads from s1 to s1"},
       }) {
    EXPECT_THAT(error_of(row.from, row.to), HasSubstr(row.says));
  }
  EXPECT_THAT(parse_flow_schedule("", "f", triangle()).status().message(),
              HasSubstr("the file ends before its messages"));
}

TEST(FlowText, StopsAfterTenErrors) {
  std::string text = "agpcs-flow-schedule 1\ntopology torus:3\nsub-chunks 1\nround 0\n";
  for (int i = 0; i < 100; ++i) text += "  reduce s0:0 s9 s8\n";
  const std::string message = parse_flow_schedule(text, "f", triangle()).status().message();
  std::size_t count = 0;
  for (std::size_t at = 0; (at = message.find("error:", at)) != std::string::npos; ++at) ++count;
  EXPECT_EQ(count, 10u);
}

// Whatever bytes change: it is refused, or what it says is an all-reduce.
TEST(FlowText, AChangedTextNeverPassesAsAWrongSchedule) {
  constexpr std::string_view kBytes = "0123456789 srw:\n\t\xff#-";
  Rng rng(7);
  int refused = 0;
  for (int i = 0; i < 3'000; ++i) {
    std::string text = kRing;
    for (std::uint64_t change = 0; change <= rng.below(3); ++change) {
      const std::size_t at = rng.below(text.size());
      if (rng.below(3) == 0) {
        text.erase(at, 1 + rng.below(4));
      } else {
        text[at] = kBytes[rng.below(kBytes.size())];
      }
    }
    const Result<FlowSchedule> schedule = parse_flow_schedule(text, "f", triangle());
    if (!schedule.ok() || !verify_schedule(triangle(), *schedule).ok()) {
      ++refused;
      continue;
    }
    EXPECT_EQ(check_sums(*schedule, 1).message(), "") << text;
  }
  EXPECT_GT(refused, 2'000);
}

TEST(FlowText, NamesItsTopology) {
  EXPECT_EQ(*topology_of_flow_schedule(kRing, "f"), "torus:3");
  EXPECT_THAT(topology_of_flow_schedule("x\n", "f").status().message(),
              HasSubstr("f: error: no line 'topology NAME'"));
}

}  // namespace
}  // namespace agpcs
