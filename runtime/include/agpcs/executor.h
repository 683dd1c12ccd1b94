// SPDX-License-Identifier: Apache-2.0
// Executor: computes a stage. AGPCS brings one over LibTorch; bring your own to keep your loop.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/step_times.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// Memory that a transport reads or writes: contiguous, owned by the executor, valid until the
/// next step's instruction of the same kind and micro-batch.
struct Buffer {
  void* data = nullptr;
  std::size_t bytes = 0;
  DType type = DType::kFp32;
  bool on_gpu = false;
};

/// Told when a bucket has its last gradient, from inside `Executor::backward`, on its thread.
class GradientListener {
 public:
  virtual ~GradientListener() = default;
  virtual void bucket_ready(int bucket) = 0;
};

/// A piece of what training has learned: the values of a parameter or of a state tensor (running
/// means), or what the optimizer remembers of a parameter. fp32 elements, row-major.
struct StateItem {
  std::string tensor;  ///< as the model names it
  std::string slot;    ///< "value", "momentum", "first", "second"
  std::int64_t elements = 0;
  friend bool operator==(const StateItem& a, const StateItem& b) {
    return a.tensor == b.tensor && a.slot == b.slot && a.elements == b.elements;
  }
};

/// A stage's computation on one rank. Calls come from one thread in program order:
/// prepare, then per step: begin_step, {forward, backward} by the program, update.
/// Buffers are asked for when a message is posted: a received activation before its forward, a
/// produced one after its forward; a received gradient before its backward, a produced one after.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Allocates for `rank` of `plan`. Called once, before anything else.
  virtual Status prepare(const Plan& plan, int rank) = 0;
  /// Starts step `step` (from 0): loads its samples, zeroes gradients and the loss.
  virtual Status begin_step(std::int64_t step) = 0;

  virtual Status forward(int micro_batch) = 0;
  /// Accumulates parameter gradients. With `last`, this is the step's last backward: reports each
  /// bucket to `listener` the moment its last gradient is final, in any order, each exactly once.
  virtual Status backward(int micro_batch, bool last, GradientListener& listener) = 0;
  /// Optimizer step on the stage's parameters from the (reduced) buckets.
  virtual Status update() = 0;

  /// Rows of an activation that crosses `cut` (in: to be filled by the transport; out: computed).
  virtual Result<Buffer> activation(int cut, const Transfer& transfer, int micro_batch) = 0;
  /// Rows of the gradient of an activation that crosses `cut`. On the producer's side gradients of
  /// the same rows from several peers are summed by the executor.
  virtual Result<Buffer> gradient(int cut, const Transfer& transfer, int micro_batch) = 0;
  /// The flat gradient buffer of `bucket`, members in plan order.
  virtual Result<Buffer> bucket(int bucket) = 0;

  /// Of plans with a wire type (`Training::wire_type`), where buckets are in an accelerator's
  /// memory; in the host's, the replayer rounds. Both go on the compute stream.
  /// The bucket's values rounded to `type`, nearest, ties to even, in memory that stays where it
  /// is; also called once before the first step. kUnavailable (the default): it cannot.
  virtual Result<Buffer> round_bucket(int bucket, DType type);
  /// What lies there by now, the sums, in place of the bucket's values.
  virtual Status widen_bucket(int bucket);

  /// This rank's part of the step's loss: sum over its samples / plan.training.batch. Ranks of the
  /// last stage add up to the mean loss of the batch; other ranks return 0.
  virtual double loss() const = 0;

  /// Where computations go on after their calls have returned (an accelerator): when `id`, a
  /// computation of the step that is over, ran there; waits for it. 0, 0 (the default): while it
  /// was called.
  virtual InstructionTime time_of(const InstructionId& /*id*/) { return {}; }

  /// Computes something that took about `seconds` when it was first asked for, and gives the
  /// seconds it takes now: so a rank without work learns whether its device got faster or slower. 0
  /// (the default): cannot be told.
  virtual double probe(double /*seconds*/) { return 0; }

  /// Steps recorded once and replayed (`ReplayOptions::record_after`). Why this stage's cannot be,
  /// as far as is known before it is tried: the node, or what else; empty: they can. Needs a step.
  virtual std::string recording_obstacle() const { return "it computes on a CPU"; }
  /// Between the two, the calls of one step, `begin_step` to `update`, are recorded on the compute
  /// stream and compute nothing; buffers given in between stay where they are. `end_recording` is
  /// called in any case.
  virtual Status begin_recording() { return {}; }
  virtual Status end_recording() { return {}; }
  /// In place of a step's calls, before its replay: brings what the host knows of step `step`
  /// (samples, the optimizer's step number) to where the recorded step reads it.
  virtual Status load_step(std::int64_t /*step*/) { return {}; }

  /// All that this rank's stage has learned, in an order that depends on the stage alone; replicas
  /// have the same items. Between steps only, as the two below. An executor without (the default)
  /// can neither be saved nor moved to another plan.
  virtual std::vector<StateItem> state() const { return {}; }
  /// Copies elements [first, first + count) of `item` to `out`, in the memory of the host.
  virtual Status read_state(const StateItem& item, std::int64_t first, std::int64_t count,
                            float* out) const;
  virtual Status write_state(const StateItem& item, std::int64_t first, std::int64_t count,
                             const float* values);
};

}  // namespace agpcs
