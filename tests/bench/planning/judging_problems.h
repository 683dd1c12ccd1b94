// SPDX-License-Identifier: Apache-2.0
// The 60 problems that refiners are judged on: the first that `select_judging_problems` selects.
// Fixed before anything was measured on them; looked at as a whole only (docs/design/policy.md).
#pragma once

#include "tests/bench/planning/judging_candidates.h"

namespace agpcs::bench {

/// Indices of candidates.
inline constexpr int kJudgingProblems[] = {
    1,   3,   4,   5,   9,   10,  14,  23,  28,  32,  33,  35,  37,  38,  40,
    42,  43,  44,  45,  48,  49,  57,  59,  62,  63,  64,  67,  76,  81,  83,
    85,  90,  92,  93,  94,  96,  98,  101, 103, 104, 108, 109, 118, 121, 127,
    129, 130, 134, 141, 143, 145, 147, 149, 154, 165, 168, 170, 181, 183, 185};

}  // namespace agpcs::bench
