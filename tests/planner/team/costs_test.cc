// SPDX-License-Identifier: Apache-2.0
// Seconds and traffic of what members of teams do.
#include "cost_model/fit/calibrate.h"
#include "cost_model/step/team/member_costs.h"
#include "cost_model/step/team/traffic.h"
#include "ir/base/at.h"
#include "ir/graph/fused_attention.h"
#include "ir/graph/op_signature.h"
#include "ir/team/blocks.h"
#include "ir/team/member_graph.h"
#include "planner/team/choose.h"
#include "tests/cost_model/step/profiles.h"
#include "tests/support/builders.h"
#include "tests/support/team_models.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::cluster_of;

constexpr std::int64_t kSamples = 3;
constexpr testing::TransformerSize kSize = {2, 16, 64, 8, 4, 128, 96};

/// A body for members as `parts`, on links that are as fast as memory.
TeamBody body_of(const Graph& graph, const std::vector<std::int64_t>& parts) {
  TeamProblem problem{graph, {}, parts, kSamples, 1, Precision::kFp32, {}};
  problem.ops.resize(graph.ops.size());
  std::iota(problem.ops.begin(), problem.ops.end(), 0);
  const std::vector<double> speeds(parts.size(), 1e9);
  problem.costs = roofline_costs(graph, {speeds, speeds, 1e9, 0}, kSamples, problem.precision);
  Result<TeamChoice> choice = choose_team_body(problem);
  AGPCS_CHECK(choice.ok(), "{}", choice.status().message());
  return std::move(choice->body);
}

CostTable table_of(const Graph& graph, const Cluster& cluster, bool of_parts = false) {
  Result<CostTable> table = CostTable::make(graph, cluster, {}, of_parts);
  AGPCS_CHECK(table.ok(), "{}", table.status().message());
  return *std::move(table);
}

Cluster calibrated(const Cluster& cluster) {
  Result<Calibrated> done = calibrate(cluster);
  AGPCS_CHECK(done.ok(), "{}", done.status().message());
  return std::move(done->cluster);
}

/// Two kinds that were not profiled; the processors of one are known.
Cluster datasheets() {
  Cluster cluster = cluster_of(
      "kind a memory=16e9 fp32=8.1e12 bandwidth=320e9\nkind b memory=16e9 fp32=2e12 "
      "bandwidth=100e9\nhost h a 1\nhost i b 1\n");
  cluster.kinds[0].processors = {40, 70, "TSMC 12FFN", "GDDR6"};
  return cluster;
}

/// A kind on which the operators of `graph` were measured: in proportion to bytes, `factor` times.
Cluster measured(const Graph& graph, double factor) {
  const auto seconds = [factor](OpClass, double flops, double bytes) {
    return 1e-6 + factor * (flops * 1e-12 + bytes * 1e-11);
  };
  const Cluster bare = cluster_of("kind a\nhost h a 1\n");
  return calibrated(testing::with_device(
      bare, testing::measured_device("lab", graph, {2, 4, 8}, seconds, seconds)));
}

/// Compares with the cost table of what each member computes, of all operators whose outputs one
/// operator reads: where several do, a body may have them read different forms.
void expect_as_alone(const Graph& graph, const Cluster& cluster) {
  const TeamBody body = body_of(graph, {5, 3});
  const CostTable whole = table_of(graph, cluster, true);
  MemberCosts costs(graph, cluster, {}, whole);
  int divided = 0;
  for (std::size_t m = 0; m < body.members(); ++m) {
    const Graph own = member_graph(graph, body, m);
    const CostTable table = table_of(own, cluster, true);
    std::size_t next = 0;
    for (OpId op = 0; op < static_cast<OpId>(own.ops.size()); ++op) {
      if (is_exchange(own.op(op))) continue;
      const TeamOp& of = body.ops[next++];
      const MemberOp part = member_op(graph, body, of, m);
      divided += part.units > 0 ? 1 : 0;
      const bool read_once = std::ranges::all_of(graph.op(of.op).outputs, [&](TensorId id) {
        return graph.tensor(id).consumers.size() < 2;
      });
      for (int kind = 0; kind < static_cast<int>(cluster.kinds.size()); ++kind) {
        const OpSeconds expected = table.seconds(kind, op, kSamples);
        const OpSeconds seconds = costs.seconds(kind, part, kSamples);
        // To the rounding of fits, by which a part departs from what it takes alone.
        EXPECT_NEAR(seconds.forward, expected.forward, 1e-6 * expected.forward);
        if (!read_once) continue;  // another signature: then a profile's fit, not what it measured
        EXPECT_NEAR(seconds.backward, expected.backward, 1e-6 * expected.backward)
            << op_signature(own, op);
      }
    }
  }
  EXPECT_GT(divided, 20);
}

TEST(MemberCosts, APartCostsWhatTheSmallerOperatorDoes) {
  for (const Graph& graph : {testing::gpt_graph(kSize), testing::llama_graph(kSize)}) {
    expect_as_alone(graph, datasheets());
    expect_as_alone(graph, measured(graph, 1));
    // A profile of the members' operators: each has its own.
    expect_as_alone(graph, measured(member_graph(graph, body_of(graph, {5, 3}), 0), 2));
  }
}

TEST(MemberCosts, TakeWhatWasMeasuredOfTheSmallerOperator) {
  const Graph graph = testing::gpt_graph(kSize);
  const TeamBody body = body_of(graph, {5, 3});
  Cluster cluster = measured(graph, 1);
  DeviceProfile& device = cluster.profiles[0].devices[0];
  const Graph own = member_graph(graph, body, 1);
  const OpId up = own.find_op("h0_up0");
  ASSERT_NE(up, kNone);
  device.operators.push_back({op_signature(own, up), OpClass::kMatmul, {}});
  for (const std::int64_t n : {1, 2}) {
    device.operators.back().points.push_back(
        {n, op_cost(own, up, n, Precision::kFp32), {n * 7.0, 0}, {n * 11.0, 0}});
  }
  const CostTable whole = table_of(graph, cluster);
  MemberCosts costs(graph, cluster, {}, whole);
  const OpId op = graph.find_op("h0_up0");
  for (const TeamOp& of : body.ops) {
    if (of.op != op) continue;
    ASSERT_NE(of.division, kNone);
    const OpSeconds measured_part = costs.seconds(0, member_op(graph, body, of, 1), kSamples);
    EXPECT_DOUBLE_EQ(measured_part.forward, kSamples * 7.0);
    EXPECT_DOUBLE_EQ(measured_part.backward, kSamples * 11.0);
    EXPECT_LT(costs.seconds(0, member_op(graph, body, of, 0), kSamples).forward, 1);
  }
}

TEST(MemberCosts, APartDepartsFromTheFitAsTheWholeOperatorDoes) {
  const Graph graph = testing::gpt_graph(kSize);
  const TeamBody body = body_of(graph, {5, 3});
  const OpId op = graph.find_op("h0_up0");
  ASSERT_NE(op, kNone);
  const Cluster fitted = measured(graph, 1);
  Cluster slow =
      fitted;  // with the same fits, where this operator takes five and seven times as long
  for (MeasuredOperator& measured : slow.profiles[0].devices[0].operators) {
    if (measured.signature != op_signature(graph, op)) continue;
    for (MeasuredOperator::Point& point : measured.points) {
      point.forward.seconds *= 5;
      point.backward.seconds *= 7;
    }
  }
  const CostTable fitted_table = table_of(graph, fitted), slow_table = table_of(graph, slow);
  MemberCosts before(graph, fitted, {}, fitted_table), after(graph, slow, {}, slow_table);
  int divided = 0;
  for (const TeamOp& of : body.ops) {
    if (of.division == kNone) continue;
    ++divided;
    const bool like = op_signature(graph, of.op) == op_signature(graph, op);
    for (std::size_t m = 0; m < body.members(); ++m) {
      const MemberOp part = member_op(graph, body, of, m);
      const OpSeconds seconds = after.seconds(0, part, kSamples);
      const OpSeconds alone = before.seconds(0, part, kSamples);
      EXPECT_NEAR(seconds.forward, (like ? 5 : 1) * alone.forward, 1e-9 * seconds.forward);
      EXPECT_NEAR(seconds.backward, (like ? 7 : 1) * alone.backward, 1e-9 * seconds.backward);
    }
  }
  EXPECT_GT(divided, 10);
}

// A team of two was measured: halves take three times what is fitted, the whole five times.
TEST(MemberCosts, APartDepartsFromTheFitAsTheMeasuredPartsAroundItDo) {
  testing::TransformerSize size = kSize;
  size.inner = 160;  // no half is like another operator
  const Graph graph = testing::gpt_graph(size);
  const OpId op = graph.find_op("h0_up0");
  ASSERT_NE(op, kNone);
  const int split = [&] {
    const std::vector<OpSplit> splits = splits_of(graph, op);
    return static_cast<int>(std::ranges::find(splits, "columns", &OpSplit::name) - splits.begin());
  }();
  const std::int64_t units = splits_of(graph, op)[at(split)].units;
  ASSERT_EQ(units % 8, 0);
  const Cluster fitted = measured(graph, 1);
  Cluster slow = fitted;
  DeviceProfile& device = slow.profiles[0].devices[0];
  const auto multiplied = [](MeasuredOperator measured, double factor) {
    for (MeasuredOperator::Point& point : measured.points) {
      point.forward.seconds *= factor;
      point.backward.seconds *= factor;
    }
    return measured;
  };
  const MemberOp half = {op, split, units / 2};
  const PartsGraph parts = graph_of_parts(graph, {&half, 1});
  const auto seconds = [](OpClass, double flops, double bytes) {
    return 1e-6 + flops * 1e-12 + bytes * 1e-11;
  };
  const DeviceProfile of_half =
      testing::measured_device("lab", parts.graph, {2, 4, 8}, seconds, seconds);
  for (MeasuredOperator& whole : device.operators) {
    ASSERT_NE(whole.signature, of_half.operators.front().signature);
    if (whole.signature == op_signature(graph, op)) whole = multiplied(whole, 5);
  }
  device.operators.push_back(multiplied(of_half.operators.front(), 3));
  device.teams = {2};

  const CostTable fitted_table = table_of(graph, fitted), slow_table = table_of(graph, slow);
  MemberCosts before(graph, fitted, {}, fitted_table), after(graph, slow, {}, slow_table);
  const auto factor = [&](std::int64_t own) {
    const MemberOp part = {op, split, own};
    const OpSeconds is = after.seconds(0, part, kSamples), was = before.seconds(0, part, kSamples);
    EXPECT_NEAR(is.forward / was.forward, is.backward / was.backward, 1e-6);
    return is.forward / was.forward;
  };
  EXPECT_NEAR(factor(units), 5, 1e-6);
  EXPECT_NEAR(factor(units / 2), 3, 1e-6);
  EXPECT_NEAR(factor(units / 8), 3, 1e-6);
  EXPECT_NEAR(factor(units / 8 * 5), 3 + 2 * std::log2(1.25), 1e-6);
  EXPECT_NEAR(factor(units / 8 * 7), 3 + 2 * std::log2(1.75), 1e-6);
}

TEST(MemberCosts, NoAttentionOfATeamIsFused) {
  const Graph steps = testing::derived(
      "graph steps\ninput x fp32[n,4,8,16]\nparameter g fp32[16]\n"
      "q: q = Mul-14(x, g) -> fp32[n,4,8,16]\n"
      "t: k = Transpose-13(q) perm=[0,1,3,2] -> fp32[n,4,16,8]\n"
      "s: s = MatMul-13(q, k) -> fp32[n,4,8,8]\nsoft: p = Softmax-13(s) axis=-1 -> fp32[n,4,8,8]\n"
      "v: v = MatMul-13(p, x) -> fp32[n,4,8,16]\n"
      "r: l = ReduceMean-13(v) keepdims=0 -> fp32[]\nloss l\n");
  Graph fused = steps;
  fuse_attention(fused);
  ASSERT_EQ(fused.fused.size(), 1u);
  const Cluster cluster = datasheets();
  const CostTable of_steps = table_of(steps, cluster), of_fused = table_of(fused, cluster);
  MemberCosts costs(fused, cluster, {}, of_fused);
  for (OpId op = 0; op < static_cast<OpId>(steps.ops.size()); ++op) {
    const OpSeconds expected = of_steps.seconds(1, op, kSamples);
    const OpSeconds seconds = costs.seconds(1, {op, kNone, 0}, kSamples);
    EXPECT_EQ(seconds.forward, expected.forward) << steps.op(op).name;
    EXPECT_EQ(seconds.backward, expected.backward) << steps.op(op).name;
  }
  EXPECT_NE(of_fused.seconds(1, steps.find_op("soft"), kSamples).forward,
            of_steps.seconds(1, steps.find_op("soft"), kSamples).forward);
}

/// Returns the bytes that `giver` has of what `taker` is to have, by blocks.
std::int64_t bytes_of_blocks(const std::vector<Division>& divisions, const TeamPlacement& from,
                             std::size_t giver, const TeamPlacement& to, std::size_t taker,
                             const Tensor& tensor) {
  const std::vector<std::int64_t> dims =
      member_dims(divisions, to, taker, dims_at(tensor.shape, kSamples));
  std::int64_t bytes = 0;
  for (const TeamBlock& block : shared_blocks(divisions, from, giver, to, taker)) {
    std::vector<std::int64_t> own = dims;
    for (const TeamBlock::Along& along : block.along) own[at(along.axis)] = along.size;
    bytes += std::accumulate(own.begin(), own.end(), std::int64_t{4}, std::multiplies<>());
  }
  return bytes;
}

TEST(TeamTraffic, HasTheBytesOfTheBlocksThatMembersExchange) {
  Tensor tensor;
  tensor.shape = {{0, 1}, {12, 0}, {48, 0}};
  const std::vector<Division> divisions = {*divide(12, {5, 4, 3}), *divide(4, {1, 2, 1}),
                                           *divide(6, {3, 2, 1})};
  const auto part = [](int axis, std::vector<std::int64_t> bands, int division) {
    TeamPlacement placement{Placement::Kind::kPart};
    placement.axis = axis;
    placement.bands = std::move(bands);
    placement.division = division;
    return placement;
  };
  const std::vector<TeamPlacement> parts = {part(1, {12}, 0),         part(1, {12}, 1),
                                            part(2, {48}, 0),         part(2, {24, 12, 12}, 0),
                                            part(2, {12, 24, 12}, 1), part(2, {48}, 2)};
  for (std::size_t a = 0; a < parts.size(); ++a) {
    for (std::size_t b = 0; b < parts.size(); ++b) {
      if (a == b) continue;
      const TeamTraffic traffic =
          team_traffic(divisions, 3, parts[a], parts[b], tensor, kSamples, Precision::kFp32);
      ASSERT_EQ(traffic.exchange, TeamExchange::kAllToAll);
      for (std::size_t m = 0; m < 3; ++m) {
        std::int64_t copied = 0;  // what it keeps, packs and unpacks, read and written
        for (std::size_t k = 0; k < 3; ++k) {
          const std::int64_t given = bytes_of_blocks(divisions, parts[a], m, parts[b], k, tensor);
          EXPECT_EQ(traffic.bytes[m * 3 + k], given);
          copied += 2 * given;
          if (k != m) copied += 2 * bytes_of_blocks(divisions, parts[a], k, parts[b], m, tensor);
        }
        EXPECT_EQ(traffic.copied[m], copied);
      }
    }
    const TeamPlacement sum{Placement::Kind::kSum};
    const TeamTraffic scatter =
        team_traffic(divisions, 3, sum, parts[a], tensor, kSamples, Precision::kFp32);
    const TeamTraffic gather =
        team_traffic(divisions, 3, parts[a], {}, tensor, kSamples, Precision::kFp32);
    ASSERT_EQ(scatter.exchange, TeamExchange::kReduceScatter);
    ASSERT_EQ(gather.exchange, TeamExchange::kAllGather);
    EXPECT_EQ(scatter.bytes, gather.bytes);
    for (std::size_t m = 0; m < 3; ++m) {
      EXPECT_EQ(gather.bytes[m], bytes_of_blocks(divisions, parts[a], m, {}, m, tensor));
    }
  }
}

TEST(TeamTraffic, CountsWhatMembersCopyInTheirMemory) {
  Tensor tensor;
  tensor.shape = {{0, 1}, {12, 0}, {8, 0}};
  constexpr std::int64_t kAll = kSamples * 12 * 8 * 4;
  const std::vector<Division> divisions = {*divide(12, {2, 1})};
  const TeamPlacement copy, sum{Placement::Kind::kSum}, summed{Placement::Kind::kCopy, true},
      part{Placement::Kind::kPart, false, 1, {12}, 0},
      bands{Placement::Kind::kPart, false, 1, {6, 6}, 0};
  const auto copied = [&](const TeamPlacement& from, const TeamPlacement& to,
                          std::int64_t samples = kSamples) {
    return team_traffic(divisions, 2, from, to, tensor, samples, Precision::kFp32).copied;
  };
  using Bytes = std::vector<std::int64_t>;
  const Bytes taken = {2 * kAll * 2 / 3, 2 * kAll / 3};  // read and written
  EXPECT_EQ(copied(copy, part), taken);
  EXPECT_EQ(copied(summed, part), taken);
  EXPECT_EQ(copied(copy, sum), (Bytes{0, kAll}));  // zeros
  EXPECT_EQ(copied(part, sum), (Bytes{kAll + taken[0], kAll + taken[1]}));
  EXPECT_EQ(copied(part, copy), (Bytes{2 * kAll + taken[0], 2 * kAll + taken[1]}));
  EXPECT_EQ(copied(sum, part), (Bytes{2 * kAll + taken[0], 2 * kAll + taken[1]}));
  EXPECT_EQ(copied(sum, copy), Bytes());
  EXPECT_EQ(copied(copy, copy), Bytes());
  // Of one sample, gathered parts lie one behind the other, unless there are bands.
  const Bytes of_one = {taken[0] / kSamples, taken[1] / kSamples};
  EXPECT_EQ(copied(part, copy, 1), of_one);
  EXPECT_EQ(copied(bands, copy, 1)[0], 2 * kAll / kSamples + of_one[0]);
  tensor.kind = TensorKind::kParameter;
  EXPECT_EQ(copied(copy, part), Bytes());  // a view
  EXPECT_EQ(copied(copy, bands), taken);
}

TEST(TeamTraffic, GoesInTheOrderOfRanksWhateverThatOfMembersIs) {
  const Cluster cluster =
      cluster_of("kind a\nhost g a 2 bandwidth=1e11 nic=1e9\nhost h a 2 bandwidth=1e11 nic=1e9\n");
  const std::vector<DeviceId> ranked = {0, 1, 2, 3}, members = {2, 0, 3, 1};
  const auto of = [&](TeamExchange exchange, std::vector<std::int64_t> bytes) {
    return team_exchange(cluster, members, {exchange, std::move(bytes)});
  };
  const auto expect_same = [&](const Exchange& a, const Exchange& b) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) {
      ASSERT_EQ(a[i].flows.size(), b[i].flows.size());
      for (std::size_t f = 0; f < a[i].flows.size(); ++f) {
        EXPECT_EQ(a[i].flows[f].links, b[i].flows[f].links);
        EXPECT_EQ(a[i].flows[f].bytes, b[i].flows[f].bytes);
      }
    }
  };
  const std::vector<std::int64_t> parts = {300, 200, 400, 100}, by_rank = {200, 100, 300, 400};
  expect_same(of(TeamExchange::kAllReduce, {4000}),
              all_reduce(cluster, ranked, AllReduce::kRing, 4000));
  expect_same(of(TeamExchange::kAllGather, parts),
              all_gather(cluster, ranked, AllReduce::kRing, by_rank));
  expect_same(of(TeamExchange::kReduceScatter, parts),
              reduce_scatter(cluster, ranked, AllReduce::kRing, by_rank));
  // Member 0, on device 2, gives member 3, on device 1, what is in row 0 and column 3.
  std::vector<std::int64_t> between(16, 0);
  between[3] = 500;
  const Exchange turns = of(TeamExchange::kAllToAll, between);
  ASSERT_EQ(turns.size(), 1u);
  ASSERT_EQ(turns[0].flows.size(), 1u);
  EXPECT_EQ(turns[0].flows[0].senders, std::vector<DeviceId>{2});
  EXPECT_EQ(turns[0].flows[0].bytes, 500);
}

TEST(TeamTraffic, GoesRoundARingOrInTurns) {
  const Cluster cluster = cluster_of("kind a\nhost h a 3 bandwidth=1e9 latency=1e-6\n");
  const auto seconds = [&](TeamExchange exchange, std::vector<std::int64_t> bytes) {
    const std::vector<DeviceId> devices = {2, 0, 1};
    return lone_seconds(cluster, devices, {exchange, std::move(bytes)});
  };
  EXPECT_DOUBLE_EQ(seconds(TeamExchange::kAllReduce, {3000}), 4 * 2e-6 + 4e-6);
  // A hop of the ring carries all parts but the smallest.
  EXPECT_DOUBLE_EQ(seconds(TeamExchange::kAllGather, {3000, 2000, 1000}), 2 * 2e-6 + 5e-6);
  EXPECT_DOUBLE_EQ(seconds(TeamExchange::kReduceScatter, {3000, 2000, 1000}), 2 * 2e-6 + 5e-6);
  // Turns of devices 2, 0 and 1: each to the one behind it, at most 4000 bytes; then 2 to 1 alone.
  EXPECT_DOUBLE_EQ(
      seconds(TeamExchange::kAllToAll, {9000, 1000, 2000, 0, 9000, 4000, 3000, 0, 9000}),
      2 * 2e-6 + 4e-6 + 2e-6);
  EXPECT_EQ(seconds(TeamExchange::kTakePart, {}), 0);
}

TEST(TeamTraffic, AMaximumIsGatheredAndASumReduced) {
  const Graph graph = testing::gpt_graph(kSize);
  const OpId loss = graph.find_op("ce");
  for (const OpSplit& split : splits_of(graph, loss)) {
    if (split.inside.empty()) continue;
    const std::int64_t rows = kSamples * kSize.sequence;
    const std::vector<TeamTraffic> expected = {{TeamExchange::kAllGather, {4 * rows, 4 * rows}},
                                               {TeamExchange::kAllReduce, {8 * rows}}};
    EXPECT_EQ(inside_traffic(graph, loss, split, kSamples, 2), expected);
    return;
  }
  FAIL() << "no split reduces inside";
}

TEST(TeamTraffic, OfABodyFollowsItsExchanges) {
  const Graph graph = testing::llama_graph(kSize);
  const TeamBody body = body_of(graph, {5, 3});
  int collectives = 0;
  for (int form = 0; form < static_cast<int>(body.forms.size()); ++form) {
    const TeamTraffic forward = forward_traffic(graph, body, form, kSamples, Precision::kFp32);
    const TeamTraffic backward = backward_traffic(graph, body, form, kSamples, Precision::kFp32);
    if (body.forms[at(form)].from != kNone) {
      EXPECT_EQ(forward.exchange, forward_exchange(body, form));
    }
    EXPECT_EQ(backward.exchange, backward_exchange(graph, body, form));
    EXPECT_EQ(forward.bytes.empty(), !is_collective(forward.exchange));
    collectives += is_collective(forward.exchange) + is_collective(backward.exchange);
  }
  EXPECT_GT(collectives, 4);
}

}  // namespace
}  // namespace agpcs
