// SPDX-License-Identifier: Apache-2.0
// Checks LSTM, GRU and RNN: weights, biases and states against directions and hidden size.
#include "frontend/onnx/attributes.h"
#include "frontend/onnx/shapes/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace agpcs::frontend {
namespace {

constexpr std::size_t kSequence = 0, kRecurrence = 2, kLengths = 4, kFirstState = 5;

/// Checks that initial states have the batch of the sequence.
Misfit check_batch(const FitCase& c, std::size_t axis) {
  const Dims& sequence = c.input(kSequence)->dims;
  for (std::size_t i = kFirstState; i < kFirstState + 2; ++i) {
    if (c.input(i) == nullptr || c.input(i)->dims.size() != 3 || sequence.size() != 3) continue;
    if (c.input(i)->dims[axis] == sequence[axis]) continue;
    return {fmt::format("the sequence has a batch of {}, '{}' has {}", sequence[axis], c.name(i),
                        c.input(i)->dims[axis]),
            ""};
  }
  return {};
}

/// Returns the extents that ONNX's Operators.md gives for each input.
std::vector<std::pair<std::size_t, Dims>> wanted_extents(const FitCase& c, std::int64_t hidden) {
  const std::string& type = c.node.op_type();
  const std::int64_t gates = type == "LSTM" ? 4 : type == "GRU" ? 3 : 1;
  const std::int64_t directions =
      string_of(c.node, "direction", "forward") == "bidirectional" ? 2 : 1;
  const bool by_batch = int_of(c.node, "layout", 0) != 0;
  const Dims& sequence = c.input(kSequence)->dims;
  const std::int64_t batch = sequence[by_batch ? 0 : 1];
  const Dims state = by_batch ? Dims{batch, directions, hidden} : Dims{directions, batch, hidden};
  return {{1, {directions, gates * hidden, sequence[2]}},
          {kRecurrence, {directions, gates * hidden, hidden}},
          {3, {directions, 2 * gates * hidden}},
          {kLengths, {batch}},
          {kFirstState, state},
          {kFirstState + 1, state},
          {kFirstState + 2, {directions, 3 * hidden}}};
}

}  // namespace

Misfit check_recurrent(const FitCase& c) {
  const bool whole = c.input(kSequence) != nullptr && c.input(kSequence)->dims.size() == 3 &&
                     c.input(kRecurrence) != nullptr && c.input(kRecurrence)->dims.size() == 3;
  if (!whole) return {"sequence, W and R must have rank 3", ""};
  if (Misfit misfit = check_batch(c, int_of(c.node, "layout", 0) == 0 ? 1 : 0)) return misfit;
  const std::int64_t hidden = int_of(c.node, "hidden_size", c.input(kRecurrence)->dims[2]);
  for (const auto& [i, dims] : wanted_extents(c, hidden)) {
    if (c.input(i) == nullptr || c.input(i)->dims == dims) continue;
    return {fmt::format("'{}' has {}, {} with direction {} and a hidden size of {} takes {}",
                        c.name(i), dims_text(c.input(i)->dims), c.node.op_type(),
                        string_of(c.node, "direction", "forward"), hidden, dims_text(dims)),
            ""};
  }
  return {};
}

}  // namespace agpcs::frontend
