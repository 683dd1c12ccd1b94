// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/graph.h"

#include <fmt/format.h>

#include <set>
#include <string_view>

namespace agpcs {
namespace {

/// Reports the first violated invariant only; later ones are usually its consequences.
class GraphVerifier {
 public:
  explicit GraphVerifier(const Graph& graph) : graph_(graph), made_(graph.tensors.size()) {}

  Status run() {
    check_tensors();
    for (const Op& op : graph_.prologue) check_prologue_op(op);
    for (const Op& op : graph_.ops) check_op(op);
    for (const TensorId id : graph_.inputs) check_reference(id, "a graph input");
    for (const TensorId id : graph_.outputs) check_reference(id, "a graph output");
    if (graph_.loss != kNone) check_reference(graph_.loss, "the loss");
    check_fused();
    return fault_.empty() ? Status() : internal_error("graph: " + fault_);
  }

 private:
  void fail(std::string fault) {
    if (fault_.empty()) fault_ = std::move(fault);
  }
  bool in_range(TensorId id) const {
    return id >= 0 && id < static_cast<TensorId>(graph_.tensors.size());
  }
  void check_reference(TensorId id, std::string_view who) {
    if (!in_range(id)) fail(fmt::format("{} is tensor {}, of {}", who, id, graph_.tensors.size()));
  }

  void check_fused() {
    std::size_t parts = 0;
    for (std::size_t i = 0; i < graph_.fused.size(); ++i) {
      const std::vector<OpId>& ops = graph_.fused[i].ops;
      parts += ops.size();
      for (const OpId op : ops) {
        const bool known = op >= 0 && op < static_cast<OpId>(graph_.ops.size());
        if (known && graph_.op(op).fused == static_cast<int>(i) && op <= ops.back()) continue;
        fail(fmt::format("fused attention {} does not have operator {}", i, op));
      }
    }
    for (const Op& op : graph_.ops) parts -= op.fused == kNone ? 0 : 1;
    if (parts != 0) fail("operators and fused attentions do not name each other");
  }

  void check_tensors() {
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < graph_.tensors.size(); ++i) {
      const Tensor& t = graph_.tensors[i];
      if (t.name.empty()) fail(fmt::format("tensor {} has no name", i));
      if (!names.insert(t.name).second) fail(fmt::format("two tensors are named '{}'", t.name));
      for (const Extent& e : t.shape) {
        if (e.at(1) < 0 || e.per_sample < 0) {
          fail(fmt::format("tensor '{}' has extent {} + {} x samples", t.name, e.fixed,
                           e.per_sample));
        }
      }
      made_[i] = t.kind != TensorKind::kActivation && t.kind != TensorKind::kPrepared;
    }
  }

  void check_op(const Op& op) {
    if (op.name.empty() || !op_names_.insert(op.name).second) {
      fail(fmt::format("operator name '{}' is empty or used twice", op.name));
    }
    for (const TensorId id : op.inputs) {
      if (id == kNone) continue;
      check_reference(id, op.name);
      if (in_range(id) && !made_[static_cast<std::size_t>(id)]) {
        fail(fmt::format("operator '{}' reads '{}' before it is made", op.name,
                         graph_.tensor(id).name));
      }
    }
    for (const TensorId id : op.outputs) {
      if (id == kNone) continue;
      check_reference(id, op.name);
      if (!in_range(id)) continue;
      if (made_[static_cast<std::size_t>(id)]) {
        fail(fmt::format("operator '{}' writes '{}', which is made already", op.name,
                         graph_.tensor(id).name));
      }
      made_[static_cast<std::size_t>(id)] = true;
    }
  }

  void check_prologue_op(const Op& op) {
    check_op(op);
    const auto has_kind = [&](TensorId id, TensorKind kind) {
      return in_range(id) && graph_.tensor(id).kind == kind;
    };
    for (const TensorId id : op.inputs) {
      if (id == kNone || has_kind(id, TensorKind::kConstant) || has_kind(id, TensorKind::kPrepared))
        continue;
      fail(fmt::format("operator '{}' of the prologue reads what is no constant", op.name));
    }
    for (const TensorId id : op.outputs) {
      if (id == kNone || has_kind(id, TensorKind::kPrepared)) continue;
      fail(fmt::format("operator '{}' of the prologue makes what is not prepared", op.name));
    }
  }

  const Graph& graph_;
  std::vector<bool> made_;
  std::set<std::string_view> op_names_;
  std::string fault_;
};

}  // namespace

Status verify_graph(const Graph& graph) { return GraphVerifier(graph).run(); }

}  // namespace agpcs
