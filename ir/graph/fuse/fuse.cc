// SPDX-License-Identifier: Apache-2.0
#include "ir/graph/fuse/fuse.h"

#include "ir/graph/fuse/pattern.h"
#include "ir/graph/subgraph.h"

#include <algorithm>
#include <cstring>
#include <set>

namespace agpcs {
namespace {

struct Pattern {
  std::string_view type;
  int first_version;  ///< the first opset that has the operator
  std::optional<Composite> (*find)(Trail trail);
};
// Sorted by type.
constexpr Pattern kPatterns[] = {
    {"Attention", 23, find_attention},
    {"Gelu", 20, find_gelu},
    {"LayerNormalization", 17, find_layer_norm},
    {"RMSNormalization", 23, find_rms_norm},
    {"Swish", 24, find_swish},
};

bool is_output(const Graph& graph, TensorId id) {
  return std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end();
}

/// Replaces composites, from the last operator to the first, so that the largest is found.
class Fuser {
 public:
  explicit Fuser(Graph& graph) : graph_(graph), kept_(graph.ops.size(), true) {}

  void run(const std::vector<const Pattern*>& patterns) {
    for (OpId root = static_cast<OpId>(graph_.ops.size()) - 1; root >= 0; --root) {
      if (!is_kept(root) || !graph_.op(root).domain.empty()) continue;
      for (const Pattern* pattern : patterns) {
        const std::optional<Composite> found = pattern->find(Trail(graph_, root));
        if (!found || !is_whole(*found)) continue;
        replace(*found, *pattern);
        break;
      }
    }
    if (!types_.empty()) remove_others();
  }

 private:
  bool is_kept(OpId op) const { return kept_[static_cast<std::size_t>(op)]; }

  /// Tells whether the parts are of one module and one node, and only the last makes what others
  /// read.
  bool is_whole(const Composite& found) const {
    const OpId last = found.ops.back();
    return std::all_of(found.ops.begin(), found.ops.end(), [&](OpId id) {
      const Op& op = graph_.op(id);
      if (!is_kept(id) || op.origin != graph_.op(last).origin ||
          op.modules != graph_.op(last).modules) {
        return false;
      }
      return id == last || std::all_of(op.outputs.begin(), op.outputs.end(), [&](TensorId made) {
               return made == kNone || (!is_output(graph_, made) && is_read_by(found.ops, made));
             });
    });
  }

  bool is_read_by(const std::vector<OpId>& ops, TensorId id) const {
    const std::vector<OpId>& readers = graph_.tensor(id).consumers;
    return std::all_of(readers.begin(), readers.end(), [&](OpId reader) {
      return std::find(ops.begin(), ops.end(), reader) != ops.end();
    });
  }

  void replace(const Composite& found, const Pattern& pattern) {
    Op& last = graph_.op(found.ops.back());
    last.type = pattern.type;
    last.version = std::max(last.version, pattern.first_version);
    last.inputs = found.inputs;
    last.attributes = found.attributes;
    for (const OpId op : found.ops) {
      if (op != found.ops.back()) kept_[static_cast<std::size_t>(op)] = false;
    }
    for (const Reused& reused : found.reused) reuse(reused);
    types_.emplace(pattern.type);
  }

  void reuse(const Reused& reused) {
    Op& op = graph_.op(reused.op);
    op.type = reused.type;
    op.inputs = reused.inputs;
    op.attributes = reused.attributes;
    graph_.tensor(op.outputs[0]).shape = reused.shape;
    graph_.tensor(op.outputs[0]).type = reused.output;
    kept_[static_cast<std::size_t>(reused.op)] = true;
  }

  /// Removes the operators that were replaced, and what only they read or made.
  void remove_others() {
    IdSet ops(graph_.ops.size()), tensors(graph_.tensors.size());
    for (OpId id = 0; id < static_cast<OpId>(graph_.ops.size()); ++id) {
      if (is_kept(id)) ops.add(id);
    }
    for (const auto* ids : {&graph_.inputs, &graph_.outputs}) {
      for (const TensorId id : *ids) tensors.add(id);
    }
    graph_ = subgraph(std::move(graph_), ops, std::move(tensors));
    graph_.fused_types.assign(types_.begin(), types_.end());
  }

  Graph& graph_;
  std::vector<bool> kept_;
  std::set<std::string> types_;
};

}  // namespace

const Op* Trail::maker(TensorId id, std::string_view type) const {
  const OpId producer = id == kNone ? kNone : graph_.tensor(id).producer;
  if (producer == kNone) return nullptr;
  const Op& op = graph_.op(producer);
  return op.domain.empty() && op.type == type ? &op : nullptr;
}

bool Trail::has_one_reader(TensorId id) const {
  return graph_.tensor(id).consumers.size() == 1 && !is_output(graph_, id);
}

std::optional<double> Trail::number(TensorId id) const {
  if (id == kNone) return std::nullopt;
  const Tensor& tensor = graph_.tensor(id);
  const std::vector<std::byte>& bytes = tensor.constant.bytes;
  if (tensor.kind != TensorKind::kConstant || tensor.frozen ||
      !tensor.constant.per_sample.empty() || bytes.size() != size_of(tensor.type)) {
    return std::nullopt;
  }
  const auto read = [&](auto value) {
    std::memcpy(&value, bytes.data(), sizeof value);
    return static_cast<double>(value);
  };
  if (tensor.type == DType::kFp32) return read(float{});
  if (tensor.type == DType::kFp64) return read(double{});
  if (tensor.type == DType::kInt64) return read(std::int64_t{});
  return std::nullopt;
}

std::optional<std::pair<TensorId, double>> Trail::with_number(const Op& op) const {
  for (const std::size_t i : {0, 1}) {
    if (const std::optional<double> value = number(op.inputs[i])) {
      return std::pair(op.inputs[1 - i], *value);
    }
  }
  return std::nullopt;
}

Composite Trail::found(std::vector<TensorId> inputs,
                       std::map<std::string, Attribute> attributes) const {
  std::vector<OpId> ops = taken_;
  std::sort(ops.begin(), ops.end());
  ops.erase(std::unique(ops.begin(), ops.end()), ops.end());
  std::erase(ops, root_);
  ops.push_back(root_);
  return {std::move(ops), std::move(inputs), std::move(attributes), {}};
}

std::vector<std::string_view> fusible_types() {
  std::vector<std::string_view> types;
  for (const Pattern& pattern : kPatterns) types.push_back(pattern.type);
  return types;
}

void fuse_operators(Graph& graph, const std::vector<std::string_view>& types) {
  std::vector<const Pattern*> patterns;
  for (const Pattern& pattern : kPatterns) {
    if (std::find(types.begin(), types.end(), pattern.type) != types.end()) {
      patterns.push_back(&pattern);
    }
  }
  Fuser(graph).run(patterns);
}

}  // namespace agpcs
