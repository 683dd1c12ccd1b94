// SPDX-License-Identifier: Apache-2.0
// The refiner that trains on the problem that it searches.
#pragma once

#include "planner/learn/dqn_trainer.h"
#include "planner/refine/refiner.h"

#include <cstdint>
#include <memory>

namespace agpcs {

/// Makes a refiner that trains for `episodes`, each from one start after another, then searches as
/// `make_dqn_refiner` does, with what it learned and the rest of the budget. `lambda`, of Formula
/// 2, is the trainer's; the search logs its rewards with it, too. It refines only once, as the
/// trainer goes on from where it is.
std::unique_ptr<Refiner> make_learning_refiner(std::unique_ptr<DqnTrainer> trainer,
                                               std::int64_t episodes, double lambda);

}  // namespace agpcs
