// SPDX-License-Identifier: Apache-2.0
// Flows as MSCCL's XML, judged by tests/codegen/check_msccl.py, which knows nothing of AGPCS.
#include "codegen/export_msccl.h"
#include "ir/base/rng.h"
#include "tests/support/checker.h"
#include "tests/support/plan_flows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What the checker says of a file with this text.
std::string checked(const std::string& xml) {
  const testing::CheckerSays said =
      testing::run_checker("tests/codegen/check_msccl.py", xml, ".xml");
  EXPECT_EQ(said.fine, said.output.rfind("ok: ", 0) == 0) << said.output;
  return said.output;
}

std::string xml_of(const PlanFlow& flow, int members) {
  const Result<std::string> xml = msccl_xml(flow, members);
  return xml.ok() ? *xml : xml.status().message();
}

TEST(Msccl, ARingOfTwoIsTwoThreadBlocksEach) {
  EXPECT_EQ(
      xml_of(testing::ring_flow(2), 2),
      R"(<algo name="agpcs-f0" nchunksperloop="2" nchannels="1" proto="Simple" ngpus="2" coll="allreduce" redop="sum" inplace="1" outofplace="0" minBytes="0" maxBytes="34359738368">
  <gpu id="0" i_chunks="2" o_chunks="2" s_chunks="0">
    <tb id="0" send="1" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="1" deps="0" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="1" chan="0">
      <step s="0" type="rrc" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="r" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="0" deps="0" hasdep="0"/>
    </tb>
  </gpu>
  <gpu id="1" i_chunks="2" o_chunks="2" s_chunks="0">
    <tb id="0" send="0" recv="-1" chan="0">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="s" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="1" deps="0" hasdep="0"/>
    </tb>
    <tb id="1" send="-1" recv="0" chan="0">
      <step s="0" type="rrc" srcbuf="i" srcoff="1" dstbuf="i" dstoff="1" cnt="1" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="r" srcbuf="i" srcoff="0" dstbuf="i" dstoff="0" cnt="1" depid="0" deps="0" hasdep="0"/>
    </tb>
  </gpu>
</algo>
)");
}

TEST(Msccl, EveryFlowIsAnOrderedSum) {
  for (const int members : {2, 3, 5, 8}) {
    EXPECT_THAT(checked(xml_of(testing::ring_flow(members), members)), StartsWith("ok: "));
    EXPECT_THAT(checked(xml_of(testing::ring_flow(members, 2), members)), StartsWith("ok: "));
    EXPECT_THAT(checked(xml_of(testing::star_flow(members), members)), StartsWith("ok: "));
    for (std::uint64_t seed = 0; seed < 4; ++seed) {
      const PlanFlow flow =
          testing::random_flow(members, 1 + static_cast<int>(seed) % 3, Rng(seed));
      EXPECT_THAT(checked(xml_of(flow, members)), StartsWith("ok: "));
    }
  }
  EXPECT_THAT(checked(xml_of(testing::star_flow(20), 20)), StartsWith("ok: 20 gpus"));
}

TEST(Msccl, MoreStepsThanItHasAreRefused) {
  EXPECT_THAT(xml_of(testing::ring_flow(3, 200), 3),
              HasSubstr("messages from member 0 to member 1, MSCCL takes 256 steps"));
  EXPECT_EQ(xml_of(testing::star_flow(110), 110),
            "member 0 needs 218 thread blocks, MSCCL has 216");
}

// The checker itself: a file with one attribute changed, or a step gone, is never taken for a sum.
TEST(Msccl, ACorruptedFileIsNeverAccepted) {
  const std::string xml = xml_of(testing::random_flow(4, 1, Rng(7)), 4);
  Rng rng(3);
  int tries = 0;
  for (const std::string key : {"srcoff", "dstoff", "type", "hasdep", "send", "chan"}) {
    std::vector<std::size_t> places;
    for (std::size_t at = 0; (at = xml.find(" " + key + "=\"", at)) != std::string::npos; ++at) {
      places.push_back(at + key.size() + 3);
    }
    for (int i = 0; i < 4; ++i) {
      std::string other = xml;
      const std::size_t at = places[rng.below(places.size())];
      const std::size_t end = xml.find('"', at);
      const std::string value = xml.substr(at, end - at);
      const std::string changed = key == "type"   ? (value == "rrc" ? "r" : "rrc")
                                  : key == "chan" ? "1"
                                                  : (value == "0" ? "1" : "0");
      // A receive has no source, and a send no target: what is written there says nothing.
      const std::string line = xml.substr(xml.rfind('\n', at) + 1, end - xml.rfind('\n', at));
      if (key == "srcoff" && line.find("type=\"r\"") != std::string::npos) continue;
      if (key == "dstoff" && line.find("type=\"s\"") != std::string::npos) continue;
      if (value == changed) continue;
      other.replace(at, end - at, changed);
      ++tries;
      EXPECT_EQ(checked(other).find("ok: "), std::string::npos) << key << " " << value << line;
    }
  }
  for (int i = 0; i < 6; ++i) {
    std::vector<std::size_t> steps;
    for (std::size_t at = 0; (at = xml.find("      <step", at)) != std::string::npos; ++at) {
      steps.push_back(at);
    }
    std::string other = xml;
    const std::size_t at = steps[rng.below(steps.size())];
    other.erase(at, xml.find('\n', at) + 1 - at);
    ++tries;
    EXPECT_EQ(checked(other).find("ok: "), std::string::npos) << at;
  }
  EXPECT_GT(tries, 20);
}

TEST(Msccl, WithoutItsDependenciesNoFileIsAccepted) {
  std::string xml;
  const std::string text = xml_of(testing::star_flow(3), 3);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t depends = text.find("depid=", at);
    xml += text.substr(at, depends - at);
    if (depends == std::string::npos) break;
    xml += R"(depid="-1" deps="-1" hasdep="0")";
    at = text.find("/>", depends);
  }
  EXPECT_THAT(checked(xml), HasSubstr("both touch ('i', "));
}

}  // namespace
}  // namespace agpcs
