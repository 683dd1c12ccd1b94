// SPDX-License-Identifier: Apache-2.0
// Measures one device: the operators of models at several numbers of samples.
#pragma once

#include "ir/cluster/profile.h"
#include "ir/graph/graph.h"
#include "tools/common/common.h"
#include "tools/profile/model.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {

struct DeviceOptions {
  std::string kind;                 ///< name of the device's entry in the profile
  std::string device = "cpu";       ///< LibTorch's name of the device
  std::string gpu;                  ///< the GPU's name; empty: a CPU
  std::vector<std::string> models;  ///< paths; with `quick` names of kQuickModels
  bool quick = false;               ///< the profile has probes, no operators and no models
  ModelChoices choices;
  Loss loss;
  Optimizer optimizer;
  std::vector<std::int64_t> samples;  ///< ascending; empty: kDefaultSamples as time allows
  /// Numbers of members: what a member of an even team of so many devices like this one, with this
  /// link between them, has of operators is measured, too.
  std::vector<std::int64_t> teams;
  MemberLink link;
  int threads = 1;
  double seconds = 60;            ///< for the whole measurement, about
  std::int64_t memory_bytes = 0;  ///< that a model may use
};
inline constexpr std::int64_t kDefaultSamples[] = {1, 2, 4, 8, 16, 32, 64, 128, 256};
/// Steps observed for each number of samples, however long they take.
inline constexpr int kLeastSteps = 4;

/// Returns when every device that measures at the same time has called it. A device that measures
/// alone meets nobody.
using Meet = std::function<Status()>;

/// The result for one number of samples of one model, for the report.
struct ProfiledBatch {
  std::string model;
  std::int64_t samples = 0, steps = 0;
  double step = 0, stretch = 1, observer = 1;
};

struct MeasuredDevice {
  DeviceProfile profile;
  std::vector<ProfiledBatch> steps;
  std::string warnings;  ///< warnings of reading the models, ready to print
};

/// Measures every model at every number of samples that fits. Each device goes up to its own number
/// of samples, as its time and memory allow. All devices begin together, and one that is done
/// trains on until all are, so that the effects of what they share show. The times of operators
/// with the same signature are averaged. A member of a team computes alone, as if the others had
/// zeros. Errors: those of a model; kInfeasible if not even the
/// smallest number of samples fits; those of `meet`, which is called twice, the second time on a
/// thread of its own.
Result<MeasuredDevice> profile_device(const DeviceOptions& options, const Meet& meet,
                                      const std::function<void(const std::string&)>& progress);

/// The computation of a device while communication is measured beside it.
class Computation {
 public:
  virtual ~Computation() = default;
  virtual Status run() = 0;  ///< runs it once
};
/// Makes a computation of one training step of the first model. The number of samples is the
/// largest measured one whose step is short.
Result<std::unique_ptr<Computation>> make_computation(const DeviceOptions& options,
                                                      const MeasuredDevice& measured);

}  // namespace agpcs
