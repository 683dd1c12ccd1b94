// SPDX-License-Identifier: Apache-2.0
// The kernels of a graph's operators.
#pragma once

#include "cost_model/kernel/convolution.h"
#include "ir/graph/graph.h"
#include "ir/graph/op_table.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace agpcs {

/// What an operator computes for a number of samples: products, or passes of a convolution, and
/// bytes that kernels of a stream move beside them.
struct OperatorKernels {
  struct Pass {
    std::vector<Product> products;
    std::vector<ConvolutionPass> convolutions;
    double stream_bytes = 0;
  };
  Convolution convolution;  ///< of the operator, if it is one
  Pass forward, backward;
};

/// Returns the kernels of `op` for `samples` samples, if the model knows them: of MatMul
/// and Gemm, and of Conv in one or two dimensions. A depthwise convolution has no kernels, and
/// neither has an operator of a fused attention.
std::optional<OperatorKernels> kernels_of(const Graph& graph, OpId op, std::int64_t samples,
                                          Precision precision);

/// Returns the seconds of a pass; each of its kernels is launched by itself.
double pass_seconds(const KernelDevice& device, const KernelParameters& parameters,
                    const OperatorKernels& kernels, const OperatorKernels::Pass& pass,
                    double launch_overhead);

/// Returns the bytes that an operator of a class bound by memory moves / those of its inputs and
/// outputs.
double stream_traffic(OpClass op_class, const KernelParameters& parameters);

}  // namespace agpcs
