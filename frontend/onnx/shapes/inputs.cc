// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/shapes/inputs.h"

#include "frontend/onnx/attributes.h"

#include <algorithm>

namespace agpcs::frontend {
namespace {

/// Returns `value` at a number of samples that is no probe. Its elements are known if they are
/// known integers that are affine in the samples, or do not depend on them.
Dense at_samples(const Probed& value, std::int64_t samples) {
  if (value.uniform()) return value[0];
  Dense dense;
  dense.type = value.type();
  const std::optional<Shape> shape = fit_shape(value);
  if (!shape) return dense;
  dense.dims = dims_at(*shape, samples);
  const std::size_t count = value[0].ints.size();
  if (!value.known() || dense.floating() || value[1].ints.size() != count ||
      value[2].ints.size() != count) {
    return dense;
  }
  for (std::size_t i = 0; i < count; ++i) {
    const auto fit = fit_extent({value[0].ints[i], value[1].ints[i], value[2].ints[i]});
    if (!fit) return dense;
    dense.ints.push_back(fit->at(samples));
  }
  dense.known = true;
  return dense;
}

/// Returns an input of one element that is the same at each probe, or nullptr.
const Dense* constant_scalar(const Inputs& inputs, std::size_t i) {
  if (i >= inputs.size() || inputs[i] == nullptr || !inputs[i]->known()) return nullptr;
  return inputs[i]->uniform() && (*inputs[i])[0].size() == 1 ? &(*inputs[i])[0] : nullptr;
}

bool drops_nothing(const onnx::NodeProto& node, const Inputs& inputs) {
  const Dense* ratio = constant_scalar(inputs, 1);
  const Dense* training = constant_scalar(inputs, 2);
  const onnx::AttributeProto* attribute = find_attribute(node, "ratio");
  return (attribute != nullptr && attribute->f() == 0) ||
         (ratio != nullptr && ratio->floating() && ratio->floats[0] == 0) ||
         (training != nullptr && !training->floating() && training->ints[0] == 0);
}

}  // namespace

std::size_t probes_of(const Inputs& inputs) {
  const bool all_uniform = std::all_of(inputs.begin(), inputs.end(), [](const Probed* input) {
    return input == nullptr || input->uniform();
  });
  return all_uniform ? 1 : kProbeCount;
}

std::vector<const Dense*> at_probe(const Inputs& inputs, std::size_t probe) {
  std::vector<const Dense*> at;
  for (const Probed* input : inputs) at.push_back(input != nullptr ? &(*input)[probe] : nullptr);
  return at;
}

InputsAtSamples::InputsAtSamples(const Inputs& inputs, std::int64_t samples) {
  for (const Probed* input : inputs) {
    values.push_back(input != nullptr ? at_samples(*input, samples) : Dense());
  }
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    at.push_back(inputs[i] != nullptr ? &values[i] : nullptr);
  }
}

bool is_no_op(const onnx::NodeProto& node, const Inputs& inputs) {
  if (node.op_type() == "Identity") return true;
  if (node.op_type() == "Cast") return int_of(node, "to", 0) == inputs[0]->type();
  return node.op_type() == "Dropout" && drops_nothing(node, inputs);
}

}  // namespace agpcs::frontend
