// SPDX-License-Identifier: Apache-2.0
// Measuring one device: the operators of models at several numbers of samples.
#pragma once

#include "ir/cluster.h"
#include "ir/graph.h"
#include "ir/profile.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

/// A cluster of one device, "local/0", of a kind with that name. Its figures do not matter.
Result<Cluster> one_device(const std::string& kind);

struct DeviceOptions {
  std::string kind;                 ///< name of the device's entry in the profile
  std::string device = "cpu";       ///< LibTorch's name of it
  std::string gpu;                  ///< its name; empty: a CPU
  std::vector<std::string> models;  ///< paths
  std::vector<std::pair<std::string, std::int64_t>> dims;
  std::vector<std::string> freeze;  ///< weights that are not trained
  Loss loss;
  Optimizer optimizer;
  std::vector<std::int64_t> samples;  ///< ascending; empty: kDefaultSamples as time allows
  int threads = 1;
  double seconds = 60;            ///< for all of it, about
  std::int64_t memory_bytes = 0;  ///< that a model may take
};
inline constexpr std::int64_t kDefaultSamples[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
/// Observed steps for each number of samples, whatever the time.
inline constexpr int kLeastSteps = 4;

/// Several devices measure at the same time, so that what they share counts. Each gives a number,
/// and all get the largest; a device that measures alone gets its own.
using Agree = std::function<Result<double>(double mine)>;

/// One number of samples of one model, for the report.
struct ProfiledBatch {
  std::string model;
  std::int64_t samples = 0, steps = 0;
  double step = 0, stretch = 1, observer = 1;
};

struct MeasuredDevice {
  DeviceProfile profile;
  std::vector<ProfiledBatch> steps;
  std::string warnings;  ///< of reading the models, ready to print
};

/// Measures every model at every number of samples that fits, all devices the same number of
/// seconds at a time. Operators with one signature are pooled: the mean of their times. Errors:
/// what is wrong with a model; kInfeasible when not even the smallest number of samples fits.
Result<MeasuredDevice> profile_device(const DeviceOptions& options, const Agree& agree,
                                      const std::function<void(const std::string&)>& progress);

/// What a device computes while communication is measured beside it.
class Computation {
 public:
  virtual ~Computation() = default;
  virtual Status run() = 0;  ///< once
};
/// A training step of the first model, for the largest of the measured numbers of samples at which
/// it is short.
Result<std::unique_ptr<Computation>> make_computation(const DeviceOptions& options,
                                                      const MeasuredDevice& measured);

}  // namespace agpcs
