// SPDX-License-Identifier: Apache-2.0
// Checks names, order and operator sets of a model's main graph.
#include "frontend/onnx/metadata.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/shapes/schema.h"

#include <fmt/format.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <functional>
#include <queue>
#include <set>
#include <utility>

namespace agpcs::frontend {

std::string domain_of(const onnx::NodeProto& node) {
  return node.domain() == "ai.onnx" ? "" : node.domain();
}

std::string label_of(const onnx::NodeProto& node, int index) {
  const std::string output = node.output_size() > 0 ? node.output(0) : "";
  std::string label = node.name().empty()
                          ? fmt::format("node {} ({} of '{}')", index, node.op_type(), output)
                          : fmt::format("node {} '{}'", index, node.name());
  const NodeOrigin origin = origin_of(node);
  if (!origin.module.empty()) label += " in " + origin.module;
  if (!origin.source.empty()) label += fmt::format(" ({})", origin.source);
  return label;
}

std::string label_of(const Model& model, int index) { return label_of(model.node(index), index); }

namespace {

class StructureChecker {
 public:
  StructureChecker(const onnx::ModelProto& proto, Diagnostics& diag) : model_(proto), diag_(diag) {}

  Result<Model> run() {
    check_header();
    if (!diag_.ok()) return diag_.status();
    collect_values();
    for (int i = 0; i < graph().node_size(); ++i) collect_outputs(i);
    check_outputs();
    for (int i = 0; i < graph().node_size(); ++i) check_reads(i);
    report_absent();
    if (!diag_.ok()) return diag_.status();
    mark_needed();
    for (int i = 0; i < graph().node_size(); ++i) check_operator(i);
    sort();
    if (!diag_.ok()) return diag_.status();
    return std::move(model_);
  }

 private:
  const onnx::GraphProto& graph() const { return model_.graph(); }

  void check_header() {
    const onnx::ModelProto& proto = *model_.proto;
    if (!proto.has_graph()) {
      return diag_.error({}, "the model has no graph", "the file may be truncated");
    }
    check_ir_version(proto);
    for (const auto& import : proto.opset_import()) take_opset(import);
    if (proto.opset_import_size() == 0) {
      return diag_.error({}, "the model imports no operator set", "the file may be truncated");
    }
    const auto newest =
        onnx::OpSchemaRegistry::DomainToVersionRange::Instance().LastReleaseVersionMap();
    for (const auto& [domain, version] : model_.opsets) {
      const auto known = newest.find(domain);
      if (known == newest.end() || version <= known->second) continue;
      diag_.error(
          {},
          fmt::format("the model is in opset {}{}, the newest known here is {}", version,
                      domain.empty() ? "" : fmt::format(" of domain '{}'", domain), known->second),
          fmt::format("export it at opset {}", known->second));
    }
    if (graph().output_size() == 0) diag_.error({}, "the graph has no outputs");
  }

  void check_ir_version(const onnx::ModelProto& proto) {
    const std::int64_t version = proto.ir_version();
    if (version < 1 || version > kMostIrVersion) {
      return diag_.error({},
                         proto.has_ir_version()
                             ? fmt::format("the model is in version {} of ONNX's file format, "
                                           "versions are 1 to {}",
                                           version, kNewestIrVersion)
                             : std::string("the model does not say its version of ONNX's file "
                                           "format (ir_version)"),
                         "the file may be damaged; export it again");
    }
    if (version <= kNewestIrVersion) return;
    diag_.warning({}, fmt::format("the model is in version {} of ONNX's file format, the newest "
                                  "known here is {}: what is new in it is not read",
                                  version, kNewestIrVersion));
  }

  void take_opset(const onnx::OperatorSetIdProto& import) {
    const std::string domain = import.domain() == "ai.onnx" ? "" : import.domain();
    const std::string name = domain.empty() ? "ai.onnx" : domain;
    if (import.version() < 1) {
      return diag_.error({},
                         fmt::format("the model imports opset {} of domain '{}', opsets begin at 1",
                                     import.version(), name),
                         "the file may be damaged; export it again");
    }
    const int version = static_cast<int>(std::min<std::int64_t>(import.version(), 9999));
    const auto [known, added] = model_.opsets.emplace(domain, version);
    if (added || known->second == version) return;
    diag_.error({}, fmt::format("the model imports opsets {} and {} of domain '{}'", known->second,
                                version, name));
  }

  void collect_values() {
    for (const onnx::TensorProto& tensor : graph().initializer()) {
      if (!has_name("an initializer", tensor.name())) continue;
      if (!model_.initializers.emplace(tensor.name(), &tensor).second) {
        diag_.error({}, fmt::format("two initializers are named '{}'", tensor.name()));
      }
      makers_.emplace(tensor.name(), kGiven);
    }
    for (const onnx::SparseTensorProto& sparse : graph().sparse_initializer()) {
      diag_.error({},
                  fmt::format("sparse initializer '{}' is not supported", sparse.values().name()),
                  "save it as a dense tensor");
    }
    std::unordered_set<std::string_view> seen;
    for (const onnx::ValueInfoProto& input : graph().input()) {
      if (!has_name("an input of the graph", input.name())) continue;
      if (!seen.insert(input.name()).second) {
        diag_.error({}, fmt::format("two inputs are named '{}'", input.name()));
      }
      if (model_.initializers.count(input.name()) != 0) continue;
      model_.inputs.push_back(&input);
      makers_.emplace(input.name(), kGiven);
    }
  }

  /// Checks that a value has a name. For a node, an empty name means an omitted input or output.
  bool has_name(std::string_view what, const std::string& name) {
    if (name.empty())
      diag_.error({}, fmt::format("{} has no name", what), "the file may be damaged");
    return !name.empty();
  }

  void collect_outputs(int index) {
    for (const std::string& output : model_.node(index).output()) {
      if (output.empty()) continue;
      const auto [it, inserted] = makers_.emplace(output, index);
      if (inserted) continue;
      const std::string other = it->second == kGiven
                                    ? "an input or initializer"
                                    : fmt::format("an output of {}", label_of(model_, it->second));
      diag_.error_at(label_of(model_, index),
                     fmt::format("its output '{}' is already {}", output, other));
    }
  }

  void check_outputs() {
    std::unordered_set<std::string_view> seen;
    for (const onnx::ValueInfoProto& output : graph().output()) {
      if (!has_name("an output of the graph", output.name())) continue;
      if (!seen.insert(output.name()).second) {
        diag_.error({}, fmt::format("two outputs of the graph are named '{}'", output.name()));
      }
      if (makers_.count(output.name()) == 0) {
        diag_.error({}, fmt::format("no node makes output '{}' of the graph", output.name()),
                    suggestion(output.name()));
      }
    }
  }

  void check_reads(int index) {
    for (const std::string& input : model_.node(index).input()) {
      if (input.empty() || makers_.count(input) != 0) continue;
      if (model_.origins.owner(input)) {
        absent_.insert(input);
        continue;
      }
      diag_.error_at(label_of(model_, index),
                     fmt::format("it reads '{}', which no node makes and which is no input or "
                                 "initializer",
                                 input),
                     suggestion(input));
    }
  }

  /// Reports parameters and buffers of the module that the file lists, but does not have.
  void report_absent() {
    if (absent_.empty()) return;
    diag_.error({},
                fmt::format("the file was saved without its initializers: {} that it reads {} not "
                            "in it, not even with a shape ('{}'{})",
                            absent_.size(), absent_.size() == 1 ? "is" : "are", *absent_.begin(),
                            absent_.size() == 1 ? "" : ", ..."),
                "save it with them, or export by agpcs.torch.export, which writes shapes without "
                "values if the module has none");
  }

  /// Returns a hint for an unknown name. Each compares it with all names, so only the first unknown
  /// names get one: more messages of a kind are not shown.
  std::string suggestion(const std::string& name) {
    if (suggestions_ == kMostSuggestions) return {};
    ++suggestions_;
    if (names_.size() != makers_.size()) {
      names_.clear();
      for (const auto& [value, maker] : makers_) names_.emplace_back(value);
      std::sort(names_.begin(), names_.end());
    }
    const std::string near = nearest(name, names_);
    return near.empty() ? "" : fmt::format("did you mean '{}'?", near);
  }

  void mark_needed() {
    needed_.assign(static_cast<std::size_t>(graph().node_size()), false);
    std::vector<int> open;
    const auto need = [&](std::string_view value) {
      if (value.empty()) return;
      model_.used.insert(value);
      const int maker = makers_.at(value);
      if (maker == kGiven || needed_[static_cast<std::size_t>(maker)]) return;
      needed_[static_cast<std::size_t>(maker)] = true;
      open.push_back(maker);
    };
    for (const onnx::ValueInfoProto& output : graph().output()) need(output.name());
    while (!open.empty()) {
      const onnx::NodeProto& node = model_.node(open.back());
      open.pop_back();
      for (const std::string& input : node.input()) need(input);
    }
  }

  void check_operator(int index) {
    const onnx::NodeProto& node = model_.node(index);
    const std::string domain = domain_of(node);
    const std::string& type = node.op_type();
    if (model_.opsets.count(domain) == 0) {
      diag_.error_at(label_of(model_, index),
                     fmt::format("operator {} is in domain '{}', which the model does not import",
                                 type, domain.empty() ? "ai.onnx" : domain));
      return;
    }
    const Status form = check_form(node, model_.opsets.at(domain));
    if (!form.ok()) diag_.error_at(label_of(model_, index), form.message());
  }

  /// Sorts by Kahn's algorithm. A heap keeps the file's order among nodes that are ready.
  void sort() {
    const std::size_t count = needed_.size();
    std::vector<int> waiting(count, 0);
    std::vector<std::vector<int>> readers(count);
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (int i = 0; i < static_cast<int>(count); ++i) {
      if (!needed_[static_cast<std::size_t>(i)]) continue;
      for (const std::string& input : model_.node(i).input()) {
        const int maker = input.empty() ? kGiven : makers_.at(input);
        if (maker == kGiven) continue;
        readers[static_cast<std::size_t>(maker)].push_back(i);
        ++waiting[static_cast<std::size_t>(i)];
      }
      if (waiting[static_cast<std::size_t>(i)] == 0) ready.push(i);
    }
    while (!ready.empty()) {
      const int next = ready.top();
      ready.pop();
      model_.order.push_back(next);
      for (const int reader : readers[static_cast<std::size_t>(next)]) {
        if (--waiting[static_cast<std::size_t>(reader)] == 0) ready.push(reader);
      }
    }
    report_cycle(waiting);
  }

  void report_cycle(const std::vector<int>& waiting) {
    const auto stuck = std::find_if(waiting.begin(), waiting.end(), [](int w) { return w > 0; });
    if (stuck == waiting.end()) return;
    // Walk back along makers that are also stuck, until a node comes up twice.
    std::vector<int> path{static_cast<int>(stuck - waiting.begin())};
    std::vector<bool> seen(waiting.size());
    while (!seen[static_cast<std::size_t>(path.back())]) {
      seen[static_cast<std::size_t>(path.back())] = true;
      for (const std::string& input : model_.node(path.back()).input()) {
        const int maker = input.empty() ? kGiven : makers_.at(input);
        if (maker == kGiven || waiting[static_cast<std::size_t>(maker)] == 0) continue;
        path.push_back(maker);
        break;
      }
    }
    const auto first = std::find(path.begin(), path.end(), path.back());
    std::string names;
    for (auto it = path.end() - 1; it != first; --it) names += label_of(model_, *it) + " -> ";
    diag_.error({}, fmt::format("the graph has a cycle: {}{}", names, label_of(model_, *first)));
  }

  static constexpr int kGiven = -1;  ///< no node makes it
  static constexpr int kMostSuggestions = 100;
  Model model_;
  Diagnostics& diag_;
  std::unordered_map<std::string_view, int> makers_;
  std::vector<bool> needed_;
  std::set<std::string> absent_;
  std::vector<std::string> names_;  // of `makers_`, sorted, once one is unknown
  int suggestions_ = 0;
};

}  // namespace

Result<Model> check_structure(const onnx::ModelProto& proto, Diagnostics& diag) {
  return StructureChecker(proto, diag).run();
}

}  // namespace agpcs::frontend
