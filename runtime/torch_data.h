// SPDX-License-Identifier: Apache-2.0
// Where a training job's samples come from: synthetic values or .npy files.
#pragma once

#include "ir/graph.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

class DataSource {
 public:
  virtual ~DataSource() = default;
  /// Writes samples [first, first + count) of graph input `input` to `out`, row-major, as the
  /// input's own type. Sample i is the same for every call, rank and plan. An input that does not
  /// grow with the batch is written whole, whatever `first` and `count`.
  virtual Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) = 0;
};

/// Values from the seed, addressed by (input name, sample, element): floats of mean 0 and variance
/// 1; integers in the range of the embedding they index or of the classes they are labels of, else
/// 1 (masks); booleans true. Where samples have one label each, there is something to learn: half
/// the variance of floats, and a quarter of the indices, are a pattern of the sample's class.
std::unique_ptr<DataSource> make_synthetic_data(const Graph& graph, std::uint64_t seed);

/// Inputs from .npy files (input name, path), whose axis 0 is the sample; reading starts again at
/// the first sample after the last. Inputs without a file are synthetic. `graph` outlives the
/// source. Errors: no such input (did you mean), no such file, wrong element type or shape (names
/// both). `fill` refuses a label that is no class of its loss (names file, row and value).
Result<std::unique_ptr<DataSource>> open_npy_data(
    const Graph& graph, const std::vector<std::pair<std::string, std::string>>& files,
    std::uint64_t seed);

}  // namespace agpcs
