// SPDX-License-Identifier: Apache-2.0
// Graph: the training graph. Operators in a topological order over tensors whose extents are
// affine in the number of samples, so that one graph serves every batch, micro-batch and share.
#pragma once

#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace agpcs {

using OpId = int;
using TensorId = int;
inline constexpr int kNone = -1;

/// An extent: `fixed + per_sample x samples`. A batch axis is {0, 1}.
struct Extent {
  std::int64_t fixed = 0;
  std::int64_t per_sample = 0;
  std::int64_t at(std::int64_t samples) const { return fixed + per_sample * samples; }
  friend bool operator==(const Extent&, const Extent&) = default;
};
using Shape = std::vector<Extent>;
std::vector<std::int64_t> dims_at(const Shape& shape, std::int64_t samples);
std::int64_t elements_at(const Shape& shape, std::int64_t samples);
bool depends_on_batch(const Shape& shape);
/// Prints a shape as "[n,3,224,224]", where n is the number of samples.
std::string shape_text(const Shape& shape);
struct Tensor;
/// Prints element type and shape as "fp32[n,64]".
std::string type_text(const Tensor& t);

/// A tensor whose value is known when planning, row-major, little-endian. Integers may grow with
/// the batch (a Reshape target such as [samples, 128, 12, 64]): element i is ints[i] +
/// per_sample[i] x samples.
struct Constant {
  std::vector<std::byte> bytes;  ///< payload for samples = 0; empty when `value` is external
  std::vector<std::int64_t> per_sample;  ///< int64 only; empty = independent of the batch
  std::vector<std::int64_t> ints_at(std::int64_t samples) const;  ///< of an int64 constant
};

/// The place of an initializer's bytes that were not read; `location` is relative to the
/// model's folder.
struct ExternalData {
  std::string location;
  std::int64_t offset = 0, length = 0;
};

enum class TensorKind : std::uint8_t {
  kInput,       ///< fed at every step: data, labels
  kParameter,   ///< trained
  kState,       ///< kept from step to step, but not trained by gradients (batch norm's running
                ///< statistics)
  kConstant,    ///< value in `constant`
  kPrepared,    ///< made from constants by `Graph::prologue`, before the first step
  kActivation,  ///< output of an operator
};

struct Tensor {
  std::string name;
  DType type = DType::kFp32;
  Shape shape;
  TensorKind kind = TensorKind::kActivation;
  OpId producer = kNone;
  std::vector<OpId> consumers;  ///< ascending, each once
  /// A gradient flows to the tensor: it is floating, it depends on a parameter, and the loss
  /// depends on it (set by `derive_backward`).
  bool needs_gradient = false;
  /// A kConstant that was a parameter before --freeze, or that the file says is a buffer; no
  /// planning decision depends on its value.
  bool frozen = false;
  Constant constant;      ///< kConstant; and kParameter/kState whose value the file carries
  ExternalData external;  ///< kParameter/kState whose value is in another file; location "" = none
};

using Attribute = std::variant<std::int64_t, double, std::string, std::vector<std::int64_t>,
                               std::vector<double>, std::vector<std::string>>;

struct Op {
  std::string name;               ///< unique in the graph
  std::string type;               ///< ONNX operator type, "Conv"
  std::string domain;             ///< "" is ai.onnx
  int version = 0;                ///< opset version that the model imports for the domain
  std::vector<TensorId> inputs;   ///< kNone: an optional input that is absent
  std::vector<TensorId> outputs;  ///< kNone: an optional output that is absent
  std::map<std::string, Attribute> attributes;
  int fused = kNone;  ///< index in `Graph::fused` of the attention that it is a part of
  /// The node of PyTorch's graph that it is a part of, as the file notes it; "" = not noted. No
  /// digest covers it.
  std::string origin;
  /// The modules that call it, as the file notes them: those within the model, outermost first
  /// ("layers.3", "layers.3.attn"). No digest covers them.
  std::vector<std::string> modules;

  std::int64_t int_attribute(std::string_view name, std::int64_t otherwise) const;
  double float_attribute(std::string_view name, double otherwise) const;
  std::string string_attribute(std::string_view name, std::string_view otherwise) const;
  std::vector<std::int64_t> ints_attribute(std::string_view name,
                                           std::vector<std::int64_t> otherwise = {}) const;
};

/// An attention that one kernel computes. The kernel keeps the scores to itself: what operators
/// other than the last one make is never written to memory.
struct FusedAttention {
  std::vector<OpId> ops;  ///< ascending; the last makes the output
};

struct Graph {
  std::string name;   ///< the name that the file gives its graph; part of the text form
  std::string title;  ///< the name that people use for the model: its file's stem; if empty, `name`
  std::vector<Op> ops;  ///< in topological order; OpId is the index
  /// Operators that make the kPrepared tensors, in topological order. Who reads such a tensor makes
  /// it, once for each number of samples that it computes with; set by `derive_backward`.
  std::vector<Op> prologue;
  std::vector<Tensor> tensors;    ///< TensorId is the index
  std::vector<TensorId> inputs;   ///< kInput tensors in the file's order, then those the loss adds
  std::vector<TensorId> outputs;  ///< the model's outputs
  TensorId loss = kNone;          ///< the scalar that is minimized; set by `attach_loss`
  std::vector<std::pair<std::string, std::int64_t>> dims;  ///< --dim bindings used, sorted
  std::vector<std::string>
      frozen;  ///< names in the file of the weights that --freeze holds, sorted
  std::vector<std::string>
      trained;  ///< names in the file of the constants that --train trains, sorted
  /// Types of the operators that stand for several of the file, sorted; set by `fuse_operators`.
  std::vector<std::string> fused_types;

  std::vector<FusedAttention> fused;  ///< set by `fuse_attention`; no digest covers them

  /// Returns the model's name in plans, reports and messages. No digest covers it.
  const std::string& called() const { return title.empty() ? name : title; }
  const Tensor& tensor(TensorId id) const { return tensors[static_cast<std::size_t>(id)]; }
  Tensor& tensor(TensorId id) { return tensors[static_cast<std::size_t>(id)]; }
  const Op& op(OpId id) const { return ops[static_cast<std::size_t>(id)]; }
  Op& op(OpId id) { return ops[static_cast<std::size_t>(id)]; }
  TensorId find_tensor(std::string_view name) const;  ///< kNone when absent; linear
  OpId find_op(std::string_view name) const;          ///< kNone when absent; linear

  /// Returns true for a tensor inside a fused attention, which has no memory.
  bool is_fused_away(TensorId id) const;
  /// Returns the parameters in order of first use.
  std::vector<TensorId> parameters() const;
  std::int64_t parameter_elements() const;
};

/// Recomputes every `producer` and `consumers`. The prologue's operators are neither.
void link_graph(Graph& graph);

/// Checks the invariants above: ids in range, topological order, unique names, one producer each,
/// extents not negative, inputs and constants without producer.
Status verify_graph(const Graph& graph);

/// Prints the graph's text form: one line for each tensor that is not an activation, one for each
/// operator. The text does not contain values of weights, so a model has the same text with and
/// without its weights. The plan's `model digest` is `digest_of` this text.
std::string print_graph(const Graph& graph);

}  // namespace agpcs
