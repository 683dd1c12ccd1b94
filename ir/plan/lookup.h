// SPDX-License-Identifier: Apache-2.0
// Small queries on plans, verified or not.
#pragma once

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

/// Returns true when the gradient of any of the cut's tensors travels back.
bool has_gradient(const Cut& cut);

/// Returns the device of each rank ("volta/1"); empty for a rank that no stage has.
std::vector<std::string> devices_of_ranks(const Plan& plan);
/// Returns the device of `rank`, "volta/1".
std::string device_of_rank(const Plan& plan, int rank);
/// Returns the index of the host of each rank's device.
std::vector<int> hosts_of_ranks(const Plan& plan);
/// Returns the index of the group of all ranks; the group of stage i has index i.
int world_group(const Plan& plan);
/// Returns the stages of `bucket`, ascending.
std::vector<int> stages_of(const PlanBucket& bucket);
/// Returns the index of the group whose ranks sum `bucket`; of teams, that of the first members
/// (ir/plan/body/groups.h has the others).
int group_of(const Plan& plan, const PlanBucket& bucket);
/// Returns the ranks of all stages of `bucket`, ascending. Where replicas are teams, each sums it
/// with the members of the same number alone.
std::vector<int> ranks_of(const Plan& plan, const PlanBucket& bucket);
/// Returns the instructions that each rank of bucket `bucket`, which several hold, has for it: the
/// sum of gradients, or that of each micro-batch where the ranks divide them; and with sharded
/// state the exchange of updated parameters, or where the ranks divide parameters one before each
/// pass.
std::vector<InstructionId> collectives_of(const Plan& plan, int bucket);
/// Returns the number of a stage's operators.
std::int64_t operator_count(const PlanStage& stage);
/// Returns the number of elements that a stage trains; those that several stages hold count in
/// each.
std::int64_t parameter_count(const Plan& plan, int stage);
/// Returns how many of a stage's operators its backward pass computes again.
std::int64_t recomputed_operators(const PlanStage& stage);
/// Returns the most that the ranks of a stage divide of some of its buckets.
StateLevel divided_state(const Plan& plan, int stage);
/// Returns whether the ranks of a stage divide the parameters of some of its buckets.
bool divides_parameters(const Plan& plan, int stage);
/// Returns whether an instruction of `opcode` sums the gradients of a bucket over ranks.
bool sums_gradients(Opcode opcode);
/// Returns whether the instruction sums the gradients of one micro-batch, which ranks divide.
bool sums_one_micro_batch(const InstructionId& id);
/// Returns whether `opcode` is a moment within a pass, for which instructions wait.
bool is_event(Opcode opcode);
/// Returns whether an instruction of `opcode` brings parameters that ranks divide to a pass.
bool gathers_for_pass(Opcode opcode);
/// Returns the pass of such a gather, or the pass in which an event happens where backward passes
/// are whole.
InstructionId pass_of(const InstructionId& id);
/// Returns the moment when the pass of a gather needs what it brings.
InstructionId need_of(const InstructionId& gather);
/// Returns, by replica of stage `stage`, the sum over the elements of its buckets that other ranks
/// own of `of_element(bucket)`.
std::vector<std::int64_t> owned_by_others(
    const Plan& plan, int stage, const std::function<std::int64_t(const PlanBucket&)>& of_element);
/// Returns whether an instruction of the program of stage `stage` is of that stage: one of its
/// passes, messages or buckets, or `norm`, `update` or `report`.
bool is_of(const Plan& plan, const InstructionId& id, int stage);
/// Returns whether several ranks hold `bucket`, so that it is summed over them.
bool is_reduced(const Plan& plan, const PlanBucket& bucket);

/// Returns an error for a plan whose schedule is interleaved, for code that knows none: `who`, as
/// in "the simulator".
Status refuse_interleaved(const Plan& plan, std::string_view who);

/// Returns how many micro-batches each round of an interleaved schedule has: as equal as can be,
/// larger ones first, `least` or more, or all in one round if there are fewer.
std::vector<int> rounds_of_micro_batches(int micro_batches, int least);

/// Returns how many micro-batches are between their passes at most in stage `stage` of `stages` in
/// 1F1B as the textbook has it: its own, and one for each stage that follows.
std::int64_t textbook_in_flight(std::int64_t stages, std::int64_t stage,
                                std::int64_t micro_batches);
/// Returns the number of stage `stage` by the plan's schedule: that, or all with GPipe.
std::int64_t usual_in_flight(const Plan& plan, int stage);
/// Returns how many micro-batches are between their passes at most in a program.
std::int64_t most_in_flight(const Program& program);

/// Returns the expectation of that name ("step", "send volta/1"), or null if the plan has no such
/// expectation.
const Expectation* find_expectation(const Plan& plan, std::string_view name);
/// Returns the value of that expectation, or 0 if there is none.
double expected(const Plan& plan, std::string_view name);

}  // namespace agpcs
