// SPDX-License-Identifier: Apache-2.0
// The memory of a team's members: against a count of every buffer, form by form, of random bodies.
#include "ir/strategy/memory.h"

#include "ir/base/rng.h"
#include "ir/plan/body/body.h"
#include "planner/team/space.h"
#include "tests/planner/team/team_plans.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace agpcs {
namespace {

/// Operators without views, so that a buffer is a form: a residual around a normalized product of
/// two, and a bias.
Graph block() {
  return testing::derived(
      "graph block\n"
      "input x fp32[n,6,8]\n"
      "parameter a fp32[8,8]\n"
      "parameter g fp32[8]\n"
      "parameter s fp32[8]\n"
      "parameter b fp32[8,16]\n"
      "parameter c fp32[16,8]\n"
      "parameter d fp32[8]\n"
      "in: i = MatMul-13(x, a) -> fp32[n,6,8]\n"
      "norm: h = LayerNormalization-17(i, g, s) axis=-1 -> fp32[n,6,8]\n"
      "up: u = MatMul-13(h, b) -> fp32[n,6,16]\n"
      "act: r = Relu-14(u) -> fp32[n,6,16]\n"
      "down: y = MatMul-13(r, c) -> fp32[n,6,8]\n"
      "bias: z = Add-14(y, d) -> fp32[n,6,8]\n"
      "add: w = Add-14(z, i) -> fp32[n,6,8]\n"
      "mean: l = ReduceMean-13(w) keepdims=0 -> fp32[]\n"
      "loss l\n");
}

/// Counts what a member holds, buffer by buffer.
class Counter {
 public:
  Counter(const Graph& graph, const TeamBody& body, std::size_t member, std::int64_t samples)
      : graph_(graph), body_(body), member_(member), samples_(samples), first_(first_uses(body)) {}

  /// Returns the peak of one micro-batch, with SGD that has momentum.
  std::int64_t run() {
    find_kept();
    const std::int64_t passes = std::max(forward(), backward());
    std::int64_t resident = 0;
    for (int f = 0; f < forms(); ++f) {
      const Tensor& tensor = tensor_of(f);
      if (tensor.kind == TensorKind::kParameter && form(f).from == kNone) resident += 3 * bytes(f);
      const bool begins = f == 0 || form(f - 1).tensor != form(f).tensor;
      if (tensor.kind == TensorKind::kInput && begins) resident += whole_bytes(f);
    }
    return resident + passes;
  }

 private:
  int forms() const { return static_cast<int>(body_.forms.size()); }
  int ops() const { return static_cast<int>(body_.ops.size()); }
  const TeamForm& form(int f) const { return body_.forms[static_cast<std::size_t>(f)]; }
  const TeamOp& op(int i) const { return body_.ops[static_cast<std::size_t>(i)]; }
  const Tensor& tensor_of(int f) const { return graph_.tensor(form(f).tensor); }
  const std::string& type(int i) const { return graph_.op(op(i).op).type; }

  std::int64_t whole_bytes(int f) const { return 4 * elements_at(tensor_of(f).shape, samples_); }
  std::int64_t bytes(int f) const {
    const TeamPlacement& placement = form(f).placement;
    if (placement.kind != Placement::Kind::kPart) return whole_bytes(f);
    const Division& division = body_.divisions[static_cast<std::size_t>(placement.division)];
    const std::int64_t begin = member_ == 0 ? 0 : division.ends[member_ - 1];
    return whole_bytes(f) / division.of * (division.ends[member_] - begin);
  }

  bool is_leaf(int f) const { return tensor_of(f).producer == kNone; }
  /// What is there before is no buffer of a pass: parameters, and data as a whole.
  bool is_buffer(int f) const {
    if (!is_leaf(f)) return true;
    if (tensor_of(f).kind == TensorKind::kInput) return !(form(f).placement == TeamPlacement());
    return form(f).from != kNone;
  }
  /// An exchange with an own place among the operators.
  bool is_exchanged(int f) const {
    if (tensor_of(f).kind == TensorKind::kInput) return is_buffer(f);
    if (form(f).from == kNone) return false;
    const bool nothing = forward_exchange(body_, f) == TeamExchange::kNothing;
    return tensor_of(f).kind != TensorKind::kParameter || !nothing;
  }
  int holder(int f) const {
    while (form(f).from != kNone && forward_exchange(body_, f) == TeamExchange::kNothing) {
      f = form(f).from;
    }
    return f;
  }
  /// The gradient of a parameter goes to its bucket where its own tensor is reached.
  int gradient_holder(int f) const {
    while (form(f).from != kNone && !is_parameter(form(f).from) &&
           backward_exchange(graph_, body_, f) == TeamExchange::kNothing) {
      f = form(f).from;
    }
    return f;
  }
  bool is_parameter(int f) const {
    return tensor_of(f).kind == TensorKind::kParameter && holder(f) == holder(root(f));
  }
  int root(int f) const {
    while (form(f).from != kNone) f = form(f).from;
    return f;
  }

  /// Which forms an operator keeps, in PyTorch: a product its factors, each for the gradient of the
  /// other, a Relu its output, a normalization its input.
  std::vector<int> kept_by(int i) const {
    if (type(i) == "MatMul") {
      if (has_gradient(tensor_of(op(i).inputs[0]))) return op(i).inputs;
      return {op(i).inputs[0]};
    }
    if (type(i) == "Relu") return op(i).outputs;
    if (type(i) == "LayerNormalization") return {op(i).inputs[0]};
    return {};
  }
  /// Mean and deviation of each row of the member's part.
  std::int64_t extra(int i) const {
    if (type(i) != "LayerNormalization") return 0;
    return 8 * bytes(op(i).inputs[0]) / bytes(op(i).inputs[1]);
  }

  void find_kept() {
    for (int i = 0; i < ops(); ++i) {
      for (const int f : kept_by(i)) {
        if (is_buffer(holder(f))) keeper_.try_emplace(holder(f), i);
      }
    }
    for (int i = 0; i <= ops(); ++i) {
      const auto read = [&](int f) { reader_[holder(f)] = 2 * i; };
      for (int f = 0; f < forms(); ++f) {
        if (is_exchanged(f) && form(f).from != kNone && first_[static_cast<std::size_t>(f)] == i) {
          read(form(f).from);
        }
      }
      if (i == ops()) break;
      for (const int f : op(i).inputs) reader_[holder(f)] = 2 * i + 1;
    }
  }

  std::int64_t sum(const std::set<int>& held) const {
    std::int64_t all = 0;
    for (const int f : held) all += bytes(f);
    return all;
  }

  std::int64_t forward() {
    std::set<int> held;
    std::int64_t extras = 0, peak = 0;
    const auto make = [&](const std::vector<int>& made, int time) {
      for (const int f : made) {
        if (holder(f) == f) held.insert(f);
      }
      peak = std::max(peak, sum(held) + extras);
      std::erase_if(held, [&](int f) {
        const auto last = reader_.find(f);
        return !keeper_.contains(f) && (last == reader_.end() || last->second <= time);
      });
    };
    for (int i = 0; i <= ops(); ++i) {
      for (int f = 0; f < forms(); ++f) {
        if (is_exchanged(f) && first_[static_cast<std::size_t>(f)] == i) make({f}, 2 * i);
      }
      if (i == ops()) break;
      extras += extra(i);
      make(op(i).outputs, 2 * i + 1);
    }
    return peak;
  }

  std::int64_t backward() {
    std::set<int> held, gradients;
    std::int64_t extras = 0, peak = 0;
    for (const auto& [f, keeper] : keeper_) held.insert(f);
    for (int i = 0; i < ops(); ++i) extras += extra(i);
    const auto go_back = [&](const std::vector<int>& inputs, const std::vector<int>& outputs) {
      std::int64_t passing = 0;
      for (const int f : inputs) {
        if (!has_gradient(tensor_of(f))) continue;
        if (is_parameter(f)) {
          passing += bytes(f);
        } else {
          gradients.insert(gradient_holder(f));
        }
      }
      peak = std::max(peak, sum(held) + sum(gradients) + extras + passing);
      for (const int f : outputs) gradients.erase(f);
    };
    for (int i = ops(); i >= 0; --i) {
      if (i < ops()) {
        go_back(op(i).inputs, op(i).outputs);
        extras -= extra(i);
        std::erase_if(held, [&](int f) { return keeper_.at(f) == i; });
      }
      for (int f = forms(); f-- > 0;) {
        if (!is_exchanged(f) || form(f).from == kNone || first_[static_cast<std::size_t>(f)] != i)
          continue;
        go_back({form(f).from}, {f});
      }
    }
    return std::max(peak, std::int64_t{0});
  }

  const Graph& graph_;
  const TeamBody& body_;
  std::size_t member_;
  std::int64_t samples_;
  std::vector<int> first_;
  std::map<int, int> keeper_;  // by form that holds a buffer: the first operator that keeps it
  std::map<int, int> reader_;  // the time of the last reader
};

Strategy one_team(const Graph& graph, TeamBody body) {
  Strategy strategy;
  strategy.stage_of.assign(graph.ops.size(), 0);
  StageSpec& spec = strategy.stages.emplace_back();
  spec.devices = {0};
  spec.shares = {4};
  spec.further.emplace_back();
  for (std::size_t m = 1; m < body.members(); ++m) {
    spec.further[0].push_back(static_cast<DeviceId>(m));
  }
  spec.body = 0;
  strategy.bodies = {std::move(body)};
  Bucket& bucket = strategy.buckets.emplace_back();
  bucket.parameters = graph.parameters();
  return strategy;
}

std::vector<MemoryUse> memory_of(const Graph& graph, const Strategy& strategy) {
  Training training = testing::training_of(graph, 4);
  training.optimizer.momentum = 0.9;
  const Result<Plan> plan = lower(graph, testing::eight_devices(), training, strategy, MadeBy());
  AGPCS_CHECK(plan.ok(), "{}", plan.status().message());
  const Result<std::vector<MemoryUse>> use = peak_memory(*plan, graph);
  AGPCS_CHECK(use.ok(), "{}", use.status().message());
  return *use;
}

TEST(TeamMemory, IsWhatEveryBufferTakesOfRandomBodies) {
  const Graph graph = block();
  Rng rng = Rng(11).fork("memory");
  int bodies = 0, unequal = 0;
  for (int i = 0; i < 300; ++i) {
    TeamProblem problem{graph, {}, {1, 1}, 4, 1, Precision::kFp32, {}};
    if (i % 3 == 1) problem.parts = {5, 3};
    if (i % 3 == 2) problem.parts = {2, 1, 1};
    problem.ops.resize(graph.ops.size());
    std::iota(problem.ops.begin(), problem.ops.end(), 0);
    const std::size_t members = problem.parts.size();
    problem.costs = roofline_costs(
        graph, {std::vector<double>(members, 1e12), std::vector<double>(members, 1e12), 1e11, 1e-9},
        4, Precision::kFp32);
    const TeamSpace space = team_space(problem);
    std::vector<int> options;
    for (const std::vector<TeamOption>& of_op : space.options) {
      options.push_back(static_cast<int>(rng.below(of_op.size())));
    }
    std::optional<TeamBody> body =
        team_body(problem, space, options, std::vector<int>(graph.tensors.size(), kNone));
    if (!body || !verify_team_body(graph, *body).ok()) continue;
    ++bodies;
    const Strategy strategy = one_team(graph, *body);
    ASSERT_TRUE(verify_strategy(strategy, graph, testing::eight_devices(), 4).ok())
        << verify_strategy(strategy, graph, testing::eight_devices(), 4).message();
    const std::vector<MemoryUse> use = memory_of(graph, strategy);
    for (std::size_t m = 0; m < members; ++m) {
      EXPECT_EQ(use[m].total(), Counter(graph, *body, m, 4).run())
          << "member " << m << " of\n"
          << print_team_body(graph, *body, 4, Precision::kFp32);
    }
    unequal += use[0].total() != use[1].total() ? 1 : 0;
  }
  EXPECT_GT(bodies, 100);
  EXPECT_GT(unequal, 20);
}

TEST(TeamMemory, OfATeamThatDividesNothingIsThatOfOneDevice) {
  const Graph graph = block();
  const Strategy team = one_team(graph, testing::whole_body(graph));
  Strategy alone = team;
  alone.bodies.clear();
  alone.stages[0].body = kNone;
  alone.stages[0].further.clear();
  const std::vector<MemoryUse> two = memory_of(graph, team);
  EXPECT_EQ(two[0].total(), memory_of(graph, alone)[0].total());
  EXPECT_EQ(two[1].total(), two[0].total());
}

TEST(TeamMemory, OfPartsOfParametersIsThatOfTheParts) {
  const testing::TeamPlanCase of;
  const std::vector<MemoryUse> use = *peak_memory(of.plan, of.graph);
  for (const PlanBucket& bucket : of.plan.buckets) {
    const PlanStage& stage = of.plan.stages[static_cast<std::size_t>(bucket.stage)];
    for (std::size_t replica = 0; replica < stage.ranks.size(); ++replica) {
      const std::vector<int> members = stage.members(replica);
      for (std::size_t m = 0; m < members.size(); ++m) {
        const MemoryUse& own = use[static_cast<std::size_t>(members[m])];
        EXPECT_EQ(own.gradients, 4 * member_elements(of.plan, bucket, bucket.stage, m));
        EXPECT_GE(own.parameters, own.gradients);  // and constants
        EXPECT_LT(own.gradients, bucket.bytes());
        EXPECT_EQ(own.optimizer, 0);
      }
    }
  }
}

}  // namespace
}  // namespace agpcs
