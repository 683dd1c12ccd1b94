// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/file.h"
#include "tests/planner/problem/problems.h"
#include "tests/support/plan_builders.h"
#include "tools/common/svg.h"
#include "tools/plan/report/html_report.h"
#include "tools/plan/report/report_charts.h"
#include "tools/plan/search_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using namespace testing;  // NOLINT: the builders
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

std::size_t count_of(const std::string& text, const std::string& word) {
  std::size_t count = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    ++count;
  }
  return count;
}

/// Whether every tag is closed by its own end tag, in order.
bool well_formed(const std::string& html) {
  static const std::regex kTag(R"(<(/?)([a-z0-9]+)([^<>]*)>)");
  std::vector<std::string> open;
  std::string text = html.substr(html.find('\n') + 1);  // without <!DOCTYPE>
  const std::size_t style = text.find("<style>"), end = text.find("</style>");
  if (style != std::string::npos) text.erase(style, end + 8 - style);
  for (std::sregex_iterator tag(text.begin(), text.end(), kTag), last; tag != last; ++tag) {
    const std::string name = (*tag)[2], rest = (*tag)[3];
    if (name == "meta" || (!rest.empty() && rest.back() == '/')) continue;
    if ((*tag)[1] == "") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

TEST(Svg, TextIsEscapedAndWrongBytesReplaced) {
  EXPECT_EQ(html_text("a<b & \"c\" 'd'>"), "a&lt;b &amp; &quot;c&quot; &#39;d&#39;&gt;");
  EXPECT_EQ(html_text("\xc3\xa4 \xff\x01"), "\xc3\xa4 \xef\xbf\xbd\xef\xbf\xbd");
}

TEST(Svg, DrawsWhatItIsToldWithTitlesAndALabel) {
  Svg svg(100, "a < b");
  svg.rect(1, 2.25, 3, 4, "compute", "50% & more");
  svg.text(-0.01, 5, "x>y");
  svg.line(0, 0, 1, 1, "grid");
  svg.path("M0 0h1", "curve");
  EXPECT_EQ(svg.element(20),
            "<svg viewBox=\"0 0 100 20\" role=\"img\" aria-label=\"a &lt; b\">\n"
            "<rect x=\"1\" y=\"2.3\" width=\"3\" height=\"4\" class=\"compute\">"
            "<title>50% &amp; more</title></rect>\n"
            "<text x=\"0\" y=\"5\" class=\"\">x&gt;y</text>\n"
            "<line x1=\"0\" y1=\"0\" x2=\"1\" y2=\"1\" class=\"grid\"/>\n"
            "<path d=\"M0 0h1\" class=\"curve\"/>\n"
            "</svg>\n");
}

TEST(Svg, TicksAreRoundAndInside) {
  EXPECT_THAT(round_ticks(0, 1, 5), ElementsAre(0, 0.2, 0.4, 3 * 0.2, 0.8, 1));
  EXPECT_THAT(round_ticks(0.13, 0.49, 4), ElementsAre(0.2, 3 * 0.1, 0.4));
  EXPECT_THAT(round_ticks(-30, 80, 3), ElementsAre(0, 50));
}

TEST(SearchLog, ReadsWhatTheSearchWrote) {
  const auto log = parse_search_log(
      "episode,epsilon,loss,reward,best_cost\n0,1,0,-0.5,1\n7,0.1,2e-3,1.25,0.75\n", "log.csv");
  ASSERT_TRUE(log.ok()) << log.status().message();
  ASSERT_EQ(log->size(), 2u);
  EXPECT_EQ((*log)[1].episode, 7);
  EXPECT_EQ((*log)[1].epsilon, 0.1);
  EXPECT_EQ((*log)[1].loss, 0.002);
  EXPECT_EQ((*log)[1].reward, 1.25);
  EXPECT_EQ((*log)[1].best_cost, 0.75);
  EXPECT_EQ((*log)[0].reward, -0.5);
}

std::string error_of(const std::string& text) {
  const auto log = parse_search_log(text, "log.csv");
  return log.ok() ? "" : log.status().message();
}

TEST(SearchLog, WrongLinesAreNamedWithTheirPlace) {
  const std::string head = "episode,epsilon,loss,reward,best_cost\n";
  EXPECT_EQ(error_of(head + "0,1,0,1\n1,x,0,nan,1\n"),
            "log.csv:2:1: error: 4 values, not 5\n    0,1,0,1\n    ^~~~~~~\n"
            "log.csv:3:3: error: epsilon 'x' is not a finite number\n    1,x,0,nan,1\n      ^\n"
            "log.csv:3:7: error: reward 'nan' is not a finite number\n"
            "    1,x,0,nan,1\n          ^~~");
  EXPECT_EQ(error_of(head + "4,1,0,1,1\n4,1,0,1,1\n"),
            "log.csv:3:1: error: episode 4 follows episode 4\n    4,1,0,1,1\n    ^\n"
            "  hint: one search a log, its episodes in order");
  EXPECT_EQ(error_of("step,loss\n1,2\n"),
            "log.csv:1:1: error: this is no search log\n    step,loss\n    ^~~~~~~~~\n"
            "  hint: its first line is 'episode,epsilon,loss,reward,best_cost'");
  EXPECT_THAT(error_of(""), HasSubstr("log.csv:1:1: error: this is no search log\n"));
  EXPECT_THAT(error_of(head + "\n"), HasSubstr("log.csv:2:1: error: 1 values, not 5\n"));
}

TEST(SearchLog, AFileOfAnotherKindEndsAfterTenErrors) {
  std::string text = "episode,epsilon,loss,reward,best_cost\n";
  for (int i = 0; i < 1000; ++i) text += "nonsense\n";
  EXPECT_EQ(count_of(error_of(text), "error:"), 10u);
}

TEST(ReportCharts, LargeClustersHaveARowForAHostOrSeveral) {
  const Cluster cluster =
      cluster_of("kind g fp32=1e12\nhost a g 2\nhost b g 2\nhost c g 3\nhost d g 1\nhost e g 1\n");
  EXPECT_EQ(chart_rows(cluster, 9).size(), 9u);
  EXPECT_EQ(chart_rows(cluster, 9)[2].name, "b/0");
  const auto names = [&](std::size_t most) {
    std::vector<std::string> found;
    for (const ChartRow& row : chart_rows(cluster, most)) found.push_back(row.name);
    return found;
  };
  EXPECT_THAT(names(8), ElementsAre("a (2)", "b (2)", "c (3)", "d (1)", "e (1)"));
  EXPECT_THAT(names(3), ElementsAre("a .. b (4)", "c .. d (4)", "e (1)"));
  EXPECT_EQ(chart_rows(cluster, 3)[1].devices, std::vector<DeviceId>({4, 5, 6, 7}));
}

/// Two devices of equal and then better shares, and a pipeline, all simulated.
class Reported : public ::testing::Test {
 protected:
  SimulatedStep step_of(const std::string& strategy) const {
    return *simulated_step(plan_of(graph_, cluster_, strategy, 1024), graph_, cluster_);
  }

  Graph graph_ = chain(4, 1024);
  Cluster cluster_ = fast_and_slow();
  SimulatedStep equal_ = step_of("stage a/0=256 a/1=256 b/0=256 b/1=256 : *\n");
  SimulatedStep shares_ = step_of("stage a/0=400 a/1=400 b/0=112 b/1=112 : *\n");
  SimulatedStep pipeline_ =
      step_of("micro-batches 4\nstage a/0=256 recompute : h0..a1\nstage a/1=256 : *\n");
};

TEST_F(Reported, BarsOfADeviceAreItsPartsOfTheStep) {
  const std::string chart = utilization_chart(cluster_, nullptr, equal_);
  const DeviceEstimate& slow = equal_.estimate.devices[2];
  EXPECT_THAT(
      chart,
      HasSubstr("b/0: computing " + percent_text(slow.utilization) + ", exposed communication " +
                percent_text(slow.exposed_communication / equal_.estimate.step_seconds)));
  EXPECT_EQ(count_of(chart, "class=\"compute\""), 4u);
  EXPECT_THAT(chart, HasSubstr("this plan: step "));
  const std::string both = utilization_chart(cluster_, &equal_, shares_);
  EXPECT_EQ(count_of(both, "class=\"compute\""), 8u);
  EXPECT_THAT(both, HasSubstr("before: step "));
  EXPECT_THAT(both, HasSubstr("after: step "));
}

TEST_F(Reported, DevicesThatAPlanLeavesOutAreNotUsed) {
  const std::string chart = utilization_chart(cluster_, nullptr, pipeline_);
  EXPECT_EQ(count_of(chart, ">not used<"), 2u);
  EXPECT_EQ(count_of(memory_chart(cluster_, pipeline_), "class=\"kept\""), 2u);
}

/// What the path of class `css` covers, as a sum of widths x height over its boxes.
double covered(const std::string& chart, const std::string& css) {
  static const std::regex kBox(R"(M[^h]*h([0-9.]+)v([0-9.]+))");
  const std::regex path("<path d=\"([^\"]*)\" class=\"" + css + "\"/>");
  std::smatch match;
  if (!std::regex_search(chart, match, path)) return 0;
  const std::string boxes = match[1];
  double sum = 0;
  for (std::sregex_iterator box(boxes.begin(), boxes.end(), kBox), end; box != end; ++box) {
    sum += std::stod((*box)[1]) * std::stod((*box)[2]);
  }
  return sum;
}

TEST_F(Reported, TheTimelineCoversWhatComputationsTake) {
  for (const SimulatedStep* step : {&equal_, &shares_, &pipeline_}) {
    const std::string chart = timeline_chart(*step, step->estimate.step_seconds);
    double busy = 0;
    for (const DeviceEstimate& device : step->estimate.devices) busy += device.utilization;
    const double drawn =
        covered(chart, "forward") + covered(chart, "backward") + covered(chart, "update");
    EXPECT_NEAR(drawn / (790.0 * 11), busy, 0.02 * busy);
  }
}

TEST_F(Reported, ManyShortPassesCoverWhatTheyTakeInATimelineOfFewPieces) {
  SimulatedStep step = pipeline_;
  step.estimate.timeline.clear();
  step.estimate.step_seconds = 1;
  for (int i = 0; i < 100000; ++i) {  // each a hundredth of a column, three quarters of the time
    const double start = i * 1e-5;
    step.estimate.timeline.push_back({0, {Opcode::kForward, -1, i}, start, start + 0.75e-5});
  }
  const std::string chart = timeline_chart(step, 1);
  EXPECT_NEAR(covered(chart, "forward") / (790.0 * 11), 0.75, 0.01);
  EXPECT_LT(chart.size(), 20000u);
}

TEST_F(Reported, ThePageNeedsNothingElseAndIsWellFormed) {
  std::vector<EpisodeLog> log;
  for (int i = 0; i < 1000; ++i) log.push_back({i, 1 - i * 1e-3, 0.5, 0.9, 1.0});
  const std::string page = html_report({cluster_, shares_, &equal_, log});
  EXPECT_EQ(page.find("<!DOCTYPE html>\n"), 0u);
  for (const char* word : {"<script", "http:", "https:", "src=", "@import", "url("}) {
    EXPECT_THAT(page, Not(HasSubstr(word)));
  }
  EXPECT_TRUE(well_formed(page));
  for (const char* title : {"What each device does", "Timeline of the step", "Memory", "Stages",
                            "Gradient buckets", "Links", "Search"}) {
    EXPECT_THAT(page, HasSubstr("<h2>" + std::string(title) + "</h2>"));
  }
  EXPECT_EQ(page, html_report({cluster_, shares_, &equal_, log}));
}

TEST_F(Reported, SectionsWithoutContentAreLeftOut) {
  const std::string page = html_report({cluster_, pipeline_, nullptr, {}});
  EXPECT_TRUE(well_formed(page));
  EXPECT_THAT(page, Not(HasSubstr("Gradient buckets")));  // one device a stage: nothing is reduced
  EXPECT_THAT(page, Not(HasSubstr("<h2>Search")));
  EXPECT_THAT(page, Not(HasSubstr("Before")));
  EXPECT_THAT(page, HasSubstr("<dt>recomputation</dt><dd>1 of 2 stages</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>devices</dt><dd>2 of 4</dd>"));
  EXPECT_THAT(page, HasSubstr("<dt>micro-batches</dt><dd>4<small>of 256 samples</small></dd>"));
}

TEST_F(Reported, HeadlineFiguresAreComparedWithThePlanBefore) {
  const std::string page = html_report({cluster_, shares_, &equal_, {}});
  const double part = 1 - shares_.estimate.step_seconds / equal_.estimate.step_seconds;
  ASSERT_GT(part, 0.05);
  EXPECT_THAT(page, HasSubstr(": " + percent_text(part) + " shorter</small>"));
  EXPECT_THAT(html_report({cluster_, shares_, &shares_, {}}), HasSubstr(": the same</small>"));
}

TEST_F(Reported, NamesAreEscapedEverywhere) {
  SimulatedStep step = shares_;
  step.plan.model = "<b>&";
  step.plan.made_by.seeder = "\"x\"<";
  const std::string page = html_report({cluster_, step, &step, {}});
  EXPECT_THAT(page, HasSubstr("<h1>&lt;b&gt;&amp; on "));
  EXPECT_THAT(page, Not(HasSubstr("<b>")));
  EXPECT_TRUE(well_formed(page));
}

TEST_F(Reported, ASearchThatDidNotLearnIsLeftOut) {
  std::vector<EpisodeLog> log = {{0, 0, 0, 0.9, 1}, {1, 0, 0, 1, 0.9}};
  EXPECT_THAT(html_report({cluster_, pipeline_, nullptr, log}), Not(HasSubstr("<h2>Search")));
  log.front().epsilon = 1;
  EXPECT_THAT(html_report({cluster_, pipeline_, nullptr, log}), HasSubstr("<h2>Search"));
}

TEST(LearningChart, OneEpisodeAndConstantValuesAreDrawn) {
  const std::vector<EpisodeLog> one = {{5, 1, 0, 0.9, 1}};
  const std::string chart = learning_chart(one);
  EXPECT_EQ(count_of(chart, "class=\"curve\""), 4u);
  EXPECT_THAT(chart, Not(HasSubstr("nan")));
  EXPECT_THAT(chart, Not(HasSubstr("inf")));
}

TEST(LearningChart, ALongSearchIsDrawnWithMeansAndRanges) {
  std::vector<EpisodeLog> log;
  for (int i = 0; i < 100000; ++i) log.push_back({i, 0.5, i % 2 == 0 ? 0.0 : 1.0, 1, 1});
  const std::string chart = learning_chart(log);
  EXPECT_LT(chart.size(), 60000u);
  EXPECT_EQ(count_of(chart, "class=\"band\""), 4u);
}

}  // namespace
}  // namespace agpcs
