// SPDX-License-Identifier: Apache-2.0
// Plan: one training step as static instruction programs, and its text form (docs/plan_format.md).
//
// A plan is complete without the model: a runtime that brings its own executor needs nothing else.
// Every rank of a stage runs the stage's program. Peers are symbolic: an instruction names a cut,
// and `transfers` says which rows go to or come from which rank.
//
// Execution model (the simulator and the replayer follow it to the letter): each rank has four
// in-order streams: compute (forward, backward, update), send (send, send_gradient), recv (recv,
// recv_gradient) and collective (all_reduce, report). An instruction starts when its predecessor
// in its stream has finished and everything in its `after` has finished. A transfer needs both
// ends. Messages and collectives wait for computations and gradients only.
#pragma once

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// The version in a plan's first line. A reader refuses any other.
inline constexpr int kPlanVersion = 1;

struct Optimizer {
  std::string kind = "sgd";  ///< "sgd" (PyTorch's SGD with momentum) or "adam"
  double learning_rate = 0.01;
  double momentum = 0;                                ///< sgd
  double weight_decay = 0;                            ///< L2 term added to the gradient, both kinds
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;  ///< adam
};

/// The loss: a kind and the model outputs it is attached to, with weights.
struct Loss {
  std::string kind = "softmax_cross_entropy";  ///< or "mse", or "output" (a named scalar output)
  std::vector<std::pair<std::string, double>> outputs;  ///< output name, weight; empty = default
};

/// What is trained and how; from cluster.yaml's `training` and the command line.
struct Training {
  std::int64_t batch = 0;          ///< samples per step over the whole cluster
  std::string precision = "fp32";  ///< fp32, tf32, fp16 or bf16: type of activations and gradients
  Loss loss;
  Optimizer optimizer;
  /// Every so many steps the report also carries what ranks measured, so that they notice together
  /// when the hardware is no longer what the plan expects; 0: never.
  std::int64_t statistics_every = 5;
  /// fp16 or bf16: what fp32 gradients are rounded to while they are summed over ranks; none: they
  /// travel as they are.
  std::optional<DType> wire_type;
};

/// Words (fp64) of a report beside the loss: 2 for the running job's affairs, and for each rank as
/// many as it measures quantities (agpcs/drift.h). The first of them travels in every step, the
/// others every `statistics_every` steps.
inline constexpr int kQuantityCount = 3;
std::int64_t report_words(std::int64_t ranks);
/// Bytes of a report, on average over the steps.
std::int64_t mean_report_bytes(std::int64_t ranks, std::int64_t statistics_every);

/// A pipeline stage: a convex set of operators, replicated over `ranks`.
/// Replica i takes `samples[i]` samples of every micro-batch: rows [sum of earlier samples, +
/// samples[i]).
/// The last stage may have no operators: its ranks are idle. They take no samples, and their
/// program is `report` alone; a running job, whose processes cannot leave, may move to a plan that
/// uses them.
struct PlanStage {
  std::string name;                   ///< "s0", "s1", ... in pipeline order
  std::vector<int> ranks;             ///< ascending
  std::vector<std::string> devices;   ///< "host/index", parallel to `ranks`
  std::vector<std::int64_t> samples;  ///< parallel to `ranks`, each > 0; of idle ranks 0
  bool recompute = false;
  /// The operators as runs of the model's operator order: first name, last name, how many.
  struct Run {
    std::string first, last;
    std::int64_t count = 0;
  };
  std::vector<Run> operators;
  bool idle() const { return operators.empty(); }
};

/// A tensor that crosses from one stage to another.
struct CutTensor {
  std::string name;
  DType type = DType::kFp32;
  bool batched = true;  ///< axis 0 is the sample; else every consumer gets the whole tensor
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

/// One message of a flow: one sub-chunk from one member to another.
struct FlowMessage {
  int from = 0, to = 0;  ///< members: positions in the stage's ranks
  int chunk = 0;         ///< owner x sub_chunks + sub-chunk, owner being a member
  friend bool operator==(const FlowMessage& a, const FlowMessage& b) {
    return a.from == b.from && a.to == b.to && a.chunk == b.chunk;
  }
};

/// Member `to` begins a round when member `from` is through with all rounds before it.
struct FlowWait {
  int from = 0, to = 0;
  friend bool operator==(const FlowWait& a, const FlowWait& b) {
    return a.from == b.from && a.to == b.to;
  }
};

/// What a round of a flow has of one phase. In the reduce-scatter the receiver adds what comes to
/// what it has; in the all-gather it takes it in place of what it has.
struct FlowStep {
  bool gathers = false;               ///< of the all-gather
  std::vector<FlowMessage> messages;  ///< by from, to, chunk; at least one, no two alike
  std::vector<FlowWait> after;        ///< by from, to, no two alike; with FlowOrder::kRounds only
  friend bool operator==(const FlowStep& a, const FlowStep& b) {
    return a.gathers == b.gathers && a.messages == b.messages && a.after == b.after;
  }
};

/// In which order the messages of a flow move. Ranks, transports and the simulator keep to it.
/// - `kReceivers` ("receivers", the default): a member receives in the order of rounds. A message
///   moves when its sender has what it carries and all that its receiver gets in earlier rounds has
///   come; what its sender has to send elsewhere does not matter.
/// - `kRounds` ("rounds"): a member goes through the rounds in which it has a part one after the
///   other. A message moves when both its ends are through with all that they send and receive in
///   earlier rounds, and with those members that they wait for (FlowStep::after).
enum class FlowOrder : std::uint8_t { kReceivers, kRounds };
std::string_view name_of(FlowOrder order);  ///< "receivers", "rounds"
std::optional<FlowOrder> flow_order_named(std::string_view name);

/// An all-reduce over the ranks of a stage as messages between them (docs/plan_format.md). The
/// buffer is cut into members x sub_chunks parts as equal as can be; part c is summed up on its
/// owner, c / sub_chunks, on trees that lead there, and spread from there.
/// A message needs what it sends to be complete in rounds before its own; there are no barriers.
struct PlanFlow {
  std::string name;  ///< "f0", ...
  int stage = 0;
  int sub_chunks = 1;  ///< of each member's chunk
  FlowOrder order = FlowOrder::kReceivers;
  std::vector<FlowStep> steps;
  std::int64_t message_count() const;
  friend bool operator==(const PlanFlow& a, const PlanFlow& b) {
    return a.name == b.name && a.stage == b.stage && a.sub_chunks == b.sub_chunks &&
           a.order == b.order && a.steps == b.steps;
  }
};

/// By step: its round, from 0. A step is a round of its own, but an all-gather's step that follows
/// one of the reduce-scatter is of the same round where it sends nothing that came in that one and
/// begins with no wait.
std::vector<int> rounds_of(const PlanFlow& flow);

struct BucketMember {
  std::string parameter;
  std::int64_t elements = 0;
};

/// Gradients of one stage that are reduced together, in one flat buffer in member order.
struct PlanBucket {
  std::string name;  ///< "b0", ...
  int stage = 0;
  AllReduce algorithm = AllReduce::kRing;  ///< meaningless when the stage has one rank
  DType type = DType::kFp32;
  std::vector<BucketMember> members;
  int flow = -1;  ///< index into Plan::flows with `kFlow`, else -1
  std::int64_t elements() const;
  std::int64_t bytes() const;  ///< in memory, in `type`
};

/// Bytes of a bucket's buffer as it is summed over ranks: in the type that travels.
std::int64_t travelling_bytes(const Training& training, const PlanBucket& bucket);

enum class Opcode : std::uint8_t {
  kForward,       ///< stage's forward pass of micro-batch
  kBackward,      ///< stage's backward pass of micro-batch; gradients accumulate into the buckets
  kSend,          ///< activations of cut `object` to the consumers
  kRecv,          ///< activations of cut `object` from the producers
  kSendGradient,  ///< gradients of cut `object`, consumer to producer
  kRecvGradient,
  kAllReduce,  ///< bucket `object` summed over the stage's ranks
  kUpdate,     ///< optimizer step on all parameters of the stage
  kReport,     ///< loss summed over all ranks of the plan
  kGradients,  ///< only in `after`: bucket `object` has its last gradient, during that backward
};
std::string_view name_of(Opcode opcode);

/// The in-order streams of a rank.
enum class StreamKind : std::uint8_t { kCompute, kSend, kRecv, kCollective };
inline constexpr int kStreamKindCount = 4;
/// The stream that instructions of `opcode` run on; kGradients is an event of the compute stream.
StreamKind stream_of(Opcode opcode);

/// Names one instruction of the same program: opcode, cut or bucket (-1: none), micro-batch (-1:
/// none).
struct InstructionId {
  Opcode opcode = Opcode::kForward;
  int object = -1;
  int micro_batch = -1;
  friend bool operator==(const InstructionId& a, const InstructionId& b) {
    return a.opcode == b.opcode && a.object == b.object && a.micro_batch == b.micro_batch;
  }
};

/// As `after` spells it: "forward:0", "recv_gradient:c1:3", "gradients:b0:7", "update".
std::string name_of(const InstructionId& id);

struct Instruction {
  InstructionId id;
  std::vector<InstructionId> after;
};

/// What every rank of `stage` executes in one step.
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
  std::string version;  ///< of AGPCS
  std::uint64_t seed = 0;
  std::string seeder, refiner;
  std::int64_t evaluations = 0;  ///< that the refiner made
  bool interrupted = false;      ///< it would have made more
};

struct Plan {
  MadeBy made_by;
  std::string model;         ///< the model's name (its file's stem)
  std::string model_digest;  ///< "sha256:..." of the training graph's text form (`print_graph`)
  std::vector<std::pair<std::string, std::int64_t>> dims;  ///< --dim bindings, sorted
  std::vector<std::string> frozen;  ///< weights of the file that are not trained, sorted
  std::string cluster;
  std::string cluster_digest;
  Training training;
  std::int64_t micro_batches = 1;  ///< training.batch = micro_batches x samples of each stage
  Schedule schedule = Schedule::k1F1B;
  std::vector<PlanStage> stages;
  std::vector<Cut> cuts;
  std::vector<PlanFlow> flows;  ///< that buckets name
  std::vector<PlanBucket> buckets;
  std::vector<Program> programs;  ///< one per stage, in stage order
  std::vector<Expectation> expect;

  int rank_count() const;
  int stage_of_rank(int rank) const;  ///< -1: no such rank
  std::int64_t micro_batch_size() const { return training.batch / micro_batches; }
};

/// Rows of one cut tensor that travel between this rank and `peer`, for every micro-batch.
struct Transfer {
  int tensor = 0;              ///< index into Cut::tensors
  int peer = 0;                ///< rank
  std::int64_t first_row = 0;  ///< in this rank's own rows; 0 for a tensor that is not batched
  std::int64_t rows = 0;       ///< 1 for a tensor that is not batched
};

/// The transfers of `cut` that `rank` takes part in, by tensor, then peer. `rank` is in the cut's
/// from-stage (it sends activations, receives gradients) or its to-stage (the reverse); other ranks
/// have none. Gradients travel for those tensors whose `gradient` is set.
/// A batched tensor: every pair of replicas whose sample ranges overlap. One that is not batched:
/// consumer replica j takes it from producer replica j mod producers, and returns a gradient to it;
/// the producer sums them.
std::vector<Transfer> transfers(const Plan& plan, int cut, int rank);

/// Whether `rank` sends activations or gradients to other stages.
bool sends(const Plan& plan, int rank);

/// "ring", "flow:f0": the bucket's algorithm as its line spells it.
std::string algorithm_text(const Plan& plan, const PlanBucket& bucket);

/// The names that `expect` has, in its order: step, throughput; forward and backward of each stage
/// (its slowest replica, one micro-batch), all-reduce of each stage of several ranks (all of a
/// step, each from when its last member is there); utilization (of the step's time computing), send
/// (all messages of a step, each from when both ends are there; of ranks that send any),
/// peak-memory and bytes-sent of each rank's device.
std::vector<std::string> expectation_names(const Plan& plan);
/// "s", "samples/s", "B" or "" (a fraction) by the first word of an expectation's name.
std::string_view expectation_unit(std::string_view name);

/// The plan's text; equal plans give equal bytes. Lines end in LF. Without expectations (a plan not
/// yet simulated) the section is left out, and `parse_plan` will refuse the text.
std::string print_plan(const Plan& plan);
/// Reads a plan and verifies it (`verify_plan`). `file` is the name used in messages.
Result<Plan> parse_plan(std::string_view text, std::string_view file);
/// Proves, without running (kInvalidInput names stage and instruction, as many as found): names
/// resolve, shares cover each micro-batch, flows sum (`verify_flow`), every send has its recv,
/// ranks of a group issue its collectives in one order, no wait cycle across ranks even when a
/// transfer waits for both ends, every gradient is reduced exactly once after its last backward and
/// before its update, no instruction is missing, doubled or runs before its inputs are there.
Status verify_plan(const Plan& plan);
/// Proves that a flow among `members` members leaves every one of them with the sum of all in every
/// chunk, each value counted once: all but the owner send each sub-chunk once in the
/// reduce-scatter, after all that is sent to them of it, and get it once in the all-gather, from
/// members that have it; and that nobody waits for ever: waits are for rounds that are over by then
/// whatever the order. Needs no name and no stage. Errors (kInvalidInput) name the step.
/// Cost: O(members^2 x sub_chunks).
Status verify_flow(const PlanFlow& flow, int members);
/// "sha256:<64 hex digits>" of `text`.
std::string digest_of(std::string_view text);

}  // namespace agpcs
