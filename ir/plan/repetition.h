// SPDX-License-Identifier: Apache-2.0
// What a program does again and again, for one micro-batch, or round of micro-batches, after the
// other. A plan's text says it once, so that its length does not grow with their number.
#pragma once

#include <agpcs/plan.h>

#include <cstddef>
#include <vector>

namespace agpcs {

/// So many repetitions become a `repeat` of the text. Fewer stay lines of their own.
inline constexpr std::size_t kLeastRepetitions = 8;

/// The `repeat`s of a plan's text may expand to so many instructions, so that a wrong digit is
/// refused and does not take all memory. A fuzzer meets a lower bound.
#ifdef AGPCS_FUZZ
inline constexpr std::size_t kMostInstructions = std::size_t{1} << 12;
#else
inline constexpr std::size_t kMostInstructions = std::size_t{1} << 23;
#endif

/// Consecutive instructions of a program. Those of repetition k are those of repetition 0 with all
/// micro-batches greater by k x `step`.
struct Repetition {
  std::size_t begin = 0;  ///< the first instruction of repetition 0
  std::size_t size = 0;   ///< instructions of one repetition
  std::size_t times = 1;
  int first = 0;  ///< the smallest micro-batch that an instruction of repetition 0 is for
  int step = 1;
};

/// Returns the whole program in pieces, in order. Those with `times` above 1 have at least
/// kLeastRepetitions; each begins as early, and has as many repetitions, as can be; of several
/// `steps`, the first that makes one counts.
std::vector<Repetition> repetitions_of(const Program& program, const std::vector<int>& steps = {1});
/// Returns the steps in which a plan's programs repeat: 1; where schedules interleave, the sizes of
/// rounds.
std::vector<int> repetition_steps(const Plan& plan);

}  // namespace agpcs
