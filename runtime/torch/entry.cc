// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/entry.h"

#include "runtime/torch/ops/ops.h"

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

namespace agpcs {
namespace {

// Gives a tensor a node of its own in autograd's graph, at which that ends. A leaf would do, too,
// but autograd's graph holds leaves: here it holds the tensor only where operators have saved it.
class Entry : public torch::autograd::Function<Entry> {
 public:
  // `anchor` requires gradients, so that the result does. It gets none.
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& value,
                            const at::Tensor& /*anchor*/) {
    return value.detach();
  }
  static Tensors backward(torch::autograd::AutogradContext* /*context*/,
                          const Tensors& /*gradients*/) {
    return {{}, {}};
  }
};

}  // namespace

at::Tensor enter(const at::Tensor& value, std::function<void(const at::Tensor& gradient)> learn) {
  const at::Tensor anchor = at::empty({0}, value.options()).set_requires_grad(true);
  at::Tensor entry = Entry::apply(value.detach(), anchor);
  entry.register_hook([learn = std::move(learn)](const at::Tensor& gradient) { learn(gradient); });
  return entry;
}

}  // namespace agpcs
