// SPDX-License-Identifier: Apache-2.0
#include "ir/base/units.h"
#include "ir/plan/body/body_text.h"
#include "ir/plan/choices.h"
#include "ir/plan/flow.h"
#include "ir/plan/instruction.h"
#include "ir/plan/lookup.h"
#include "ir/plan/repetition.h"
#include "ir/plan/text.h"

#include <agpcs/plan.h>

#include <fmt/format.h>

#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {
namespace {

using Out = std::back_insert_iterator<std::string>;

class PlanPrinter {
 public:
  explicit PlanPrinter(const Plan& plan) : plan_(plan) {}

  std::string run() {
    print_header();
    print_training();
    for (const PlanStage& stage : plan_.stages) print_stage(stage);
    for (const PlanBody& body : plan_.bodies) text_ += print_body(body);
    for (const Cut& cut : plan_.cuts) print_cut(cut);
    for (const PlanFlow& flow : plan_.flows) print_flow(flow);
    for (const PlanBucket& bucket : plan_.buckets) print_bucket(bucket);
    for (const Program& program : plan_.programs) print_program(program);
    print_expect();
    return std::move(text_);
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(Out(text_), format, std::forward<Args>(args)...);
  }

  void print_header() {
    const MadeBy& made_by = plan_.made_by;
    add("agpcs-plan {}\n", kPlanVersion);
    add("made-by agpcs={} seed={} seeder={} refiner={} evaluations={} interrupted={}\n",
        quoted(made_by.version), made_by.seed, quoted(made_by.seeder), quoted(made_by.refiner),
        made_by.evaluations, made_by.interrupted ? "yes" : "no");
    add("model name={} dims={} digest={}\n", quoted(plan_.model), dims_text(),
        quoted(plan_.model_digest));
    for (const std::string& name : plan_.frozen) add("  frozen {}\n", quoted(name));
    for (const std::string& name : plan_.trained) add("  trained {}\n", quoted(name));
    for (const std::string& type : plan_.fused) add("  fused {}\n", quoted(type));
    add("cluster name={} digest={}\n", quoted(plan_.cluster), quoted(plan_.cluster_digest));
  }

  std::string dims_text() const {
    std::string text;
    for (const auto& [name, value] : plan_.dims) {
      text += fmt::format("{}{}:{}", text.empty() ? "" : ",", quoted(name), value);
    }
    return text.empty() ? "none" : text;
  }

  void print_training() {
    const Training& t = plan_.training;
    add("training batch={} micro-batches={} schedule={} precision={} statistics-every={}", t.batch,
        plan_.micro_batches, name_of(plan_.schedule), name_of(t.precision), t.statistics_every);
    if (t.wire_type) add(" wire-type={}", name_of(*t.wire_type));
    if (t.attention != AttentionForm::kSteps) add(" attention={}", name_of(t.attention));
    add("\nloss {}", name_of(t.loss.kind));
    for (const auto& [output, weight] : t.loss.outputs) add(" {}={}", quoted(output), weight);
    if (has_label_options(t.loss)) print_labels(t.loss);
    const Optimizer& o = t.optimizer;
    add("\noptimizer {} learning-rate={}", name_of(o.kind), o.learning_rate);
    for (const OptimizerSetting& setting : entry_of(kOptimizers, o.kind).settings) {
      add(" {}={}", setting.name, o.*setting.value);
    }
    add("{} weight-decay={}", o.nesterov ? " nesterov=yes" : "", o.weight_decay);
    if (o.clips()) add(" max-norm={}", o.max_norm);
    text_ += "\n";
  }

  void print_labels(const Loss& loss) {
    text_ += "\n  labels";
    if (loss.ignore_index) add(" ignore-index={}", *loss.ignore_index);
    if (loss.label_smoothing != 0) add(" smoothing={}", loss.label_smoothing);
    if (loss.class_axis != 0) add(" class-axis={}", loss.class_axis);
    if (!loss.next_token.empty()) add(" next-token={}", quoted(loss.next_token));
  }

  void print_stage(const PlanStage& stage) {
    std::vector<int> ranks;
    std::vector<std::string> devices;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      ranks.push_back(stage.ranks[i]);
      devices.push_back(stage.devices[i]);
      if (!stage.has_teams()) continue;
      const std::vector<int>& further = stage.further_ranks[i];
      ranks.insert(ranks.end(), further.begin(), further.end());
      devices.insert(devices.end(), stage.further_devices[i].begin(),
                     stage.further_devices[i].end());
    }
    add("stage {} ranks={} devices={} samples={}", stage.name, print_ranks(ranks),
        print_devices(devices), print_samples(stage.samples));
    if (stage.odd >= 0) add(" odd={}", stage.odd);
    print_bodies(stage);
    add(" recompute={}", stage.recompute ? "yes" : "no");
    if (!stage.segments.empty()) add(" segments={}", print_samples(stage.segments));
    if (stage.activations_in_host) text_ += " activations-in=host";
    if (stage.state_in_host) text_ += " state-in=host";
    add(" operators={}\n", operator_count(stage));
    for (const PlanStage::Run& run : stage.operators) {
      add("  operators {} .. {} count={}\n", quoted(run.first), quoted(run.last), run.count);
    }
  }

  void print_bodies(const PlanStage& stage) {
    if (!stage.has_unlike_teams()) {
      if (stage.has_teams()) add(" body=t{}", stage.body);
      return;
    }
    std::vector<std::int64_t> members;
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      add("{}t{}", i == 0 ? " body=" : ",", stage.bodies[i]);
      members.push_back(static_cast<std::int64_t>(stage.further_ranks[i].size()) + 1);
    }
    add(" members={}", print_samples(members));
  }

  std::string_view stage_name(int stage) const {
    return plan_.stages[static_cast<std::size_t>(stage)].name;
  }

  void print_cut(const Cut& cut) {
    add("cut {} from={} to={} tensors={}\n", cut.name, stage_name(cut.from), stage_name(cut.to),
        cut.tensors.size());
    for (const CutTensor& tensor : cut.tensors) {
      std::string shape = tensor.batched ? "samples" : "";
      for (const std::int64_t dim : tensor.dims) {
        shape += fmt::format("{}{}", shape.empty() ? "" : "x", dim);
      }
      add("  tensor {} type={} shape={} gradient={}\n", quoted(tensor.name), name_of(tensor.type),
          shape.empty() ? "scalar" : shape, tensor.gradient ? "yes" : "no");
    }
  }

  void print_flow(const PlanFlow& flow) {
    add("flow {} stage={} sub-chunks={}", flow.name, stage_name(flow.stage), flow.sub_chunks);
    if (flow.order != FlowOrder::kReceivers) add(" order={}", name_of(flow.order));
    add(" steps={} messages={}\n", flow.steps.size(), flow.message_count());
    const std::vector<int>& ranks = plan_.stages[static_cast<std::size_t>(flow.stage)].ranks;
    for (const FlowStep& step : flow.steps) {
      add("{}\n", print_flow_step(step, flow.sub_chunks, ranks));
    }
  }

  void print_bucket(const PlanBucket& bucket) {
    add("bucket {} stage={}", bucket.name, stage_name(bucket.stage));
    const char* separator = " shared-with=";
    for (const int stage : bucket.shared_with) {
      add("{}{}", separator, stage_name(stage));
      separator = ",";
    }
    add(" algorithm={} type={}", algorithm_text(plan_, bucket), name_of(bucket.type));
    if (bucket.is_sharded()) {
      add(" state={} parts={}", name_of(bucket.state), print_samples(bucket.parts));
    }
    add(" gradients={} elements={}\n", bucket.members.size(), bucket.elements());
    for (const BucketMember& member : bucket.members) {
      add("  gradient {} elements={}\n", quoted(member.parameter), member.elements);
    }
  }

  void print_program(const Program& program) {
    std::string stages;
    for (const int stage : plan_.stages_of_program(plan_.program_of(program.stage))) {
      stages += fmt::format("{}{}", stages.empty() ? "" : ",", stage_name(stage));
    }
    add("program {}\n", stages);
    const std::vector<int> steps = repetition_steps(plan_);
    for (const Repetition& piece : repetitions_of(program, steps)) {
      std::optional<int> repetition;
      if (piece.times > 1) {
        repetition = piece.first;
        const int last = piece.first + (static_cast<int>(piece.times) - 1) * piece.step;
        add("  repeat mb={}..{}", piece.first, last);
        if (piece.step > 1) add(" by={}", piece.step);
        add("\n");
      }
      for (std::size_t i = piece.begin; i < piece.begin + piece.size; ++i) {
        add("{}{}\n", repetition ? "    " : "  ",
            print_instruction(program.instructions[i], repetition));
      }
    }
  }

  void print_expect() {
    if (plan_.expect.empty()) return;
    text_ += "expect\n";
    for (const Expectation& e : plan_.expect) add("  {} {}\n", e.name, figure(e.value, e.unit));
  }

  const Plan& plan_;
  std::string text_;
};

}  // namespace

std::string print_plan(const Plan& plan) { return PlanPrinter(plan).run(); }

}  // namespace agpcs
