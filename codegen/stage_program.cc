// SPDX-License-Identifier: Apache-2.0
#include "codegen/stage_program.h"

#include "ir/plan/lookup.h"
#include "ir/plan/rounds/rank_stages.h"
#include "ir/strategy/posted_within.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// The number of micro-batches whose gradients may wait to be sent before the next backward waits
/// for them.
constexpr int kOutgoing = 2;

/// A message of this program: one pass makes it, and the same pass of another stage needs it.
struct Message {
  int needed = 0;    // when its consumer starts, by the timetable
  int made = 0;      // when its producer ends
  int producer = 0;  // stage
  int turn = 0;      // position among the messages that the producer's pass makes
  std::size_t pass =
      0;  // index in this program's order: the consumer of a receive, the producer of a send
  InstructionId id;

  /// The order in which all stages post their messages.
  bool operator<(const Message& other) const {
    return std::tie(needed, made, producer, turn) <
           std::tie(other.needed, other.made, other.producer, other.turn);
  }
};

class ProgramWriter {
 public:
  ProgramWriter(const Plan& plan, const Timetable& timetable, int stage,
                std::span<const BucketUse> uses)
      : plan_(plan),
        timetable_(timetable),
        stage_(stage),
        number_(plan.program_of(stage)),
        uses_(uses),
        order_(timetable.order(number_)),
        cuts_(plan.stages.size()) {
    for (int i = 0; i < static_cast<int>(plan.cuts.size()); ++i) {
      if (is_local(plan, cut(i))) continue;
      cuts_[static_cast<std::size_t>(cut(i).to)].in.push_back(i);
      cuts_[static_cast<std::size_t>(cut(i).from)].out.push_back(i);
    }
    program_.stage = stage;
  }

  Program run() {
    find_messages();
    program_.instructions.reserve(order_.size() + receives_.size() + sends_.size() +
                                  plan_.buckets.size() + 4);
    post_receives(0);
    if (!uses_.empty()) add(first_gather(order_.front(), uses_));
    for (std::size_t i = 0; i < order_.size(); ++i) {
      post_receives(i + 1);
      add(order_[i], waited_for(i));
      // Sums of a micro-batch come before all other sums, for some of which other stages have to do
      // more: backward passes wait for these here.
      const InstructionId* const next = i + 1 < order_.size() ? &order_[i + 1] : nullptr;
      for (const Instruction& posted : posted_within(plan_, stage_, order_[i], next, uses_)) {
        program_.instructions.push_back(posted);
      }
      post_sends(i);
    }
    write_end(order_.back());
    return std::move(program_);
  }

 private:
  struct Cuts {
    std::vector<int> in, out;  // ascending by the other stage
  };
  const Cut& cut(int index) const { return plan_.cuts[static_cast<std::size_t>(index)]; }
  /// Returns the cuts of a pass's stage.
  const Cuts& cuts_of(const InstructionId& pass) const {
    return cuts_[static_cast<std::size_t>(Plan::stage_of_pass(pass, stage_))];
  }

  void add(InstructionId id, std::vector<InstructionId> after = {}) {
    program_.instructions.push_back({id, std::move(after)});
  }

  void find_messages() {
    for (std::size_t i = 0; i < order_.size(); ++i) {
      for_each_received(order_[i], [&](const InstructionId& id) {
        receives_.push_back(message(id, order_[i].opcode, i));
      });
      for_each_sent(order_[i], [&](const InstructionId& id) {
        sends_.push_back(message(id, order_[i].opcode, i));
      });
    }
    std::sort(receives_.begin(), receives_.end());
    std::sort(sends_.begin(), sends_.end());
  }

  Message message(const InstructionId& id, Opcode pass, std::size_t index) const {
    const bool forward = pass == Opcode::kForward;
    const Cut& c = cut(id.object);
    const int producer = forward ? c.from : c.to;
    return {needed(id, pass),
            timetable_.end_of(producer, pass, id.micro_batch),
            producer,
            forward ? id.object : -id.object,
            index,
            id};
  }

  /// Returns when the consumer of a message starts.
  int needed(const InstructionId& id, Opcode pass) const {
    const Cut& c = cut(id.object);
    return timetable_.end_of(pass == Opcode::kForward ? c.to : c.from, pass, id.micro_batch) - 1;
  }

  /// Posts the receives that order_[i] needs. They start when order_[i - 2] has finished.
  void post_receives(std::size_t i) {
    for (; received_ < receives_.size() && receives_[received_].pass <= i; ++received_) {
      std::vector<InstructionId> after;
      if (i >= 2) after.push_back(order_[i - 2]);
      add(receives_[received_].id, std::move(after));
    }
  }

  /// Posts the sends of what has been made when order_[i] is done, up to the first message that has
  /// not been made.
  void post_sends(std::size_t i) {
    for (; sent_ < sends_.size() && sends_[sent_].pass <= i; ++sent_) {
      add(sends_[sent_].id, {order_[sends_[sent_].pass]});
    }
  }

  /// Calls `f` with the receives of a pass. Activations come from the earliest stage first,
  /// gradients from the latest: that is the order in which they are made.
  template <typename F>
  void for_each_received(const InstructionId& compute, F f) const {
    const Cuts& cuts = cuts_of(compute);
    for_each_message(compute, cuts.in, cuts.out, Opcode::kRecv, Opcode::kRecvGradient, f);
  }

  /// Calls `f` with the sends of a pass. Activations go to the nearest stage first, gradients to
  /// the latest, because that stage waits for them first.
  template <typename F>
  void for_each_sent(const InstructionId& compute, F f) const {
    const Cuts& cuts = cuts_of(compute);
    for_each_message(compute, cuts.out, cuts.in, Opcode::kSend, Opcode::kSendGradient, f);
  }

  /// Calls `f` with the messages of a pass, over cuts that have some if it goes forward or back.
  template <typename F>
  void for_each_message(const InstructionId& compute, const std::vector<int>& forward,
                        const std::vector<int>& back, Opcode activation, Opcode gradient,
                        F f) const {
    if (compute.opcode == Opcode::kForward) {
      for (const int c : forward) f(InstructionId{activation, c, compute.micro_batch});
      return;
    }
    if (!goes_back(compute.opcode)) return;
    for (auto it = back.rbegin(); it != back.rend(); ++it) {
      if (has_gradient(cut(*it))) f(InstructionId{gradient, *it, compute.micro_batch});
    }
  }

  /// Returns what a compute instruction waits for: its receives, and, before a backward pass, sends
  /// from long enough ago, so that few buffers are in use.
  std::vector<InstructionId> waited_for(std::size_t i) const {
    const InstructionId& compute = order_[i];
    std::vector<InstructionId> after;
    const Cuts& cuts = cuts_of(compute);
    after.reserve(cuts.in.size() + cuts.out.size());
    for_each_received(compute, [&](const InstructionId& id) { after.push_back(id); });
    if (!goes_back(compute.opcode)) return after;
    const int start = timetable_.ends(number_)[i] - 1;
    for (const int c : cuts.out) {
      // Where a gradient comes back, it proves that the activation was sent.
      if (!has_gradient(cut(c))) add_sent(c, Opcode::kForward, compute.micro_batch, start, after);
    }
    for (auto it = cuts.in.rbegin(); it != cuts.in.rend(); ++it) {
      if (!has_gradient(cut(*it))) continue;
      add_sent(*it, compute.opcode, compute.micro_batch - kOutgoing, start, after);
    }
    return after;
  }

  /// Adds the last send over cut `c`, up to `micro_batch`, that is needed by `start`.
  void add_sent(int c, Opcode pass, int micro_batch, int start,
                std::vector<InstructionId>& after) const {
    const Opcode send = pass == Opcode::kForward ? Opcode::kSend : Opcode::kSendGradient;
    for (; micro_batch >= 0; --micro_batch) {
      const InstructionId id = {send, c, micro_batch};
      if (needed(id, pass) > start) continue;
      after.push_back(id);
      return;
    }
  }

  /// Returns whether a bucket is of a stage of this program.
  bool is_own(const PlanBucket& bucket) const {
    const std::vector<int> stages = stages_of(bucket);
    return std::any_of(stages.begin(), stages.end(),
                       [&](int stage) { return plan_.program_of(stage) == number_; });
  }

  void write_end(const InstructionId& last_backward) {
    std::vector<InstructionId> scattered, summed, gathers;
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()); ++b) {
      const PlanBucket& bucket = plan_.buckets[static_cast<std::size_t>(b)];
      if (!is_own(bucket) || !is_reduced(plan_, bucket)) continue;
      if (bucket.is_sharded() && !bucket.divides_parameters())
        gathers.push_back({Opcode::kAllGather, b, -1});
      if (bucket.divides_gradients()) {
        scattered = {{Opcode::kReduceScatter, b, last_backward.micro_batch}};
        continue;
      }
      const InstructionId sum = {bucket.is_sharded() ? Opcode::kReduceScatter : Opcode::kAllReduce,
                                 b, -1};
      add(sum, {{Opcode::kGradients, b, last_backward.micro_batch}});
      summed = {sum};  // the collective stream is in order, so the last one stands for all
    }
    if (summed.empty()) summed = std::move(scattered);
    const InstructionId norm = {Opcode::kNorm, -1, -1}, update = {Opcode::kUpdate, -1, -1};
    if (plan_.training.optimizer.clips()) {
      summed.push_back(last_backward);
      add(norm, std::move(summed));
      summed = {norm};
    }
    add(update, std::move(summed));
    for (const InstructionId& gather : gathers) add(gather, {update});
    add({Opcode::kReport, -1, -1}, {last_backward});
  }

  const Plan& plan_;
  const Timetable& timetable_;
  int stage_;   // the first of the program
  int number_;  // of the program
  std::span<const BucketUse> uses_;
  const std::vector<InstructionId>& order_;
  std::vector<Message> receives_, sends_;  // in the order in which they are needed
  std::size_t received_ = 0, sent_ = 0;    // number of messages posted
  std::vector<Cuts> cuts_;                 // by stage, without those that are local
  Program program_;
};

}  // namespace

Program stage_program(const Plan& plan, const Timetable& timetable, int stage,
                      std::span<const BucketUse> uses) {
  return ProgramWriter(plan, timetable, stage, uses).run();
}

}  // namespace agpcs
