// SPDX-License-Identifier: Apache-2.0
// The parameters of the kernel model: one set for all kinds of devices. docs/design/kernel_model.md
// says where each value comes from; tests/bench/kernels fits those that are fitted.
#pragma once

#include <span>
#include <string_view>

namespace agpcs {

/// The energy of an fp32 operation on TSMC 16FF and 12FFN, as cited.
inline constexpr double kCitedPicojoules = 20;

/// The values are what `kernel_errors FOLDER both` fits, rounded; the last four were chosen by
/// published training speeds (tests/bench/kernels/published_speeds.py).
struct KernelParameters {
  double picojoules = 20.8;     ///< of an fp32 operation on TSMC 16FF and 12FFN, with
                                ///< what moves its operands on the chip
  double fill = 2.74;           ///< blocks' time that a processor loses while it fills and drains
  double output_energy = 37.2;  ///< energy of an element of a product, in multiply-adds
  double overlap = 1.69;        ///< exponent of the sum of computing and memory time; 1: no overlap
  double winograd_large = 0.594;  ///< part of the peak that Winograd's products of 4x4 tiles reach
  double winograd_small = 0.209;  ///< the same with tiles of 2x2, in one kernel with its transforms
  double transforms = 1.08;       ///< traffic of Winograd's transforms / traffic of their tensors
  double filters = 2.82;          ///< traffic of the filters' transform / traffic of its tensors
  double hbm = 0.861;             ///< part of the bandwidth that streams reach, HBM
  double gddr = 0.733;            ///< the same, GDDR
  double normalization = 1.57;    ///< traffic of a normalization / its input and output
  double softmax = 1.33;          ///< the same of a softmax
  double grouped = 6;             ///< traffic of a convolution in small groups / its tensors
  double tensor_picojoules = 3;   ///< of a tensor core's operation on 16 bits, on TSMC 12FFN
  double tensor_reach = 0.7;      ///< part of the peak that a tensor core with work reaches
  double tensor_fill = 0.5;       ///< `fill` of the large blocks of tensor cores
};

/// The values that the planner uses.
const KernelParameters& kernel_parameters();

/// A parameter that measured kernels tell, by its name, for tools that print or fit it.
struct KernelParameterEntry {
  std::string_view name;
  double KernelParameters::*value;
};
std::span<const KernelParameterEntry> kernel_parameter_entries();

}  // namespace agpcs
