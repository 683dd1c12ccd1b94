// SPDX-License-Identifier: Apache-2.0
// Attention and rotary embeddings.
#include "runtime/torch/ops/attend.h"
#include "runtime/torch/ops/ops.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

namespace agpcs {
namespace {

// Queries, keys and values as [batch, heads, sequence, head size]. There may be fewer heads of keys
// and values than of queries: each of them serves a group of queries.
struct Heads {
  at::Tensor q, k, v;
  std::int64_t past = 0;  // keys that come before the first of this call
  bool joined = false;    // the operator takes and gives [batch, sequence, heads x head size]

  std::int64_t queries() const { return q.size(2); }
  std::int64_t keys() const { return k.size(2); }
};

at::Tensor apart(const at::Tensor& x, std::int64_t heads) {
  if (x.dim() == 4) return x;
  if (heads < 1 || x.size(2) % heads != 0)
    throw KernelError(fmt::format("{} elements cannot be divided into {} heads", x.size(2), heads));
  return x.reshape({x.size(0), x.size(1), heads, x.size(2) / heads}).transpose(1, 2);
}

Heads heads_of(const OpCall& call) {
  const std::int64_t kv_heads = call.op.int_attribute("kv_num_heads", 0);
  Heads h{apart(call.input(0), call.op.int_attribute("q_num_heads", 0)),
          apart(call.input(1), kv_heads), apart(call.input(2), kv_heads)};
  h.joined = call.input(0).dim() == 3;
  if (call.has(4)) {
    h.past = call.in[4].size(2);
    h.k = at::cat({call.in[4], h.k}, 2);
    h.v = at::cat({call.input(5), h.v}, 2);
  }
  if (h.k.size(1) < 1 || h.q.size(1) % h.k.size(1) != 0) {
    throw KernelError(
        fmt::format("{} heads of queries cannot share {} heads of keys", h.q.size(1), h.k.size(1)));
  }
  return h;
}

// Returns q x k^T. The queries of a group are rows of one product, so that nothing is copied.
at::Tensor scores_of(const Heads& h) {
  const std::int64_t groups = h.q.size(1) / h.k.size(1);
  const at::Tensor rows =
      groups == 1 ? h.q
                  : h.q.reshape({h.q.size(0), h.k.size(1), groups * h.queries(), h.q.size(3)});
  const at::Tensor product = at::matmul(rows, h.k.transpose(2, 3));
  return product.reshape({h.q.size(0), h.q.size(1), h.queries(), h.keys()});
}

at::Tensor weighted_values(const Heads& h, const at::Tensor& weights) {
  const std::int64_t groups = h.q.size(1) / h.v.size(1);
  const at::Tensor rows =
      groups == 1 ? weights
                  : weights.reshape({h.q.size(0), h.v.size(1), groups * h.queries(), h.keys()});
  return at::matmul(rows, h.v).reshape({h.q.size(0), h.q.size(1), h.queries(), h.v.size(3)});
}

constexpr double kMasked = -std::numeric_limits<double>::infinity();
// Stands for kMasked where a whole row might have it: it is finite, also times log2(e).
constexpr double kLeastBias = std::numeric_limits<float>::lowest() / 2;

at::Tensor bias_of(const at::Tensor& allowed, const at::Tensor& like) {
  return at::zeros(allowed.sizes(), like.options().requires_grad(false))
      .masked_fill(at::logical_not(allowed), kMasked);
}

// Returns the mask input as a bias, as wide as there are keys.
at::Tensor given_bias(const OpCall& call, const Heads& h) {
  if (!call.has(3)) return {};
  const at::Tensor& mask = call.in[3];
  const at::Tensor bias = mask.scalar_type() == at::kBool ? bias_of(mask, h.q) : mask;
  const std::int64_t missing = h.keys() - bias.size(-1);
  return missing > 0 ? at::constant_pad_nd(bias, {0, missing}, kMasked) : bias;
}

// Returns the bias that hides keys by their distance from the query: later ones if the attention is
// causal, and those outside of a window.
at::Tensor distance_bias(const OpCall& call, const Heads& h) {
  const bool causal = call.op.int_attribute("is_causal", 0) != 0;
  const std::int64_t left = call.op.int_attribute("left_window_size", -1),
                     right = call.op.int_attribute("right_window_size", -1);
  if (!causal && left < 0 && right < 0) return {};
  const auto numbers = h.q.options().dtype(at::kLong).requires_grad(false);
  at::Tensor position = at::arange(h.queries(), numbers).unsqueeze(1) + h.past;
  if (call.has(6)) {  // by sample: [batch, 1, queries, 1]
    position = position + (call.in[6].to(at::kLong).reshape({-1, 1, 1, 1}) - h.queries());
  }
  const at::Tensor ahead = at::arange(h.keys(), numbers) - position;
  at::Tensor allowed = at::ones_like(ahead, at::kBool);
  if (causal) allowed = allowed.logical_and(ahead <= 0);
  if (left >= 0) allowed = allowed.logical_and(ahead >= -left);
  if (right >= 0) allowed = allowed.logical_and(ahead <= right);
  return bias_of(allowed, h.q);
}

// Returns the bias that hides keys beyond the sample's own length.
at::Tensor length_bias(const OpCall& call, const Heads& h) {
  if (!call.has(6)) return {};
  const at::Tensor lengths = call.in[6].to(at::kLong).reshape({-1, 1, 1, 1});
  return bias_of(at::arange(h.keys(), lengths.options()) < lengths, h.q);
}

// What is added to the scores. A row of -inf alone would become NaN, and so would its gradient.
// With kLeastBias in their place, hidden keys have weight 0 all the same, except in such a row.
struct Bias {
  at::Tensor sum;
  at::Tensor dead;  // rows without an allowed key, whose output is 0; undefined: there is none
};

Bias whole_bias(const OpCall& call, const Heads& h) {
  Bias bias;
  for (const at::Tensor& part :
       {given_bias(call, h), distance_bias(call, h), length_bias(call, h)}) {
    if (part.defined()) bias.sum = bias.sum.defined() ? bias.sum + part : part;
  }
  if (!bias.sum.defined()) return bias;
  bias.dead = at::isneginf(bias.sum.detach()).all(-1, true);
  if (bias.dead.is_cpu() && !bias.dead.any().item<bool>()) bias.dead = at::Tensor();
  bias.sum = at::clamp_min(bias.sum, kLeastBias);
  return bias;
}

AttendOptions options_of(const OpCall& call, const Heads& h) {
  const auto is_none = [&](const char* window) { return call.op.int_attribute(window, -1) < 0; };
  AttendOptions options;
  options.scale = call.op.float_attribute("scale", 1 / std::sqrt(static_cast<double>(h.q.size(3))));
  options.cap = call.op.float_attribute("softcap", 0);
  options.precise = call.op.int_attribute("softmax_precision", 0) == 11;  // double
  options.causal = call.op.int_attribute("is_causal", 0) != 0 && is_none("left_window_size") &&
                   is_none("right_window_size") && !call.has(3) && !call.has(6) && h.past == 0 &&
                   h.queries() == h.keys();
  return options;
}

// Computes the output and the scores or weights that the operator's output 3 shows.
std::pair<at::Tensor, at::Tensor> with_scores(const OpCall& call, const Heads& h,
                                              const AttendOptions& options) {
  const std::int64_t mode = call.op.int_attribute("qk_matmul_output_mode", 0);
  at::Tensor exposed, scores = scores_of(h) * options.scale;
  if (mode == 0) exposed = scores;
  if (options.cap > 0) scores = at::tanh(scores / options.cap) * options.cap;
  if (mode == 1) exposed = scores;
  const Bias bias = whole_bias(call, h);
  if (bias.sum.defined()) scores = scores + bias.sum;
  if (mode == 2) {
    exposed =
        bias.sum.defined() ? scores.masked_fill(at::le(bias.sum, kLeastBias), kMasked) : scores;
  }
  const at::Tensor weights =
      at::softmax(options.precise ? scores.to(at::kDouble) : scores, -1).to(h.q.scalar_type());
  if (mode == 3) exposed = bias.dead.defined() ? weights.masked_fill(bias.dead, 0) : weights;
  const at::Tensor y = weighted_values(h, weights);
  return {bias.dead.defined() ? y.masked_fill(bias.dead, 0) : y, exposed};
}

at::Tensor without_scores(const OpCall& call, const Heads& h, const AttendOptions& options) {
  const Bias bias = options.causal ? Bias() : whole_bias(call, h);
  const at::Tensor y = attend(h.q, h.k, h.v, bias.sum, options);
  return bias.dead.defined() ? y.masked_fill(bias.dead, 0) : y;
}

Tensors attention(const OpCall& call) {
  const Heads h = heads_of(call);
  const AttendOptions options = options_of(call, h);
  const bool shows_scores = call.op.outputs.size() > 3 && call.op.outputs[3] != kNone;
  auto [y, scores] = shows_scores ? with_scores(call, h, options)
                                  : std::pair(without_scores(call, h, options), at::Tensor());
  if (h.joined) y = y.transpose(1, 2).reshape({y.size(0), y.size(2), -1});
  return {y, h.k, h.v, scores};
}

// Computes RotaryEmbedding: turns pairs of elements by angles whose cosines and sines are given for
// each position, or looked up by position.
Tensors rotary_embedding(const OpCall& call) {
  const at::Tensor& x = call.input(0);
  const bool joined = x.dim() == 3;
  at::Tensor heads =
      joined ? x.reshape({x.size(0), x.size(1), call.op.int_attribute("num_heads", 1), -1})
             : x.transpose(1, 2);  // [batch, sequence, heads, head size]
  std::int64_t width = call.op.int_attribute("rotary_embedding_dim", 0);
  if (width == 0) width = heads.size(3);
  const auto table = [&](std::size_t i) {
    const at::Tensor& t = call.input(i);
    const at::Tensor rows = call.has(3) ? at::embedding(t, call.in[3].to(at::kLong)) : t;
    return rows.unsqueeze(2);
  };
  const at::Tensor cosine = table(1), sine = table(2);
  const bool interleaved = call.op.int_attribute("interleaved", 0) != 0;
  const at::Tensor turned = heads.narrow(3, 0, width);
  const at::Tensor a = interleaved ? turned.slice(3, 0, width, 2) : turned.narrow(3, 0, width / 2);
  const at::Tensor b =
      interleaved ? turned.slice(3, 1, width, 2) : turned.narrow(3, width / 2, width / 2);
  const at::Tensor real = cosine * a - sine * b, imaginary = sine * a + cosine * b;
  at::Tensor y =
      interleaved ? at::stack({real, imaginary}, -1).flatten(3) : at::cat({real, imaginary}, 3);
  if (width < heads.size(3)) y = at::cat({y, heads.narrow(3, width, heads.size(3) - width)}, 3);
  return {joined ? y.reshape(x.sizes()) : y.transpose(1, 2)};
}

constexpr KernelEntry kAttentionKernels[] = {
    {"Attention", attention},
    {"RotaryEmbedding", rotary_embedding},
};

}  // namespace

std::span<const KernelEntry> attention_kernels() { return kAttentionKernels; }

}  // namespace agpcs
