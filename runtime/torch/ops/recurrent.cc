// SPDX-License-Identifier: Apache-2.0
// Recurrent layers: LSTM, GRU and RNN, step by step.
#include "runtime/torch/ops/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <variant>

namespace agpcs {
namespace {

// An activation function with its parameters.
struct Activation {
  std::string name;
  double alpha = 0, beta = 0;

  at::Tensor operator()(const at::Tensor& x) const {
    if (name == "sigmoid") return at::sigmoid(x);
    if (name == "tanh") return at::tanh(x);
    if (name == "relu") return at::relu(x);
    if (name == "affine") return x * alpha + beta;
    if (name == "leakyrelu") return at::leaky_relu(x, alpha);
    if (name == "thresholdedrelu") return at::where(x > alpha, x, at::zeros_like(x));
    if (name == "scaledtanh") return at::tanh(x * beta) * alpha;
    if (name == "hardsigmoid") return at::clamp(x * alpha + beta, 0, 1);
    if (name == "elu") return at::elu(x, alpha);
    if (name == "softsign") return x / (at::abs(x) + 1);
    if (name == "softplus") return at::softplus(x);
    throw KernelError(fmt::format("activation '{}'", name));
  }
};

// Returns the defaults of ONNX's activation functions.
Activation with_defaults(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  Activation f{std::move(name)};
  if (f.name == "leakyrelu") f.alpha = 0.01;
  if (f.name == "thresholdedrelu" || f.name == "elu" || f.name == "affine") f.alpha = 1;
  if (f.name == "scaledtanh") f.alpha = f.beta = 1;
  if (f.name == "hardsigmoid") f = {f.name, 0.2, 0.5};
  return f;
}

// One direction of a layer: the weights [gates x hidden, inputs] and what belongs to them.
struct Cell {
  at::Tensor w, r, w_bias, r_bias, peepholes;
  std::vector<Activation> activations;
  std::int64_t hidden = 0;
  double clip = 0;  // 0: none
  bool joined_gates = false, linear_before_reset = false;

  at::Tensor clipped(const at::Tensor& x) const { return clip > 0 ? at::clamp(x, -clip, clip) : x; }
};

struct State {
  at::Tensor h, c;
};

template <typename T>
std::vector<T> list_of(const Op& op, const char* name) {
  const auto found = op.attributes.find(name);
  const auto* list =
      found == op.attributes.end() ? nullptr : std::get_if<std::vector<T>>(&found->second);
  return list != nullptr ? *list : std::vector<T>();
}

std::vector<Activation> activations_of(const OpCall& call, std::size_t per_direction,
                                       std::int64_t direction, const char* first) {
  std::vector<std::string> names = list_of<std::string>(call.op, "activations");
  const std::vector<double> alphas = list_of<double>(call.op, "activation_alpha"),
                            betas = list_of<double>(call.op, "activation_beta");
  if (names.empty()) {
    for (std::int64_t d = 0; d <= direction; ++d) {
      for (std::size_t i = 0; i < per_direction; ++i) names.push_back(i == 0 ? first : "Tanh");
    }
  }
  // Parameters are listed for those functions alone that have them.
  std::size_t alpha = 0, beta = 0;
  std::vector<Activation> all;
  for (const std::string& name : names) {
    Activation f = with_defaults(name);
    const bool takes_alpha = f.alpha != 0, takes_beta = f.beta != 0 || f.name == "affine";
    if (takes_alpha && alpha < alphas.size()) f.alpha = alphas[alpha++];
    if (takes_beta && beta < betas.size()) f.beta = betas[beta++];
    all.push_back(std::move(f));
  }
  const std::size_t begin = static_cast<std::size_t>(direction) * per_direction;
  if (all.size() < begin + per_direction) {
    throw KernelError(
        fmt::format("{} activations, expected {}", all.size(), begin + per_direction));
  }
  return {all.begin() + static_cast<std::ptrdiff_t>(begin),
          all.begin() + static_cast<std::ptrdiff_t>(begin + per_direction)};
}

using Step = State (*)(const Cell& cell, const at::Tensor& x, const State& s);

// x has W's product already, with its bias.
State lstm_step(const Cell& cell, const at::Tensor& x, const State& s) {
  const Tensors gates =
      at::chunk(x + at::linear(s.h, cell.r, cell.r_bias), 4, -1);  // input, output, forget, cell
  const Tensors peep = cell.peepholes.defined() ? at::chunk(cell.peepholes, 3, -1) : Tensors();
  const auto with_peephole = [&](std::size_t gate, std::size_t peephole, const at::Tensor& c) {
    return cell.clipped(peep.empty() ? gates[gate] : gates[gate] + peep[peephole] * c);
  };
  const auto& [f, g, h] = std::tie(cell.activations[0], cell.activations[1], cell.activations[2]);
  const at::Tensor in = f(with_peephole(0, 0, s.c));
  const at::Tensor forget = cell.joined_gates ? 1 - in : f(with_peephole(2, 2, s.c));
  const at::Tensor c = forget * s.c + in * g(cell.clipped(gates[3]));
  return {f(with_peephole(1, 1, c)) * h(c), c};
}

State gru_step(const Cell& cell, const at::Tensor& x, const State& s) {
  const std::int64_t n = cell.hidden;
  const auto part = [n](const at::Tensor& t, std::int64_t axis, std::int64_t from,
                        std::int64_t to) {
    return t.defined() ? t.narrow(axis, from * n, (to - from) * n) : t;
  };
  const Activation &f = cell.activations[0], &g = cell.activations[1];
  const at::Tensor update_reset = f(cell.clipped(
      part(x, -1, 0, 2) + at::linear(s.h, part(cell.r, 0, 0, 2), part(cell.r_bias, 0, 0, 2))));
  const at::Tensor z = part(update_reset, -1, 0, 1), r = part(update_reset, -1, 1, 2);
  const at::Tensor r_h = part(cell.r, 0, 2, 3), bias_h = part(cell.r_bias, 0, 2, 3);
  const at::Tensor recurrent = cell.linear_before_reset ? r * at::linear(s.h, r_h, bias_h)
                                                        : at::linear(r * s.h, r_h, bias_h);
  const at::Tensor hidden = g(cell.clipped(part(x, -1, 2, 3) + recurrent));
  return {(1 - z) * hidden + z * s.h, {}};
}

State rnn_step(const Cell& cell, const at::Tensor& x, const State& s) {
  return {cell.activations[0](cell.clipped(x + at::linear(s.h, cell.r, cell.r_bias))), {}};
}

// What tells the three layers apart.
struct Layer {
  Step step;
  std::int64_t gates;
  std::size_t activations;
  const char* first;  // default of the first activation; the others are Tanh
};

Cell cell_of(const OpCall& call, const Layer& layer, std::int64_t direction) {
  Cell cell;
  cell.w = call.input(1).select(0, direction);
  cell.r = call.input(2).select(0, direction);
  cell.hidden = cell.r.size(1);
  if (call.has(3)) {
    const at::Tensor bias = call.in[3].select(0, direction);
    cell.w_bias = bias.narrow(0, 0, layer.gates * cell.hidden);
    cell.r_bias = bias.narrow(0, layer.gates * cell.hidden, layer.gates * cell.hidden);
  }
  if (call.has(7)) cell.peepholes = call.in[7].select(0, direction);
  cell.activations = activations_of(call, layer.activations, direction, layer.first);
  cell.clip = call.op.float_attribute("clip", 0);
  cell.joined_gates = call.op.int_attribute("input_forget", 0) != 0;
  cell.linear_before_reset = call.op.int_attribute("linear_before_reset", 0) != 0;
  return cell;
}

struct Sequence {
  at::Tensor all;  // [steps, batch, hidden]
  State last;
};

// Runs the cell over x [steps, batch, inputs], backward in time if `reverse`. `lengths` (or
// undefined) has the steps of each sample: beyond them the output is 0 and the state stays.
Sequence run_direction(const Cell& cell, Step step, const at::Tensor& x, State s,
                       const at::Tensor& lengths, bool reverse) {
  const at::Tensor products = at::linear(x, cell.w, cell.w_bias);
  const std::int64_t steps = x.size(0);
  Tensors all(static_cast<std::size_t>(steps));
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t t = reverse ? steps - 1 - i : i;
    State next = step(cell, products.select(0, t), s);
    at::Tensor& out = all[static_cast<std::size_t>(t)];
    out = next.h;
    if (lengths.defined()) {
      const at::Tensor inside = (lengths > t).unsqueeze(1);
      out = at::where(inside, next.h, at::zeros_like(next.h));
      next.h = at::where(inside, next.h, s.h);
      if (next.c.defined()) next.c = at::where(inside, next.c, s.c);
    }
    s = std::move(next);
  }
  const at::Tensor none = at::empty({0, s.h.size(0), s.h.size(1)}, s.h.options());
  return {all.empty() ? none : at::stack(all), s};
}

at::Tensor initial(const OpCall& call, std::size_t input, std::int64_t direction, bool by_batch,
                   const at::Tensor& x, std::int64_t hidden) {
  if (call.has(input)) return call.in[input].select(by_batch ? 1 : 0, direction);
  return at::zeros({x.size(1), hidden}, x.options().requires_grad(false));
}

Tensors run_layer(const OpCall& call, const Layer& layer) {
  const bool by_batch = call.op.int_attribute("layout", 0) != 0;
  const std::string direction = call.op.string_attribute("direction", "forward");
  const at::Tensor x = by_batch ? call.input(0).transpose(0, 1) : call.input(0);
  const at::Tensor lengths = call.has(4) ? call.in[4].to(at::kLong) : at::Tensor();
  Tensors all, hidden, cells;
  for (std::int64_t d = 0; d < call.input(1).size(0); ++d) {
    const Cell cell = cell_of(call, layer, d);
    const State first = {initial(call, 5, d, by_batch, x, cell.hidden),
                         initial(call, 6, d, by_batch, x, cell.hidden)};
    const Sequence made =
        run_direction(cell, layer.step, x, first, lengths, direction == "reverse" || d == 1);
    all.push_back(made.all);
    hidden.push_back(made.last.h);
    if (made.last.c.defined()) cells.push_back(made.last.c);
  }
  const std::int64_t axis = by_batch ? 1 : 0;
  at::Tensor y = at::stack(all, 1);  // [steps, directions, batch, hidden]
  if (by_batch) y = y.permute({2, 0, 1, 3});
  Tensors outputs = {y, at::stack(hidden, axis)};
  if (!cells.empty()) outputs.push_back(at::stack(cells, axis));
  return outputs;
}

Tensors lstm(const OpCall& call) { return run_layer(call, {lstm_step, 4, 3, "Sigmoid"}); }
Tensors gru(const OpCall& call) { return run_layer(call, {gru_step, 3, 2, "Sigmoid"}); }
Tensors rnn(const OpCall& call) { return run_layer(call, {rnn_step, 1, 1, "Tanh"}); }

constexpr KernelEntry kRecurrentKernels[] = {
    {"GRU", gru},
    {"LSTM", lstm},
    {"RNN", rnn},
};

}  // namespace

std::span<const KernelEntry> recurrent_kernels() { return kRecurrentKernels; }

}  // namespace agpcs
