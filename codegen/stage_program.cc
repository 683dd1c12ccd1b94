// SPDX-License-Identifier: Apache-2.0
#include "codegen/stage_program.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// How many micro-batches of gradients may wait to be sent before the next backward waits for them.
constexpr int kOutgoing = 2;

bool has_gradient(const Cut& cut) {
  return std::any_of(cut.tensors.begin(), cut.tensors.end(),
                     [](const CutTensor& tensor) { return tensor.gradient; });
}

class ProgramWriter {
 public:
  ProgramWriter(const Plan& plan, int stage) : plan_(plan), stage_(stage) {
    for (int i = 0; i < static_cast<int>(plan.cuts.size()); ++i) {
      if (plan.cuts[static_cast<std::size_t>(i)].to == stage) in_.push_back(i);
      if (plan.cuts[static_cast<std::size_t>(i)].from == stage) out_.push_back(i);
    }
    program_.stage = stage;
  }

  Program run() {
    const std::vector<InstructionId> order = compute_order();
    post_receives(order, 0);
    for (std::size_t i = 0; i < order.size(); ++i) {
      post_receives(order, i + 1);
      if (order[i].opcode == Opcode::kForward) {
        write_forward(order[i].micro_batch);
      } else {
        write_backward(order[i].micro_batch);
      }
    }
    write_end(order.back());
    return std::move(program_);
  }

 private:
  const Cut& cut(int index) const { return plan_.cuts[static_cast<std::size_t>(index)]; }

  void add(InstructionId id, std::vector<InstructionId> after = {}) {
    program_.instructions.push_back({id, std::move(after)});
  }

  /// The forwards and backwards of this stage in the order of the schedule.
  std::vector<InstructionId> compute_order() const {
    const int micro_batches = static_cast<int>(plan_.micro_batches);
    const int later_stages = static_cast<int>(plan_.stages.size()) - stage_ - 1;
    const bool gpipe = plan_.schedule == Schedule::kGPipe;
    const int ahead = gpipe ? micro_batches : std::min(micro_batches, later_stages);
    std::vector<InstructionId> order;
    for (int i = 0; i < micro_batches + ahead; ++i) {
      if (i < micro_batches) order.push_back({Opcode::kForward, -1, i});
      if (i >= ahead) order.push_back({Opcode::kBackward, -1, i - ahead});
    }
    return order;
  }

  /// Receives what order[i] needs, once order[i - 2] is done.
  void post_receives(const std::vector<InstructionId>& order, std::size_t i) {
    if (i >= order.size()) return;
    std::vector<InstructionId> after;
    if (i >= 2) after.push_back(order[i - 2]);
    for (const InstructionId& received : received_for(order[i])) add(received, after);
  }

  /// Activations come from the earliest stage first, gradients from the latest: the order in which
  /// they are made.
  std::vector<InstructionId> received_for(const InstructionId& compute) const {
    std::vector<InstructionId> received;
    if (compute.opcode == Opcode::kForward) {
      for (const int c : in_) received.push_back({Opcode::kRecv, c, compute.micro_batch});
      return received;
    }
    for (auto it = out_.rbegin(); it != out_.rend(); ++it) {
      if (!has_gradient(cut(*it))) continue;
      received.push_back({Opcode::kRecvGradient, *it, compute.micro_batch});
    }
    return received;
  }

  /// Sends go to the nearest stage first, which waits for them first.
  void write_forward(int micro_batch) {
    const InstructionId forward = {Opcode::kForward, -1, micro_batch};
    add(forward, received_for(forward));
    for (const int c : out_) add({Opcode::kSend, c, micro_batch}, {forward});
  }

  void write_backward(int micro_batch) {
    const InstructionId backward = {Opcode::kBackward, -1, micro_batch};
    std::vector<InstructionId> after = received_for(backward);
    for (const int c : out_) {  // a gradient that came back says that its activation was sent
      if (!has_gradient(cut(c))) after.push_back({Opcode::kSend, c, micro_batch});
    }
    for (auto it = in_.rbegin(); it != in_.rend() && micro_batch >= kOutgoing; ++it) {
      if (!has_gradient(cut(*it))) continue;
      after.push_back({Opcode::kSendGradient, *it, micro_batch - kOutgoing});
    }
    add(backward, std::move(after));
    for (auto it = in_.rbegin(); it != in_.rend(); ++it) {
      if (has_gradient(cut(*it))) add({Opcode::kSendGradient, *it, micro_batch}, {backward});
    }
  }

  void write_end(const InstructionId& last_backward) {
    std::vector<InstructionId> reduced;
    const bool alone = plan_.stages[static_cast<std::size_t>(stage_)].ranks.size() == 1;
    for (int b = 0; b < static_cast<int>(plan_.buckets.size()) && !alone; ++b) {
      if (plan_.buckets[static_cast<std::size_t>(b)].stage != stage_) continue;
      const InstructionId all_reduce = {Opcode::kAllReduce, b, -1};
      add(all_reduce, {{Opcode::kGradients, b, last_backward.micro_batch}});
      reduced = {all_reduce};  // the collective stream is in order: the last one stands for all
    }
    add({Opcode::kUpdate, -1, -1}, std::move(reduced));
    add({Opcode::kReport, -1, -1}, {last_backward});
  }

  const Plan& plan_;
  int stage_;
  std::vector<int> in_, out_;  // cuts, by the other stage ascending
  Program program_;
};

}  // namespace

Program stage_program(const Plan& plan, int stage) { return ProgramWriter(plan, stage).run(); }

}  // namespace agpcs
