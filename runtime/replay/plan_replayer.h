// SPDX-License-Identifier: Apache-2.0
// The replayer: one walk over the resolved program. The caller's thread computes, and posts each
// message and collective as soon as it has all that it waits for; the transport completes them. The
// thread waits only where a computation needs one of them, and at the end of the step.
#pragma once

#include "runtime/replay/gradient_rounding.h"
#include "runtime/replay/in_order.h"
#include "runtime/replay/recording_replayer.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/replay/slice_sums.h"
#include "runtime/support/operation_times.h"
#include "runtime/support/recording.h"

#include <agpcs/replayer.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace agpcs {

/// Returns "rank 3 (volta/3)".
std::string rank_name(const Plan& plan, int rank);

inline constexpr std::array<Stream, 3> kStreams = {Stream::kSend, Stream::kRecv,
                                                   Stream::kCollective};
inline constexpr std::array<StreamKind, 3> kKinds = {StreamKind::kSend, StreamKind::kRecv,
                                                     StreamKind::kCollective};

class PlanReplayer final : public RecordingReplayer,
                           private GradientListener,
                           private ParameterSource {
 public:
  PlanReplayer(const Plan& plan, int rank, ResolvedProgram program, GradientRounding rounding,
               SliceSums slices, Transport& transport, Executor& executor,
               const ReplayOptions& options, int record_after);
  ~PlanReplayer() override;
  PlanReplayer(const PlanReplayer&) = delete;
  PlanReplayer& operator=(const PlanReplayer&) = delete;

  Result<StepReport> run_step() override;
  Result<Evaluation> evaluate() override;
  const StepRecording& recording() const override { return recording_; }
  std::vector<double>& to_report() override { return to_report_; }
  const std::vector<double>& reported() const override { return reported_; }
  const std::vector<InstructionId>& instructions() const override { return ids_; }
  /// Lets the executor's passes wait for parameters, if they gather any. It is called once, before
  /// the first step.
  Status connect_parameters();
  const StepTimes& times() const override { return times_; }

 private:
  // A walk over the program, which leaves some instructions out on all ranks.
  enum class Pass : std::uint8_t {
    kWhole,
    kMore,        // nothing is reduced, updated or reported: another batch of the step follows
    kEvaluation,  // forward passes alone
  };
  // The tickets of a posted message or collective; 0, 0: not posted.
  struct Posted {
    Ticket first = 0, last = 0;
  };
  const ResolvedInstruction& at(std::size_t index) const { return program_.instructions[index]; }
  const std::vector<std::size_t>& stream(StreamKind kind) const {
    return program_.streams[static_cast<std::size_t>(kind)];
  }

  /// Records the next step if all ranks can, and otherwise notes the reason in `recording_`.
  /// Returns false on a failure.
  bool decide_recording();
  Status record();
  bool replay_step();
  bool start_step();
  void begin_pass(Pass pass);
  bool skips(const ResolvedInstruction& instruction) const;
  bool compute_step();
  bool await(const ResolvedInstruction& instruction);
  /// Tells the executor that all sends through `last` have left.
  void tell_sent(std::size_t last);
  Status compute(const ResolvedInstruction& instruction);
  /// Sums the squares of gradients over all ranks, and scales gradients whose norm is too large.
  bool clip();
  Status add_squares();
  Status check_loss() const;
  Status check_gradient(int bucket);
  /// Takes back all sums of slices, each as soon as it is there.
  bool take_slices();
  /// Takes back all sums that travelled in a wire type, each as soon as it is there.
  bool take_sums();
  Status take_sum(int bucket);
  void bucket_ready(int bucket) override;
  Status need(int bucket) override;
  /// Needs what a pass has gathered and not asked for.
  Status need_rest(const InstructionId& pass);
  /// Passes over the next gathers that this walk leaves out.
  void skip_gathers();
  bool divides_gradients(int bucket) const {
    return buckets_[static_cast<std::size_t>(bucket)].divides_gradients();
  }
  /// Fills the bucket of a reduce_scatter of one micro-batch, when the one before it has ended.
  bool fill(std::size_t index);
  /// Takes the slices of an all_reduce from its bucket.
  bool fill_slices(std::size_t index);
  /// Keeps this rank's part of the last reduce_scatter of one micro-batch, if it is not kept yet:
  /// computations from now on come after it.
  bool keep_scattered();
  /// Posts, in order, the instructions that have all that they wait for.
  void post();
  bool may_start(const ResolvedInstruction& instruction) const;
  void post(std::size_t index);
  Result<Ticket> post(std::size_t index, std::size_t part);
  Result<Buffer> buffer_of(const ResolvedInstruction& instruction, std::size_t part);
  Buffer report_buffer();
  bool finish_step();
  /// Makes later computations come after the instruction.
  bool order_after(Stream stream, std::size_t index);
  bool wait(Stream stream, std::size_t index);
  bool fail_at(Stream stream, std::size_t index, const Status& status);
  void take_reported();
  void note_times();
  OperationTime time_of(Stream stream, std::size_t index, Ticket ticket) const;
  void fail(const std::string& what, const Status& cause);

  const ResolvedProgram program_;
  const std::string name_;
  const int world_;
  const std::int64_t statistics_every_;
  std::vector<PlanBucket> buckets_;  // of all ranks, as this rank holds them
  std::vector<char> is_reduced_;     // by bucket: this rank's program reduces it
  std::vector<ElementRange> owned_;  // by bucket: the elements that this rank owns
  const double max_norm_;            // 0: gradients are not clipped
  std::vector<int> normed_;          // buckets whose squares this rank adds
  GradientRounding rounding_;
  SliceSums slices_;
  Transport& transport_;
  Executor& executor_;
  const ReplayOptions options_;
  const int record_after_;  // 0: never
  std::vector<InstructionId> ids_;
  StepTimes times_;
  std::vector<double> to_report_, reported_;
  std::vector<double> report_;  // what travels: the loss, then the words

  // State of the running step.
  std::int64_t step_;
  Pass pass_ = Pass::kWhole;
  std::size_t computed_ = 0;           // computations that are done
  std::array<InOrder, 3> order_;       // by Stream: the order of its instructions
  std::size_t told_sent_ = 0;          // sends of which the executor knows that they have left
  std::array<Ticket, 3> newest_ = {};  // by Stream: newest ticket
  std::vector<Posted> posted_;         // by instruction
  std::vector<int> ready_;             // by bucket: how often it has been reported
  std::int64_t paused_ = 0;            // nanoseconds that the computation has waited within
  std::size_t needed_ = 0;             // gathers that passes have needed so far
  std::size_t scattering_ = kNoInstruction;  // the reduce_scatter whose part is still to be kept
  double squares_ = 0;                       // of this rank's gradients, then of all
  bool squared_ = false;                     // this rank's are added
  Status failure_;

  StepRecording recording_;
  std::unique_ptr<StepGraph> graph_;                // null: instructions are launched one by one
  RecordingExecutor* recorded_executor_ = nullptr;  // the executor, if `graph_` is set
  bool records_ = false;                            // this step is being recorded
  std::size_t report_at_ = kNoInstruction, norm_at_ = kNoInstruction;
};

}  // namespace agpcs
