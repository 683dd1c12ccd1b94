// SPDX-License-Identifier: Apache-2.0
// The 40 problems on which refiners are compared. Fixed before the first policy was trained: their
// model families, cluster shapes and device kinds are held out of training (docs/design/policy.md).
#pragma once

#include "planner/learn/problems/problem_generator.h"

namespace agpcs::bench {

/// Name, model family, cluster shape, seed.
inline constexpr ProblemSpec kUnseenProblems[] = {
    {"unseen-01", "unet", "new_and_old", 5201},
    {"unseen-02", "dense_cnn", "new_and_old", 5202},
    {"unseen-03", "encoder_decoder", "new_and_old", 5203},
    {"unseen-04", "experts", "new_and_old", 5204},
    {"unseen-05", "recurrent", "new_and_old", 5205},
    {"unseen-06", "unet", "racks", 5206},
    {"unseen-07", "dense_cnn", "racks", 5207},
    {"unseen-08", "encoder_decoder", "racks", 5208},
    {"unseen-09", "experts", "racks", 5209},
    {"unseen-10", "recurrent", "racks", 5210},
    {"unseen-11", "unet", "new_and_old", 5211},
    {"unseen-12", "dense_cnn", "new_and_old", 5212},
    {"unseen-13", "encoder_decoder", "new_and_old", 5213},
    {"unseen-14", "experts", "new_and_old", 5214},
    {"unseen-15", "recurrent", "new_and_old", 5215},
    {"unseen-16", "unet", "racks", 5216},
    {"unseen-17", "dense_cnn", "racks", 5217},
    {"unseen-18", "encoder_decoder", "racks", 5218},
    {"unseen-19", "experts", "racks", 5219},
    {"unseen-20", "recurrent", "racks", 5220},
    {"unseen-21", "unet", "new_and_old", 5221},
    {"unseen-22", "dense_cnn", "new_and_old", 5222},
    {"unseen-23", "encoder_decoder", "new_and_old", 5223},
    {"unseen-24", "experts", "new_and_old", 5224},
    {"unseen-25", "recurrent", "new_and_old", 5225},
    {"unseen-26", "unet", "racks", 5226},
    {"unseen-27", "dense_cnn", "racks", 5227},
    {"unseen-28", "encoder_decoder", "racks", 5228},
    {"unseen-29", "experts", "racks", 5229},
    {"unseen-30", "recurrent", "racks", 5230},
    {"unseen-31", "unet", "new_and_old", 5231},
    {"unseen-32", "dense_cnn", "new_and_old", 5232},
    {"unseen-33", "encoder_decoder", "new_and_old", 5233},
    {"unseen-34", "experts", "new_and_old", 5234},
    {"unseen-35", "recurrent", "new_and_old", 5235},
    {"unseen-36", "unet", "racks", 5236},
    {"unseen-37", "dense_cnn", "racks", 5237},
    {"unseen-38", "encoder_decoder", "racks", 5238},
    {"unseen-39", "experts", "racks", 5239},
    {"unseen-40", "recurrent", "racks", 5240},
};

}  // namespace agpcs::bench
