// SPDX-License-Identifier: Apache-2.0
// Measured kernels of other people, read from a folder of CSV files (NeuSight's format).
#pragma once

#include "cost_model/kernel/device.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

struct MeasuredKernel {
  double seconds = 0;
  std::array<double, 7> shape = {};  // the columns after the time
  bool held_aside = false;           // by the hash of its shape
};

/// The kernels of one class on one device.
struct MeasuredSet {
  std::string device;        // "v100_pcie"
  std::string kernel_class;  // "linear", "conv", ...
  std::vector<MeasuredKernel> kernels;

  bool is_product() const;
};

/// Returns the sets that the folder has; empty without the data.
std::vector<MeasuredSet> read_measured_kernels(const std::string& folder);

/// Returns the kind of the catalog that a set was measured on.
DeviceKind kind_measured(const std::string& device);

/// Returns the predicted seconds of a kernel, with its launch.
double predicted_seconds(const MeasuredSet& set, const MeasuredKernel& kernel,
                         const KernelParameters& parameters);

/// The same by the roofline, as kinds without processors have it.
double roofline_seconds(const MeasuredSet& set, const MeasuredKernel& kernel);

}  // namespace agpcs
