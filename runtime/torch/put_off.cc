// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/put_off.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/variable.h>

#include <cstdint>
#include <map>
#include <utility>

namespace agpcs {

/// A product that was made. `gradient` is that of the product, once autograd has come there.
struct PutOffProducts::Made {
  Product product;
  at::Tensor factor, weight, gradient;
  TensorId parameter = kNone;
  bool gives = false;  // the factor gets a gradient
};

namespace {

using torch::autograd::AutogradContext;

constexpr const char* kMade = "made";

// A node of autograd's graph that gives the factor its gradient and notes that of the product. It
// has the address of what was made, which outlives the input pass.
template <typename Made>
class Node : public torch::autograd::Function<Node<Made>> {
 public:
  // `anchor` requires gradients, so that the result does. It gets none.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& factor,
                            const at::Tensor& /*anchor*/, Made* made) {
    context->saved_data[kMade] = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(made));
    return made->product.make(factor, made->weight.detach());
  }
  static Tensors backward(AutogradContext* context, const Tensors& gradients) {
    auto* const made =
        reinterpret_cast<Made*>(static_cast<std::intptr_t>(context->saved_data[kMade].toInt()));
    made->gradient = gradients[0];
    if (!made->gives || !gradients[0].defined()) return {{}, {}, {}};
    return {made->product.of_factor(gradients[0], made->factor, made->weight.detach()), {}, {}};
  }
};

}  // namespace

PutOffProducts::PutOffProducts() = default;
PutOffProducts::~PutOffProducts() = default;
PutOffProducts::PutOffProducts(PutOffProducts&&) noexcept = default;
PutOffProducts& PutOffProducts::operator=(PutOffProducts&&) noexcept = default;

at::Tensor PutOffProducts::make(Product product, const at::Tensor& factor, const at::Tensor& weight,
                                TensorId parameter) {
  auto made = std::make_unique<Made>();
  made->product = std::move(product);
  made->factor = factor.detach();
  made->weight = weight;
  made->parameter = parameter;
  made->gives = factor.requires_grad();
  made_.push_back(std::move(made));
  const at::Tensor anchor = at::empty({0}, factor.options()).set_requires_grad(true);
  return Node<Made>::apply(factor, anchor, made_.back().get());
}

std::set<TensorId> PutOffProducts::parameters() const {
  std::set<TensorId> found;
  for (const auto& made : made_) {
    if (made->gradient.defined()) found.insert(made->parameter);
  }
  return found;
}

// Autograd tells of each gradient that reaches a parameter, so those of one parameter go together.
void PutOffProducts::finish() {
  const at::NoGradGuard no_gradients;
  std::map<TensorId, int> left;  // by parameter: products without its gradient
  for (const auto& made : made_) {
    if (made->gradient.defined()) ++left[made->parameter];
  }
  struct Waiting {
    torch::autograd::edge_list edges;
    Tensors gradients;
  };
  std::map<TensorId, Waiting> waiting;
  while (!made_.empty()) {
    const std::unique_ptr<Made> made = std::move(made_.back());
    made_.pop_back();
    if (!made->gradient.defined()) continue;
    Waiting& own = waiting[made->parameter];
    own.edges.push_back(torch::autograd::impl::gradient_edge(made->weight));
    own.gradients.push_back(
        made->product.of_weight(made->gradient, made->factor, made->weight.detach()));
    if (--left[made->parameter] > 0) continue;
    torch::autograd::Engine::get_default_engine().execute(
        own.edges, own.gradients, /*keep_graph=*/true, /*create_graph=*/false,
        /*accumulate_grad=*/true);
    waiting.erase(made->parameter);
  }
}

at::Tensor put_off_product(const OpCall& call, const at::Tensor& factor, const at::Tensor& weight,
                           double alpha) {
  const auto scaled = [alpha](const at::Tensor& product) {
    return alpha == 1 ? product : product * alpha;
  };
  PutOffProducts::Product product;
  product.make = [scaled](const at::Tensor& a, const at::Tensor& b) {
    return scaled(at::matmul(a, b));
  };
  product.of_factor = [scaled](const at::Tensor& gradient, const at::Tensor& /*a*/,
                               const at::Tensor& b) { return scaled(at::matmul(gradient, b.t())); };
  product.of_weight = [scaled](const at::Tensor& gradient, const at::Tensor& a,
                               const at::Tensor& b) {
    const at::Tensor rows = a.reshape({-1, b.size(0)});
    return scaled(at::mm(rows.t(), gradient.reshape({-1, b.size(1)})));
  };
  return call.put_off->make(std::move(product), factor, weight, call.parameter);
}

}  // namespace agpcs
