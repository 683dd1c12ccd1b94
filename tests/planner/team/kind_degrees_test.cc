// SPDX-License-Identifier: Apache-2.0
#include "planner/team/kind_degrees.h"

#include "ir/base/rng.h"
#include "planner/problem/shares.h"
#include "tests/planner/problem/problems.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Hosts with so many devices each, and their kinds.
Cluster hosts_of(const std::vector<std::pair<std::string, int>>& hosts) {
  std::string text =
      "kind fast memory=16e9 bandwidth=900e9 fp32=15e12\n"
      "kind slow memory=8e9 bandwidth=300e9 fp32=5e12\n";
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    text += fmt::format("host h{} {} {} bandwidth=300e9 nic=300e9\n", h, hosts[h].first,
                        hosts[h].second);
  }
  return testing::cluster_of(text);
}

std::vector<DeviceId> all_of(const Cluster& cluster) {
  std::vector<DeviceId> devices;
  for (DeviceId id = 0; id < cluster.device_count(); ++id) devices.push_back(id);
  return devices;
}

/// "1-2 1-4": the degree of each kind, by kind.
std::string text_of(const std::vector<KindDegrees>& all) {
  std::vector<std::string> words;
  for (const KindDegrees& degrees : all) {
    std::string word;
    for (const auto& [kind, degree] : degrees) {
      word += fmt::format("{}{}", word.empty() ? "" : "-", degree);
    }
    words.push_back(word);
  }
  std::ranges::sort(words);
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

TEST(KindDegrees, AreThoseThatSomeHostHas) {
  const Cluster cluster = hosts_of({{"fast", 2}, {"slow", 4}});
  EXPECT_EQ(text_of(all_kind_degrees(cluster, all_of(cluster))), "1-2 1-4 2-1 2-2 2-4");
  EXPECT_EQ(text_of(all_kind_degrees(cluster, {0, 2, 3, 4})), "1-2");
  EXPECT_EQ(text_of(all_kind_degrees(cluster, {0, 1})), "");  // of one kind
  const Cluster apart = hosts_of({{"fast", 1}, {"slow", 1}, {"slow", 1}});
  EXPECT_EQ(text_of(all_kind_degrees(apart, all_of(apart))), "1-2");  // no host has a team
}

TEST(KindDegrees, AreUnlikeIfTwoDiffer) {
  EXPECT_TRUE(are_unlike(KindDegrees{{0, 1}, {1, 2}}));
  EXPECT_FALSE(are_unlike(KindDegrees{{0, 2}, {1, 2}}));
}

TEST(KindDegrees, TeamsAreOfOneKindAndLeaveOutWhatMakesNone) {
  const Cluster cluster = hosts_of({{"fast", 2}, {"slow", 3}, {"slow", 2}});
  EXPECT_THAT(teams_of_kinds(cluster, all_of(cluster), {{0, 1}, {1, 2}}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2, 3), ElementsAre(5, 6)));
  EXPECT_THAT(teams_of_kinds(cluster, {0, 1, 2}, {{0, 2}}), ElementsAre(ElementsAre(0, 1)));
}

TEST(KindDegrees, AreReadFromAStage) {
  const Cluster cluster = hosts_of({{"fast", 2}, {"slow", 4}});
  StageSpec spec;
  spec.devices = {0, 1, 2, 4};
  spec.further = {{}, {}, {3}, {5}};
  spec.shares = {1, 1, 1, 1};
  EXPECT_THAT(degrees_of(cluster, spec), IsEmpty());  // no bodies
  spec.body = 0;
  spec.bodies = {0, 0, 1, 1};
  EXPECT_EQ(degrees_of(cluster, spec), (KindDegrees{{0, 1}, {1, 2}}));
  spec.devices = {0, 1, 2};
  spec.further = {{}, {}, {3, 4, 5}};
  spec.bodies = {0, 0, 1};
  EXPECT_EQ(degrees_of(cluster, spec), (KindDegrees{{0, 1}, {1, 4}}));
  spec.further = {{5}, {}, {3, 4}};  // a team of two kinds
  EXPECT_THAT(degrees_of(cluster, spec), IsEmpty());
  spec.further = {{}, {}, {3}};
  spec.devices = {0, 1, 4};
  spec.further = {{}, {5}, {}};
  EXPECT_THAT(degrees_of(cluster, spec), IsEmpty());
}

/// The best slowest team of all ways to give each team samples.
double least_of_all(StageTimer& timer, const Cluster& cluster,
                    const std::vector<std::vector<DeviceId>>& teams, std::size_t first,
                    std::int64_t samples) {
  if (first == teams.size()) return samples == 0 ? 0 : std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  for (std::int64_t own = 1; own <= samples; ++own) {
    const int kind = cluster.devices[static_cast<std::size_t>(teams[first][0])].kind;
    const double seconds = timer.seconds(kind, own) / static_cast<double>(teams[first].size());
    least = std::min(
        least, std::max(seconds, least_of_all(timer, cluster, teams, first + 1, samples - own)));
  }
  return least;
}

TEST(KindDegrees, TheLeastSecondsAreThoseOfTheBestShares) {
  const auto problem =
      testing::problem_of(testing::chain(3, 4096), hosts_of({{"fast", 2}, {"slow", 4}}), 32);
  const Cluster& cluster = problem->cluster;
  StageTimer timer(*problem, all_ops(*problem));
  for (const KindDegrees& degrees : all_kind_degrees(cluster, all_of(cluster))) {
    const auto teams = teams_of_kinds(cluster, all_of(cluster), degrees);
    for (std::int64_t samples = static_cast<std::int64_t>(teams.size()); samples < 11; ++samples) {
      const double least = least_seconds_of_teams(cluster, timer, teams, samples);
      EXPECT_DOUBLE_EQ(least, least_of_all(timer, cluster, teams, 0, samples)) << samples;
    }
    // With many samples, all devices divide them by their speeds, whatever the teams.
    const std::int64_t many = 16 * static_cast<std::int64_t>(teams.size()) + 1;
    const double speed = 2 / timer.seconds(0, many) + 4 / timer.seconds(1, many);
    EXPECT_DOUBLE_EQ(least_seconds_of_teams(cluster, timer, teams, many), 1 / speed);
  }
}

}  // namespace
}  // namespace agpcs
