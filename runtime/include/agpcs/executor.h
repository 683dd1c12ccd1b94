// SPDX-License-Identifier: Apache-2.0
// An Executor computes a stage. AGPCS provides one over LibTorch; provide your own to keep your
// training loop.
#pragma once

#include <agpcs/buffer.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/step_times.h>
#include <agpcs/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

class Transport;

/// What the passes of a member of a team exchange over with the other members: an open group of
/// their ranks. Nothing else runs collectives over it.
struct TeamExchanges {
  Transport* transport = nullptr;
  int group = 0;
  std::chrono::milliseconds limit{60000};  ///< of a single wait
};

/// A pass of a stage: forward, backward, or a part of backward.
struct StagePass {
  int stage = 0;  ///< index into Plan::stages, one of the rank's
  int micro_batch = 0;
};

/// Learns when a bucket has its last gradient. `Executor::backward` calls it on its own thread.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void bucket_ready(int bucket) = 0;
};

/// Waits for parameters that ranks divide. Passes of an `Executor` call it on their own thread.
class ParameterSource {
 public:
  virtual ~ParameterSource() = default;
  /// Comes back when all parameters of a bucket are in the memory that `Executor::gather` returned
  /// for it last. A pass calls it before it first reads the bucket, in the order of the operators,
  /// also if it then reads nothing.
  virtual Status need(int bucket) = 0;
};

/// A piece of what training has learned: the values of a parameter or of a state tensor (such as
/// running means), or what the optimizer remembers of a parameter. Elements are fp32, row-major. A
/// rank has all of them, or those from one to another: what the optimizer remembers of a sharded
/// bucket's parameters is divided among its ranks. Or it has a part along an axis, as a member of a
/// team: then of each `period` elements, one such row behind another, those in `runs`.
struct StateItem {
  std::string tensor;                   ///< the model's name for it
  std::string slot;                     ///< "value", "momentum", "first", "second"
  std::int64_t elements = 0;            ///< of the whole tensor
  std::int64_t before = 0;              ///< the elements at its beginning that are not in this item
  std::int64_t after = 0;               ///< the elements at its end that are not in this item
  std::int64_t period = 0;              ///< divides `elements`; 0: the item has all of its range
  std::vector<ElementRange> runs = {};  ///< ascending, within the period
  bool is_part_along_axis() const { return period > 0; }
  /// Returns the elements that are in this item, as the whole tensor counts them.
  ElementRange range() const { return {before, elements - after}; }
  /// Returns how many elements of [first, first + count) are in this item.
  std::int64_t count_of(std::int64_t first, std::int64_t count) const;
  std::int64_t size() const { return count_of(0, elements); }  ///< of the elements in this item
  /// Returns whether both have the same elements of tensors of one size.
  bool is_same_part(const StateItem& other) const;
  friend bool operator==(const StateItem& a, const StateItem& b) {
    return a.tensor == b.tensor && a.slot == b.slot && a.is_same_part(b);
  }
};
/// The slot of a tensor's own values.
inline constexpr const char* kValueSlot = "value";

/// Sums over samples that nothing is learned from: those of one rank, or of all.
struct Evaluation {
  double loss = 0;     ///< mean over all samples of the set; of one rank: its part of this mean
  double correct = 0;  ///< labels for which the model has the largest score
  double counted = 0;  ///< labels that count; 0: the loss has no classes
  double samples = 0;
};

/// The computation of a stage on one rank, or with Schedule::kInterleaved of its several stages.
/// One thread makes all calls, in program order: `prepare` once, then for each step `begin_step`,
/// `forward` and `backward` (or its two parts) as the program says, and `update`. Whoever computes
/// one stage alone may ignore which stage a pass is of. A cut is of one of the rank's stages. If it
/// is of two, which then have the same ranks, no message carries it: the executor keeps its tensors
/// from the forward pass of the stage that makes them to its backward pass, reads them in the
/// other's passes, and takes their gradients from there. Of other cuts, the caller asks for a
/// buffer when it posts a message: for a received activation before its forward pass, for a
/// produced one after it; for a received gradient before its backward pass (or input pass), for a
/// produced one after it.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Tells which stages the rank has, ascending, if it has several. Comes before `prepare`.
  /// kUnavailable (the default): the executor computes one stage.
  virtual Status compute_stages(const std::vector<int>& stages);
  /// Allocates memory for `rank` of `plan`. It is called once, before what follows.
  virtual Status prepare(const Plan& plan, int rank) = 0;
  /// Starts step `step` (from 0): loads its samples, zeroes gradients and the loss.
  virtual Status begin_step(std::int64_t step) = 0;
  /// Goes on with the next batch of the same step (ReplayOptions::batches): loads its samples, and
  /// keeps gradients and the loss, to which it adds. Losses and gradients are those of one batch
  /// that has the samples of all batches of the step. kUnavailable (the default): the executor
  /// cannot.
  virtual Status next_batch();

  virtual Status forward(const StagePass& pass) = 0;
  /// Accumulates parameter gradients. With `last`, this is the stage's last backward pass of the
  /// step: it reports each of the stage's buckets to `listener` exactly once, as soon as the
  /// bucket's last gradient is final, in any order. Buckets of which ranks divide gradients are
  /// reported by every pass, as soon as the pass has made all of their gradients; see
  /// `fill_bucket`.
  virtual Status backward(const StagePass& pass, bool last, GradientListener& listener) = 0;
  /// The two parts of `backward`, of plans whose backward passes are parted
  /// (`Plan::parts_backward`); such plans call no `backward`. Other micro-batches' passes come
  /// between. `backward_input` makes the gradients of received activations, and may accumulate
  /// gradients of parameters, too. `backward_weight` accumulates those that are left, and reports
  /// as `backward` does. kUnavailable (the default): the executor cannot part them.
  virtual Status backward_input(const StagePass& pass);
  virtual Status backward_weight(const StagePass& pass, bool last, GradientListener& listener);
  /// Updates the parameters of all its stages from the reduced buckets (the optimizer's step). Of a
  /// sharded bucket, it updates only the elements that this rank owns (`owned_elements`): the
  /// others have no sums, and come from their owners.
  virtual Status update() = 0;

  /// Returns the rows of an activation that crosses `cut`: an incoming one for the transport to
  /// fill, an outgoing one as computed.
  virtual Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) = 0;
  /// Returns the rows of the gradient of an activation that crosses `cut`. On the producer's side,
  /// the executor sums gradients of the same rows from several peers.
  virtual Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) = 0;
  /// Tells that a message has left: nobody reads the buffers of `send` (kSend, kSendGradient) any
  /// more. Called before a computation that comes after its arrival; not for messages that no
  /// computation comes after. The default does nothing.
  virtual void sent(const InstructionId& send);
  /// Returns the flat gradient buffer of `bucket`, with its members in plan order.
  virtual Result<Buffer> bucket(int bucket) = 0;
  /// Returns the gradient of one member of a bucket that this rank's program does not reduce; no
  /// data: it is zero. kUnavailable (the default): the executor has all gradients in `bucket`.
  virtual Result<Buffer> member_gradient(int bucket, std::size_t member);

  /// Returns the flat buffer of the parameters of `bucket`, laid out like its gradients. Used for
  /// sharded buckets alone: other ranks' elements are received in it. It is also called once before
  /// the first step. kUnavailable (the default): the executor cannot divide state.
  virtual Result<Buffer> values(int bucket);

  /// `fill_bucket` and `keep_part` serve buckets of which ranks divide gradients
  /// (`PlanBucket::divides_gradients`). Both come within a backward pass, from its call of
  /// `bucket_ready`, or after it, once for each pass and bucket, in pairs: what one pair does has
  /// ended before the next begins. There is also a pair for each bucket before the first step.
  /// `fill_bucket` moves what the pass has made of the bucket's gradients to the memory that
  /// `bucket` returns, which all such buckets may share. kUnavailable (the default): the executor
  /// cannot divide gradients.
  virtual Status fill_bucket(int bucket);
  /// Adds the elements that this rank owns of that memory, which now holds sums over ranks, to what
  /// it keeps of them in this step. `update` uses what is kept.
  virtual Status keep_part(int bucket);

  /// `gather_with` and `gather` serve buckets of which ranks divide parameters
  /// (`PlanBucket::divides_parameters`), for which `values` is not called. Between passes, a rank
  /// has the elements that it owns.
  /// `gather_with` comes once, before the first step: passes call `source`, which lives as long as
  /// they do. kUnavailable (the default): the executor cannot divide parameters.
  virtual Status gather_with(ParameterSource& source);
  /// Returns the bucket's flat buffer for a pass, laid out like its gradients, with the elements
  /// that this rank owns; the others are received in it. It comes before the pass, or within it,
  /// before the pass needs the bucket; also while the pass before it reads the same bucket, which
  /// then has another buffer. The pass frees it after it has last read it: a forward pass after its
  /// operators, a backward pass when the bucket has its gradients.
  virtual Result<Buffer> gather(int bucket);

  /// Serves ranks whose replica is a team (`PlanStage::has_teams`): `forward` and `backward` play
  /// the stage's body, in which members exchange parts of tensors. All members make the same calls
  /// in one order, on the thread that calls the executor, over the transport that `over` names,
  /// which lives as long as passes do; they wait for each exchange. It comes once, after `prepare`
  /// and before the first step. A bucket has the elements that the member holds. kUnavailable (the
  /// default): the executor does not divide operators.
  virtual Status exchange_with(const TeamExchanges& over);

  /// `round_bucket` and `widen_bucket` serve plans with a wire type (`Training::wire_type`) whose
  /// buckets are in an accelerator's memory; buckets in the host's memory are rounded by the
  /// replayer. Both calls work on the compute stream.
  /// `round_bucket` returns the bucket's values rounded to `type` (to nearest, ties to even), in
  /// memory that stays where it is. It is also called once before the first step. kUnavailable (the
  /// default): the executor cannot round.
  virtual Result<Buffer> round_bucket(int bucket, DType type);
  /// Replaces the bucket's values by what that memory holds now: the sums.
  virtual Status widen_bucket(int bucket);

  /// `squares` and `scale` serve plans that clip gradients by their norm (Optimizer::max_norm).
  /// Both come before `update`, once all gradients are summed. `squares` returns the sum of the
  /// squares of those gradients of `bucket` that `update` reads. kUnavailable (the default): the
  /// executor cannot clip.
  virtual Result<double> squares(int bucket);
  /// Multiplies all gradients that `update` reads by `factor`. It is also called once before the
  /// first step, with 1. kUnavailable (the default): the executor cannot clip.
  virtual Status scale(double factor);

  /// Returns this rank's part of the step's loss: the sum over its samples / plan.training.batch.
  /// Where some labels do not count (Loss::ignore_index), it is the sum over its labels that count
  /// / the labels of the whole batch that count; gradients are of the same. The parts of the ranks
  /// of the last stage add up to the mean loss of the batch; other ranks return 0.
  virtual double loss() const = 0;

  /// Begins batch `batch` (from 0) of the samples that the executor evaluates on; the first one
  /// clears `evaluation`. Until the next `begin_step`, `forward` computes without dropout, with
  /// running statistics, and adds to `evaluation` instead of the loss; it learns nothing. The last
  /// batch may have fewer samples. Called between two steps. Returns false if the set has no such
  /// batch. kUnavailable (the default): the executor has no samples to evaluate on.
  virtual Result<bool> begin_evaluation(std::int64_t batch);
  /// Returns this rank's part of the sums, of the batches so far.
  virtual Evaluation evaluation() const { return {}; }

  /// Returns when computation `id` of the last step ran on an accelerator, where computations go on
  /// after their calls have returned; waits for it if necessary. 0, 0 (the default) means: during
  /// its call.
  virtual InstructionTime time_of(const InstructionId& /*id*/) { return {}; }

  /// Computes something that took about `seconds` of the device at the first call (on a CPU, of its
  /// processor time), and returns the seconds that pass meanwhile now. From this a rank without
  /// work learns whether its device got faster or slower. It is called on a thread of its own,
  /// beside other calls. Throws nothing. 0 (the default): unknown.
  virtual double probe(double /*seconds*/) { return 0; }

  /// Lists all that this rank has learned of its stages, in an order that depends on the stages
  /// alone, each item once. Replicas list the same items (of teams, members of one number do), but
  /// for what the optimizer remembers of sharded buckets: of this each rank lists what it owns.
  /// This call, `read_state` and `write_state` come only between steps. An executor without state
  /// (the default) can be neither saved nor moved to another plan.
  virtual std::vector<StateItem> state() const { return {}; }
  /// Copies those of the elements [first, first + count) of the whole tensor that `item` has to
  /// `out`, one behind the other. `out` is in the host's memory. Error: this rank has not all of
  /// these elements.
  virtual Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                            float* out) const;
  virtual Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                             const float* values);
};

}  // namespace agpcs
