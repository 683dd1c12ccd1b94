// SPDX-License-Identifier: Apache-2.0
#include "frontend/onnx/rewrite/functions.h"

#include "ir/base/diagnostics.h"

#include <fmt/format.h>
#include <onnx/common/proto_util.h>
#include <onnx/defs/schema.h>
#include <onnx/inliner/inliner.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace agpcs::frontend {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

constexpr std::int64_t kMostNodes = std::int64_t{1} << 22;
constexpr std::size_t kMostCalls = 100;  // within each other, as ONNX's library has it

class FunctionChecker {
 public:
  FunctionChecker(const onnx::ModelProto& proto, Diagnostics& diag) : proto_(proto), diag_(diag) {}

  void run() {
    for (const onnx::FunctionProto& function : proto_.functions()) {
      if (!functions_.emplace(onnx::GetFunctionImplId(function), &function).second) {
        diag_.error_at(label(function), "the file defines it twice");
      }
    }
    for (const onnx::FunctionProto& function : proto_.functions()) expanded(function);
    const std::int64_t nodes = expanded(proto_.graph().node());
    if (diag_.ok() && nodes > kMostNodes) {
      diag_.error({}, fmt::format("its functions expand to more than {} nodes", kMostNodes),
                  "the file may be damaged");
    }
  }

  static std::string label(const onnx::FunctionProto& function) {
    return fmt::format("function '{}.{}'", function.domain(), function.name());
  }

 private:
  /// Returns how many nodes there are after inlining; at most kMostNodes + 1.
  std::int64_t expanded(const Nodes& nodes) {
    std::int64_t count = 0;
    for (const onnx::NodeProto& node : nodes) {
      const auto callee = functions_.find(onnx::GetCalleeId(node));
      count += callee == functions_.end() ? 1 : expanded(*callee->second);
      for (const onnx::AttributeProto& attribute : node.attribute()) {
        if (attribute.has_g()) count += expanded(attribute.g().node());
        for (const onnx::GraphProto& graph : attribute.graphs()) count += expanded(graph.node());
      }
      count = std::min(count, kMostNodes + 1);
    }
    return count;
  }

  std::int64_t expanded(const onnx::FunctionProto& function) {
    const auto known = sizes_.find(&function);
    if (known != sizes_.end()) return known->second;
    if (!diag_.ok()) return 0;
    const auto caller = std::find(path_.begin(), path_.end(), &function);
    if (caller != path_.end()) {
      report_cycle(caller - path_.begin());
      return 0;
    }
    if (path_.size() == kMostCalls) {
      diag_.error_at(label(function), fmt::format("calls are nested deeper than {}", kMostCalls),
                     "the file may be damaged");
      return 0;
    }
    path_.push_back(&function);
    const std::int64_t size = expanded(function.node());
    path_.pop_back();
    return sizes_[&function] = size;
  }

  void report_cycle(std::ptrdiff_t first) {
    std::string calls;
    for (auto it = path_.begin() + first; it != path_.end(); ++it) {
      calls += fmt::format("'{}' calls ", (*it)->name());
    }
    const onnx::FunctionProto& function = *path_[static_cast<std::size_t>(first)];
    diag_.error_at(label(function), fmt::format("it calls itself: {}'{}'", calls, function.name()),
                   "ONNX has no recursion: write the calls out, or use a Loop with a constant "
                   "number of iterations");
  }

  const onnx::ModelProto& proto_;
  Diagnostics& diag_;
  std::map<std::string, const onnx::FunctionProto*> functions_;
  std::map<const onnx::FunctionProto*, std::int64_t> sizes_;
  std::vector<const onnx::FunctionProto*> path_;  ///< functions being expanded, callers first
};

/// Returns the name of an operator of `function` that `domain` defines otherwise in opset `before`
/// than in opset `after`; "" if there is none.
std::string changed_operator(const onnx::FunctionProto& function, const std::string& domain,
                             std::int64_t before, std::int64_t after) {
  for (const onnx::NodeProto& node : function.node()) {
    if (onnx::NormalizeDomain(node.domain()) != domain) continue;
    const auto schema = [&](std::int64_t opset) {
      return onnx::OpSchemaRegistry::Schema(node.op_type(), static_cast<int>(opset), domain);
    };
    const onnx::OpSchema *old_one = schema(before), *new_one = schema(after);
    if (old_one != new_one) return node.op_type();
  }
  return "";
}

/// Lets the model import what its functions import. A function may import another opset than the
/// model if its operators are the same in both.
void join_opsets(onnx::ModelProto& proto, Diagnostics& diag) {
  std::map<std::string, std::int64_t> opsets;
  for (const auto& import : proto.opset_import()) {
    opsets[onnx::NormalizeDomain(import.domain())] = import.version();
  }
  for (onnx::FunctionProto& function : *proto.mutable_functions()) {
    for (auto& import : *function.mutable_opset_import()) {
      const std::string domain = onnx::NormalizeDomain(import.domain());
      const auto [known, added] = opsets.emplace(domain, import.version());
      if (added) *proto.add_opset_import() = import;
      if (known->second == import.version()) continue;
      const std::string changed =
          changed_operator(function, domain, import.version(), known->second);
      if (!changed.empty()) {
        diag.error_at(FunctionChecker::label(function),
                      fmt::format("it imports opset {} of domain '{}', the model imports {}, and "
                                  "{} is not the same in both",
                                  import.version(), domain.empty() ? "ai.onnx" : domain,
                                  known->second, changed),
                      "export model and functions at one opset");
      }
      import.set_version(known->second);
    }
  }
}

}  // namespace

Status inline_functions(onnx::ModelProto& proto, const std::string& file) {
  if (proto.functions_size() == 0) return {};
  Diagnostics diag(file);
  FunctionChecker(proto, diag).run();
  if (diag.ok()) join_opsets(proto, diag);
  if (diag.ok()) onnx::inliner::InlineLocalFunctions(proto);
  return diag.status();
}

}  // namespace agpcs::frontend
