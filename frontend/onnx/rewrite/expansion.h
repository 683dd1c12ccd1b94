// SPDX-License-Identifier: Apache-2.0
// Expansion: the nodes that take the place of control flow, and why some cannot.
#pragma once

#include "frontend/onnx/proto.h"
#include "frontend/onnx/rewrite/known_values.h"
#include "ir/base/diagnostics.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace agpcs::frontend {

using ValueNames = std::vector<std::string>;

/// What the names of a body's values became. ValueNames that it does not have are those of outer
/// graphs.
struct Scope {
  const Scope* outer = nullptr;
  std::unordered_map<std::string, std::string> names = {};

  const std::string& find(const std::string& name) const;
};

/// A node of control flow, with names of the main graph.
struct Call {
  const onnx::NodeProto& node;
  ValueNames inputs, outputs;
  const Scope& scope;
  std::string suffix;  ///< of the iteration that the node itself is in: "/3"
  std::string label;
  std::string module;  ///< of the node of the main graph that it comes from
};

/// Adds nodes to the main graph, with new names, and follows what is known of their values.
class Expansion {
 public:
  Expansion(onnx::GraphProto& graph, KnownValues& known, Diagnostics& diag);

  /// Reports what is wrong with the file. The rest would be consequences: `stopped` is true then.
  void fail(const Call& call, const std::string& what, const std::string& hint);
  bool stopped() const { return stopped_; }
  /// Notes that a node cannot be replaced because of values that decide. It is not reported if
  /// these depend on refused nodes themselves.
  void refuse(const Call& call, const ValueNames& deciding, const std::string& what,
              const std::string& hint);
  /// Counts nodes, and their bytes. Returns false after an error: there are too many.
  bool charge(const Call& call, std::int64_t nodes, std::int64_t bytes);

  /// Returns `name`, or another one if a value has it already.
  std::string fresh(const std::string& name);
  void add_node(const Call& call, onnx::NodeProto node);
  /// Adds a node that is not of a body.
  void keep_node(onnx::NodeProto node, bool follow);
  /// Adds a stored tensor under a new name, which it returns.
  std::string add_initializer(onnx::TensorProto tensor);
  void add_value_info(const Call& call, const onnx::ValueInfoProto& info, const std::string& name);
  void add_sparse(const onnx::SparseTensorProto& tensor);
  /// A value that several bodies share keeps its name.
  void share(const std::string& value) { made_.erase(value); }

  std::string iteration(std::int64_t t);  ///< the number of an iteration, as a value
  std::string always();                   ///< true, as a value
  /// Returns the parts of a tensor of `length` along an axis, which they lose.
  ValueNames split(const Call& call, const std::string& input, std::int64_t axis,
                   std::int64_t length);
  /// Does the inverse. `output` is what the result is for.
  std::string stack(const Call& call, const ValueNames& parts, std::int64_t axis,
                    const std::string& output);
  /// Lets the outputs of a node be the values that were made for them.
  void finish(const Call& call, const ValueNames& values);

  /// Gives values their last names and reports what was refused.
  void close();

 private:
  struct Refusal {
    std::string label, what, hint;
    int more = 0;
  };

  bool is_refused(const onnx::NodeProto& node);
  std::string ints(const std::string& name, const std::vector<std::int64_t>& values, bool scalar);
  void add_with_ints(const Call& call, const char* type, const std::string& input,
                     const ValueNames& outputs, const char* attribute,
                     const std::vector<std::int64_t>& numbers, std::optional<std::int64_t> axis);
  void pass(const Call& call, const std::string& value, const std::string& output);
  void apply_renames();
  void report();

  onnx::GraphProto& graph_;
  KnownValues& known_;
  Diagnostics& diag_;
  bool stopped_ = false;
  std::int64_t expanded_ = 0;
  std::unordered_set<std::string> own_;         ///< names of the main graph's own values
  std::unordered_map<std::string, int> taken_;  ///< names of values, and how often one was wanted
  std::unordered_set<std::string> made_;        ///< values that may be given another name
  std::unordered_set<std::string> typed_;       ///< values of bodies whose types were added
  std::unordered_set<std::string> refused_;     ///< values that depend on refused nodes
  std::unordered_set<const void*> refused_nodes_;
  std::unordered_map<std::string, std::string> renames_;
  std::vector<std::pair<std::string, Refusal>> refusals_;  ///< by module
  std::map<std::int64_t, std::string> iterations_;
  std::map<std::vector<std::int64_t>, std::string> numbers_;
  std::string true_;
};

}  // namespace agpcs::frontend
