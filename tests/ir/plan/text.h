// SPDX-License-Identifier: Apache-2.0
// A small plan as text, for tests that have only ir.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace agpcs::testing {

/// Two stages, the first of two replicas, two micro-batches.
inline constexpr std::string_view kPlanText = R"(agpcs-plan 2
made-by agpcs=0.1.0 seed=7 seeder=metis refiner=none evaluations=0 interrupted=no
model name=mlp dims=none digest=sha256:b86fcbfb989ff508129b5ff3ca832396f17bbe41df7e507bda257b4f8cebb508
cluster name=lab digest=sha256:798994c97449d09ca89e8f251965cedb86fb0f266b9e4d001c093703d27b051d
training batch=8 micro-batches=2 schedule=1f1b precision=fp32 statistics-every=5
loss softmax_cross_entropy logits=1 aux=0.4
optimizer sgd learning-rate=0.01 momentum=0.9 weight-decay=0
stage s0 ranks=0-1 devices=a/0-1 samples=3,1 recompute=no operators=3
  operators fc1 .. relu count=2
  operators "odd name" .. "odd name" count=1
stage s1 ranks=2 devices=b/0 samples=4 recompute=yes operators=2
  operators fc2 .. loss count=2
cut c0 from=s0 to=s1 tensors=2
  tensor h type=fp32 shape=samplesx16 gradient=yes
  tensor table type=int64 shape=3x4 gradient=no
bucket b0 stage=s1 algorithm=ring type=fp32 gradients=1 elements=160
  gradient fc2.weight elements=160
bucket b1 stage=s0 algorithm=ring type=fp32 gradients=2 elements=144
  gradient fc1.weight elements=128
  gradient fc1.bias elements=16
program s0
  forward mb=0
  send c0 mb=0 after=forward:0
  recv_gradient c0 mb=0 after=forward:0
  forward mb=1
  send c0 mb=1 after=forward:1
  backward mb=0 after=recv_gradient:c0:0
  recv_gradient c0 mb=1 after=backward:0
  backward mb=1 after=recv_gradient:c0:1
  all_reduce b1 after=gradients:b1:1
  update after=all_reduce:b1
  report after=backward:1
program s1
  recv c0 mb=0
  forward mb=0 after=recv:c0:0
  recv c0 mb=1 after=forward:0
  backward mb=0
  send_gradient c0 mb=0 after=backward:0
  forward mb=1 after=recv:c0:1
  backward mb=1
  send_gradient c0 mb=1 after=backward:1
  update
  report after=backward:1
expect
  step 1.23ms
  throughput 6500 samples/s
  forward s0 120us
  backward s0 240us
  all-reduce s0 310us
  forward s1 90.5us
  backward s1 200us
  utilization a/0 0.873
  send a/0 42.0us
  peak-memory a/0 3.21GB
  bytes-sent a/0 640B
  utilization a/1 0.291
  send a/1 14.0us
  peak-memory a/1 1.07GB
  bytes-sent a/1 256B
  utilization b/0 1.00
  send b/0 56.0us
  peak-memory b/0 900MB
  bytes-sent b/0 0B
)";

/// `kPlanText` with the first `from` replaced.
inline std::string plan_text_with(std::string_view from, std::string_view to) {
  std::string text(kPlanText);
  const std::size_t at = text.find(from);
  return at == std::string::npos ? "plan_text.h: no such text: " + std::string(from)
                                 : text.replace(at, from.size(), to);
}

/// `kPlanText` with a sharded bucket: rank 0 owns 96 elements of b1, rank 1 owns 48.
inline std::string sharded_plan_text() {
  std::string text(kPlanText);
  const auto replace = [&](std::string_view from, std::string_view to) {
    text.replace(text.find(from), from.size(), to);
  };
  replace("bucket b1 stage=s0 algorithm=ring type=fp32 gradients",
          "bucket b1 stage=s0 algorithm=ring type=fp32 state=optimizer parts=96,48 gradients");
  replace("  all_reduce b1 after=gradients:b1:1\n  update after=all_reduce:b1\n",
          "  reduce_scatter b1 after=gradients:b1:1\n  update after=reduce_scatter:b1\n"
          "  all_gather b1 after=update\n");
  return text;
}

/// The small plan, and rank 3 without work.
inline Plan plan_with_idle_rank() {
  Plan plan = *parse_plan(kPlanText, "m.plan");
  PlanStage idle;
  idle.name = "s2";
  idle.ranks = {3};
  idle.devices = {"c/0"};
  idle.samples = {0};
  plan.stages.push_back(idle);
  plan.programs.push_back({2, {{{Opcode::kReport, -1, -1}, {}}}});
  plan.expect.clear();
  for (const std::string& name : expectation_names(plan)) {
    plan.expect.push_back({name, 0.5, std::string(expectation_unit(name))});
  }
  return plan;
}

/// Gives a plan a figure for each expectation.
inline void expect_all(Plan& plan) {
  plan.expect.clear();
  for (const std::string& name : expectation_names(plan)) {
    plan.expect.push_back({name, 0.5, std::string(expectation_unit(name))});
  }
}

/// The small plan with two teams of two ranks in stage s0, which divide 5 : 3 what makes h.
inline Plan plan_with_teams() {
  Plan plan = *parse_plan(kPlanText, "m.plan");
  PlanStage& teams = plan.stages[0];
  teams.ranks = {0, 1};
  teams.devices = {"a/0", "a/1"};
  teams.further_ranks = {{2}, {3}};
  teams.further_devices = {{"b/1"}, {"b/2"}};
  teams.body = 0;
  plan.stages[1].ranks = {4};
  PlanBody body;
  body.name = "t0";
  body.parts = {50, 30};
  body.divisions = {{{5, 3}}};
  body.operators = {{"fc1", "columns", 0}, {"relu", "axis 1", 0}, {"odd name", "", -1, {}, false}};
  const BodyForm part{Lying::kPart, 1, 0};
  body.tensors = {{"fc1.weight", true, DType::kFp32, {{8, 0}, {16, 0}}, true, {part}},
                  {"fc1.bias", true, DType::kFp32, {{16, 0}}, true, {{Lying::kPart, 0, 0}}},
                  {"h", false, DType::kFp32, {{0, 1}, {16, 0}}, true, {part, {Lying::kCopy}}}};
  body.tensors[2].forms[1].from = 0;
  body.forward = {{0, 1}, {0, -1, 2, 1}, {2, 2}};
  body.backward = {{2, 2}, {0, -1, 2, 1}, {0, 1}};
  plan.bodies = {body};
  expect_all(plan);
  return plan;
}

/// The same with three ranks in place of the second team: rank 1 computes alone, and ranks 3, 5 and
/// 6 are a team that divides the weight's rows, 2 : 1 : 1.
inline Plan plan_with_unlike_teams() {
  Plan plan = plan_with_teams();
  PlanStage& teams = plan.stages[0];
  teams.ranks = {0, 1, 3};
  teams.devices = {"a/0", "a/1", "b/2"};
  teams.further_ranks = {{2}, {}, {5, 6}};
  teams.further_devices = {{"b/1"}, {}, {"b/3", "b/4"}};
  teams.samples = {2, 1, 1};
  teams.bodies = {0, 1, 2};
  PlanBody alone = plan.bodies[0];
  alone.name = "t1";
  alone.parts = {1};
  alone.divisions.clear();
  for (BodyOperator& one : alone.operators) one = {one.name};
  alone.tensors.pop_back();
  for (BodyTensor& one : alone.tensors) one.forms = {{Lying::kCopy}};
  alone.forward = {{0, 2}};
  alone.backward = {{0, 2}};
  PlanBody rows = alone;
  rows.name = "t2";
  rows.parts = {2, 1, 1};
  rows.divisions = {{{2, 1, 1}}};
  rows.operators[0].split = "rows";
  rows.operators[0].division = 0;
  rows.tensors[0].forms = {{Lying::kPart, 0, 0}};
  plan.bodies.push_back(alone);
  plan.bodies.push_back(rows);
  expect_all(plan);
  return plan;
}

}  // namespace agpcs::testing
