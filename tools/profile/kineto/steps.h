// SPDX-License-Identifier: Apache-2.0
// Divides a trace into training steps, and a step's time among the operators of its forward pass.
#pragma once

#include "tools/profile/kineto/aten.h"
#include "tools/profile/kineto/trace.h"

#include <map>
#include <string>
#include <vector>

namespace agpcs {

/// A call of an operator of the table in a forward pass.
struct TracedOp {
  const AtenOperator* row = nullptr;
  int inputs = -1;  ///< index in KinetoTrace::inputs; -1: without shapes
  int module = -1;  ///< the innermost module that called it: index in KinetoTrace::names
  double forward = 0, backward = 0;  ///< seconds
};

struct TracedStep {
  std::vector<TracedOp> ops;  ///< in the order of their calls; none is a view
  double wall = 0;            ///< seconds from its begin to that of the next step
  double begin = 0, update = 0;
  std::string optimizer;  ///< "SGD"; empty: no optimizer was traced
  bool momentum = false;  ///< the optimizer multiplied tensors
  /// Seconds of what no operator of the table did, by name.
  std::map<std::string, double> unknown;

  double busy() const;  ///< seconds of operators, update, begin and unknown operators together
};

/// Returns the steps of a trace, in order.
///
/// Forward: the operators that the thread of the step calls outside of backward passes and
/// optimizers. An operator outside the table that calls operators of the table is these; what it
/// takes itself goes to the last of them. What views and allocations take goes to the operator
/// before them, or else to the one behind them.
///
/// Backward: each pass counts for the operator that autograd numbered alike ("Sequence number"); of
/// several with one number, for the last. AccumulateGrad counts for the operator whose pass came
/// before it.
std::vector<TracedStep> steps_of(const KinetoTrace& trace);

}  // namespace agpcs
