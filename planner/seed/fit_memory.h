// SPDX-License-Identifier: Apache-2.0
// fit_memory: makes a strategy fit its devices without other stages or devices.
#pragma once

#include "planner/evaluate/evaluator.h"
#include "planner/problem/problem.h"

#include <cstdint>

namespace agpcs {

/// Whether a stage that lacks memory may have other samples and fewer devices.
enum class SampleMoves : std::uint8_t { kNo, kYes };
/// Whether it may have its state or activations in the memory of hosts, where the problem may.
enum class Offloads : std::uint8_t { kNo, kYes };

/// Helps each stage that lacks memory, in the way that leaves its slowest device fastest:
/// recomputation, at once or by segments, some of which may be kept; fewer samples for the devices
/// that lack memory and more for those that do not (a device without room for a single sample
/// leaves the stage), if they may `move`; the optimizer's state, or that and gradients, or these
/// and parameters, divided among its devices, up to `most_divided`; the optimizer's state or
/// activations in the memory of hosts, if it `offloads`; or several of these. Where none of this
/// helps, it parts backward passes (`fit_with_parted_passes`). Returns
/// false, with `strategy` as it was, if some stage cannot be helped; nothing helps stages with
/// teams. Needs: no buckets; `evaluator` is the problem's. Cost: a few `replica_bytes` for each
/// stage that lacks memory and each of its kinds.
bool fit_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                StateLevel most_divided = StateLevel::kGradients,
                SampleMoves move = SampleMoves::kYes, Offloads offloads = Offloads::kYes);

/// The same, but the stages that lack memory and have several devices divide what `level` says,
/// even if something else looks faster.
bool fit_memory_by(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                   StateLevel level, SampleMoves move);

/// `fit_memory` for a strategy that may have buckets, with nothing more in the memory of hosts.
/// Clears its buckets and flows, also if it cannot be helped, so that gradients are grouped anew.
bool fit_without_buckets(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
                         StateLevel most_divided);

/// Gives the members of these stages' teams other parts of the same splits, smaller ones where
/// memory lacks, until the strategy fits or nothing helps; members whose devices have equal memory
/// have equal parts. Returns whether it fits then. Needs: the stages have teams, and no buckets;
/// `evaluator` is the problem's. Cost: at most 40 times that of memory for each stage that helps.
bool fit_parts(const Problem& problem, Evaluator& evaluator, Strategy& strategy,
               const std::vector<int>& stages);

/// Lets each stage that lacks memory recompute, and gives its devices the samples, with which it
/// would fit if its devices had the least percentage of their memory more. Same needs. Cost: some
/// ten `replica_bytes` for each such stage and each of its kinds.
void need_least_memory(const Problem& problem, Evaluator& evaluator, Strategy& strategy);

/// Lets stages that recompute keep as much as their devices have memory for, if that makes the step
/// shorter. Needs: `strategy` fits, with `score`; `evaluator` is the problem's. Cost: an
/// evaluation, and a few `replica_bytes` for each such stage and each of its kinds.
void keep_more(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score);

/// Returns whether backward passes of a pipeline may be parted: the problem allows it, and so does
/// the strategy (`may_part_backward`), which has several micro-batches.
bool may_part_passes(const Problem& problem, const Strategy& strategy);

/// Parts the backward passes of a pipeline with 1F1B, if it then fits and the step is shorter. Same
/// needs. Cost: an evaluation.
void part_backward(const Problem& problem, Evaluator& evaluator, Strategy& strategy, Score& score);

/// Parts the backward passes of a pipeline, if it then fits: an input pass and a weight pass each
/// hold less beside activations than a whole one. Returns whether it fits then. Needs: as
/// `fit_memory`. Cost: that of memory.
bool fit_with_parted_passes(const Problem& problem, Evaluator& evaluator, Strategy& strategy);

/// Makes a pipeline fit that `fit_memory` cannot help: lets no stage have more micro-batches in
/// flight than some number, the largest with which `fit_memory` succeeds. Returns false, with
/// `strategy` as it was, if it fails with one, too. Needs: as `fit_memory`. Cost: that of
/// `fit_memory` times the log2 of what is in flight.
bool fit_with_fewer_in_flight(const Problem& problem, Evaluator& evaluator, Strategy& strategy);

/// Lets stages of devices that have several each (Schedule::kInterleaved) recompute, the first ones
/// first, which have most in flight, until their devices fit. Returns whether all do. Same needs.
/// Cost: a few `replica_bytes` for each stage and each of its kinds.
bool fit_interleaved(const Problem& problem, Evaluator& evaluator, Strategy& strategy);

}  // namespace agpcs
