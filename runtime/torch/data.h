// SPDX-License-Identifier: Apache-2.0
// The source of a training job's samples: synthetic values or .npy files.
#pragma once

#include "ir/graph/graph.h"
#include "runtime/support/sample_order.h"

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
  /// Writes samples [first, first + count) of graph input `input` to `out`, row-major, in the
  /// input's own type. Sample i is the same for every call, rank and plan. An input that does not
  /// grow with the batch is written whole, regardless of `first` and `count`.
  virtual Status fill(TensorId input, std::int64_t first, std::int64_t count, void* out) = 0;
};

/// Returns a source of values that depend on the seed and (input name, sample, element). Floats
/// have mean 0 and variance 1. Integers lie in the range of the embedding that they index or of the
/// classes that they label; other integers are 1 (masks). Booleans are true. Targets of a binary
/// cross entropy are 0 or 1. There is something to learn: if samples have one label (or one yes or
/// no) each, half the variance of floats, and a quarter of the indices, follow a pattern of the
/// sample's class; if they have several, low labels are likelier.
std::unique_ptr<DataSource> make_synthetic_data(const Graph& graph, std::uint64_t seed);

/// Opens .npy files, given as (input name, path), and .npz archives, given as ("", path), whose
/// arrays have the names of inputs. Axis 0 of an array is the sample; after the last
/// sample, the next epoch begins. In each epoch `order` says which row is which sample. Inputs
/// without a file are synthetic. `graph` must outlive the source. Errors: there is no such input
/// (did you mean) or file, or the element type or shape is wrong (names both). `fill` refuses a
/// label that is not a class of its loss nor left out by it, and a target of a binary cross entropy
/// that is not from 0 to 1 (names file, row, place and value).
Result<std::unique_ptr<DataSource>> open_npy_data(
    const Graph& graph, const std::vector<std::pair<std::string, std::string>>& files,
    std::uint64_t seed, SampleOrder order = {});

}  // namespace agpcs
