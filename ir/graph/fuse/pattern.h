// SPDX-License-Identifier: Apache-2.0
// What patterns of operators read of a graph, and what they find.
#pragma once

#include "ir/graph/graph.h"

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// A part that stays as another operator: it prepares an input of what is found.
struct Reused {
  OpId op = kNone;
  std::string type;
  std::vector<TensorId> inputs;
  std::map<std::string, Attribute> attributes;
  Shape shape;  ///< of its output
  DType output = DType::kFp32;
};

/// Operators that compute what one operator of ONNX does.
struct Composite {
  std::vector<OpId> ops;  ///< the last makes the output
  std::vector<TensorId> inputs;
  std::map<std::string, Attribute> attributes;
  std::vector<Reused> reused;  ///< of `ops`
};

/// Follows a graph from an output back to inputs, and notes the operators on the way.
class Trail {
 public:
  Trail(const Graph& graph, OpId root) : graph_(graph), root_(root) {}

  const Graph& graph() const { return graph_; }
  const Tensor& output() const { return graph_.tensor(graph_.op(root_).outputs[0]); }
  TensorId root() const { return graph_.op(root_).outputs[0]; }

  /// Returns the operator that makes `id` if it is an ai.onnx one of that type, else nullptr.
  const Op* maker(TensorId id, std::string_view type) const;
  /// Notes the operator that makes `id` as part of what is found.
  void take(TensorId id) { taken_.push_back(graph_.tensor(id).producer); }
  /// Tells whether one operator reads `id`, which is no output of the graph.
  bool has_one_reader(TensorId id) const;

  /// Returns the value of a constant of one number; nullopt for other tensors, for a constant that
  /// follows the batch, and for one that a weight became.
  std::optional<double> number(TensorId id) const;
  /// Splits an operator with two inputs into a number and the other input.
  std::optional<std::pair<TensorId, double>> with_number(const Op& op) const;

  /// Returns what was found: the noted operators, each once, the root last.
  Composite found(std::vector<TensorId> inputs, std::map<std::string, Attribute> attributes) const;

  /// Goes back to an earlier number of noted operators, where one of several ways led nowhere.
  std::size_t length() const { return taken_.size(); }
  void back_to(std::size_t length) { taken_.resize(length); }

 private:
  const Graph& graph_;
  OpId root_;
  std::vector<OpId> taken_;
};

// Each looks for its operator with the root's output as output.
std::optional<Composite> find_attention(Trail trail);
std::optional<Composite> find_gelu(Trail trail);
std::optional<Composite> find_swish(Trail trail);
std::optional<Composite> find_layer_norm(Trail trail);
std::optional<Composite> find_rms_norm(Trail trail);

}  // namespace agpcs
