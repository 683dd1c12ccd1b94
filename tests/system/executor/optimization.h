// SPDX-License-Identifier: Apache-2.0
// Optimizers by name, for tests with each of them.
#pragma once

#include <agpcs/training.h>

#include <ostream>

namespace agpcs {

struct Optimization {
  const char* name;
  Optimizer optimizer;
};

inline void PrintTo(const Optimization& of, std::ostream* out) { *out << of.name; }  // NOLINT

inline Optimizer optimizer_of(OptimizerKind kind, double momentum = 0, bool nesterov = false) {
  Optimizer optimizer;
  optimizer.kind = kind;
  optimizer.learning_rate = 0.01;
  optimizer.momentum = momentum;
  optimizer.nesterov = nesterov;
  optimizer.weight_decay = 1e-3;
  return optimizer;
}

/// Every optimizer that a plan may have.
inline const Optimization kOptimizations[] = {
    {"sgd", optimizer_of(OptimizerKind::kSgd)},
    {"momentum", optimizer_of(OptimizerKind::kSgd, 0.9)},
    {"nesterov", optimizer_of(OptimizerKind::kSgd, 0.9, true)},
    {"adam", optimizer_of(OptimizerKind::kAdam)},
    {"adamw", optimizer_of(OptimizerKind::kAdamW)},
};

}  // namespace agpcs
