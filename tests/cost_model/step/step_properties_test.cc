// SPDX-License-Identifier: Apache-2.0
// What holds for every step, whatever its figures.
//
// A faster device or link may make a step longer where links are shared: what finishes earlier may
// meet other messages (Graham's anomalies, SIAM J. Appl. Math. 17(2), 1969, arise where the order
// of work depends on time). Here streams are in order, so that without sharing an instruction's
// start is a maximum of sums of earlier durations, and no duration that shrinks can delay it. The
// plans tried below are of that sort, but that an activation and a gradient may meet at the port of
// an inner stage of the pipeline of four; the one whose transfers share network cards is left out.
#include "tests/cost_model/step/steps.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::chain_of;
using testing::event_of;
using testing::kInstant;
using testing::kUnit;
using testing::Step;

constexpr const char* kHosts =
    "host a unit 2 bandwidth=1e9 latency=1e-6 nic=5e8\nhost b unit 2 bandwidth=1e9 latency=2e-6 "
    "nic=4e8\n";

/// Data parallel, pipelines, both; equal and unequal shares.
const std::vector<std::string>& strategies() {
  static const std::vector<std::string> all = {
      "stage a/0=2 a/1=2 b/0=3 b/1=1 : *\nbucket 0 ring w6 w5 w4\nbucket 0 ring w3 w2 w1\n",
      "stage a/0=2 a/1=2 b/0=2 b/1=2 : *\nbucket 0 hierarchical w6 w5 w4 w3 w2 w1\n",
      "stage a/0=2 a/1=2 b/0=2 b/1=2 : *\nbucket 0 tree w6 w5 w4 w3 w2 w1\n",
      "micro-batches 4\nstage a/0=2 : h1 h2\nstage b/0=2 : *\n",
      "micro-batches 8 gpipe\nstage a/0=1 : h1\nstage a/1=1 : h2 h3\nstage b/0=1 : h4\n"
      "stage b/1=1 : *\n",
      "micro-batches 2\nstage a/0=3 a/1=1 recompute : h1..h3\nstage b/0=1 b/1=3 : *\n",
  };
  return all;
}

/// The step's seconds when one device of four has a kind of its own, `factor` times as fast.
double with_faster_device(const std::string& strategy, int device, double factor) {
  Step step(chain_of(6), kUnit + std::string(kHosts), strategy, 8);
  DeviceKind fast = step.cluster.kinds[0];
  fast.peak_flops[Precision::kFp32] *= factor;
  step.cluster.kinds.push_back(fast);
  step.cluster.devices[static_cast<std::size_t>(device)].kind = 1;
  step.costs =
      std::make_unique<CostTable>(*CostTable::make(step.graph, step.cluster, step.plan.training));
  return step.simulate().step_seconds;
}

TEST(StepProperties, AFasterDeviceNeverMakesTheStepLonger) {
  for (const std::string& strategy : strategies()) {
    if (strategy == strategies().back()) continue;  // its transfers share network cards
    for (int device = 0; device < 4; ++device) {
      double before = with_faster_device(strategy, device, 0.5);
      for (const double factor : {0.8, 1.0, 1.5, 4.0, 100.0}) {
        const double now = with_faster_device(strategy, device, factor);
        EXPECT_LE(now, before * (1 + 1e-12)) << strategy << "device " << device << " x" << factor;
        before = now;
      }
    }
  }
}

TEST(StepProperties, AFasterLinkNeverMakesTheStepLonger) {
  for (const std::string& strategy : strategies()) {
    if (strategy == strategies().back()) continue;
    Step step(chain_of(6), kUnit + std::string(kHosts), strategy, 8);
    const double before = step.simulate().step_seconds;
    for (Link& link : step.cluster.links) {
      const Link slow = link;
      link.bandwidth *= 3;
      EXPECT_LE(step.simulate().step_seconds, before * (1 + 1e-12)) << strategy << link.name;
      link.latency /= 2;
      EXPECT_LE(step.simulate().step_seconds, before * (1 + 1e-12)) << strategy << link.name;
      link = slow;
    }
  }
}

/// `strategy`, with a view m<i> -> h<i> behind every operator h<i>, now m<i>.
std::string with_views(const std::string& strategy) {
  std::string result;
  for (const std::string& line : testing::split(strategy, '\n')) {
    const std::size_t colon = line.find(" : ");
    const bool all = colon == std::string::npos || line.substr(colon + 3) == "*";
    result += all ? line : line.substr(0, colon + 2);
    std::string operators = all ? "" : line.substr(colon + 3);
    if (operators == "h1..h3") operators = "h1 h2 h3";
    for (const std::string& op : testing::split(operators, ' ')) {
      result += " m" + op.substr(1) + " " + op;
    }
    result += "\n";
  }
  return result;
}

TEST(StepProperties, OperatorsWithoutCostChangeNothing) {
  // Views cost nothing: the same chain with a Reshape behind every product.
  std::string text = "input h0 [n,64]\nconstant s int64[2]\n";
  for (int i = 1; i <= 6; ++i) {
    const std::string k = std::to_string(i);
    text += "parameter w" + k + " [64,64]\n";
    text += "m" + k + " = MatMul(h" + std::to_string(i - 1) + ", w" + k + ") [n,64]\n";
    text += "h" + k + " = Reshape(m" + k + ", s) [n,64]\n";
  }
  for (const std::string& strategy : strategies()) {
    const Step plain(chain_of(6), kUnit + std::string(kHosts), strategy, 8);
    Graph graph = testing::graph_of(text + "outputs h6\nloss h6\n");
    graph.tensor(graph.find_tensor("h0")).needs_gradient = true;
    const Step viewed(std::move(graph), kUnit + std::string(kHosts), with_views(strategy), 8);
    EXPECT_DOUBLE_EQ(viewed.simulate().step_seconds, plain.simulate().step_seconds) << strategy;
  }
}

TEST(StepProperties, BytesArriveAsTheyAreSent) {
  for (const std::string& strategy : strategies()) {
    const Step step(chain_of(6), kUnit + std::string(kHosts), strategy, 8);
    const Estimate estimate = step.simulate();
    std::int64_t left = 0, arrived = 0, sent = 0;
    for (const Device& device : step.cluster.devices) {
      left += estimate.link_bytes[static_cast<std::size_t>(device.out)];
      arrived += estimate.link_bytes[static_cast<std::size_t>(device.in)];
    }
    for (const DeviceEstimate& device : estimate.devices) sent += device.bytes_sent;
    EXPECT_GT(sent, 0);
    EXPECT_EQ(left, sent) << strategy;
    EXPECT_EQ(arrived, sent) << strategy;
  }
}

TEST(StepProperties, NoDeviceIsBusyLongerThanTheStep) {
  for (const std::string& strategy : strategies()) {
    for (const bool measured : {false, true}) {
      Step step(chain_of(6), kUnit + std::string(kHosts), strategy, 8);
      if (measured) {
        step.cluster.kinds[0].message_overhead = 1e-6;
        step.cluster.kinds[0].overlap = {1e-10, 0.6};
      }
      const Estimate estimate = step.simulate();
      std::map<int, double> in_computations;
      for (const TimelineEvent& event : estimate.timeline) {
        if (stream_of(event.instruction.opcode) == StreamKind::kCompute) {
          in_computations[event.rank] += event.end - event.start;
        }
      }
      for (const DeviceEstimate& device : estimate.devices) {
        const double limit = estimate.step_seconds * (1 + 1e-12);
        EXPECT_LE(device.compute_seconds + device.exposed_communication, limit) << strategy;
        EXPECT_NEAR(device.compute_seconds, in_computations[device.rank], 1e-12) << strategy;
      }
    }
  }
}

TEST(StepProperties, ARingOfAnySizeTakesItsFormula) {
  for (const int n : {2, 3, 5, 8, 16}) {
    std::string stage = "stage";
    for (int i = 0; i < n; ++i) stage += fmt::format(" a/{}=1", i);
    const Step step(chain_of(1),
                    kUnit + fmt::format("host a unit {} bandwidth=1e9 latency=3e-6\n", n),
                    stage + " : *\n", n);
    const TimelineEvent ring = event_of(step.simulate(), 0, {Opcode::kAllReduce, 0, -1});
    const double bytes = 64 * 64 * 4;
    const double formula = 2.0 * (n - 1) * (6e-6 + bytes / n / 1e9);
    EXPECT_NEAR(ring.end - ring.start, formula, 1e-3 * formula) << n;
  }
}

}  // namespace
}  // namespace agpcs
