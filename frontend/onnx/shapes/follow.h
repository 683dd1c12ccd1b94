// SPDX-License-Identifier: Apache-2.0
// Makes the constants of a model that was exported for a fixed batch follow the number of samples.
#pragma once

#include "frontend/onnx/dense.h"
#include "frontend/onnx/model.h"
#include "frontend/onnx/shapes/inputs.h"
#include "ir/graph/graph.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace agpcs::frontend {

/// What a node reads instead of an input that the file has for a fixed number of samples.
struct Follow {
  enum class Way : std::uint8_t {
    kNumbers,  ///< integers, some of which grow with the samples: a target, a limit, repeats
    kRepeat,   ///< rows [0, period) of the input along `axis`, once for each sample
    kCount,    ///< int64 numbers that count the samples along `axis`: `first` + row x `rise`
  };
  Way way = Way::kNumbers;
  Probed value;
  int axis = 0;
  std::int64_t period = 1;
  Dense first, rise;        ///< kCount: the first row, and what each further row has more
  bool broadcasts = false;  ///< kRepeat: the node takes one row for all samples as well
};
/// By node and index of the input.
using Follows = std::map<std::pair<int, int>, Follow>;

/// Finds out which constants hold the batch, by asking the graph: at the exported number of samples
/// every node fits, so a constant whose replacement makes the node fit at every other number, too,
/// holds the batch.
class BatchFollower {
 public:
  using Values = std::unordered_map<std::string_view, Probed>;
  /// Computes the outputs of a node at one number of samples; empty if the inputs do not fit.
  using Infer = std::function<std::vector<Dense>(int node, const std::vector<const Dense*>&)>;
  using IsTrained = std::function<bool(std::string_view)>;

  /// `batch` is the number of samples of the export. `folder` is where external data lies. A
  /// trained tensor that has several rows keeps all of them.
  BatchFollower(const Model& model, std::int64_t batch, std::string folder, const Values& values,
                Infer infer, IsTrained is_trained);

  /// Makes the inputs of a node follow that does not fit. Returns its outputs then, and adds to
  /// `found` what is to be read instead. Returns nullopt if nothing, or nothing that is certain,
  /// makes it fit. Cost: O(extents and small elements of the inputs) for each node on the way.
  std::optional<std::vector<Probed>> follow_node(int node, const Inputs& inputs);
  /// Makes axis 0 of a value the batch. Returns false if it cannot.
  bool follow_value(std::string_view value) { return follow_axis(value, 0, {0, 1}); }

  Follows found;

 private:
  /// One replacement: an axis of an input, or an element of it.
  struct Change {
    int input = 0;
    bool is_axis = false;
    std::size_t index = 0;
    Extent extent;
  };
  using Changes = std::vector<Change>;
  using Accept = std::function<bool(const std::vector<Probed>&)>;

  std::vector<Changes> candidates(int node, const Inputs& inputs) const;
  void add_single(int node, const Inputs& inputs, bool exact, std::vector<Changes>& all) const;
  void add_joint(int node, const Inputs& inputs, std::vector<Changes>& all) const;
  std::optional<Extent> scaled(std::int64_t extent, bool exact) const;
  std::optional<std::vector<Probed>> outputs_with(int node, const Inputs& inputs,
                                                  const Changes& changes) const;
  std::optional<std::vector<Probed>> search(int node, const Inputs& inputs, bool numbers_only,
                                            const Accept& accept);
  bool realize(int node, const Inputs& inputs, const Changes& changes);
  bool realize_axis(int node, const Inputs& inputs, const Change& change);
  void let_broadcast(int node, const Inputs& inputs, const Change& change, Follow& rows) const;
  bool follow_axis(std::string_view value, std::size_t axis, Extent extent);
  std::optional<Follow> repeated_rows(std::string_view name, const Probed& value, std::size_t axis,
                                      Extent extent) const;
  std::optional<std::vector<std::byte>> bytes_of_value(std::string_view name,
                                                       const Probed& value) const;

  const Model& model_;
  std::int64_t batch_;
  std::string folder_;
  const Values& values_;
  Infer infer_;
  IsTrained is_trained_;
  std::unordered_map<std::string_view, int> makers_;
  std::set<std::pair<std::string_view, std::size_t>> open_;  ///< values that are being followed
};

}  // namespace agpcs::frontend
