// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/fused_attention.h"

#include "ir/base/at.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>
#include <utility>

namespace agpcs {
namespace {

/// Operators that a kernel applies to scores on the way from one product to the other.
constexpr std::array<std::string_view, 17> kOnScores = {
    "Add", "Cast", "CastLike", "Clip",    "Div",     "Dropout", "Identity", "IsNaN", "Max",
    "Min", "Mul",  "Reshape",  "Softmax", "Squeeze", "Sub",     "Tanh",     "Where"};
/// The most operators on scores; exporters write fewer than ten.
constexpr std::size_t kMostOnScores = 32;

bool is(const Op& op, std::string_view type) { return op.domain.empty() && op.type == type; }

/// Finds the attention whose product with the values is a given operator.
class Finder {
 public:
  Finder(const Graph& graph, OpId last) : graph_(graph), last_(last) {}

  /// Returns the operators of the attention, ascending; none if there is no attention.
  std::vector<OpId> run() {
    const Op& last = graph_.op(last_);
    if (!is(last, "MatMul") || !has_batch(last.inputs[1])) return {};
    if (!leads_to_product(last.inputs[0]) || product_ == kNone || !over_keys_) return {};
    ops_.push_back(last_);
    std::sort(ops_.begin(), ops_.end());
    const bool whole = std::all_of(ops_.begin(), ops_.end(), [&](OpId op) {
      return op == last_ || (is_of_scores(op) && nobody_else_reads(op));
    });
    return whole && !contains(producer_of(last.inputs[1])) ? ops_ : std::vector<OpId>();
  }

 private:
  OpId producer_of(TensorId id) const { return id == kNone ? kNone : graph_.tensor(id).producer; }
  bool contains(OpId op) const { return std::find(ops_.begin(), ops_.end(), op) != ops_.end(); }
  bool has_batch(TensorId id) const {
    return graph_.tensor(id).shape.size() > 2 && depends_on_batch(graph_.tensor(id).shape);
  }

  /// Adds the operators from the first product to `id`, if `id` depends on it. Returns whether.
  bool leads_to_product(TensorId id) {
    const OpId op = producer_of(id);
    if (op == kNone || rejected(op) || ops_.size() > kMostOnScores) return false;
    if (contains(op)) return true;
    const Op& made_by = graph_.op(op);
    if (is(made_by, "MatMul")) {
      if (product_ != kNone || !has_batch(made_by.inputs[0]) || !has_batch(made_by.inputs[1])) {
        return false;
      }
      product_ = op;
      ops_.push_back(op);
      return true;
    }
    bool leads = false;
    const bool may = made_by.domain.empty() &&
                     std::find(kOnScores.begin(), kOnScores.end(), made_by.type) != kOnScores.end();
    for (std::size_t i = 0; may && i < made_by.inputs.size(); ++i) {
      leads = leads_to_product(made_by.inputs[i]) || leads;
    }
    if (!leads) {
      rejected_.push_back(op);
      return false;
    }
    ops_.push_back(op);
    if (is(made_by, "Softmax")) {
      const auto rank = static_cast<std::int64_t>(graph_.tensor(id).shape.size());
      const std::int64_t axis = made_by.int_attribute("axis", -1);
      over_keys_ = softmax_ == kNone && (axis == -1 || axis == rank - 1);
      softmax_ = op;
    }
    return true;
  }

  bool rejected(OpId op) const {
    return std::find(rejected_.begin(), rejected_.end(), op) != rejected_.end();
  }

  bool is_of_scores(OpId op) const {
    const Shape& scores = graph_.tensor(graph_.op(product_).outputs[0]).shape;
    const Shape& own = graph_.tensor(graph_.op(op).outputs[0]).shape;
    return elements_at(own, 1) == elements_at(scores, 1) &&
           elements_at(own, 2) == elements_at(scores, 2);
  }

  bool nobody_else_reads(OpId op) const {
    for (const TensorId id : graph_.op(op).outputs) {
      if (id == kNone) continue;
      const std::vector<OpId>& readers = graph_.tensor(id).consumers;
      const bool output =
          std::find(graph_.outputs.begin(), graph_.outputs.end(), id) != graph_.outputs.end();
      if (output || !std::all_of(readers.begin(), readers.end(),
                                 [&](OpId reader) { return contains(reader); })) {
        return false;
      }
    }
    return true;
  }

  const Graph& graph_;
  OpId last_;
  OpId product_ = kNone, softmax_ = kNone;
  bool over_keys_ = false;
  std::vector<OpId> ops_, rejected_;
};

}  // namespace

bool is_one_kernel(const Op& op) {
  return is(op, "Attention") && (op.outputs.size() < 4 || op.outputs[3] == kNone);
}

void fuse_attention(Graph& graph) {
  for (OpId op = 0; op < static_cast<OpId>(graph.ops.size()); ++op) {
    std::vector<OpId> ops = Finder(graph, op).run();
    if (ops.empty()) continue;
    for (const OpId part : ops) graph.op(part).fused = static_cast<int>(graph.fused.size());
    graph.fused.push_back({std::move(ops)});
  }
}

std::size_t count_fused_attentions(const Graph& graph) {
  return graph.fused.size() +
         static_cast<std::size_t>(std::count_if(graph.ops.begin(), graph.ops.end(), is_one_kernel));
}

}  // namespace agpcs
