// SPDX-License-Identifier: Apache-2.0
// Small models of the kinds that teams are made for, as text.
#pragma once

#include "ir/base/check.h"
#include "ir/graph/training_graph.h"
#include "tests/support/graph_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

namespace agpcs::testing {

struct TransformerSize {
  int layers = 2;
  std::int64_t sequence = 6, hidden = 32, heads = 8, kv_heads = 8, inner = 64, vocabulary = 40;
  bool tied = true;  ///< the embedding is the last product's weight, too
  /// Of mixtures: experts, groups of a sample's tokens, and an expert's tokens of a group.
  std::int64_t experts = 8, groups = 2, capacity = 1;
};

inline Graph derived(const std::string& text) {
  Result<Graph> graph = derive_backward(agpcs::graph_of(text));
  AGPCS_CHECK(graph.ok(), "{}", graph.status().message());
  return *std::move(graph);
}

/// Writes operators whose tensors have the shape of hidden states.
class TransformerText {
 public:
  explicit TransformerText(const TransformerSize& size) : s_(size) {}

  /// GPT-2: one product for queries, keys and values, LayerNormalization before, Gelu, tied
  /// embeddings; no dropout.
  std::string gpt() {
    line("graph gpt");
    begin();
    leaf("parameter", "wpe", {s_.sequence, s_.hidden});
    line("pos: x = Add-14(embedded, wpe) -> {}", hidden_type());
    for (int i = 0; i < s_.layers; ++i) {
      prefix_ = fmt::format("h{}_", i);
      gpt_layer();
    }
    prefix_ = "";
    norm(x_, "last");
    end();
    return text_;
  }

  /// Llama: rotary positions, keys and values of fewer heads, RMSNormalization, a gated product.
  std::string llama() {
    line("graph llama");
    begin();
    line("id: x = Identity-13(embedded) -> {}", hidden_type());
    const std::int64_t half = s_.hidden / s_.heads / 2;
    leaf("input", "cos", {s_.sequence, half}, true);
    leaf("input", "sin", {s_.sequence, half}, true);
    for (int i = 0; i < s_.layers; ++i) {
      prefix_ = fmt::format("h{}_", i);
      llama_layer();
    }
    prefix_ = "";
    rms(x_, "last");
    end();
    return text_;
  }

  /// A GPT of which each layer's two products are a mixture of experts (Switch Transformer). A
  /// token goes to the expert of the highest score, as far as that has room: the tokens of a sample
  /// that come after its capacity are not computed.
  std::string moe() {
    mixture_ = true;
    return gpt();
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += "\n";
  }

  std::string type(std::int64_t last) const {
    return fmt::format("fp32[n,{},{}]", s_.sequence, last);
  }
  std::string hidden_type() const { return type(s_.hidden); }

  void leaf(const char* kind, const std::string& name, const std::vector<std::int64_t>& dims,
            bool batched = false) {
    std::string shape = batched ? "n" : "";
    for (const std::int64_t dim : dims) shape += fmt::format("{}{}", shape.empty() ? "" : ",", dim);
    line("{} {} fp32[{}]", kind, name, shape);
  }

  void begin() {
    line("input tokens int64[n,{}]", s_.sequence);
    line("input labels int64[n,{}]", s_.sequence);
    leaf("parameter", "wte", {s_.vocabulary, s_.hidden});
    line("embed: embedded = Gather-13(wte, tokens) -> {}", hidden_type());
  }

  void end() {
    if (s_.tied) {
      line("tie: head = Transpose-13(wte) perm=[1,0] -> fp32[{},{}]", s_.hidden, s_.vocabulary);
    } else {
      leaf("parameter", "head", {s_.hidden, s_.vocabulary});
    }
    line("score: logits = MatMul-13(last, head) -> {}", type(s_.vocabulary));
    line("constant rows int64[2] [-1,{}]", s_.vocabulary);
    line("constant flat int64[1] [-1]");
    line("flat_l: scores = Reshape-13(logits, rows) -> fp32[{}n,{}]", s_.sequence, s_.vocabulary);
    line("flat_t: targets = Reshape-13(labels, flat) -> int64[{}n]", s_.sequence);
    line("ce: loss = SoftmaxCrossEntropyLoss-13(scores, targets) -> fp32[]");
    line("outputs logits");
    line("loss loss");
  }

  void product(const std::string& in, const std::string& out, std::int64_t rows,
               std::int64_t columns) {
    const std::string weight = prefix_ + "w_" + out;
    leaf("parameter", weight, {rows, columns});
    line("{0}{2}: {0}{2} = MatMul-13({1}, {3}) -> {4}", prefix_, in, out, weight, type(columns));
  }

  void biased(const std::string& in, const std::string& out, std::int64_t rows,
              std::int64_t columns) {
    product(in, out + "0", rows, columns);
    leaf("parameter", prefix_ + "b_" + out, {columns});
    line("{0}{1}: {0}{1} = Add-14({0}{1}0, {0}b_{1}) -> {2}", prefix_, out, type(columns));
  }

  void norm(const std::string& in, const std::string& out) {
    leaf("parameter", prefix_ + "g_" + out, {s_.hidden});
    leaf("parameter", prefix_ + "s_" + out, {s_.hidden});
    line("{0}{2}: {0}{2} = LayerNormalization-17({1}, {0}g_{2}, {0}s_{2}) axis=-1 -> {3}", prefix_,
         in, out, hidden_type());
  }

  void rms(const std::string& in, const std::string& out) {
    leaf("parameter", prefix_ + "g_" + out, {s_.hidden});
    line("{0}{2}: {0}{2} = RMSNormalization-23({1}, {0}g_{2}) axis=-1 -> {3}", prefix_, in, out,
         hidden_type());
  }

  /// Adds `more` to the hidden states x, which are then called by the layer and `out`.
  std::string x_ = "x";
  void residual(const std::string& more, const std::string& out) {
    line("{0}{2}: {0}{2} = Add-14({1}, {0}{3}) -> {4}", prefix_, x_, out, more, hidden_type());
    x_ = prefix_ + out;
  }

  void gpt_layer() {
    norm(x_, "ln1");
    biased(prefix_ + "ln1", "qkv", s_.hidden, 3 * s_.hidden);
    line("constant {}sizes int64[3] [{},{},{}]", prefix_, s_.hidden, s_.hidden, s_.hidden);
    line("{0}cut: {0}q, {0}k, {0}v = Split-18({0}qkv, {0}sizes) axis=-1 -> {1} {1} {1}", prefix_,
         hidden_type());
    line(
        "{0}att: {0}a = Attention-23({0}q, {0}k, {0}v) is_causal=1 q_num_heads={2} "
        "kv_num_heads={2} -> {1}",
        prefix_, hidden_type(), s_.heads);
    biased(prefix_ + "a", "proj", s_.hidden, s_.hidden);
    residual("proj", "x1");
    norm(x_, "ln2");
    if (mixture_) return experts(prefix_ + "ln2");
    biased(prefix_ + "ln2", "up", s_.hidden, s_.inner);
    line("{0}act: {0}act = Gelu-20({0}up) -> {1}", prefix_, type(s_.inner));
    biased(prefix_ + "act", "down", s_.inner, s_.hidden);
    residual("down", "x2");
  }

  /// The tokens n,g,s of a sample, in groups that are routed apart; c are places at an expert e.
  void experts(const std::string& in) {
    const std::int64_t groups = s_.groups, tokens = s_.sequence / s_.groups;
    const std::int64_t e = s_.experts, c = s_.capacity;
    reshape(in, prefix_ + "grouped", {groups, tokens, s_.hidden});
    leaf("parameter", prefix_ + "w_score", {s_.hidden, e});
    einsum("{0}grouped, {0}w_score", "score", "ngsd,de->ngse", {groups, tokens, e});
    const std::string scores = fmt::format("fp32[n,{},{},{}]", groups, tokens, e);
    const std::string indices = fmt::format("[n,{},{}]", groups, tokens);
    line("{0}gate: {0}gate = Softmax-13({0}score) axis=-1 -> {1}", prefix_, scores);
    line("{0}best: {0}best = ArgMax-13({0}score) axis=-1 keepdims=0 -> int64{1}", prefix_, indices);
    // Of each token its expert, and its place among the tokens of the group that have the same.
    one_hot("best", "mine", e);
    line("constant {}along int64[1] [2]", prefix_);
    line("{0}count: {0}count = CumSum-14({0}mine, {0}along) exclusive=1 -> {1}", prefix_, scores);
    line("{0}at: {0}at = Mul-14({0}count, {0}mine) -> {1}", prefix_, scores);
    line("constant {}last int64[1] [-1]", prefix_);
    line("{0}row: {0}row = ReduceSum-13({0}at, {0}last) keepdims=0 -> fp32{1}", prefix_, indices);
    line("{0}place: {0}place = Cast-13({0}row) to=7 -> int64{1}", prefix_, indices);
    one_hot("place", "slot", c);
    einsum("{0}mine, {0}slot", "send", "ngse,ngsc->ngsec", {groups, tokens, e, c});
    einsum("{0}grouped, {0}send", "sent", "ngsd,ngsec->ngecd", {groups, e, c, s_.hidden});
    leaf("parameter", prefix_ + "w_up", {e, s_.hidden, s_.inner});
    einsum("{0}sent, {0}w_up", "up", "ngecd,edf->ngecf", {groups, e, c, s_.inner});
    line("{0}act: {0}act = Gelu-20({0}up) -> fp32[n,{1},{2},{3},{4}]", prefix_, groups, e, c,
         s_.inner);
    leaf("parameter", prefix_ + "w_down", {e, s_.inner, s_.hidden});
    einsum("{0}act, {0}w_down", "down", "ngecf,efd->ngecd", {groups, e, c, s_.hidden});
    einsum("{0}gate, {0}send", "weight", "ngse,ngsec->ngsec", {groups, tokens, e, c});
    einsum("{0}down, {0}weight", "gained", "ngecd,ngsec->ngsd", {groups, tokens, s_.hidden});
    reshape(prefix_ + "gained", prefix_ + "back", {s_.sequence, s_.hidden});
    residual("back", "x2");
  }

  /// `dims` are the output's without samples.
  void reshape(const std::string& in, const std::string& out,
               const std::vector<std::int64_t>& dims) {
    line("constant {}_shape int64[{}] [-1,{}]", out, dims.size() + 1, fmt::join(dims, ","));
    line("{0}: {0} = Reshape-13({1}, {0}_shape) -> fp32[n,{2}]", out, in, fmt::join(dims, ","));
  }

  void one_hot(const std::string& of, const std::string& out, std::int64_t depth) {
    line("constant {}{}_depth int64[1] [{}]", prefix_, out, depth);
    line("constant {}{}_values fp32[2] [0,1]", prefix_, out);
    line(
        "{0}{2}: {0}{2} = OneHot-11({0}{1}, {0}{2}_depth, {0}{2}_values) axis=-1 -> "
        "fp32[n,{3},{4},{5}]",
        prefix_, of, out, s_.groups, s_.sequence / s_.groups, depth);
  }

  /// `inputs` has "{0}" where the layer's name comes.
  void einsum(const std::string& inputs, const std::string& out, const std::string& equation,
              const std::vector<std::int64_t>& dims) {
    line("{0}{1}: {0}{1} = Einsum-12({2}) equation=\"{3}\" -> fp32[n,{4}]", prefix_, out,
         fmt::format(fmt::runtime(inputs), prefix_), equation, fmt::join(dims, ","));
  }

  void llama_layer() {
    const std::int64_t kv = s_.hidden / s_.heads * s_.kv_heads;
    rms(x_, "n1");
    product(prefix_ + "n1", "q", s_.hidden, s_.hidden);
    product(prefix_ + "n1", "k", s_.hidden, kv);
    product(prefix_ + "n1", "v", s_.hidden, kv);
    line("{0}rq: {0}rq = RotaryEmbedding-23({0}q, cos, sin) num_heads={2} -> {1}", prefix_,
         hidden_type(), s_.heads);
    line("{0}rk: {0}rk = RotaryEmbedding-23({0}k, cos, sin) num_heads={2} -> {1}", prefix_,
         type(kv), s_.kv_heads);
    line(
        "{0}att: {0}a = Attention-23({0}rq, {0}rk, {0}v) is_causal=1 q_num_heads={2} "
        "kv_num_heads={3} -> {1}",
        prefix_, hidden_type(), s_.heads, s_.kv_heads);
    product(prefix_ + "a", "o", s_.hidden, s_.hidden);
    residual("o", "x1");
    rms(x_, "n2");
    product(prefix_ + "n2", "gate", s_.hidden, s_.inner);
    product(prefix_ + "n2", "up", s_.hidden, s_.inner);
    line("{0}silu: {0}silu = Swish-24({0}gate) -> {1}", prefix_, type(s_.inner));
    line("{0}mul: {0}mul = Mul-14({0}silu, {0}up) -> {1}", prefix_, type(s_.inner));
    product(prefix_ + "mul", "down", s_.inner, s_.hidden);
    residual("down", "x2");
  }

  TransformerSize s_;
  std::string text_, prefix_;
  bool mixture_ = false;
};

inline Graph gpt_graph(const TransformerSize& size = {}) {
  return derived(TransformerText(size).gpt());
}
inline Graph moe_graph(const TransformerSize& size = {}) {
  return derived(TransformerText(size).moe());
}
inline Graph llama_graph(const TransformerSize& size = {}) {
  return derived(TransformerText(size).llama());
}

/// Convolutions with batch norm and a residual, two poolings, a classifier.
inline Graph cnn_graph() {
  return derived(
      "graph cnn\n"
      "input image fp32[n,3,8,8]\n"
      "input labels int64[n]\n"
      "parameter w1 fp32[16,3,3,3]\n"
      "parameter b1 fp32[16]\n"
      "conv1: c1 = Conv-11(image, w1, b1) pads=[1,1,1,1] -> fp32[n,16,8,8]\n"
      "parameter g1 fp32[16]\n"
      "parameter s1 fp32[16]\n"
      "state m1 fp32[16]\n"
      "state v1 fp32[16]\n"
      "bn1: n1, nm, nv = BatchNormalization-15(c1, g1, s1, m1, v1) training_mode=1 -> "
      "fp32[n,16,8,8] fp32[16] fp32[16]\n"
      "relu1: r1 = Relu-14(n1) -> fp32[n,16,8,8]\n"
      "pool1: p1 = MaxPool-12(r1) kernel_shape=[2,2] strides=[2,2] -> fp32[n,16,4,4]\n"
      "parameter w2 fp32[16,16,3,3]\n"
      "parameter b2 fp32[16]\n"
      "conv2: c2 = Conv-11(p1, w2, b2) pads=[1,1,1,1] -> fp32[n,16,4,4]\n"
      "relu2: r2 = Relu-14(c2) -> fp32[n,16,4,4]\n"
      "parameter w3 fp32[16,16,3,3]\n"
      "parameter b3 fp32[16]\n"
      "conv3: c3 = Conv-11(r2, w3, b3) pads=[1,1,1,1] -> fp32[n,16,4,4]\n"
      "res: sum = Add-14(p1, c3) -> fp32[n,16,4,4]\n"
      "relu3: r3 = Relu-14(sum) -> fp32[n,16,4,4]\n"
      "pool2: p2 = GlobalAveragePool-1(r3) -> fp32[n,16,1,1]\n"
      "flat: f = Flatten-13(p2) axis=1 -> fp32[n,16]\n"
      "parameter w4 fp32[12,16]\n"
      "parameter b4 fp32[12]\n"
      "fc: y = Gemm-13(f, w4, b4) transB=1 -> fp32[n,12]\n"
      "ce: loss = SoftmaxCrossEntropyLoss-13(y, labels) -> fp32[]\n"
      "outputs y\n"
      "loss loss\n");
}

}  // namespace agpcs::testing
