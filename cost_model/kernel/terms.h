// SPDX-License-Identifier: Apache-2.0
// What explains the seconds of an operator, for the corrections of a quick profile: the operators
// of a group are explained by the same terms, and each group has coefficients of its own.
#pragma once

#include "cost_model/kernel/device.h"
#include "ir/graph/graph.h"
#include "ir/graph/op_table.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs {

/// Returns the group of operators that are alike: "product" and "batched product", convolutions by
/// algorithm ("Conv 1x1", "Conv 1x1 strided", "Conv depthwise", "Conv of images", "Conv"), all
/// others by their type.
std::string correction_group(const Graph& graph, OpId op);

/// The terms of both passes, none of them negative; empty for a pass without work.
struct OperatorTerms {
  std::vector<double> forward, backward;
};

/// Returns the terms of `op` for `samples` samples, where `work` is its cost:
/// * where `device` has processors and the kernel model knows the operator's kernels: their number,
///   their seconds by the model, and the bytes of summed gradients;
/// * else of products and convolutions: 1, FLOPs, the bytes of both operands and of the output, and
///   the bytes of summed gradients;
/// * else 1, FLOPs, bytes, and the bytes of summed gradients.
/// No term falls when the number of samples grows.
OperatorTerms operator_terms(const Graph& graph, OpId op, std::int64_t samples, const OpCost& work,
                             const std::optional<KernelDevice>& device);

/// The group and the terms of loading `bytes` of a model's inputs: 1 and the bytes.
inline constexpr char kInputGroup[] = "Input";
std::vector<double> input_terms(double bytes);

/// Returns the bytes of a graph's inputs for `samples` samples.
double input_bytes(const Graph& graph, std::int64_t samples);

/// Returns the seconds of `terms` at a number of samples. Between two numbers that have a factor,
/// it goes straight with the logarithm of the number; beyond, it stays.
double explained_seconds(const std::vector<double>& terms, std::int64_t samples,
                         const CorrectionFit& fit);

}  // namespace agpcs
