// SPDX-License-Identifier: Apache-2.0
// Checks one program alone. Vector clocks over the four in-order streams decide "happens before":
// clock[s] counts how many instructions of stream s have surely finished when an instruction
// starts.
#include "ir/base/units.h"
#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/plan/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <tuple>

namespace agpcs {
namespace {

using Clock = std::array<std::size_t, kStreamKindCount>;

struct ById {
  bool operator()(const InstructionId& a, const InstructionId& b) const {
    return std::tuple(a.opcode, a.object, a.micro_batch) <
           std::tuple(b.opcode, b.object, b.micro_batch);
  }
};

std::size_t stream_index(const InstructionId& id) {
  return static_cast<std::size_t>(stream_of(id.opcode));
}

class ProgramChecker {
 public:
  ProgramChecker(const Plan& plan, const Program& program, PlanFaults& faults)
      : plan_(plan),
        program_(program),
        stage_(plan.stages[static_cast<std::size_t>(program.stage)]),
        program_index_(plan.program_of(program.stage)),
        stages_(plan.stages_of_program(program_index_)),
        micro_batches_(static_cast<int>(plan.micro_batches)),
        faults_(faults) {}

  void run() {
    const std::size_t before = faults_.size();
    const std::size_t passes = plan_.parts_backward() ? 3 : 2;
    const std::size_t least =
        stage_.idle() ? 1 : passes * stages_.size() * static_cast<std::size_t>(plan_.micro_batches);
    if (program_.instructions.size() < least) {
      return fail(-1, fmt::format("{} instructions are too few for {} micro-batches",
                                  program_.instructions.size(), plan_.micro_batches));
    }
    expect_instructions();
    place_instructions();
    find_missing();
    if (faults_.size() > before) return;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) run_clock(i);
    if (faults_.size() > before) return;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) check_inputs(i);
    check_gathers();
    check_end();
  }

 private:
  void fail(int instruction, const std::string& message, std::string hint = {}) {
    faults_.push_back({fmt::format("program s{}: {}", fmt::join(stages_, ",s"), message),
                       std::move(hint), program_index_, instruction});
  }
  bool clips() const { return plan_.training.optimizer.clips(); }
  const InstructionId& id(std::size_t index) const { return program_.instructions[index].id; }
  /// Returns the cut of a message.
  const Cut& cut(std::size_t index) const {
    return plan_.cuts[static_cast<std::size_t>(id(index).object)];
  }

  /// Finds the instructions that this program must consist of.
  void expect_instructions() {
    expected_[{Opcode::kReport, -1, -1}] = false;
    if (clips()) expected_[{Opcode::kNorm, -1, -1}] = false;
    if (stage_.idle()) return;
    for (const int stage : stages_) expect_stage(stage);
    expected_[{Opcode::kUpdate, -1, -1}] = false;
  }

  void expect_stage(int stage) {
    Cuts& cuts = cuts_[stage];
    for (int c = 0; c < static_cast<int>(plan_.cuts.size()); ++c) {
      const Cut& cut = plan_.cuts[static_cast<std::size_t>(c)];
      const bool local = is_local(plan_, cut);
      if (cut.from == stage) (local ? cuts.given : cuts.out).push_back(c);
      if (cut.to == stage) (local ? cuts.taken : cuts.in).push_back(c);
    }
    for (int k = 0; k < micro_batches_; ++k) {
      expected_[plan_.forward_pass(stage, k)] = false;
      expected_[plan_.input_pass(stage, k)] = expected_[plan_.weight_pass(stage, k)] = false;
      for (const int c : cuts.in) expect_transfer(c, k, Opcode::kRecv, Opcode::kSendGradient);
      for (const int c : cuts.out) expect_transfer(c, k, Opcode::kSend, Opcode::kRecvGradient);
    }
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b) {
      const PlanBucket& bucket = plan_.buckets[static_cast<std::size_t>(b)];
      if (!bucket.is_of(stage) || !is_reduced(plan_, bucket)) continue;
      for (const InstructionId& one : collectives_of(plan_, b)) expected_[one] = false;
      reduces_ = true;
    }
  }

  void expect_transfer(int cut, int micro_batch, Opcode activation, Opcode gradient) {
    expected_[{activation, cut, micro_batch}] = false;
    if (!has_gradient(plan_.cuts[static_cast<std::size_t>(cut)])) return;
    expected_[{gradient, cut, micro_batch}] = false;
  }

  void place_instructions() {
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      const auto it = expected_.find(id(i));
      if (it == expected_.end()) {
        fail(static_cast<int>(i),
             fmt::format("'{}' is not an instruction of {}", spelled(id(i)),
                         stages_.size() > 1 ? "these stages" : "this stage"),
             needs_text());
      } else if (it->second) {
        fail(static_cast<int>(i), fmt::format("'{}' appears twice", spelled(id(i))),
             "each instruction runs once a step");
      } else {
        it->second = true;
        position_[id(i)] = i;
        if (makes_gradients(id(i).opcode)) {
          last_backward_[Plan::stage_of_pass(id(i), program_.stage)] = id(i).micro_batch;
        }
      }
    }
  }

  /// Returns "stage s1 has 4 micro-batches, receives c0, sends c1, reduces b2"; of several stages,
  /// "stages s0,s2 have ...".
  std::string needs_text() const {
    if (stage_.idle()) {
      return fmt::format("stage {} has no operators, only {}'report'", stage_.name,
                         clips() ? "'norm' and " : "");
    }
    std::string text =
        stages_.size() > 1
            ? fmt::format("stages s{} have {}, and passes name their stage",
                          fmt::join(stages_, ",s"), plural(micro_batches_, "micro-batch", "es"))
            : fmt::format("stage {} has {}", stage_.name,
                          plural(micro_batches_, "micro-batch", "es"));
    for (const auto& [stage, cuts] : cuts_) {
      for (const int c : cuts.in) text += fmt::format(", receives c{}", c);
      for (const int c : cuts.out) text += fmt::format(", sends c{}", c);
    }
    for (const auto& [instruction, seen] : expected_) {
      if (sums_gradients(instruction.opcode) && instruction.micro_batch <= 0) {
        text += fmt::format(", reduces b{}", instruction.object);
      }
    }
    if (clips()) text += ", takes part in 'norm'";
    const bool alone = stage_.ranks.size() == 1 && !reduces_;
    return text + (alone ? ", reduces nothing (it has one rank)" : "");
  }

  void find_missing() {
    for (const auto& [instruction, seen] : expected_) {
      if (!seen) fail(-1, fmt::format("'{}' is missing", spelled(instruction)), needs_text());
    }
  }

  /// Computes start_[i] from the stream's predecessor and from `after`.
  void run_clock(std::size_t i) {
    const std::size_t stream = stream_index(id(i));
    Clock clock = last_[stream];
    for (std::size_t d = 0; d < program_.instructions[i].after.size(); ++d) {
      const std::vector<InstructionId>& after = program_.instructions[i].after;
      if (std::find(after.begin(), after.begin() + static_cast<std::ptrdiff_t>(d), after[d]) !=
          after.begin() + static_cast<std::ptrdiff_t>(d)) {
        fail(static_cast<int>(i),
             fmt::format("'{}' waits for '{}' twice", spelled(id(i)), name_of(after[d])));
      }
      const Clock* finished = clock_after(i, after[d]);
      if (finished == nullptr) continue;
      check_kind(i, after[d]);
      for (std::size_t s = 0; s < clock.size(); ++s) clock[s] = std::max(clock[s], (*finished)[s]);
    }
    start_.push_back(clock);
    clock[stream] = ++count_[stream];
    end_.push_back(clock);
    last_[stream] = clock;
    in_stream_.push_back(count_[stream]);
  }

  /// Checks what a message or collective waits for: replayers post them from the compute stream
  /// once what they need exists.
  void check_kind(std::size_t i, const InstructionId& dependency) {
    if (stream_of(id(i).opcode) == StreamKind::kCompute) return;
    const StreamKind kind = stream_of(dependency.opcode);
    if (kind == StreamKind::kCompute || kind == stream_of(id(i).opcode)) return;
    fail(static_cast<int>(i),
         fmt::format("'{}' waits for '{}'", spelled(id(i)), name_of(dependency)),
         "messages and collectives wait for computations and gradients only");
  }

  /// Returns what has surely finished once `dependency` has happened; nullptr if nothing can wait
  /// for it.
  const Clock* clock_after(std::size_t i, const InstructionId& dependency) {
    InstructionId target = dependency;
    if (dependency.opcode == Opcode::kInForward || dependency.opcode == Opcode::kInBackward) {
      target = pass_of(dependency);
    } else if (dependency.opcode == Opcode::kGradients) {
      if (dependency != gradients_of(dependency.object, dependency.micro_batch)) {
        fail(static_cast<int>(i),
             fmt::format("'{}' waits for '{}', which does not happen", spelled(id(i)),
                         name_of(dependency)),
             fmt::format("a bucket has its gradients during the last backward, as in '{}'",
                         name_of(gradients_of(std::max(0, dependency.object), -1))));
        return nullptr;
      }
      target = plan_.weight_pass(stage_of_bucket(dependency.object), dependency.micro_batch);
    }
    const auto it = position_.find(target);
    if (it == position_.end() || it->second >= i) {
      fail(static_cast<int>(i),
           fmt::format("'{}' waits for '{}', which is not listed before it", spelled(id(i)),
                       name_of(dependency)),
           "an instruction waits only for earlier ones of its program");
      return nullptr;
    }
    // A bucket's last gradient comes while its backward runs, so only what the backward waited for
    // is done. So it is with what a pass needs.
    return is_event(dependency.opcode) ? &start_[it->second] : &end_[it->second];
  }

  /// Returns the stage of this program that has bucket `bucket`; -1: none.
  int stage_of_bucket(int bucket) const {
    if (bucket < 0 || bucket >= static_cast<int>(plan_.buckets.size())) return -1;
    const auto has = [&](int stage) {
      return plan_.buckets[static_cast<std::size_t>(bucket)].is_of(stage);
    };
    const auto stage = std::find_if(stages_.begin(), stages_.end(), has);
    return stage == stages_.end() ? -1 : *stage;
  }

  /// Returns the event that completes bucket `bucket` of this program: its gradients of micro-batch
  /// `micro_batch` where ranks divide them, else those of the step. Its object is -1 if the bucket
  /// belongs to another stage.
  InstructionId gradients_of(int bucket, int micro_batch) const {
    const int stage = stage_of_bucket(bucket);
    const bool ours = stage >= 0;
    const bool of_each =
        ours && plan_.buckets[static_cast<std::size_t>(bucket)].divides_gradients();
    if (of_each && micro_batch >= 0) return {Opcode::kGradients, bucket, micro_batch};
    return {Opcode::kGradients, ours ? bucket : -1,
            ours ? last_backward_.at(stage) : last_backward_.begin()->second};
  }

  bool finished_before(const InstructionId& first, std::size_t i) const {
    const std::size_t at = position_.at(first);
    return start_[i][stream_index(first)] >= in_stream_[at];
  }

  void require(std::size_t i, const InstructionId& input) {
    if (finished_before(input, i)) return;
    fail(static_cast<int>(i),
         fmt::format("'{}' may start before '{}' has finished", spelled(id(i)), spelled(input)),
         fmt::format("add '{}' to its after=", name_of(input)));
  }

  /// Checks that a pass comes after a pass of the other stage of local cut `c`. Both are in the
  /// compute stream.
  void require_local(std::size_t i, const InstructionId& other, int c) {
    if (finished_before(other, i)) return;
    fail(static_cast<int>(i),
         fmt::format("'{}' comes before '{}', and c{} is between stages of the same ranks",
                     spelled(id(i)), spelled(other), c),
         "no message carries such a cut: its ranks keep the tensors from the forward pass that "
         "makes them to its backward pass, and the other stage's passes come in between");
  }

  void check_inputs(std::size_t i) {
    const int k = id(i).micro_batch, stage = Plan::stage_of_pass(id(i), program_.stage);
    switch (id(i).opcode) {
      case Opcode::kForward:
        for (const int c : cuts_.at(stage).in) require(i, {Opcode::kRecv, c, k});
        for (const int c : cuts_.at(stage).taken) {
          const Cut& taken = plan_.cuts[static_cast<std::size_t>(c)];
          require_local(i, plan_.forward_pass(taken.from, k), c);
        }
        return;
      case Opcode::kBackward:
      case Opcode::kBackwardInput:
        require(i, plan_.forward_pass(stage, k));
        for (const int c : cuts_.at(stage).out) {
          if (position_.contains({Opcode::kRecvGradient, c, k})) {
            require(i, {Opcode::kRecvGradient, c, k});
          }
        }
        for (const int c : cuts_.at(stage).given) {
          const Cut& given = plan_.cuts[static_cast<std::size_t>(c)];
          require_local(i, plan_.input_pass(given.to, k), c);
        }
        return;
      case Opcode::kBackwardWeight:
        return require(i, plan_.input_pass(stage, k));
      case Opcode::kSend:
        return require(i, plan_.forward_pass(cut(i).from, k));
      case Opcode::kSendGradient:
        return require(i, plan_.input_pass(cut(i).to, k));
      case Opcode::kAllReduce:
      case Opcode::kReduceScatter:
        return check_sum(i);
      case Opcode::kAllGather:
        return require(i, {Opcode::kUpdate, -1, -1});
      case Opcode::kNorm:
        return check_gradients(i);
      case Opcode::kUpdate:
        if (clips()) require(i, {Opcode::kNorm, -1, -1});
        return check_gradients(i);
      case Opcode::kReport:
        if (stage_.idle()) return;
        for (const int one : stages_) {
          for (int m = 0; m < micro_batches_; ++m) require(i, plan_.forward_pass(one, m));
        }
        return;
      case Opcode::kRecv:
      case Opcode::kRecvGradient:
      case Opcode::kGatherForward:  // by `check_gathers`
      case Opcode::kGatherBackward:
      case Opcode::kGradients:
      case Opcode::kInForward:
      case Opcode::kInBackward:
        return;
    }
  }

  void check_sum(std::size_t i) {
    const InstructionId event = gradients_of(id(i).object, id(i).micro_batch);
    const std::vector<InstructionId>& after = program_.instructions[i].after;
    if (id(i).micro_batch >= 0) {
      if (after == std::vector<InstructionId>{event}) return;
      return fail(static_cast<int>(i),
                  fmt::format("'{}' does not wait for '{}' alone", spelled(id(i)), name_of(event)),
                  "where ranks divide gradients, a backward pass posts the sum of each bucket, and "
                  "waits for the one before it");
    }
    if (std::find(after.begin(), after.end(), event) != after.end()) return;
    const InstructionId last = plan_.weight_pass(stage_of_bucket(event.object), event.micro_batch);
    if (finished_before(last, i)) return;
    fail(static_cast<int>(i),
         fmt::format("'{}' may start before its last gradient is there", spelled(id(i))),
         fmt::format("add '{}' to its after=", name_of(event)));
  }

  /// Checks what needs the sums of all gradients.
  void check_gradients(std::size_t i) {
    if (stage_.idle()) return;
    for (const int stage : stages_) {
      for (int k = 0; k < micro_batches_; ++k) require(i, plan_.weight_pass(stage, k));
    }
    for (const auto& [instruction, seen] : expected_) {
      if (sums_gradients(instruction.opcode)) require(i, instruction);
    }
  }

  /// Checks that each pass gathers before it reads. A pass waits within for each of its gathers
  /// where it needs what they bring, in their order. There each lets the next one begin, so that a
  /// rank holds no more than what it reads and one bucket ahead.
  void check_gathers() {
    std::size_t last = program_.instructions.size();  // the gather before; none yet
    std::size_t passes = 0;                           // of its pass: position, plus 1
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      if (!gathers_for_pass(id(i).opcode)) continue;
      const std::size_t pass = position_.at(pass_of(id(i)));
      const bool first_of_pass = pass + 1 != passes;
      if (pass + 1 < passes || (first_of_pass && i > pass)) {
        return fail(static_cast<int>(i),
                    fmt::format("'{}' comes after '{}'", spelled(id(i)),
                                spelled(pass + 1 < passes ? id(last) : id(pass))),
                    "gathers are in the order of passes, the first of each above its pass");
      }
      std::vector<InstructionId> after;
      if (last < program_.instructions.size()) after.push_back(need_of(id(last)));
      if (program_.instructions[i].after != after) {
        fail(static_cast<int>(i),
             after.empty() ? fmt::format("'{}' waits for something", spelled(id(i)))
                           : fmt::format("'{}' does not wait for '{}' alone", spelled(id(i)),
                                         name_of(after.front())),
             "a gather begins where a pass needs what the gather before it brings; the first of "
             "the step at once");
      }
      last = i;
      passes = pass + 1;
    }
  }

  void check_end() {
    const std::size_t last = program_.instructions.size() - 1;
    if (id(last).opcode == Opcode::kReport) return;
    fail(static_cast<int>(last), fmt::format("'{}' comes after 'report'", spelled(id(last))),
         "report is the last instruction of every program");
  }

  const Plan& plan_;
  const Program& program_;
  const PlanStage& stage_;  // the first of `stages_`
  int program_index_;
  std::vector<int> stages_;
  int micro_batches_;
  PlanFaults& faults_;
  struct Cuts {
    std::vector<int> in, out;       // indices
    std::vector<int> taken, given;  // likewise, of cuts that are local
  };
  std::map<int, Cuts> cuts_;                              // by stage
  std::map<int, int> last_backward_;                      // by stage: its micro-batch
  bool reduces_ = false;                                  // it sums gradients with other ranks
  std::map<InstructionId, bool, ById> expected_;          // true: the program has it
  std::map<InstructionId, std::size_t, ById> position_;   // position in the program
  std::vector<Clock> start_, end_;                        // by position
  std::vector<std::size_t> in_stream_;                    // by position: index in its stream
  std::array<Clock, kStreamKindCount> last_ = {};         // end of each stream so far
  std::array<std::size_t, kStreamKindCount> count_ = {};  // instructions of each stream so far
};

}  // namespace

void check_programs(const Plan& plan, PlanFaults& faults) {
  // A program for each set of ranks: those that stages go round over, and the idle ones.
  std::vector<int> firsts;
  for (int stage = 0; stage < static_cast<int>(plan.stages.size()); ++stage) {
    if (plan.program_of(stage) == static_cast<int>(firsts.size())) firsts.push_back(stage);
  }
  for (std::size_t i = 0; i < firsts.size() || i < plan.programs.size(); ++i) {
    if (i >= firsts.size()) {
      faults.push_back({fmt::format("program {} has no stage", i + 1), ""});
      return;
    }
    if (i >= plan.programs.size() || plan.programs[i].stage != firsts[i]) {
      faults.push_back({fmt::format("program {} of {} is not that of stage s{}", i + 1,
                                    plan.programs.size(), firsts[i]),
                        plan.interleaves() ? "each set of ranks has one program"
                                           : "each stage has one program, in stage order"});
      return;
    }
    ProgramChecker(plan, plan.programs[i], faults).run();
  }
}

}  // namespace agpcs
