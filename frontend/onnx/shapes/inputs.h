// SPDX-License-Identifier: Apache-2.0
// What is known of the inputs of a node.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/proto.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace agpcs::frontend {

using Inputs = std::vector<const Probed*>;  ///< nullptr: absent

/// Returns how many probes there are to look at: one where every input is alike at all of them.
std::size_t probes_of(const Inputs& inputs);

/// Returns the inputs at a probe.
std::vector<const Dense*> at_probe(const Inputs& inputs, std::size_t probe);

/// The inputs at a number of samples.
struct InputsAtSamples {
  InputsAtSamples(const Inputs& inputs, std::int64_t samples);
  InputsAtSamples(const InputsAtSamples&) = delete;
  InputsAtSamples& operator=(const InputsAtSamples&) = delete;

  std::vector<Dense> values;
  std::vector<const Dense*> at;  ///< into `values`; nullptr: absent
};

/// Tells whether output 0 is input 0: Identity, a Cast to the same type, a Dropout that drops
/// nothing.
bool is_no_op(const onnx::NodeProto& node, const Inputs& inputs);

}  // namespace agpcs::frontend
