// SPDX-License-Identifier: Apache-2.0
// Small tensors with their elements. The importer evaluates shape arithmetic on them.
#pragma once

#include "frontend/onnx/proto.h"
#include "ir/graph/graph.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace agpcs::frontend {

using Dims = std::vector<std::int64_t>;

/// Numbers of samples at which shapes and values are evaluated. Extents are fitted to the first two
/// and checked with the third. All are primes and unlikely extents, so that nothing is equal,
/// divisible or broadcast by coincidence.
inline constexpr std::array<std::int64_t, 3> kProbes = {1009, 10007, 37};
inline constexpr std::size_t kProbeCount = kProbes.size();

/// A tensor with more elements than this is not evaluated; the operator that makes it stays.
inline constexpr std::int64_t kFoldLimit = std::int64_t{1} << 16;

/// A tensor at one probe. If its elements are known, they are in `ints` (integers and bool) or
/// `floats` (floating types), row-major.
struct Dense {
  int type = onnx::TensorProto::UNDEFINED;
  Dims dims;
  bool known = false;  ///< the elements are known
  std::vector<std::int64_t> ints;
  std::vector<double> floats;

  bool floating() const;
  std::size_t size() const { return floating() ? floats.size() : ints.size(); }
  friend bool operator==(const Dense&, const Dense&) = default;
};

/// A tensor at every probe. One element serves all probes if nothing depends on the samples.
struct Probed {
  std::vector<Dense> at;  ///< none (nothing is known), one, or kProbeCount
  bool shaped() const { return !at.empty(); }
  bool uniform() const { return at.size() == 1; }
  bool known() const;  ///< the elements are known at every probe
  int type() const { return at.empty() ? onnx::TensorProto::UNDEFINED : at[0].type; }
  const Dense& operator[](std::size_t probe) const { return at[uniform() ? 0 : probe]; }
};

/// Makes a Probed from one Dense, or from one Dense per probe; equal ones become one.
Probed probed(std::vector<Dense> at);

/// Fits `fixed + per_sample x samples` to one number per probe. Returns nullopt if no whole numbers
/// fit.
std::optional<Extent> fit_extent(const std::array<std::int64_t, kProbeCount>& values);
/// Returns the dims as extents, or nullopt if ranks differ or an extent does not fit.
std::optional<Shape> fit_shape(const Probed& tensor);
/// Returns the extents as "[4,?]": those that follow the number of samples are not told. `tensor`
/// is shaped.
std::string shape_text(const Probed& tensor);

/// Returns the product of `dims`, or nullopt if a dim is negative or the product exceeds 2^48.
std::optional<std::int64_t> element_count(const Dims& dims);

/// Tells whether elements of ONNX type `type` are evaluated (not strings, complex, 8-bit floats,
/// ...).
bool is_evaluated_type(int type);
bool is_floating_type(int type);

/// Returns the value of an inline tensor of at most kFoldLimit elements. The value is not `known`
/// if the tensor is larger, external, malformed, or of a type that is not evaluated.
Dense dense_of(const onnx::TensorProto& tensor);

/// Returns the value of a Constant node with numbers in its attributes, or nullopt if it has a
/// tensor or anything else.
std::optional<Dense> constant_of(const onnx::NodeProto& node);

/// Returns the elements as bytes, as a graph's constant holds them.
std::vector<std::byte> bytes_of(const Dense& dense, DType type);

/// Does the inverse of `dense_of`, for ONNX's shape rules.
onnx::TensorProto proto_of(const Dense& dense);

/// Returns an int64 vector of rank 1.
Dense int64_vector(std::vector<std::int64_t> values);

/// Tells whether `value` fits into integers of ONNX type `type`.
bool fits(std::int64_t value, int type);

}  // namespace agpcs::frontend
