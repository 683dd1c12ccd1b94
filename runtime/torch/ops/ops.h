// SPDX-License-Identifier: Apache-2.0
// Kernels: ONNX operators as compositions of ATen operators that autograd can differentiate.
#pragma once

#include "ir/graph.h"

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

/// Where random operators draw from: the same for any partition of the step's samples.
struct RandomSource {
  std::uint64_t seed = 0;
  std::int64_t first_sample = 0;  ///< global index, over all steps, of row 0
  std::int64_t samples = 1;       ///< rows of the batch axis
  int batch_axis = kNone;  ///< of the operator's data input; kNone: it does not grow with the batch
};

/// One invocation of an operator.
struct OpCall {
  const Op& op;
  Tensors in;  ///< parallel to op.inputs; undefined where absent
  const Tensors* host =
      nullptr;  ///< parallel to op.inputs: copies in host memory of those known in advance
  RandomSource random;
  bool* asked_device = nullptr;  ///< set when a kernel waits for values from the device

  bool has(std::size_t i) const { return i < in.size() && in[i].defined(); }
  /// Input `i`; throws KernelError when it is absent.
  const at::Tensor& input(std::size_t i) const;
  at::Tensor input_or_none(std::size_t i) const { return has(i) ? in[i] : at::Tensor(); }
  /// The elements of an integer input, wherever it lies.
  std::vector<std::int64_t> ints(std::size_t i) const;
  std::vector<double> numbers(std::size_t i) const;  ///< of any input; empty where it is absent
  double number(std::size_t i) const;                ///< the one element of an input
  /// Attribute `name` where the operator has it (older versions), else input `i` where present.
  std::vector<std::int64_t> ints_of(std::string_view name, std::size_t i) const;
  bool has_attribute(std::string_view name) const;
  std::int64_t axis(std::int64_t otherwise,
                    std::int64_t rank) const;  ///< "axis", made non-negative

 private:
  at::Tensor on_host(std::size_t i) const;
};

/// An input or attribute that a kernel cannot serve. The executor adds the operator's name.
struct KernelError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Outputs parallel to op.outputs; a kernel may return fewer (trailing ones absent) or more.
using Kernel = Tensors (*)(const OpCall& call);

struct KernelEntry {
  std::string_view type;
  Kernel run;
};

// One table per idea, each in its own file.
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

/// nullptr when the executor does not run the operator. Domains: "" and "ai.onnx".
Kernel find_kernel(std::string_view domain, std::string_view type);

/// The type that a tensor of type `type` has in the executor: fp16 and bf16 are computed in fp32.
at::ScalarType computed_type(DType type);
DType dtype_of(at::ScalarType type);
/// As `computed_type`, but fp16 and bf16 stay as they are stored.
at::ScalarType stored_type(DType type);
/// The ONNX TensorProto.DataType number, as Cast's "to" has it, as a computed type.
at::ScalarType computed_type_of_onnx(std::int64_t data_type);

/// The product of the extents before an axis in [-rank, rank], where Flatten and the older Softmax
/// cut a tensor in two.
std::int64_t rows_before(const at::Tensor& x, std::int64_t axis);

/// `axis` in [-rank, rank) as one in [0, rank); throws KernelError otherwise.
std::int64_t wrap_axis(std::int64_t axis, std::int64_t rank);
std::vector<std::int64_t> wrap_axes(std::vector<std::int64_t> axes, std::int64_t rank);

}  // namespace agpcs
