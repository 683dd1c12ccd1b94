// SPDX-License-Identifier: Apache-2.0
#include "runtime/torch/ops/attend.h"

#include <ATen/ExpandUtils.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/version.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace agpcs {
namespace {

/// As many scores as are computed at a time: 1 MB on a CPU, 256 MB elsewhere.
constexpr std::int64_t kScoresOnCpu = 1 << 18, kScoresElsewhere = 1 << 26;

/// Where a block of scores begins, and its extents.
struct Block {
  std::int64_t sample, samples, head, heads, query, queries;  // heads are those of keys
};

/// Walks over blocks: of several samples, or of some heads of one, or of some queries of one head.
class Blocks {
 public:
  Blocks(const at::Tensor& q, const at::Tensor& k)
      : samples_(q.size(0)), heads_(k.size(1)), queries_(q.size(2)) {
    const std::int64_t most = q.is_cpu() ? kScoresOnCpu : kScoresElsewhere;
    const std::int64_t of_query =
        std::max<std::int64_t>(q.size(1) / std::max<std::int64_t>(heads_, 1) * k.size(2), 1);
    const auto fit = [&](std::int64_t scores, std::int64_t extent) {
      const std::int64_t count = most / std::max<std::int64_t>(scores, 1);
      return std::clamp<std::int64_t>(count, 1, std::max<std::int64_t>(extent, 1));
    };
    at_once_.samples = fit(of_query * queries_ * heads_, samples_);
    at_once_.heads = at_once_.samples > 1 ? heads_ : fit(of_query * queries_, heads_);
    at_once_.queries = at_once_.heads > 1 ? queries_ : fit(of_query, queries_);
  }

  bool splits_queries() const { return at_once_.queries < queries_; }

  template <typename F>
  void each(F&& f) const {
    const auto extent = [](std::int64_t most, std::int64_t first, std::int64_t end) {
      return std::min(most, end - first);
    };
    for (std::int64_t s = 0; s < samples_; s += at_once_.samples) {
      for (std::int64_t h = 0; h < heads_; h += at_once_.heads) {
        for (std::int64_t i = 0; i < queries_; i += at_once_.queries) {
          f(Block{s, extent(at_once_.samples, s, samples_), h, extent(at_once_.heads, h, heads_), i,
                  extent(at_once_.queries, i, queries_)});
        }
      }
    }
  }

 private:
  std::int64_t samples_, heads_, queries_;
  Block at_once_{};
};

/// The tensors of an attention and of its gradients, of which blocks are views.
struct Terms {
  at::Tensor q, k, v;
  at::Tensor bias;  // of four axes; without elements: there is none
  AttendOptions options;

  std::int64_t groups() const { return q.size(1) / k.size(1); }

  at::Tensor of_queries(const at::Tensor& x, const Block& b) const {
    return x.narrow(0, b.sample, b.samples)
        .narrow(1, b.head * groups(), b.heads * groups())
        .narrow(2, b.query, b.queries);
  }
  static at::Tensor of_keys(const at::Tensor& x, const Block& b) {
    return x.narrow(0, b.sample, b.samples).narrow(1, b.head, b.heads);
  }
  at::Tensor of_scores(const at::Tensor& x, const Block& b) const {
    const auto part = [](const at::Tensor& t, int axis, std::int64_t first, std::int64_t extent) {
      return t.size(axis) == 1 ? t : t.narrow(axis, first, extent);
    };
    const at::Tensor heads =
        part(part(x, 0, b.sample, b.samples), 1, b.head * groups(), b.heads * groups());
    return part(heads, 2, b.query, b.queries);
  }

  /// Makes the queries of a group the rows of one product.
  at::Tensor rows(const at::Tensor& x) const {
    const std::int64_t n = groups();
    return n == 1 ? x : x.reshape({x.size(0), x.size(1) / n, n * x.size(2), x.size(3)});
  }
  at::Tensor from_rows(const at::Tensor& x, const Block& b) const {
    return groups() == 1 ? x : x.reshape({b.samples, b.heads * groups(), b.queries, x.size(3)});
  }

  /// Returns the weights of a block; sets `tanh` if scores are capped.
  at::Tensor weights(const Block& b, at::Tensor* tanh = nullptr) const {
    at::Tensor scores = from_rows(
        at::matmul(rows(of_queries(q, b) * options.scale), of_keys(k, b).transpose(2, 3)), b);
    if (options.cap > 0) {
      scores.div_(options.cap).tanh_();
      if (tanh != nullptr) *tanh = scores;
      scores = scores * options.cap;
    }
    if (bias.numel() > 0) scores.add_(of_scores(bias, b));
    return at::softmax(options.precise ? scores.to(at::kDouble) : scores, -1);
  }
};

/// Lays the output out by sample, query, head: the operators that join the heads then copy nothing.
at::Tensor empty_output(const Terms& of) {
  return at::empty({of.q.size(0), of.q.size(2), of.q.size(1), of.v.size(3)}, of.q.options())
      .transpose(1, 2);
}

class InBlocks : public torch::autograd::Function<InBlocks> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
                            const AttendOptions& options) {
    const Terms of{q, k, v, bias, options};
    at::Tensor y = empty_output(of);
    Blocks(q, k).each([&](const Block& b) {
      const at::Tensor weights = of.weights(b).to(q.scalar_type());
      of.of_queries(y, b).copy_(of.from_rows(at::matmul(of.rows(weights), of.of_keys(v, b)), b));
    });
    context->save_for_backward({q, k, v, bias});
    context->saved_data["scale"] = options.scale;
    context->saved_data["cap"] = options.cap;
    context->saved_data["precise"] = options.precise;
    return y;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& given) {
    const at::NoGradGuard no_grad;
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const Terms of{saved[0],
                   saved[1],
                   saved[2],
                   saved[3],
                   {context->saved_data["scale"].toDouble(), context->saved_data["cap"].toDouble(),
                    false, context->saved_data["precise"].toBool()}};
    const bool learns_bias = of.bias.requires_grad();
    const Blocks blocks(of.q, of.k);
    at::Tensor dq = at::empty_like(of.q), dk = at::zeros_like(of.k), dv = at::zeros_like(of.v),
               dbias = learns_bias ? at::zeros_like(of.bias) : at::Tensor();
    blocks.each([&](const Block& b) {
      at::Tensor tanh;
      const at::Tensor weights = of.weights(b, &tanh);
      const at::Tensor dy = of.rows(of.of_queries(given[0], b));
      put(blocks, Terms::of_keys(dv, b),
          at::matmul(of.rows(weights.to(dy.scalar_type())).transpose(2, 3), dy));
      const at::Tensor dweights =
          of.from_rows(at::matmul(dy, Terms::of_keys(of.v, b).transpose(2, 3)), b);
      at::Tensor dscores = at::_softmax_backward_data(dweights.to(weights.scalar_type()), weights,
                                                      -1, weights.scalar_type())
                               .to(of.q.scalar_type());
      if (learns_bias) {
        at::Tensor part = of.of_scores(dbias, b);
        part.add_(at::sum_to(dscores, part.sizes()));
      }
      if (tanh.defined()) dscores = dscores * (1 - tanh.square());
      dscores = of.rows(dscores.mul_(of.options.scale));
      of.of_queries(dq, b).copy_(of.from_rows(at::matmul(dscores, Terms::of_keys(of.k, b)), b));
      put(blocks, Terms::of_keys(dk, b),
          at::matmul(dscores.transpose(2, 3), of.rows(of.of_queries(of.q, b))));
    });
    return {dq, dk, dv, dbias, at::Tensor()};
  }

 private:
  /// Writes what a block adds to a gradient; further blocks of queries add theirs.
  static void put(const Blocks& blocks, at::Tensor to, const at::Tensor& value) {
    if (blocks.splits_queries()) {
      to.add_(value);
    } else {
      to.copy_(value);
    }
  }
};

at::Tensor causal_bias(const at::Tensor& q, const at::Tensor& k) {
  return at::full({q.size(2), k.size(2)}, -std::numeric_limits<double>::infinity(),
                  q.options().requires_grad(false))
      .triu(1);
}

}  // namespace

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& bias, const AttendOptions& options) {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 5)
  constexpr std::int64_t kKeepsScores = 0;  // the "math" backend of _fused_sdp_choice
  const bool groups = q.size(1) != k.size(1);
  const bool is_plain = options.cap == 0 && !options.precise && q.numel() > 0 && k.numel() > 0 &&
                        !(bias.defined() && bias.requires_grad());
  const std::optional<at::Tensor> mask =
      bias.defined() ? std::optional(bias) : std::optional<at::Tensor>();
  if (is_plain && at::_fused_sdp_choice(q, k, v, mask, 0, options.causal, options.scale, groups) !=
                      kKeepsScores) {
    return at::scaled_dot_product_attention(q, k, v, mask, 0, options.causal, options.scale,
                                            groups);
  }
#endif
  at::Tensor whole = options.causal ? causal_bias(q, k) : bias;
  if (!whole.defined()) whole = at::empty({0}, q.options().requires_grad(false));
  while (whole.dim() < 4) whole = whole.unsqueeze(0);
  return InBlocks::apply(q, k, v, whole, options);
}

}  // namespace agpcs
