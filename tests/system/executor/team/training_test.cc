// SPDX-License-Identifier: Apache-2.0
// A team that trains has what one rank alone would have: the loss of every step, and at the end
// every weight. And what that takes of each member's memory.
#include "ir/strategy/plan_body.h"
#include "runtime/torch/executor.h"
#include "runtime/torch/team/link.h"
#include "tests/runtime/world.h"
#include "tests/support/team_models.h"
#include "tests/system/executor/kept_bytes.h"
#include "tests/system/executor/optimization.h"
#include "tests/system/executor/team/cases.h"
#include "tests/system/executor/team/member_threads.h"
#include "tests/system/executor/team/team_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using testing::MemberThreads;
using testing::problem_of;
using testing::TeamCase;
using Parts = std::vector<std::int64_t>;

constexpr std::int64_t kSamples = 2;  // of a micro-batch
constexpr int kMicroBatches = 3, kSteps = 20;

void check(const Status& status) { AGPCS_CHECK(status.ok(), "{}", status.message()); }

Plan plan_of(const TeamCase& one, const Optimizer& optimizer, const std::string& extra = "",
             std::int64_t samples = kSamples) {
  const std::string strategy =
      fmt::format("micro-batches {}\nstage a/0={}{} : *\n", kMicroBatches, samples, extra);
  Plan plan = testing::plan_of(one.graph, testing::one_device(), strategy, kMicroBatches * samples);
  plan.training.optimizer = optimizer;
  return plan;
}

/// What one rank has after training.
struct Trained {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> values;
};

/// Adds a number up over the ranks.
using AddUp = std::function<double(double)>;

/// Returns the plan with a team in place of its rank.
Plan of_team(const TeamCase& one, Plan plan, const TeamBody& body) {
  PlanStage& stage = plan.stages[0];
  stage.body = 0;
  stage.further_ranks.resize(1);
  stage.further_devices.resize(1);
  for (int member = 1; member < static_cast<int>(body.members()); ++member) {
    stage.further_ranks[0].push_back(member);
    stage.further_devices[0].push_back(fmt::format("a/{}", member));
  }
  plan.bodies = {plan_body(one.graph, body, plan.training.precision, "t0")};
  return plan;
}

/// Trains as the replayer does; the optimizer's norm is of what `add_up` gives.
class TeamTrainer {
 public:
  /// `seat` has no body: the rank is alone.
  TeamTrainer(const TeamCase& one, const Plan& plan, const TeamSeat& seat, AddUp add_up)
      : plan_(seat.body == nullptr ? plan : of_team(one, plan, *seat.body)),
        add_up_(std::move(add_up)) {
    TorchOptions options;
    options.seed = 3;
    executor_ = make_torch_executor(one.graph, std::move(options));
    check(executor_->prepare(plan_, static_cast<int>(seat.member)));
    if (seat.body != nullptr) check(executor_->exchange_with(seat.over));
  }

  double step(std::int64_t number) {
    check(executor_->begin_step(number));
    for (int m = 0; m < kMicroBatches; ++m) {
      testing::BucketLog log;
      const bool last = m + 1 == kMicroBatches;
      check(executor_->forward({0, m}));
      check(executor_->backward({0, m}, last, log));
      std::sort(log.buckets.begin(), log.buckets.end());
      std::vector<int> all(last ? plan_.buckets.size() : 0);
      std::iota(all.begin(), all.end(), 0);
      EXPECT_EQ(log.buckets, all);
    }
    if (plan_.training.optimizer.max_norm > 0) clip(plan_.training.optimizer.max_norm);
    check(executor_->update());
    return add_up_(executor_->loss());
  }

  Trained run() {
    Trained trained;
    for (int i = 0; i < kSteps; ++i) trained.losses.push_back(step(i));
    for (const std::string& name : executor_->names()) {
      trained.values[name] = executor_->value(name).value();
    }
    return trained;
  }

  TorchExecutor& executor() { return *executor_; }

 private:
  void clip(double most) {
    double squares = 0;
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b) {
      squares += executor_->squares(b).value();
    }
    const double norm = std::sqrt(add_up_(squares));
    EXPECT_GT(norm, most) << "nothing is clipped";
    check(executor_->scale(most / (norm + 1e-6)));
  }

  Plan plan_;
  AddUp add_up_;
  std::unique_ptr<TorchExecutor> executor_;
};

AddUp over(const TeamSeat& seat) {
  return [&seat](double own) {
    TeamLink link(seat);
    return link.sum(at::tensor(own, at::kDouble)).item<double>();
  };
}

Trained train_alone(const TeamCase& one, const Plan& plan) {
  return TeamTrainer(one, plan, {}, [](double own) { return own; }).run();
}

Trained train_member(const TeamCase& one, const Plan& plan, const TeamSeat& seat) {
  return TeamTrainer(one, plan, seat, over(seat)).run();
}

std::vector<Trained> train_team(const TeamCase& one, const Plan& plan, const TeamBody& body) {
  MemberThreads threads(body.members(), &body);
  std::vector<Trained> members(body.members());
  threads.run([&](std::size_t m) { members[m] = train_member(one, plan, threads.seat(m)); });
  return members;
}

/// The operators of each pass as an observer sees them, in their order. "-": no operator.
class PassNames final : public OperatorObserver {
 public:
  explicit PassNames(const Graph& graph) : graph_(graph) {}
  void pass_done(Opcode pass, const std::vector<OperatorTime>& operators) override {
    std::vector<std::string>& names = pass == Opcode::kForward ? forward : backward;
    names.clear();
    for (const OperatorTime& time : operators) {
      EXPECT_GE(time.seconds, 0);
      names.push_back(time.op == kNone ? "-" : graph_.op(time.op).name);
    }
  }
  std::vector<std::string> forward, backward;

 private:
  const Graph& graph_;
};

/// Returns where a team has something else than a rank alone; "": nowhere.
std::string difference(const TeamCase& one, const TeamBody& body,
                       const std::vector<Trained>& members, const Trained& alone) {
  // Some weights should stay 0: what moves them is rounding, which Adam makes larger.
  constexpr double kRelative = 1e-4, kSmallest = 0.1;
  for (std::size_t step = 0; step < alone.losses.size(); ++step) {
    const double want = alone.losses[step], got = members[0].losses[step];
    if (std::abs(got - want) <= kRelative * std::abs(want)) continue;
    return fmt::format("the loss of step {} is {}, not {}", step, got, want);
  }
  for (const TeamForm& form : body.forms) {
    const Tensor& tensor = one.graph.tensor(form.tensor);
    const auto found = alone.values.find(tensor.name);
    if (form.from != kNone || found == alone.values.end()) continue;
    Tensors own;
    for (const Trained& member : members) own.push_back(at::tensor(member.values.at(tensor.name)));
    const std::vector<std::int64_t> dims = dims_at(tensor.shape, 1);
    const at::Tensor want = at::tensor(found->second).view(dims);
    const at::Tensor got = testing::joined(body, form.placement, own, dims).view(dims);
    const double far = (got - want).abs().max().item<double>();
    const double greatest = want.abs().max().item<double>();
    if (far > kRelative * std::max(greatest, kSmallest)) {
      return fmt::format("'{}' differs by {}, its greatest element is {}", tensor.name, far,
                         greatest);
    }
  }
  return {};
}

TeamBody chosen_body(const TeamCase& one, const Parts& parts, std::int64_t samples = kSamples,
                     double link = 1e9) {
  Result<TeamChoice> choice = choose_team_body(problem_of(one, parts, samples, link));
  AGPCS_CHECK(choice.ok(), "{}", choice.status().message());
  return std::move(choice->body);
}

Optimizer optimizer_of_teams(OptimizerKind kind) {
  Optimizer optimizer = optimizer_of(kind, 0.9);
  optimizer.epsilon = 1e-4;  // gradients that are 0 but for rounding move nothing
  return optimizer;
}

class TeamTrainingOf : public ::testing::TestWithParam<const char*> {
 protected:
  static TeamCase model() {
    std::vector<TeamCase> all = testing::whole_models();
    const auto named = [](const TeamCase& one) {
      return one.name.find(GetParam()) != one.name.npos;
    };
    return std::move(*std::find_if(all.begin(), all.end(), named));
  }
};

TEST_P(TeamTrainingOf, ChosenBodiesEqualsTrainingAlone) {
  const TeamCase one = model();
  for (const OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam}) {
    const Plan plan = plan_of(one, optimizer_of_teams(kind));
    const Trained alone = train_alone(one, plan);
    EXPECT_NE(alone.losses.back(), alone.losses.front());
    for (const Parts& parts : {Parts{1, 1}, Parts{5, 3}, Parts{5, 4, 3}}) {
      SCOPED_TRACE(fmt::format("members {}", fmt::join(parts, ":")));
      const TeamBody body = chosen_body(one, parts);
      EXPECT_EQ(difference(one, body, train_team(one, plan, body), alone), "");
    }
  }
}

TEST_P(TeamTrainingOf, AnyBodiesEqualsTrainingAloneWithClippedGradients) {
  const TeamCase one = model();
  Rng rng(11);
  Optimizer optimizer = optimizer_of_teams(OptimizerKind::kSgd);
  optimizer.max_norm = 1e-2;
  const Plan plan = plan_of(one, optimizer);
  const Trained alone = train_alone(one, plan);
  int bodies = 0;
  for (const Parts& parts : {Parts{5, 3}, Parts{5, 4, 3}}) {
    const TeamProblem problem = problem_of(one, parts, kSamples);
    for (int round = 0; round < 2; ++round) {
      const std::optional<TeamBody> body = testing::random_body(problem, rng);
      if (!body) continue;
      ++bodies;
      SCOPED_TRACE(fmt::format("members {}", fmt::join(parts, ":")));
      EXPECT_EQ(difference(one, *body, train_team(one, plan, *body), alone), "");
    }
  }
  EXPECT_GT(bodies, 1);
}

INSTANTIATE_TEST_SUITE_P(Models, TeamTrainingOf, ::testing::Values("GPT", "Llama", "CNN", "bert"),
                         [](const auto& param) { return std::string(param.param); });

// What comes before the first operator, and exchanges, belong to none. Operators go back in their
// order, but for those without a gradient.
TEST(TeamTraining, AnObserverSeesWhatAMemberComputesOfEachOperator) {
  const TeamCase one = testing::whole_models().front();
  const TeamBody body = chosen_body(one, {1, 1});
  MemberThreads threads(body.members(), &body);
  std::vector<PassNames> seen(body.members(), PassNames(one.graph));
  threads.run([&](std::size_t m) {
    TeamTrainer trainer(one, plan_of(one, {}), threads.seat(m), over(threads.seat(m)));
    check(trainer.executor().observe(&seen[m]));
    trainer.step(0);
    check(trainer.executor().observe(nullptr));
  });
  std::vector<std::string> all;
  for (const TeamOp& op : body.ops) all.push_back(one.graph.op(op.op).name);
  for (PassNames& member : seen) {
    EXPECT_EQ(member.forward.front(), "-");
    EXPECT_EQ(member.backward.front(), "-");
    std::erase(member.forward, "-");
    EXPECT_EQ(member.forward, all);
    std::vector<std::string> back(all.rbegin(), all.rend());
    std::erase(member.backward, "-");
    std::erase_if(back, [&](const std::string& name) {
      return std::ranges::find(member.backward, name) == member.backward.end();
    });
    EXPECT_GT(back.size(), all.size() / 2);
    EXPECT_EQ(std::set<std::string>(member.backward.begin(), member.backward.end()),
              std::set<std::string>(back.begin(), back.end()));
  }
}

TEST(TeamTraining, OverTcpEqualsTrainingAlone) {
  const TeamCase one = testing::whole_models()[0];
  const Plan plan = plan_of(one, optimizer_of_teams(OptimizerKind::kAdam));
  const TeamBody body = chosen_body(one, {5, 3});
  std::vector<Trained> members(2);
  tcp_world().run(2, [&](Transport& transport) {
    const TeamSeat seat = testing::take_seat(&body, transport);
    members[seat.member] = train_member(one, plan, seat);
  });
  EXPECT_EQ(difference(one, body, members, train_alone(one, plan)), "");
}

std::string refusal_of(const TeamCase& one, const Plan& plan) {
  return make_torch_executor(one.graph, {})->prepare(plan, 0).message();
}

TEST(TeamTraining, RefusesWhatItCannotDo) {
  const TeamCase one = testing::whole_models()[0];
  const TeamBody body = chosen_body(one, {1, 1});
  const Plan plan = plan_of(one, optimizer_of_teams(OptimizerKind::kSgd));
  const Plan recomputed = plan_of(one, plan.training.optimizer, " recompute");
  EXPECT_EQ(refusal_of(one, of_team(one, recomputed, body)), "stage s0: a team does not recompute");
  Plan third = of_team(one, plan, body);
  third.stages[0].further_ranks[0].push_back(2);
  EXPECT_EQ(refusal_of(one, third), "member 0 of a team of 3 ranks, whose body has 2 members");
  const auto alone = make_torch_executor(one.graph, {});
  check(alone->prepare(plan, 0));
  EXPECT_EQ(alone->exchange_with({}).message(),
            "the plan has teams, and the executor does not divide operators among ranks\n"
            "  hint: plan with --without teams");
}

/// Returns the most bytes that live in the second step.
std::int64_t peak_of(const TeamCase& one, const Plan& plan, const TeamSeat& seat,
                     const AddUp& add_up) {
  const auto live = std::make_shared<testing::LiveBytes>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, live);
  TeamTrainer training(one, plan, seat, add_up);
  training.step(0);
  live->begin_peak();
  training.step(1);
  return live->peak();
}

/// A body of members that would rather exchange anything than hold a parameter.
TeamBody most_divided_body(const TeamCase& one, const Parts& parts, std::int64_t samples) {
  TeamProblem problem = problem_of(one, parts, samples, 1e13);
  problem.held_element = 1e-6;
  Result<TeamChoice> choice = choose_team_body(problem);
  AGPCS_CHECK(choice.ok(), "{}", choice.status().message());
  return std::move(choice->body);
}

TEST(TeamTraining, EveryMemberHasAboutItsPartOfTheBytesOfOneAlone) {
  TeamCase one{"GPT", testing::gpt_graph({4, 32, 128, 8, 8, 512, 256}), {}};
  one.ops.resize(one.graph.ops.size());
  std::iota(one.ops.begin(), one.ops.end(), 0);
  // Parameters are most of it, or activations. Of the residual stream all have copies.
  for (const auto& [samples, copies] : {std::pair(2, 0.05), std::pair(32, 0.3)}) {
    const Plan plan = plan_of(one, optimizer_of_teams(OptimizerKind::kAdam), "", samples);
    const std::int64_t alone = peak_of(one, plan, {}, [](double own) { return own; });
    for (const Parts& parts : {Parts{1, 1}, Parts{5, 3}, Parts{2, 1, 1}}) {
      const TeamBody body = most_divided_body(one, parts, samples);
      MemberThreads threads(parts.size(), &body);
      std::vector<std::int64_t> peaks(parts.size());
      threads.run([&](std::size_t m) {
        peaks[m] = peak_of(one, plan, threads.seat(m), over(threads.seat(m)));
      });
      const auto all = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
      for (std::size_t m = 0; m < parts.size(); ++m) {
        const double part = static_cast<double>(peaks[m]) / static_cast<double>(alone);
        fmt::print("{} samples, {}: member {} has {} bytes, {:.3f} of {} alone\n", samples,
                   fmt::join(parts, ":"), m, peaks[m], part, alone);
        const double own = static_cast<double>(parts[m]) / static_cast<double>(all);
        EXPECT_LT(part, own + (1 - own) * copies);
      }
    }
  }
}

TEST(TeamDropout, DropsWhatTheWholeOperatorDoes) {
  Op op;
  op.name = "drop";
  op.type = "Dropout";
  op.version = 13;
  op.inputs = {0, 1, 2};
  op.outputs = {3, 4};
  const Kernel kernel = find_kernel("", "Dropout");
  const at::Tensor rest[] = {at::tensor(0.4), at::ones({}, at::kBool)};
  const auto run = [&](const at::Tensor& x, const RandomSource& random) {
    const OpCall call{op, {x, rest[0], rest[1]}, nullptr, random};
    return kernel(call)[1];
  };
  for (const int batch_axis : {0, 1, 2}) {
    Parts dims = {5, 6, 14};
    dims[static_cast<std::size_t>(batch_axis)] = 4;
    RandomSource random{9, 17, 2, batch_axis};  // two rows a sample
    const at::Tensor whole = run(at::rand(dims), random);
    for (int axis = 0; axis < 3; ++axis) {
      if (axis == batch_axis) continue;
      random.part_axis = axis;
      random.part_of = dims[static_cast<std::size_t>(axis)];
      random.part = {{1, 2}, {3, 5}};
      const at::Tensor want = at::cat({whole.narrow(axis, 1, 1), whole.narrow(axis, 3, 2)}, axis);
      EXPECT_TRUE(at::equal(run(at::rand(want.sizes()), random), want)) << batch_axis << axis;
    }
  }
}

}  // namespace
}  // namespace agpcs
