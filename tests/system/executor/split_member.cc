// SPDX-License-Identifier: Apache-2.0
#include "tests/system/executor/split_member.h"

#include <cstddef>
#include <utility>

namespace agpcs::testing {

Tensors own_outputs(const Op& op, Tensors given) {
  given.resize(op.outputs.size());
  for (std::size_t i = 0; i < given.size(); ++i) {
    if (op.outputs[i] == kNone) given[i] = at::Tensor();
  }
  return given;
}

Tensors run_kernel(const Op& op, const Tensors& in, const RandomSource& random) {
  const OpCall call{op, in, nullptr, random};
  return own_outputs(op, find_kernel(op.domain, op.type)(call));
}

}  // namespace agpcs::testing
