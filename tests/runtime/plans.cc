// SPDX-License-Identifier: Apache-2.0
#include "tests/runtime/plans.h"

#include "ir/base/check.h"
#include "ir/plan/lookup.h"
#include "tests/support/plan_flows.h"
#include "tests/support/shard_plan.h"

#include <agpcs/digest.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace agpcs {
namespace {

CutTensor make_tensor(const std::string& text) {
  CutTensor tensor;
  tensor.gradient = text[0] != '!';
  tensor.name = tensor.gradient ? text : text.substr(1);
  tensor.type = DType::kFp64;
  tensor.batched = tensor.name[0] >= 'a';
  tensor.dims = tensor.batched ? std::vector<std::int64_t>{2, 3} : std::vector<std::int64_t>{5};
  return tensor;
}

class ProgramBuilder {
 public:
  /// `in_flight`: 0 where it is what the schedule says.
  ProgramBuilder(const Plan& plan, int stage, int in_flight)
      : plan_(plan), stage_(stage), in_flight_(in_flight) {
    program_.stage = stage;
  }

  Program run() {
    if (plan_.stages[static_cast<std::size_t>(stage_)].idle()) {
      if (clips()) add({Opcode::kNorm, -1, -1}, {});
      add({Opcode::kReport, -1, -1}, {});
      return std::move(program_);
    }
    const int n = static_cast<int>(plan_.micro_batches);
    const auto usual = static_cast<int>(usual_in_flight(plan_, stage_));
    const int ahead = (in_flight_ > 0 ? in_flight_ : usual) - 1;
    // Where backward passes are parted, a stage puts off as many weight passes as stages are
    // before.
    const int lag = plan_.parts_backward() ? stage_ : 0;
    for (int i = 0; i < n + ahead + lag; ++i) {
      if (i < n) forward(i);
      if (i >= ahead && i - ahead < n) backward(i - ahead);
      if (!plan_.parts_backward() || i < ahead + lag) continue;
      const int back = i - ahead - lag;
      add(plan_.weight_pass(0, back), {plan_.input_pass(0, back)});
    }
    end(n - 1);
    return std::move(program_);
  }

 private:
  bool clips() const { return plan_.training.optimizer.max_norm > 0; }
  void add(InstructionId id, std::vector<InstructionId> after) {
    program_.instructions.push_back({id, std::move(after)});
  }
  bool returns(const Cut& cut) const {
    return std::any_of(cut.tensors.begin(), cut.tensors.end(),
                       [](const CutTensor& tensor) { return tensor.gradient; });
  }

  void forward(int mb) {
    std::vector<InstructionId> received;
    for (int c = 0; c < static_cast<int>(plan_.cuts.size()); ++c) {
      if (plan_.cuts[static_cast<std::size_t>(c)].to != stage_) continue;
      received.push_back({Opcode::kRecv, c, mb});
      add(received.back(), {});
    }
    add({Opcode::kForward, -1, mb}, received);
    for (int c = 0; c < static_cast<int>(plan_.cuts.size()); ++c) {
      if (plan_.cuts[static_cast<std::size_t>(c)].from != stage_) continue;
      add({Opcode::kSend, c, mb}, {{Opcode::kForward, -1, mb}});
    }
  }

  void backward(int mb) {
    std::vector<InstructionId> after;
    for (int c = static_cast<int>(plan_.cuts.size()) - 1; c >= 0; --c) {
      const Cut& cut = plan_.cuts[static_cast<std::size_t>(c)];
      if (cut.from != stage_) continue;
      after.push_back({returns(cut) ? Opcode::kRecvGradient : Opcode::kSend, c, mb});
      if (returns(cut)) add(after.back(), {});
    }
    add(plan_.input_pass(0, mb), after);
    for (int c = static_cast<int>(plan_.cuts.size()) - 1; c >= 0; --c) {
      const Cut& cut = plan_.cuts[static_cast<std::size_t>(c)];
      if (cut.to != stage_ || !returns(cut)) continue;
      add({Opcode::kSendGradient, c, mb}, {plan_.input_pass(0, mb)});
    }
  }

  void end(int last) {
    std::vector<InstructionId> reduced;
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b) {
      const PlanBucket& bucket = plan_.buckets[static_cast<std::size_t>(b)];
      if (!bucket.is_of(stage_) || !is_reduced(plan_, bucket)) continue;
      add({Opcode::kAllReduce, b, -1}, {{Opcode::kGradients, b, last}});
      reduced = {{Opcode::kAllReduce, b, -1}};
    }
    if (clips()) {
      reduced.push_back({Opcode::kBackward, -1, last});
      add({Opcode::kNorm, -1, -1}, reduced);
      reduced = {{Opcode::kNorm, -1, -1}};
    }
    add({Opcode::kUpdate, -1, -1}, reduced);
    add({Opcode::kReport, -1, -1}, {plan_.weight_pass(0, last)});
  }

  const Plan& plan_;
  int stage_, in_flight_;
  Program program_;
};

/// Returns the pieces of a replica; none: it is a single rank without a body.
std::vector<std::int64_t> pieces_of(const TestPlan& spec, std::size_t stage, std::size_t replica) {
  if (stage == 0 && !spec.unlike.empty()) return spec.unlike[replica];
  return stage < spec.pieces.size() ? spec.pieces[stage] : std::vector<std::int64_t>{};
}

/// Returns a body that divides the first bucket of a stage so, and has copies of the others.
PlanBody body_of(const Plan& plan, std::size_t s, const std::vector<std::int64_t>& pieces) {
  PlanBody body;
  body.name = fmt::format("t{}", plan.bodies.size());
  body.parts = pieces;
  BodyOperator op;
  op.name = plan.stages[s].operators[0].first;
  if (pieces.size() > 1) {
    body.divisions = {{pieces}};
    op.split = "rows";
    op.division = 0;
  }
  body.operators = {op};
  for (const PlanBucket& bucket : plan.buckets) {
    if (bucket.stage != static_cast<int>(s)) continue;
    BodyTensor parameter;
    parameter.name = bucket.members[0].parameter;
    parameter.parameter = true;
    parameter.type = bucket.type;
    parameter.shape = {{bucket.elements(), 0}};
    parameter.forms.resize(1);
    const bool divided = body.tensors.empty() && pieces.size() > 1;
    if (divided) parameter.forms[0].lying = Lying::kPart;
    if (divided) parameter.forms[0].division = 0;
    body.tensors.push_back(parameter);
  }
  BodyStep all;
  all.last = 0;
  body.forward = body.backward = {all};
  return body;
}

/// Adds the bodies of stages with teams, which compute one operator and exchange nothing in it.
void add_bodies(Plan& plan, const TestPlan& spec) {
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    PlanStage& stage = plan.stages[s];
    std::map<std::vector<std::int64_t>, int> bodies;  // by pieces
    std::vector<int> of_replicas;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const std::vector<std::int64_t> pieces = pieces_of(spec, s, i);
      if (pieces.empty()) break;
      const auto [known, added] = bodies.emplace(pieces, static_cast<int>(plan.bodies.size()));
      if (added) plan.bodies.push_back(body_of(plan, s, pieces));
      of_replicas.push_back(known->second);
    }
    if (of_replicas.empty()) continue;
    stage.body = of_replicas.front();
    if (bodies.size() > 1) stage.bodies = std::move(of_replicas);
  }
}

void add_stages(Plan& plan, const TestPlan& spec) {
  int rank = 0;
  for (const auto& shares : spec.shares) {
    PlanStage stage;
    stage.name = fmt::format("s{}", plan.stages.size());
    stage.samples = shares;
    const bool again = spec.round > 0 && plan.stages.size() >= spec.round && shares.front() > 0;
    if (again) {
      const PlanStage& first = plan.stages[plan.stages.size() % spec.round];
      stage.ranks = first.ranks;
      stage.devices = first.devices;
      stage.odd = first.odd;
    }
    const auto device = [](int of) { return fmt::format("host{}/{}", of / 2, of % 2); };
    for (std::size_t i = 0; i < shares.size() && !again; ++i) {
      const std::size_t pieces = pieces_of(spec, plan.stages.size(), i).size();
      const std::size_t members = std::max<std::size_t>(pieces, 1);
      rank += static_cast<int>(members);
      stage.ranks.push_back(rank - 1);
      stage.devices.push_back(device(rank - 1));
      if (spec.smaller > 0 && shares[i] > 1) stage.odd = rank - 1;
      if (pieces == 0) continue;
      stage.further_ranks.emplace_back();
      stage.further_devices.emplace_back();
      for (int further = rank - static_cast<int>(members); further < rank - 1; ++further) {
        stage.further_ranks.back().push_back(further);
        stage.further_devices.back().push_back(device(further));
      }
    }
    const std::string op = fmt::format("op{}", plan.stages.size());
    if (shares.front() > 0) stage.operators.push_back({op, op, 1});
    plan.stages.push_back(stage);
  }
}

void add_buckets(Plan& plan, const TestPlan& spec) {
  for (int stage = 0; stage < static_cast<int>(spec.shares.size()); ++stage) {
    if (plan.stages[static_cast<std::size_t>(stage)].idle()) continue;
    for (std::size_t i = 0; i < spec.elements.size(); ++i) {
      const std::int64_t elements = spec.elements[i];
      const std::size_t index = plan.buckets.size();
      const auto members = static_cast<int>(spec.shares[static_cast<std::size_t>(stage)].size());
      const bool flow = spec.algorithm == AllReduce::kFlow && members > 1;
      plan.buckets.push_back(
          {fmt::format("b{}", index),
           stage,
           flow || spec.algorithm != AllReduce::kFlow ? spec.algorithm : AllReduce::kRing,
           spec.wire_type ? DType::kFp32 : DType::kFp64,
           {{fmt::format("w{}", index), elements}},
           flow ? static_cast<int>(plan.flows.size()) : -1});
      if (!flow) continue;
      PlanFlow added = i == 0 ? testing::star_flow(members) : testing::ring_flow(members, 2);
      added.name = fmt::format("f{}", plan.flows.size());
      added.stage = stage;
      plan.flows.push_back(std::move(added));
    }
  }
  for (const std::vector<int>& stages : spec.shared) {
    const std::size_t index = plan.buckets.size();
    const bool flow = spec.algorithm == AllReduce::kFlow;
    plan.buckets.push_back({fmt::format("b{}", index),
                            stages.front(),
                            flow ? AllReduce::kRing : spec.algorithm,
                            spec.wire_type ? DType::kFp32 : DType::kFp64,
                            {{fmt::format("shared{}", index), 5}},
                            -1,
                            {stages.begin() + 1, stages.end()}});
  }
}

}  // namespace

Plan make_plan(const TestPlan& spec) {
  Plan plan;
  plan.made_by = {"0.1.0", 0, "test", "none"};
  plan.model = plan.cluster = "test";
  plan.model_digest = plan.cluster_digest = digest_of("test");
  plan.micro_batches = spec.micro_batches;
  plan.schedule = spec.schedule;
  plan.training.wire_type = spec.wire_type;
  plan.training.optimizer.max_norm = spec.max_norm;
  const auto& first = spec.shares.front();
  plan.training.batch =
      std::accumulate(first.begin(), first.end(), std::int64_t{0}) * spec.micro_batches -
      spec.smaller;
  add_stages(plan, spec);
  for (const TestCut& cut : spec.cuts) {
    plan.cuts.push_back({fmt::format("c{}", plan.cuts.size()), cut.from, cut.to, {}});
    for (const auto& tensor : cut.tensors) plan.cuts.back().tensors.push_back(make_tensor(tensor));
  }
  add_buckets(plan, spec);
  add_bodies(plan, spec);
  if (spec.write_programs) spec.write_programs(plan);
  for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
    if (spec.write_programs) break;
    const int in_flight =
        spec.in_flight.empty() ? 0 : spec.in_flight[static_cast<std::size_t>(stage)];
    plan.programs.push_back(ProgramBuilder(plan, stage, in_flight).run());
  }
  for (const std::string& name : expectation_names(plan)) {
    plan.expect.push_back({name, 0.5, std::string(expectation_unit(name))});
  }
  const Status status = verify_plan(plan);
  AGPCS_CHECK(status.ok(), "{}\n{}", status.message(), print_plan(plan));
  return spec.weights.empty() ? plan : testing::sharded(std::move(plan), spec.weights, spec.level);
}

}  // namespace agpcs
