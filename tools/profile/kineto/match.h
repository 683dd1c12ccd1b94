// SPDX-License-Identifier: Apache-2.0
// Finds the operators of a model in a traced step, and divides the step's time among them.
#pragma once

#include "ir/cluster/cluster.h"
#include "ir/cluster/profile.h"
#include "ir/graph/graph.h"
#include "tools/profile/kineto/steps.h"

#include <agpcs/plan.h>

#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// An operator of a traced step over all steps that are alike.
struct TimedOp {
  OpClass op_class = OpClass::kElementwise;
  std::string_view onnx;  ///< the ONNX operator with the same work
  int module = -1;        ///< as in TracedOp
  OpCost work;
  Measured forward, backward;
};

struct ModelTimes {
  std::vector<Measured> forward, backward;  ///< by OpId; they add up to the operators' times
  int operators = 0;                        ///< operators of the model that have work
  int found = 0;                            ///< of them, those that the trace has
  double found_seconds = 0, seconds = 0;    ///< traced time: of operators that were found; of all
};

/// Divides the times of a traced step among the operators of `graph` at `samples` samples.
///
/// An operator is found where the trace has one of the same class and the same work, in the same
/// order, called by the same module: all operators that the file puts into one module belong to one
/// module of the trace, and the reverse. What lies between two that were found is divided among the
/// model's operators there, in proportion to what `fit` says of them; they take nothing where the
/// trace has nothing (a bias that the product adds, a transposition that PyTorch does not do).
/// Cost: O(operators of the model x operators of the step).
ModelTimes match_model(const Graph& graph, std::int64_t samples, Precision precision,
                       const KindFit& fit, const std::vector<TimedOp>& traced);

}  // namespace agpcs
