// SPDX-License-Identifier: Apache-2.0
// Samples that meet: what a model computes of one sample with the help of the batch's others.
#pragma once

#include "ir/graph/graph.h"

#include <string>
#include <vector>

namespace agpcs {

/// An operator that computes with several samples what belongs to one.
struct MixedSamples {
  OpId op = kNone;
  std::string how;  ///< "CumSum goes along axis 0 of fp32[12n,4], where the samples are"
};

/// Finds the operators at which samples meet, in the graph's order. Replicas and micro-batches
/// compute such an operator for their own samples, so that the plan trains another model than a
/// whole batch on one device does. Found are
/// * operators that compute along an axis of samples, and keep it (Softmax, CumSum,
/// normalizations),
/// * those that pair samples with one another: a product [n,64] x [64,n],
/// * those that bring what is of all samples, as a mean over the batch, back to each of them.
///
/// Not found are sums and means that lead to the loss alone, which are how batches train; nor
/// BatchNormalization in training, whose statistics are known to be those of a micro-batch; nor a
/// permutation of samples. Cost: O(operators).
std::vector<MixedSamples> mixed_samples(const Graph& graph);

}  // namespace agpcs
