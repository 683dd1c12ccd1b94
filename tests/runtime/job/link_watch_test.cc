// SPDX-License-Identifier: Apache-2.0
#include "runtime/job/link_watch.h"

#include "tests/runtime/plans.h"

#include <gtest/gtest.h>

#include <vector>

namespace agpcs {
namespace {

/// Two links, of which the second takes `factor` times as long as at first.
std::vector<LinkMeasurement> links(double factor) {
  return {{0, 1, 1e-9, 1e-4}, {1, 0, 1e-9 * factor, 1e-4}};
}

/// Sends 56 bytes over each of the two links, in steps of `seconds`.
Plan plan_of(double seconds) {
  Plan plan = make_plan({{{4, 4}}, {}});
  for (Expectation& line : plan.expect) {
    if (line.name == "step") line.value = seconds;
  }
  return plan;
}
LinkWatch watch_of(double seconds = 1e-7) { return LinkWatch(plan_of(seconds)); }

constexpr bool kSuspected = true, kAsked = true;

TEST(LinkWatch, TheFirstProbeOfAPlanIsDueAtOnceAndTellsNothing) {
  LinkWatch watch = watch_of();
  EXPECT_TRUE(watch.due(false, false));
  EXPECT_FALSE(watch.note(links(3)));
  EXPECT_FALSE(watch.due(false, false));
  EXPECT_FALSE(watch.changed());
}

TEST(LinkWatch, AChangeIsToldWhenASecondProbeFindsItToo) {
  LinkWatch watch = watch_of();
  watch.note(links(1));
  ASSERT_TRUE(watch.due(kSuspected, false));
  EXPECT_FALSE(watch.note(links(4)));
  ASSERT_TRUE(watch.due(false, false)) << "to confirm";
  EXPECT_TRUE(watch.note(links(4.1)));
  EXPECT_TRUE(watch.changed());
  EXPECT_FALSE(watch.due(false, false));
  EXPECT_DOUBLE_EQ(watch.before()[1].seconds_per_byte, 1e-9);
  EXPECT_DOUBLE_EQ(watch.now()[1].seconds_per_byte, 4.1e-9);
}

TEST(LinkWatch, WhatIsToldIsNotToldAgain) {
  LinkWatch watch = watch_of();
  for (const double factor : {1, 4, 4}) watch.note(links(factor));
  EXPECT_FALSE(watch.note(links(4)));
  EXPECT_FALSE(watch.note(links(4.4)));
  EXPECT_TRUE(watch.changed());
}

TEST(LinkWatch, ALinkThatIsAsItWasIsToldToo) {
  LinkWatch watch = watch_of();
  for (const double factor : {1, 4, 4, 1}) watch.note(links(factor));
  EXPECT_TRUE(watch.note(links(1.1)));
  EXPECT_FALSE(watch.changed());
}

TEST(LinkWatch, WhatHardlyMattersToAStepConfirmsNoSuspicionButAnswersWhoAsks) {
  LinkWatch watch = watch_of(1e-3);  // 56 bytes, 3 ns a byte longer
  watch.note(links(1));
  for (int i = 0; i < 5; ++i) {
    watch.due(kSuspected, false);
    EXPECT_FALSE(watch.note(links(4)));
  }
  ASSERT_TRUE(watch.due(false, kAsked));
  EXPECT_FALSE(watch.note(links(4)));
  ASSERT_TRUE(watch.due(false, false)) << "to confirm";
  EXPECT_TRUE(watch.note(links(4)));
}

TEST(LinkWatch, ALinkWhoseEndWasHeldBackStaysAsItWasKnown) {
  LinkWatch watch = watch_of();
  watch.note(links(1));
  std::vector<LinkMeasurement> held = links(4);
  held[1].held = true;
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(watch.note(held));
  EXPECT_FALSE(watch.changed());
  EXPECT_DOUBLE_EQ(watch.now()[1].seconds_per_byte, 1e-9);
  EXPECT_FALSE(watch.note(links(4)));
  EXPECT_TRUE(watch.note(links(4)));
}

TEST(LinkWatch, ALinkWhoseEndWasHeldBackAtFirstIsKnownFromALaterProbe) {
  LinkWatch watch = watch_of();
  std::vector<LinkMeasurement> held = links(4);
  held[1].held = true;
  EXPECT_FALSE(watch.note(held));
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(watch.note(links(1)));
  EXPECT_FALSE(watch.changed());
  EXPECT_TRUE(watch.slow().empty());
  EXPECT_DOUBLE_EQ(watch.before()[1].seconds_per_byte, 1e-9);
  EXPECT_DOUBLE_EQ(watch.first()[1].seconds_per_byte, 1e-9);
}

TEST(LinkWatch, SaysWhetherWhatItAcceptsDiffersFromWhatWasTold) {
  LinkWatch watch = watch_of();
  watch.note(links(1));
  EXPECT_FALSE(watch.accept());
  watch.note(links(4));
  EXPECT_TRUE(watch.accept());
  EXPECT_FALSE(watch.accept());
}

TEST(LinkWatch, OneProbeThatMetOtherTrafficTellsNothing) {
  LinkWatch watch = watch_of();
  for (const double factor : {1, 4, 1, 4, 1}) EXPECT_FALSE(watch.note(links(factor)));
}

TEST(LinkWatch, SuspicionsThatProbesDoNotConfirmWaitTwiceAsLongEachTime) {
  LinkWatch watch = watch_of();
  watch.note(links(1));
  std::vector<int> probed;
  for (int exchange = 0; exchange < 1200; ++exchange) {
    if (!watch.due(kSuspected, false)) continue;
    probed.push_back(exchange);
    EXPECT_FALSE(watch.note(links(1)));
  }
  EXPECT_EQ(probed, (std::vector<int>{0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 767, 1023}));
  EXPECT_TRUE(watch.due(false, kAsked)) << "who asks does not wait";
}

TEST(LinkWatch, AChangeMakesItAttentiveAgain) {
  LinkWatch watch = watch_of();
  for (int i = 0; i < 10; ++i) watch.note(links(1));
  EXPECT_FALSE(watch.due(kSuspected, false));
  watch.note(links(4));
  ASSERT_TRUE(watch.note(links(4)));
  EXPECT_TRUE(watch.due(kSuspected, false));
}

TEST(LinkWatch, LinksThatAreSlowerThanAtFirstAreGlancedAtInLaterPlansToo) {
  LinkWatch watch = watch_of();
  for (const double factor : {1, 4, 4}) watch.note(links(factor));
  ASSERT_EQ(watch.slow().size(), 1U);
  EXPECT_DOUBLE_EQ(watch.slow()[0].seconds_per_byte, 4e-9);
  LinkWatch later(plan_of(1e-7), watch.first());
  EXPECT_TRUE(later.slow().empty()) << "not known before it is probed";
  later.note(links(4));
  ASSERT_EQ(later.slow().size(), 1U);
  EXPECT_EQ(later.slow()[0].from, 1);
  EXPECT_FALSE(later.changed()) << "since this plan began";
}

TEST(LinkWatch, LinksThatAreSlowTakeTurnsForGlances) {
  LinkWatch watch = watch_of();
  const auto both_slow = [] {
    std::vector<LinkMeasurement> slow = links(4);
    slow[0].seconds_per_byte *= 4;
    return slow;
  };
  watch.note(links(1));
  for (int i = 0; i < 2; ++i) watch.note(both_slow());
  ASSERT_EQ(watch.slow().size(), 2U);
  std::vector<int> from;
  for (int i = 0; i < 4; ++i) {
    from.push_back(watch.glance_at().from);
    EXPECT_FALSE(watch.glance({watch.glance_at()}));
  }
  EXPECT_EQ(from, (std::vector<int>{0, 1, 0, 1}));
}

TEST(LinkWatch, SaysForAFewExchangesThatLinksHaveReturned) {
  LinkWatch watch = watch_of();
  for (const double factor : {1, 4, 4}) watch.note(links(factor));
  EXPECT_FALSE(watch.returned_lately());
  for (const double factor : {1, 1}) watch.note(links(factor));
  int exchanges = 0;
  while (watch.returned_lately()) ++exchanges;
  EXPECT_EQ(exchanges, 6);
  EXPECT_FALSE(watch.returned_lately());
  for (const double factor : {0.2, 0.2}) watch.note(links(factor));
  EXPECT_FALSE(watch.returned_lately()) << "none was slow";
}

TEST(LinkWatch, AGlanceWhoseEndWasHeldBackSaysNothing) {
  LinkWatch watch(plan_of(1e-3), links(1));
  watch.note(links(4));
  LinkMeasurement held = links(1)[1];
  held.held = true;
  EXPECT_FALSE(watch.glance({held}));
  EXPECT_EQ(watch.glances_in_vain(), 0);
}

TEST(LinkWatch, AGlanceThatSeesAFasterLinkAsksForProbes) {
  LinkWatch watch(plan_of(1e-3), links(1));  // to such a step it hardly matters
  watch.note(links(4));
  EXPECT_FALSE(watch.glance({links(4.2)[1]}));
  EXPECT_FALSE(watch.glance({links(8)[1]}));
  ASSERT_TRUE(watch.glance({links(1)[1]}));
  EXPECT_EQ(watch.glances_in_vain(), 1);
  EXPECT_FALSE(watch.note(links(1.1)));
  ASSERT_TRUE(watch.confirming());
  EXPECT_TRUE(watch.note(links(1.1)));
  EXPECT_TRUE(watch.slow().empty());
  EXPECT_EQ(watch.glances_in_vain(), 0);
}

}  // namespace
}  // namespace agpcs
