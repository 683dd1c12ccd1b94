// SPDX-License-Identifier: Apache-2.0
// Plan: one training step as static instruction programs, and its text form
// (docs/reference/plan_format.md).
//
// A plan is complete without the model: a runtime that brings its own executor needs nothing else.
// Every rank of a stage runs the stage's program. Programs name a cut instead of a peer, and
// `transfers` tells which rows go to or come from which rank.
//
// Execution model (the simulator and the replayer follow it exactly): each rank has four in-order
// streams: compute (forward, backward or its two parts, update), send (send, send_gradient), recv
// (recv, recv_gradient) and collective (all_reduce, reduce_scatter, all_gather, report). An
// instruction starts when its predecessor in its stream and all instructions in its `after` have
// finished. A transfer needs both ends. Messages and collectives wait for computations and
// gradients only.
#pragma once

#include <agpcs/plan_flow.h>
#include <agpcs/status.h>
#include <agpcs/training.h>
#include <agpcs/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// The version in a plan's first line. A reader refuses any other.
inline constexpr int kPlanVersion = 2;

/// The number of quantities that each rank measures (agpcs/drift.h). `report_words` returns how
/// many words (fp64) a report carries besides the loss: 2 for the running job's own use, and
/// kQuantityCount for each rank. The first word travels in every step, the others every
/// `statistics_every` steps.
inline constexpr int kQuantityCount = 3;
std::int64_t report_words(std::int64_t ranks);
/// Returns the bytes of a report, on average over the steps.
std::int64_t mean_report_bytes(std::int64_t ranks, std::int64_t statistics_every);

/// A pipeline stage: a convex set of operators, replicated over `ranks`. Replica i takes
/// `samples[i]` samples of every micro-batch: rows [sum of earlier samples, + samples[i]). Where
/// the batch does not divide, these are its samples of the larger micro-batches, and replica `odd`
/// takes one less of the smaller ones (`Plan::smaller_from`). The last stage may have no operators:
/// its ranks are idle. Idle ranks take no samples, and their program is `report` alone. They exist
/// because processes cannot leave a running job, which may later move to a plan that uses them.
///
/// A replica may be a team: several ranks that compute the same samples and divide the operators as
/// a `PlanBody` says. Then `ranks` and `devices` are those of the teams' first members. All members
/// run the stage's program, in which `forward` and `backward` play the body. Replicas may have
/// unlike bodies, of unlike numbers of members or with other parts; a rank that computes alone
/// beside teams has a body of one member. Such ranks sum gradients slice by slice
/// (ir/plan/body/slices.h).
///
/// With Schedule::kInterleaved, ranks have several stages: stages go round over sets of ranks, each
/// of which comes again after all others, with equal devices and samples.
struct PlanStage {
  std::string name;                   ///< "s0", "s1", ... in pipeline order
  std::vector<int> ranks;             ///< ascending
  std::vector<std::string> devices;   ///< "host/index", parallel to `ranks`
  std::vector<std::int64_t> samples;  ///< parallel to `ranks`, each > 0; 0 for idle ranks
  int odd = -1;  ///< rank that takes one sample less of smaller micro-batches; -1: there are none
  /// Forward passes are computed without what backward needs, and repeated for it: by all operators
  /// at once, or by `segments`.
  bool recompute = false;
  /// With `recompute`: the numbers of operators, in the model's order, that are repeated together,
  /// just before their own backward. The operators after them keep what they need. Empty: all
  /// operators are one segment.
  std::vector<std::int64_t> segments;
  /// What the segments keep between the passes of a micro-batch lies in the memory of the ranks'
  /// hosts: what they read if they `recompute`, else all that they need. It is copied there beside
  /// the forward pass of the segment that follows, and comes back beside the backward pass of that
  /// one. What other stages have or need stays on the device.
  bool activations_in_host = false;
  /// What the optimizer remembers lies in the memory of the ranks' hosts. `update` brings it to the
  /// device in pieces, and takes each piece back when it has been updated.
  bool state_in_host = false;
  /// The operators as runs of the model's operator order: first name, last name, count.
  struct Run {
    std::string first, last;
    std::int64_t count = 0;
  };
  std::vector<Run> operators;
  int body = -1;  ///< what members of teams do, an index into Plan::bodies; -1: no teams
  /// Where replicas have unlike bodies: that of each, parallel to `ranks`; `body` is the first one.
  std::vector<int> bodies = {};
  /// With teams: the further members of each replica, in the body's order, parallel to `ranks`.
  std::vector<std::vector<int>> further_ranks = {};
  std::vector<std::vector<std::string>> further_devices = {};
  bool idle() const { return operators.empty(); }
  bool has_teams() const { return body >= 0; }
  bool has_unlike_teams() const { return !bodies.empty(); }
  int body_of(std::size_t replica) const { return bodies.empty() ? body : bodies[replica]; }
  std::vector<int> members(std::size_t replica) const;  ///< the ranks of a replica
  std::vector<int> all_ranks() const;                   ///< of all replicas, ascending
  /// Returns the samples that replica `replica` takes of a micro-batch, larger or smaller.
  std::int64_t samples_of(std::size_t replica, bool smaller) const {
    return samples[replica] - (smaller && ranks[replica] == odd ? 1 : 0);
  }
};

/// A division of something among the members of a team: of so many pieces that are all alike,
/// member m has the next `pieces[m]`, one at least. In lowest terms.
struct BodyDivision {
  std::vector<std::int64_t> pieces;
  std::int64_t of() const;  ///< the sum
  friend bool operator==(const BodyDivision& a, const BodyDivision& b) {
    return a.pieces == b.pieces;
  }
};

/// How a tensor and its gradient lie on the members of a team.
enum class Lying : std::uint8_t {
  kCopy,        ///< "copy": each member has all of the tensor, and all of its gradient
  kCopySummed,  ///< "copy/sum": each has all of the tensor, and a summand of its gradient
  kSum,         ///< "sum": each has a summand of the tensor, and all of its gradient
  kPart,        ///< "part": each has a part along one axis, and the same part of its gradient
};

/// A form of a tensor: a way in which operators of a body make or read it. Forms are made of one
/// another, which is an exchange among the members, or nothing.
struct BodyForm {
  Lying lying = Lying::kCopy;
  int axis = 0;       ///< kPart
  int division = -1;  ///< kPart: index into PlanBody::divisions
  /// kPart: extents of bands, one behind another, of each of which every member has its part.
  /// Empty: the whole axis is one.
  std::vector<std::int64_t> bands = {};
  int from = -1;  ///< the form of the tensor that it is made of; -1: it begins so
  bool is_same(const BodyForm& other) const;  ///< lies in the same way, whatever it is made of
};

/// An extent: `fixed + per_sample x samples`.
struct BodyExtent {
  std::int64_t fixed = 0, per_sample = 0;
};

/// A tensor that a body lists: a parameter that is trained, or one that has several forms. All
/// others lie as their operators make or read them.
struct BodyTensor {
  std::string name;
  bool parameter = false;
  DType type = DType::kFp32;
  std::vector<BodyExtent> shape;
  bool gradient = true;
  std::vector<BodyForm> forms;  ///< at least one, all different, before those that are made of them
};

/// How the members of a team compute an operator.
struct BodyOperator {
  std::string name;
  /// One of the operator's splits (docs/reference/splits.md), "sum:2" if it is the second of its
  /// name; "": each member computes all.
  std::string split = {};
  int division = -1;  ///< -1: nothing is divided (it is whole, or only sums are passed on)
  std::vector<std::int64_t> bands = {};  ///< the split's units in bands; empty: one band
  bool gradient_sum = false;  ///< of one that is whole: each member has a summand of its gradients
};

/// A step of a body: a run of operators, or the exchange that belongs to a form of a tensor.
/// Forward it makes the form; backward it brings the form's gradient to the one that it was made
/// of.
struct BodyStep {
  int first = 0, last = -1;  ///< both of the run; backward passes go from last to first
  int tensor = -1, form = -1;
  bool is_exchange() const { return tensor >= 0; }
};

/// What the members of the teams of a stage, or of some of them, do in one forward and one backward
/// pass of a micro-batch. All members go through the steps in their order, so that their exchanges
/// are in one order, too. What comes from other stages is a copy on every member, what goes there
/// leaves as one, and so do gradients. Parameters are copies or parts, and so are their gradients
/// and what the optimizer keeps for them. After the last backward pass of a step, and before a
/// bucket has its last gradient, `step_end` sums gradients of parameters of which members have
/// summands.
struct PlanBody {
  std::string name;                 ///< "t0", ...
  std::vector<std::int64_t> parts;  ///< of each member, as they were asked for
  std::vector<BodyDivision> divisions;
  std::vector<BodyOperator> operators;  ///< those of the stage, in the model's order
  std::vector<BodyTensor> tensors;      ///< in the model's order
  std::vector<BodyStep> forward, backward;
  std::vector<BodyStep> step_end;
  std::size_t members() const { return parts.size(); }
};

/// A tensor that crosses from one stage to another.
struct CutTensor {
  std::string name;
  DType type = DType::kFp32;
  bool batched = true;  ///< axis 0 is the sample; otherwise every consumer gets the whole tensor
  std::vector<std::int64_t> dims;         ///< without the sample axis when batched
  bool gradient = true;                   ///< its gradient travels back
  std::int64_t elements_per_row() const;  ///< product of dims
};

/// All tensors that stage `to` needs from stage `from` (indices into Plan::stages, from < to).
struct Cut {
  std::string name;  ///< "c0", ...
  int from = 0, to = 0;
  std::vector<CutTensor> tensors;
};

/// The elements [begin, end) of a buffer.
struct ElementRange {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
};

struct BucketMember {
  std::string parameter;
  std::int64_t elements = 0;
};

/// Gradients that are reduced together, in one flat buffer in member order. Most are of one stage.
/// A parameter whose users are in several stages is held by all of them; its gradient is summed
/// over the ranks of all, in a bucket that they share.
///
/// A bucket with `parts` is sharded: its ranks divide what the optimizer remembers of it. Each rank
/// gets the sum of its own part of the gradients, updates this part of the parameters, and gets the
/// other parts from their owners. The optimizer treats each element by itself, so any parts train
/// the same model (ZeRO's first stage: Rajbhandari et al., SC 2020; here parts may differ).
///
/// With StateLevel::kGradients, its ranks divide the sums of gradients, too (ZeRO's second stage).
/// After each micro-batch, every rank gets the sum of its part of that micro-batch's gradients, and
/// adds it to what it keeps. A backward pass fills one such bucket while the one before it is
/// summed: where a bucket has its last gradient, the pass goes on when the reduce_scatter before
/// its own has ended. Such a bucket is of one stage.
///
/// With StateLevel::kParameters, its ranks divide the parameters, too (ZeRO's third stage). Each
/// pass gathers them before it first reads them, and forgets them after it has last read them. It
/// goes on where it needs a bucket that is not there yet when that bucket's gather has ended, and
/// lets the gather of the next bucket begin at that place.
struct PlanBucket {
  std::string name;                        ///< "b0", ...
  int stage = 0;                           ///< the first of its stages
  AllReduce algorithm = AllReduce::kRing;  ///< meaningless if one rank holds it
  DType type = DType::kFp32;
  std::vector<BucketMember> members;
  int flow = -1;                      ///< index into Plan::flows with `kFlow`, else -1
  std::vector<int> shared_with = {};  ///< its other stages, ascending, all after `stage`
  /// By rank of its stages, ascending: the elements that it owns, 0 or more, in this order in the
  /// buffer. Empty: every rank keeps the state of all elements.
  std::vector<std::int64_t> parts = {};
  StateLevel state = StateLevel::kWhole;  ///< what `parts` divide
  bool is_shared() const { return !shared_with.empty(); }
  bool is_sharded() const { return state != StateLevel::kWhole; }
  bool divides_gradients() const { return state >= StateLevel::kGradients; }
  bool divides_parameters() const { return state == StateLevel::kParameters; }
  bool is_of(int of_stage) const;
  std::int64_t elements() const;
  std::int64_t bytes() const;  ///< bytes in memory, in `type`
};

/// Returns the bytes of a bucket's buffer while it is summed over ranks, in the type that travels.
std::int64_t travelling_bytes(const Training& training, const PlanBucket& bucket);

enum class Opcode : std::uint8_t {
  kForward,        ///< forward pass of the stage on the micro-batch
  kBackward,       ///< backward pass of the stage on the micro-batch; gradients accumulate into the
                   ///< buckets
  kBackwardInput,  ///< the part of a backward pass that other stages wait for: gradients of
                   ///< tensors. It may keep what gradients of parameters are made of
  kBackwardWeight,  ///< the other part: gradients of parameters, which accumulate into the buckets
  kSend,            ///< activations of cut `object` to the consumers
  kRecv,            ///< activations of cut `object` from the producers
  kSendGradient,    ///< gradients of cut `object`, consumer to producer
  kRecvGradient,
  kAllReduce,       ///< sums bucket `object` over the ranks of its stages
  kReduceScatter,   ///< sums sharded bucket `object` over its ranks, each part on its owner alone:
                    ///< the gradients of a micro-batch where ranks divide them, else all
  kAllGather,       ///< brings the updated parameters of sharded bucket `object` to all its ranks
  kNorm,            ///< sums the squares of all gradients over all ranks of the plan, each once;
                    ///< only where the optimizer clips (Optimizer::max_norm)
  kUpdate,          ///< optimizer step on all parameters of the stage that this rank owns
  kReport,          ///< sums the loss over all ranks of the plan
  kGatherForward,   ///< brings the parameters of bucket `object`, which its ranks divide, to all of
                    ///< them for the forward pass of the micro-batch
  kGatherBackward,  ///< the same for its backward pass
  kGradients,   ///< only in `after`: the moment during that backward pass when bucket `object` gets
                ///< its last gradient; of the step's last backward, or any where ranks divide them
  kInForward,   ///< only in `after`: the moment during that forward pass when it first needs the
                ///< parameters of bucket `object`, which ranks divide
  kInBackward,  ///< the same during that backward pass
};
std::string_view name_of(Opcode opcode);

/// The in-order streams of a rank.
enum class StreamKind : std::uint8_t { kCompute, kSend, kRecv, kCollective };
inline constexpr int kStreamKindCount = 4;
/// Returns whether the gradients that a stage sends back are there after `opcode`, with which the
/// activations of its micro-batch are no longer between their passes: kBackward, kBackwardInput.
constexpr bool goes_back(Opcode opcode) {
  return opcode == Opcode::kBackward || opcode == Opcode::kBackwardInput;
}
/// Returns whether `opcode` completes the gradients of parameters of its micro-batch: kBackward,
/// kBackwardWeight.
constexpr bool makes_gradients(Opcode opcode) {
  return opcode == Opcode::kBackward || opcode == Opcode::kBackwardWeight;
}
/// Returns the stream that runs instructions of `opcode`. kGradients, kInForward and kInBackward
/// are events of the compute stream.
StreamKind stream_of(Opcode opcode);
/// Returns true for a collective in which all ranks of the plan take part.
bool is_of_all_ranks(Opcode opcode);

/// Names one instruction of the same program: opcode; cut, bucket, or, of a pass in a program of
/// several stages, the stage (-1: none); micro-batch (-1: no micro-batch).
struct InstructionId {
  Opcode opcode = Opcode::kForward;
  int object = -1;
  int micro_batch = -1;
  friend bool operator==(const InstructionId& a, const InstructionId& b) {
    return a.opcode == b.opcode && a.object == b.object && a.micro_batch == b.micro_batch;
  }
};

/// Returns the name as `after` spells it: "forward:0", "recv_gradient:c1:3", "gradients:b0:7",
/// "update".
std::string name_of(const InstructionId& id);

struct Instruction {
  InstructionId id;
  std::vector<InstructionId> after;
};

/// The instructions that every rank of `stage` executes in one step; with Schedule::kInterleaved,
/// those of all stages of these ranks, of which it is the first (`Plan::stages_of_program`).
struct Program {
  int stage = 0;
  std::vector<Instruction> instructions;
};

/// One line of `expect`: a name and a figure rounded to three significant digits.
struct Expectation {
  std::string name;  ///< "step", "throughput", "forward s0", "peak-memory volta/0", ...
  double value = 0;  ///< SI: seconds, samples/s, bytes, fraction
  std::string unit;  ///< "s", "samples/s", "B", ""
};

struct MadeBy {
  std::string version;  ///< version of AGPCS
  std::uint64_t seed = 0;
  std::string seeder, refiner;
  std::int64_t evaluations = 0;  ///< number of evaluations that the refiner made
  bool interrupted = false;      ///< the refiner would have made more evaluations
};

struct Plan {
  MadeBy made_by;
  std::string model;         ///< the model's name (its file's stem)
  std::string model_digest;  ///< "sha256:..." of the training graph's text form (`print_graph`)
  std::vector<std::pair<std::string, std::int64_t>> dims;  ///< --dim bindings, sorted
  std::vector<std::string> frozen;   ///< weights of the file that are not trained, sorted
  std::vector<std::string> trained;  ///< constants of the file that are trained, sorted
  std::vector<std::string> fused;    ///< types of operators that were fused, sorted
  std::string cluster;
  std::string cluster_digest;
  Training training;
  /// The batch in so many micro-batches, as equal as can be, larger ones first.
  std::int64_t micro_batches = 1;
  Schedule schedule = Schedule::k1F1B;
  std::vector<PlanStage> stages;
  std::vector<PlanBody> bodies;  ///< of the stages that have teams, in their order; each differs
  std::vector<Cut> cuts;
  std::vector<PlanFlow> flows;  ///< the flows that buckets name
  std::vector<PlanBucket> buckets;
  std::vector<Program> programs;  ///< one for each set of ranks, in the order of first stages
  std::vector<Expectation> expect;

  int rank_count() const;
  int stage_of_rank(int rank) const;  ///< the first of its stages; -1: the plan has no such rank
  /// Returns over how many sets of ranks the stages with operators go round: as many as there are
  /// stages, if the schedule is not interleaved.
  int round_size() const;
  /// Returns the index of the program that computes a stage.
  int program_of(int stage) const;
  /// Returns the stages of a program, ascending.
  std::vector<int> stages_of_program(int program) const;
  /// Returns the first micro-batch that has one sample less than those before it; `micro_batches`
  /// if all are equal.
  std::int64_t smaller_from() const;
  /// Returns whether backward passes are parted, so that programs have `kBackwardInput` and
  /// `kBackwardWeight` in place of `kBackward`.
  bool parts_backward() const { return schedule == Schedule::kZeroBubble; }
  bool interleaves() const { return schedule == Schedule::kInterleaved; }
  /// Returns the forward pass of a stage for a micro-batch.
  InstructionId forward_pass(int stage, int micro_batch) const {
    return {Opcode::kForward, interleaves() ? stage : -1, micro_batch};
  }
  /// Returns its pass that makes the gradients that go back.
  InstructionId input_pass(int stage, int micro_batch) const {
    return {parts_backward() ? Opcode::kBackwardInput : Opcode::kBackward,
            interleaves() ? stage : -1, micro_batch};
  }
  /// Returns its pass that completes gradients of parameters.
  InstructionId weight_pass(int stage, int micro_batch) const {
    return {parts_backward() ? Opcode::kBackwardWeight : Opcode::kBackward,
            interleaves() ? stage : -1, micro_batch};
  }
  /// Returns the stage of a pass in the program of stage `stage`.
  static int stage_of_pass(const InstructionId& pass, int stage) {
    return pass.object < 0 ? stage : pass.object;
  }
  bool is_smaller(std::int64_t micro_batch) const { return micro_batch >= smaller_from(); }
  std::int64_t micro_batch_size(std::int64_t micro_batch = 0) const;
  /// Returns the place in the batch of a micro-batch's first sample.
  std::int64_t first_sample(std::int64_t micro_batch) const;
};

/// The rows of one cut tensor that travel between this rank and `peer`, for one micro-batch.
struct Transfer {
  int tensor = 0;              ///< index into Cut::tensors
  int peer = 0;                ///< rank
  std::int64_t first_row = 0;  ///< among this rank's own rows; 0 for a tensor that is not batched
  std::int64_t rows = 0;       ///< 1 for a tensor that is not batched
};

/// Returns the transfers of `cut` that `rank` takes part in, by tensor, then peer. They are the
/// same for all micro-batches of one size. If `rank` is in the cut's from-stage, it sends
/// activations and receives gradients; in the to-stage, the reverse. Other ranks have no transfers,
/// and a cut between stages of the same ranks has none at all.
/// Gradients travel for the tensors whose `gradient` is set. A batched tensor travels between every
/// pair of replicas whose sample ranges overlap. For a tensor that is not batched, consumer replica
/// j takes it from producer replica j mod producers and returns a gradient to it; the producer sums
/// these gradients.
///
/// Where a replica is a team, each member of the replica that gets something gets it from one
/// member of the one that has it: member j from member j mod members. So activations and gradients
/// of a cut between stages of unlike teams take other ways; `gradients` asks for those of
/// gradients.
std::vector<Transfer> transfers(const Plan& plan, int cut, int rank, std::int64_t micro_batch,
                                bool gradients = false);

/// Returns the elements of `bucket` that `rank` owns, which is one of the bucket's ranks: all of
/// them if the bucket is not sharded.
ElementRange owned_elements(const Plan& plan, const PlanBucket& bucket, int rank);

/// Returns true when `rank` sends activations or gradients to other stages.
bool sends(const Plan& plan, int rank);

/// Returns the bucket's algorithm as its line spells it: "ring", "flow:f0".
std::string algorithm_text(const Plan& plan, const PlanBucket& bucket);

/// Returns the names that `expect` has, in its order:
/// - step and throughput;
/// - forward and backward of each stage (its slowest replica, one micro-batch);
/// - all-reduce of each stage with several ranks (all-reduces, reduce-scatters and all-gathers of a
///   step among its own ranks alone, each counted from when its last member is ready);
/// - for each rank's device: utilization (fraction of the step spent computing), send (all messages
///   of a step, each counted from when both ends are ready; only for ranks that send), peak-memory
///   and bytes-sent.
std::vector<std::string> expectation_names(const Plan& plan);
/// Returns the unit "s", "samples/s", "B" or "" (a fraction), by the first word of an expectation's
/// name.
std::string_view expectation_unit(std::string_view name);

/// Prints the plan's text; equal plans give equal bytes. Lines end in LF. For a plan without
/// expectations (not yet simulated), the section is left out, and `parse_plan` refuses the text.
std::string print_plan(const Plan& plan);
/// Reads a plan and verifies it (`verify_plan`). `file` is the name used in messages.
Result<Plan> parse_plan(std::string_view text, std::string_view file);
/// Proves, without running the plan, that
/// - names resolve, shares cover each micro-batch, and flows sum (`verify_flow`);
/// - every send has its recv, and the ranks of a group issue its collectives in one order;
/// - no ranks wait for each other in a cycle, even when a transfer waits for both ends;
/// - every gradient is reduced exactly once, after its last backward and before its update; where
///   ranks divide gradients, those of every micro-batch once;
/// - no instruction is missing, duplicated, or runs before its inputs exist.
/// Errors (kInvalidInput) name stage and instruction, and list as many faults as were found.
Status verify_plan(const Plan& plan);

}  // namespace agpcs
