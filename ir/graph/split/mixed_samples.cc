// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/split/mixed_samples.h"

#include "ir/graph/split/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string_view>
#include <vector>

namespace agpcs {
namespace {

/// What a tensor has of the samples of a batch.
enum class OfSamples : std::uint8_t {
  kNothing,  ///< the same for all samples, whatever they are
  kEach,     ///< something of each sample, along an axis that grows with them
  kAll,      ///< one value of all samples together
};

struct Along {
  int axis = 0;             ///< the first along which an operator computes
  bool and_behind = false;  ///< along the axes behind it, too
};

/// Returns the axis along which an operator computes that keeps this axis; nullopt: there is none,
/// or it is not known.
std::optional<Along> computes_along(const SplitAt& at) {
  const std::string_view type = at.op.type;
  const int rank = rank_of(at.input(0));
  if (type == "Softmax" || type == "LogSoftmax" || type == "Hardmax") {
    const bool one_axis = at.op.version >= 13;
    return Along{at.axis(one_axis ? -1 : 1, rank), !one_axis};
  }
  if (type == "LpNormalization") return Along{at.axis(-1, rank), false};
  if (type == "LayerNormalization" || type == "RMSNormalization") {
    return Along{at.axis(-1, rank), true};
  }
  if (type == "CumSum" || type == "CumProd") {
    const auto named = at.ints("", 1);
    if (!named || named->size() != 1) return std::nullopt;
    return Along{static_cast<int>((*named)[0] < 0 ? (*named)[0] + rank : (*named)[0]), false};
  }
  return std::nullopt;
}

int growing_axes(const Tensor& tensor) {
  return static_cast<int>(std::count_if(tensor.shape.begin(), tensor.shape.end(),
                                        [](const Extent& extent) { return extent.per_sample; }));
}

class Walk {
 public:
  explicit Walk(const Graph& graph) : graph_(graph), has_(graph.tensors.size()) {
    for (const TensorId id : graph.inputs) {
      if (depends_on_batch(graph.tensor(id).shape)) of(id) = OfSamples::kEach;
    }
  }

  std::vector<MixedSamples> run() {
    for (OpId id = 0; id < static_cast<OpId>(graph_.ops.size()); ++id) {
      const Op& op = graph_.op(id);
      const std::string how = meeting(op);
      if (!how.empty()) found_.push_back({id, how});
      note_outputs(op);
    }
    return std::move(found_);
  }

 private:
  OfSamples& of(TensorId id) { return has_[static_cast<std::size_t>(id)]; }

  /// Returns the inputs whose values the operator reads, not their extents or type alone.
  static std::vector<TensorId> read_by(const Op& op) {
    constexpr std::string_view kReadNone[] = {"Shape", "Size", "EyeLike", "RandomNormalLike",
                                              "RandomUniformLike"};
    if (std::find(std::begin(kReadNone), std::end(kReadNone), op.type) != std::end(kReadNone)) {
      return {};
    }
    std::vector<TensorId> inputs = op.inputs;
    if (op.type == "CastLike") inputs.resize(1);
    std::erase(inputs, kNone);
    return inputs;
  }

  bool reads_samples(const Op& op) {
    const std::vector<TensorId> inputs = read_by(op);
    return std::any_of(inputs.begin(), inputs.end(),
                       [this](TensorId id) { return of(id) != OfSamples::kNothing; });
  }

  void note_outputs(const Op& op) {
    if (!reads_samples(op)) return;
    for (const TensorId id : op.outputs) {
      if (id == kNone) continue;
      of(id) = growing_axes(graph_.tensor(id)) > 0 ? OfSamples::kEach : OfSamples::kAll;
    }
  }

  std::string meeting(const Op& op) {
    if (op.outputs.empty() || op.outputs[0] == kNone || !reads_samples(op)) return "";
    if (growing_axes(graph_.tensor(op.outputs[0])) == 0) return "";
    std::string how = along_samples(op);
    if (how.empty()) how = pairs(op);
    return how.empty() ? back_to_each(op) : how;
  }

  std::string along_samples(const Op& op) {
    const SplitAt at{graph_, op};
    const auto along = computes_along(at);
    if (!along || at.input(0) == nullptr || of(op.inputs[0]) != OfSamples::kEach) return "";
    const Shape& shape = at.input(0)->shape;
    const int end = along->and_behind ? static_cast<int>(shape.size()) : along->axis + 1;
    for (int axis = std::max(along->axis, 0); axis < std::min(end, rank_of(at.input(0))); ++axis) {
      if (shape[static_cast<std::size_t>(axis)].per_sample == 0) continue;
      return fmt::format("{} goes along axis {} of {}, where the samples are", op.type, axis,
                         type_text(*at.input(0)));
    }
    return "";
  }

  /// Two inputs have something of each sample along one axis, the output along two.
  std::string pairs(const Op& op) {
    const Tensor& output = graph_.tensor(op.outputs[0]);
    if (growing_axes(output) < 2) return "";
    int single = 0;
    for (const TensorId id : read_by(op)) {
      if (of(id) != OfSamples::kEach) continue;
      if (growing_axes(graph_.tensor(id)) > 1) return "";
      ++single;
    }
    if (single < 2) return "";
    return fmt::format("{} pairs samples with one another, to {}", op.type, type_text(output));
  }

  std::string back_to_each(const Op& op) {
    for (const TensorId id : read_by(op)) {
      if (of(id) != OfSamples::kAll) continue;
      return fmt::format("{} brings '{}' ({}), which is of all samples, to each of them", op.type,
                         graph_.tensor(id).name, type_text(graph_.tensor(id)));
    }
    return "";
  }

  const Graph& graph_;
  std::vector<OfSamples> has_;
  std::vector<MixedSamples> found_;
};

}  // namespace

std::vector<MixedSamples> mixed_samples(const Graph& graph) { return Walk(graph).run(); }

}  // namespace agpcs
