// SPDX-License-Identifier: Apache-2.0
// The source of a training job's samples: synthetic values or .npy files.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/support/sample_order.h"
#include "runtime/torch/data/conversion.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

class DataSource {
 public:
  virtual ~DataSource() = default;
  /// Writes samples [first, first + count) of graph input `input` to `out`, row-major, in the
  /// input's own type. Sample i is the same for every call, rank and plan. An input that does not
  /// grow with the batch is written whole, regardless of `first` and `count`. Several threads may
  /// call it at a time.
  virtual Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) = 0;
  /// Tells whether files feed `input`.
  virtual bool feeds(TensorId /*input*/) const { return false; }
  /// Returns the samples of an epoch; 0: no file feeds samples.
  virtual std::int64_t rows() const { return 0; }
};

/// Returns a source of values that depend on the seed and (input name, sample, element). Floats
/// have mean 0 and variance 1. Integers lie in the range of the embedding that they index or of the
/// classes that they label; other integers are 1 (masks). Booleans are true. Targets of a binary
/// cross entropy are 0 or 1. There is something to learn: if samples have one label (or one yes or
/// no) each, half the variance of floats, and a quarter of the indices, follow a pattern of the
/// sample's class; if they have several, low labels are likelier.
std::unique_ptr<DataSource> make_synthetic_data(const Graph& graph, std::uint64_t seed);

struct DataFiles {
  /// Pairs of an input's name and a path; without a name, .npz archives feed the inputs that their
  /// arrays name, and .npy files the graph's first input. A path names a file, a folder (of .npy or
  /// of .npz files) or a pattern of names (`*`, `?`, `[...]`). Several files of one input follow
  /// each other: those of a folder or a pattern by their names, others as they are given.
  std::vector<std::pair<std::string, std::string>> paths = {};
  std::map<std::string, Scale> scales = {};  ///< by input: what its whole numbers are multiplied by
  std::uint64_t seed = 0;                    ///< of inputs without a file, which are synthetic
  SampleOrder order = {};                    ///< says which row is which sample, in each epoch
};

/// Opens .npy files and .npz archives. Axis 0 of an array is the sample; after the last sample, the
/// next epoch begins. Rows are read when they are asked for. `graph` must outlive the source.
/// Errors: there is no such input (did you mean) or file; there is no rule that makes the file's
/// type the input's (find_conversion); the shape is wrong (names both); inputs have unequally many
/// rows. `fill` refuses a label that is not a class of its loss nor left out by it, and a target of
/// a binary cross entropy that is not from 0 to 1 (names file, row, place and value).
Result<std::unique_ptr<DataSource>> open_data_files(const Graph& graph, DataFiles files);

}  // namespace agpcs
