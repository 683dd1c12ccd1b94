// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/verify.h"

#include "ir/base/all_values.h"
#include "ir/base/named.h"
#include "ir/plan/choices.h"
#include "ir/plan/lookup.h"
#include "ir/plan/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string_view>

namespace agpcs {
namespace {

constexpr std::size_t kMostFaults = 20;

constexpr std::string_view kDigestPrefix = "sha256:";

bool is_digest(std::string_view text) {
  return text.size() == kDigestPrefix.size() + 64 &&
         text.substr(0, kDigestPrefix.size()) == kDigestPrefix &&
         text.find_first_not_of("0123456789abcdef", kDigestPrefix.size()) == std::string_view::npos;
}

class StructureChecker {
 public:
  StructureChecker(const Plan& plan, PlanFaults& faults) : plan_(plan), faults_(faults) {}

  void run() {
    check_header();
    check_training();
    check_optimizer();
    check_stages(plan_, faults_);
    for (std::size_t i = 0; i < plan_.cuts.size(); ++i) check_cut(i);
    for (std::size_t i = 0; i < plan_.flows.size(); ++i) check_flow(i);
    for (std::size_t i = 0; i < plan_.buckets.size(); ++i) check_bucket(i);
    check_wire_type();
    if (faults_.empty()) check_bodies(plan_, faults_);
    if (faults_.empty()) check_expectations();
  }

 private:
  void fail(std::string message, std::string hint = {}) {
    faults_.push_back({std::move(message), std::move(hint)});
  }

  void check_header() {
    if (!is_digest(plan_.model_digest)) {
      fail(fmt::format("model digest '{}' is not sha256: and 64 hexadecimal digits",
                       plan_.model_digest));
    }
    if (!is_digest(plan_.cluster_digest)) {
      fail(fmt::format("cluster digest '{}' is not sha256: and 64 hexadecimal digits",
                       plan_.cluster_digest));
    }
    for (std::size_t i = 0; i < plan_.dims.size(); ++i) {
      const auto& [name, value] = plan_.dims[i];
      if (value < 1 || value > kLargestFigure) fail(fmt::format("dim '{}' is {}", name, value));
      if (i > 0 && plan_.dims[i - 1].first >= name) {
        fail(fmt::format("dim '{}' comes after '{}'", name, plan_.dims[i - 1].first),
             "dims are sorted, each once");
      }
    }
    check_sorted("frozen", plan_.frozen, "weights");
    check_sorted("trained", plan_.trained, "weights");
    check_sorted("fused", plan_.fused, "types of operators");
  }

  void check_sorted(const char* what, const std::vector<std::string>& names, const char* of) {
    for (std::size_t i = 1; i < names.size(); ++i) {
      if (names[i - 1] < names[i]) continue;
      fail(fmt::format("{} '{}' comes after '{}'", what, names[i], names[i - 1]),
           fmt::format("{} {} are sorted, each once", what, of));
    }
  }

  void check_training() {
    const Training& t = plan_.training;
    if (t.batch < 1 || t.batch > kLargestFigure) fail(fmt::format("batch is {}", t.batch));
    if (t.statistics_every < 0 || t.statistics_every > kLargestFigure) {
      fail(fmt::format("statistics-every is {}", t.statistics_every),
           "a number of steps; 0: never");
    }
    if (plan_.micro_batches < 1 || plan_.micro_batches > std::numeric_limits<int>::max()) {
      return fail(fmt::format("micro-batches is {}", plan_.micro_batches));
    }
    if (t.batch < plan_.micro_batches) {
      fail(
          fmt::format("a batch of {} does not make {} micro-batches", t.batch, plan_.micro_batches),
          "each micro-batch has a sample");
    }
    check_loss(t.loss);
  }

  void check_loss(const Loss& loss) {
    std::set<std::string_view> outputs;
    for (const auto& [output, weight] : loss.outputs) {
      if (!std::isfinite(weight)) fail(fmt::format("loss weight of '{}' is {}", output, weight));
      if (!outputs.insert(output).second) fail(fmt::format("loss names '{}' twice", output));
    }
    if (!entry_of(kLosses, loss.kind).takes_labels && has_label_options(loss)) {
      fail(fmt::format("loss {} has labels", name_of(loss.kind)),
           "labels are of softmax_cross_entropy");
    }
    if (!(loss.label_smoothing >= 0 && loss.label_smoothing < 1)) {
      fail(fmt::format("loss's smoothing is {}, not in [0, 1)", loss.label_smoothing));
    }
  }

  void check_optimizer() {
    const Optimizer& o = plan_.training.optimizer;
    const auto within = [&](const char* name, double value, double below) {
      if (!(value >= 0 && value < below)) {
        fail(fmt::format("optimizer's {} is {}, not in [0, {})", name, value, below));
      }
    };
    const double infinite = std::numeric_limits<double>::infinity();
    within("learning-rate", o.learning_rate, infinite);
    within("weight-decay", o.weight_decay, infinite);
    within("momentum", o.momentum, 1);
    if (o.nesterov && !(o.kind == OptimizerKind::kSgd && o.momentum > 0)) {
      fail("optimizer's nesterov needs sgd with a momentum above 0");
    }
    within("beta1", o.beta1, 1);
    within("beta2", o.beta2, 1);
    within("max-norm", o.max_norm, infinite);
    if (!(o.epsilon > 0 && o.epsilon < infinite)) {
      fail(fmt::format("optimizer's epsilon is {}, not above 0", o.epsilon));
    }
  }

  bool is_stage(int stage) const {
    return stage >= 0 && stage < static_cast<int>(plan_.stages.size());
  }

  void check_cut(std::size_t index) {
    const Cut& cut = plan_.cuts[index];
    check_name({"cut", 'c', index}, cut.name, faults_);
    if (!is_stage(cut.from) || !is_stage(cut.to) || cut.from >= cut.to) {
      return fail(fmt::format("cut {} goes from s{} to s{} of {} stages", cut.name, cut.from,
                              cut.to, plan_.stages.size()),
                  "a cut goes to a later stage");
    }
    if (index > 0) {
      const Cut& before = plan_.cuts[index - 1];
      if (std::pair(before.from, before.to) >= std::pair(cut.from, cut.to)) {
        fail(fmt::format("cut {} (s{} to s{}) comes after cut {} (s{} to s{})", cut.name, cut.from,
                         cut.to, before.name, before.from, before.to),
             "cuts are sorted by their stages, one for each pair");
      }
    }
    if (cut.tensors.empty()) fail(fmt::format("cut {} has no tensors", cut.name));
    std::set<std::string_view> names;
    for (const CutTensor& tensor : cut.tensors) {
      if (!names.insert(tensor.name).second) {
        fail(fmt::format("cut {} has '{}' twice", cut.name, tensor.name));
      }
      check_tensor(cut, tensor);
    }
  }

  void check_tensor(const Cut& cut, const CutTensor& tensor) {
    std::int64_t elements = 1;
    for (const std::int64_t dim : tensor.dims) {
      if (dim < 1 || dim > kLargestFigure / elements) {
        return fail(fmt::format("cut {}: '{}' has extent {}", cut.name, tensor.name, dim));
      }
      elements *= dim;
    }
    if (tensor.gradient && !is_floating(tensor.type)) {
      fail(fmt::format("cut {}: '{}' of {} has a gradient", cut.name, tensor.name,
                       name_of(tensor.type)));
    }
    const auto [it, first] = tensors_.emplace(tensor.name, std::pair(&cut, &tensor));
    if (first) return;
    const auto& [other_cut, other] = it->second;
    if (other_cut->from != cut.from || other->type != tensor.type || other->dims != tensor.dims ||
        other->batched != tensor.batched || other->gradient != tensor.gradient) {
      fail(fmt::format("'{}' differs between cuts {} and {}", tensor.name, other_cut->name,
                       cut.name));
    }
  }

  void check_flow(std::size_t index) {
    const PlanFlow& flow = plan_.flows[index];
    check_name({"flow", 'f', index}, flow.name, faults_);
    if (!is_stage(flow.stage)) {
      return fail(fmt::format("flow {} is of stage s{}, of {} stages", flow.name, flow.stage,
                              plan_.stages.size()));
    }
    const std::size_t members = plan_.stages[static_cast<std::size_t>(flow.stage)].ranks.size();
    const Status sums = verify_flow(flow, static_cast<int>(members));
    if (!sums.ok()) fail(sums.message());
    const bool used = std::any_of(plan_.buckets.begin(), plan_.buckets.end(),
                                  [&](const auto& b) { return b.flow == static_cast<int>(index); });
    if (!used) {
      fail(fmt::format("flow {} serves no bucket", flow.name),
           fmt::format("a bucket names it by algorithm=flow:{}", flow.name));
    }
  }

  void check_algorithm(const PlanBucket& bucket) {
    if ((bucket.algorithm == AllReduce::kFlow) != (bucket.flow >= 0) ||
        bucket.flow >= static_cast<int>(plan_.flows.size())) {
      return fail(fmt::format("bucket {} has algorithm {} and flow f{}, of {} flows", bucket.name,
                              name_of(bucket.algorithm), bucket.flow, plan_.flows.size()));
    }
    if (bucket.flow < 0) return;
    const PlanFlow& flow = plan_.flows[static_cast<std::size_t>(bucket.flow)];
    if (flow.stage == bucket.stage) return;
    fail(fmt::format("bucket {} of stage s{} names flow {} of stage s{}", bucket.name, bucket.stage,
                     flow.name, flow.stage),
         "a flow serves the buckets of its own stage");
  }

  void check_shared(const PlanBucket& bucket) {
    int before = bucket.stage;
    for (const int stage : bucket.shared_with) {
      if (!is_stage(stage) || plan_.stages[static_cast<std::size_t>(stage)].idle()) {
        fail(fmt::format("bucket {} is shared with stage s{}, which has no operators", bucket.name,
                         stage),
             fmt::format("the plan has {} stages", plan_.stages.size()));
      }
      if (stage <= before) {
        fail(fmt::format("bucket {}: stage s{} comes after stage s{}", bucket.name, stage, before),
             "the stages that share a bucket ascend, from stage= on");
      }
      before = stage;
    }
    check_sharers(bucket);
    if (!bucket.is_shared() || bucket.flow < 0) return;
    fail(fmt::format("bucket {} of stages s{} names a flow", bucket.name,
                     fmt::join(stages_of(bucket), " and s")),
         "a flow is among the ranks of one stage; stages that share a bucket sum it by ring, "
         "hierarchical or tree");
  }

  /// Checks that no rank has a bucket twice.
  void check_sharers(const PlanBucket& bucket) {
    if (!plan_.interleaves() || !faults_.empty()) return;
    std::map<int, int> first;  // by program
    for (const int stage : stages_of(bucket)) {
      const auto [other, is_new] = first.emplace(plan_.program_of(stage), stage);
      if (is_new) continue;
      fail(fmt::format("bucket {} is of stages s{} and s{}, which have the same ranks", bucket.name,
                       other->second, stage),
           "stages that share parameters have ranks of their own yet");
    }
  }

  void check_bucket(std::size_t index) {
    const PlanBucket& bucket = plan_.buckets[index];
    check_name({"bucket", 'b', index}, bucket.name, faults_);
    if (!is_stage(bucket.stage)) {
      fail(fmt::format("bucket {} is of stage s{}, of {} stages", bucket.name, bucket.stage,
                       plan_.stages.size()));
    }
    check_shared(bucket);
    if (!is_floating(bucket.type)) {
      fail(fmt::format("bucket {} holds gradients of {}", bucket.name, name_of(bucket.type)));
    }
    check_algorithm(bucket);
    if (bucket.members.empty()) fail(fmt::format("bucket {} has no gradients", bucket.name));
    for (const BucketMember& member : bucket.members) {
      if (member.elements < 1 || member.elements > kLargestFigure) {
        fail(fmt::format("bucket {}: '{}' has {} elements", bucket.name, member.parameter,
                         member.elements));
      }
      const auto [it, added] = bucket_of_.emplace(member.parameter, bucket.name);
      if (!added) {
        fail(fmt::format("the gradient of '{}' is in bucket {} and in bucket {}", member.parameter,
                         it->second, bucket.name),
             "each gradient is reduced once");
      }
    }
    if (bucket.is_sharded() == bucket.parts.empty()) {
      fail(fmt::format("bucket {} has state={} and {} parts", bucket.name, name_of(bucket.state),
                       bucket.parts.size()));
    }
    if (faults_.empty() && bucket.is_sharded()) check_parts(bucket);
    if (bucket.divides_gradients() && (plan_.parts_backward() || plan_.interleaves())) {
      fail(fmt::format("bucket {} has state={}, but the schedule is {}", bucket.name,
                       name_of(bucket.state), name_of(plan_.schedule)),
           "gradients are divided by backward passes that are not parted, of one stage on each "
           "rank");
    }
  }

  /// Checks who owns what of a sharded bucket. Needs: stages and members are right.
  void check_parts(const PlanBucket& bucket) {
    const std::vector<int> ranks = ranks_of(plan_, bucket);
    if (ranks.size() == 1) {
      return fail(fmt::format("bucket {} divides its state, but only rank {} holds it", bucket.name,
                              ranks[0]),
                  "leave out state= and parts=");
    }
    if (bucket.parts.size() != ranks.size()) {
      return fail(fmt::format("bucket {} has {} parts for {} ranks", bucket.name,
                              bucket.parts.size(), ranks.size()),
                  "one part for each rank of its stages; 0 for a rank that owns nothing");
    }
    std::int64_t sum = 0;
    for (const std::int64_t part : bucket.parts) {
      if (part < 0 || part > bucket.elements()) {
        return fail(fmt::format("bucket {} has a part of {} elements", bucket.name, part));
      }
      sum += part;
    }
    if (sum != bucket.elements()) {
      fail(fmt::format("bucket {}: parts sum to {}, it has {} elements", bucket.name, sum,
                       bucket.elements()),
           "each element has one owner");
    }
    if (bucket.divides_gradients() && bucket.is_shared()) {
      fail(fmt::format("bucket {} of stages s{} divides its gradients", bucket.name,
                       fmt::join(stages_of(bucket), " and s")),
           "stages that share a bucket sum it once, after their last backward passes: "
           "state=optimizer, or no state=");
    }
    if (bucket.algorithm != AllReduce::kFlow) return;
    fail(fmt::format("bucket {} divides its state, and names a flow", bucket.name),
         "a sharded bucket is summed by ring, hierarchical or tree");
  }

  void check_wire_type() {
    const std::optional<DType> wire = plan_.training.wire_type;
    if (!wire) return;
    if (!is_wire_type(wire)) {
      return fail(fmt::format("wire type {}", name_of(*wire)),
                  fmt::format("wire types: {}", fmt::join(names_of(kWireTypes), ", ")));
    }
    const bool rounds = std::any_of(plan_.buckets.begin(), plan_.buckets.end(),
                                    [](const auto& b) { return b.type == DType::kFp32; });
    if (rounds) return;
    fail(fmt::format("wire-type={}, but no gradients are fp32", name_of(*wire)),
         "only fp32 gradients are rounded to it; others travel as they are, without it");
  }

  void check_expectations() {
    if (plan_.expect.empty()) return;
    const std::vector<std::string> names = expectation_names(plan_);
    for (std::size_t i = 0; i < names.size() || i < plan_.expect.size(); ++i) {
      const std::string found = i < plan_.expect.size() ? plan_.expect[i].name : "nothing";
      const std::string expected = i < names.size() ? names[i] : "nothing";
      if (found != expected) {
        return fail(fmt::format("expect has '{}' where '{}' is expected", found, expected),
                    "expectations are complete and in the order of docs/reference/plan_format.md");
      }
      const Expectation& e = plan_.expect[i];
      if (!(e.value >= 0 && std::isfinite(e.value)) || e.unit != expectation_unit(e.name)) {
        fail(fmt::format("expect: '{}' is {} {}", e.name, e.value, e.unit));
      }
    }
  }

  const Plan& plan_;
  PlanFaults& faults_;
  std::map<std::string_view, std::pair<const Cut*, const CutTensor*>> tensors_;
  std::map<std::string_view, std::string_view> bucket_of_;
};

}  // namespace

void check_structure(const Plan& plan, PlanFaults& faults) { StructureChecker(plan, faults).run(); }

PlanFaults find_faults(const Plan& plan) {
  PlanFaults faults;
  for (const auto check : {check_structure, check_programs, check_progress}) {
    if (faults.empty()) check(plan, faults);
  }
  if (faults.size() > kMostFaults) {
    const std::size_t more = faults.size() - kMostFaults;
    faults.resize(kMostFaults);
    faults.push_back({fmt::format("{} more problems", more), ""});
  }
  return faults;
}

Status verify_plan(const Plan& plan) {
  std::string text;
  for (const PlanFault& fault : find_faults(plan)) {
    if (!text.empty()) text += '\n';
    text += "plan: error: " + fault.message;
    if (!fault.hint.empty()) text += "\n  hint: " + fault.hint;
  }
  return text.empty() ? Status() : invalid_input(std::move(text));
}

std::string spelled(const InstructionId& id) {
  std::string text(name_of(id.opcode));
  if (id.object >= 0) text += fmt::format(" {}{}", object_letter(id.opcode), id.object);
  if (id.micro_batch >= 0) text += fmt::format(" mb={}", id.micro_batch);
  return text;
}

}  // namespace agpcs
