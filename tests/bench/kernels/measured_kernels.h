// SPDX-License-Identifier: Apache-2.0
// Measured kernels of other people, read from a folder of CSV files (NeuSight's format), and what
// other lists of kernels share with them.
#pragma once

#include "cost_model/kernel/device.h"
#include "ir/cluster/cluster.h"

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
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

/// Reads the milliseconds and the shape from the start of a row, as far as it has them.
MeasuredKernel measured_kernel(const std::string& row);

/// Tells whether the catalog's kind of a device is known by this name of lists.
bool is_measured_device(std::string_view name);
bool is_measured_class(std::string_view name);

/// Returns a cluster of one device, of the catalog's kind that a list was measured on.
/// Needs: `is_measured_device(device)`.
Cluster cluster_measured(std::string_view device);

/// Returns the predicted seconds of a kernel, with its launch.
double predicted_seconds(const MeasuredSet& set, const MeasuredKernel& kernel,
                         const KernelParameters& parameters);

/// The same by the roofline, as kinds without processors have it.
double roofline_seconds(const MeasuredSet& set, const MeasuredKernel& kernel);

}  // namespace agpcs
