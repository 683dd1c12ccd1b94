// SPDX-License-Identifier: Apache-2.0
// Kernels: ONNX operators as compositions of ATen operators that autograd can differentiate.
#pragma once

#include "ir/graph/graph.h"
#include "ir/graph/split/split.h"

#include <agpcs/types.h>

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace agpcs {

using Tensors = std::vector<at::Tensor>;
class PutOffProducts;

/// Where random operators draw from. The numbers are the same for any partition of the
/// step's samples.
struct RandomSource {
  std::uint64_t seed = 0;
  std::int64_t first_sample = 0;  ///< global index, over all steps, of row 0
  std::int64_t samples = 1;       ///< rows of the batch axis
  /// The batch axis of the operator's data input; kNone: the input does not grow with the batch.
  int batch_axis = kNone;
  /// A member of a team may have these elements of an axis of the data input, of so many that the
  /// whole tensor has. Its numbers are those of the whole tensor there. kNone: it has all.
  int part_axis = kNone;
  std::int64_t part_of = 0;
  std::vector<UnitRange> part = {};
  /// The samples before this batch, which are among `first_sample`'s; and, on a GPU that draws
  /// itself, an int64 there that holds this number whenever the pass runs.
  std::int64_t before = 0;
  const std::int64_t* before_here = nullptr;
};

/// The label that losses without an ignore_index leave out, as in ATen.
inline constexpr std::int64_t kIgnoredLabel = -100;

/// One invocation of an operator.
struct OpCall {
  const Op& op;
  Tensors in;  ///< parallel to op.inputs; an absent input is undefined
  const Tensors* host =
      nullptr;  ///< parallel to op.inputs: copies in host memory of those known in advance
  RandomSource random;
  /// Losses: how many labels a sample of the step's batch has that count, an fp32 scalar. Null: the
  /// mean is over the labels at hand.
  const at::Tensor* labels_per_sample = nullptr;
  bool evaluates = false;        ///< what training and evaluation do differently, as in evaluation
  bool* asked_device = nullptr;  ///< set when a kernel waits for values from the device
  PutOffProducts* put_off = nullptr;  ///< given: its weight gets its gradient in a weight pass
  TensorId parameter = kNone;         ///< given `put_off`: the weight is of this parameter alone

  bool has(std::size_t i) const { return i < in.size() && in[i].defined(); }
  /// Returns input `i`; throws KernelError if it is absent.
  const at::Tensor& input(std::size_t i) const;
  at::Tensor input_or_none(std::size_t i) const { return has(i) ? in[i] : at::Tensor(); }
  /// Returns the elements of an integer input, on whichever device it lies.
  std::vector<std::int64_t> ints(std::size_t i) const;
  std::vector<double> numbers(std::size_t i) const;  ///< elements of any input; empty if absent
  double number(std::size_t i) const;                ///< the only element of an input
  /// Returns attribute `name` if the operator has it (older versions), else input `i` if present.
  std::vector<std::int64_t> ints_of(std::string_view name, std::size_t i) const;
  bool has_attribute(std::string_view name) const;
  std::int64_t axis(std::int64_t otherwise,
                    std::int64_t rank) const;  ///< "axis", made non-negative

 private:
  at::Tensor on_host(std::size_t i) const;
};

/// An input or attribute that a kernel does not support. The executor adds the operator's name.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Returns outputs parallel to op.outputs; there may be fewer (trailing ones are absent) or more.
using Kernel = Tensors (*)(const OpCall& call);

struct KernelEntry {
  std::string_view type;
  Kernel run;
};

// One table for each idea, in a file of its own.
std::span<const KernelEntry> elementwise_kernels();
std::span<const KernelEntry> activation_kernels();
std::span<const KernelEntry> reduction_kernels();
std::span<const KernelEntry> softmax_kernels();
std::span<const KernelEntry> shape_kernels();
std::span<const KernelEntry> index_kernels();
std::span<const KernelEntry> linear_kernels();
std::span<const KernelEntry> convolution_kernels();
std::span<const KernelEntry> pooling_kernels();
std::span<const KernelEntry> normalization_kernels();
std::span<const KernelEntry> resize_kernels();
std::span<const KernelEntry> loss_kernels();
std::span<const KernelEntry> attention_kernels();
std::span<const KernelEntry> recurrent_kernels();
std::span<const KernelEntry> random_kernels();

/// Returns nullptr if the executor does not run the operator. Domains: "" and "ai.onnx".
Kernel find_kernel(std::string_view domain, std::string_view type);

/// Returns the type that tensors of `type` have in the executor: fp16 and bf16 are computed
/// in fp32.
at::ScalarType computed_type(DType type);
DType dtype_of(at::ScalarType type);
/// Returns the same, but leaves fp16 and bf16 as they are stored.
at::ScalarType stored_type(DType type);
/// Returns the computed type for an ONNX TensorProto.DataType number, as in Cast's "to".
at::ScalarType computed_type_of_onnx(std::int64_t data_type);

/// Returns the product of the extents before an axis in [-rank, rank], where Flatten and older
/// versions of Softmax split a tensor in two.
std::int64_t rows_before(const at::Tensor& x, std::int64_t axis);

/// Returns `axis` in [-rank, rank) as one in [0, rank); throws KernelError for other axes.
std::int64_t wrap_axis(std::int64_t axis, std::int64_t rank);
std::vector<std::int64_t> wrap_axes(std::vector<std::int64_t> axes, std::int64_t rank);

}  // namespace agpcs
