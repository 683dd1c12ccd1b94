// SPDX-License-Identifier: Apache-2.0
// Profile: measurements of real hardware, as they were taken. What follows from them (efficiencies,
// latencies, bandwidths) is fitted when they are used (cost_model/fit/calibrate.h), so profiles of
// several hosts and models merge by putting them together.
#pragma once

#include "ir/graph/op_table.h"

#include <agpcs/plan.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace agpcs {

/// A time that was measured several times.
struct Measured {
  double seconds = 0;  ///< median
  double spread = 0;   ///< interquartile range / median
};

/// All operators that share one signature (`op_signature`): equal types, attributes and shapes.
struct MeasuredOperator {
  std::string signature;
  OpClass op_class = OpClass::kElementwise;
  struct Point {
    std::int64_t samples = 0;
    OpCost work;  ///< `op_cost` for these samples; fits explain the times by it
    Measured forward;
    Measured backward;  ///< 0 where no gradient is needed
  };
  std::vector<Point> points;  ///< by samples, ascending, each once
};

/// The work that a training step does once, for any number of samples, with `elements` parameters
/// in `tensors` tensors.
struct MeasuredUpdate {
  std::string optimizer;  ///< "sgd", "sgd momentum", "adam": `optimizer_name`
  std::int64_t elements = 0, tensors = 0;
  Measured update;  ///< the optimizer's step
  Measured begin;   ///< work before the first forward pass: gradients are zeroed
};

/// The losses of a device that computes and communicates at the same time.
struct Overlap {
  double compute_seconds_per_byte = 0;  ///< computing time lost for each byte sent or received
  double communication_factor =
      1;  ///< rate of messages while the device computes / rate while it does not

  bool is_none() const { return compute_seconds_per_byte == 0 && communication_factor == 1; }
};

/// One kind of device.
struct DeviceProfile {
  std::string name;  ///< name of the device kind
  /// Hardware and software by name, in a fixed order. Hardware: "processor", "cores", "threads",
  /// "memory". Software: "agpcs", "libtorch", "transport", and "blas", which no digest covers.
  std::vector<std::pair<std::string, std::string>> hardware, software;
  Precision precision = Precision::kFp32;
  std::vector<std::string> models;  ///< names of the profiled models, sorted
  /// Numbers of members of the even teams whose parts of operators were measured, too; ascending.
  std::vector<std::int64_t> teams;
  std::vector<MeasuredOperator> operators;  ///< by signature, each once
  /// Operators of the models of `agpcs-profile --quick`, by signature, each once: they stand for
  /// operators like them, of any model. "Input(...)" is what loading a sample takes.
  std::vector<MeasuredOperator> probes;
  std::vector<MeasuredUpdate> updates;  ///< by optimizer, elements, tensors
  double message_overhead = 0;          ///< seconds that the runtime adds to each message
  double message_compute = 0;           ///< seconds of computing that each message costs either end
  Overlap overlap;
};

/// Measured messages of one size.
struct MeasuredMessages {
  std::int64_t bytes = 0;
  Measured time;  ///< time of one message, from its start until the receiver has it
};

/// Measured point-to-point messages from one device to another, on a network that is idle
/// otherwise.
struct MeasuredPath {
  std::string from, to;                  ///< devices: "volta/0"
  std::vector<std::string> links;        ///< names of the links on the way, in order
  std::vector<MeasuredMessages> points;  ///< by bytes
};

/// Measured all-reduces over a group, on a network that is idle otherwise.
struct MeasuredCollective {
  AllReduce algorithm = AllReduce::kRing;
  std::vector<std::string> devices;      ///< in the group's order
  std::vector<MeasuredMessages> points;  ///< by bytes of the buffer
};

/// A profile file (docs/reference/profile_yaml.md).
struct Profile {
  std::string file;                    ///< for messages; the digest does not cover it
  std::string digest;                  ///< "sha256:...": `digest_of(print_measurements(profile))`
  std::vector<DeviceProfile> devices;  ///< by name, each once
  std::vector<MeasuredPath> paths;     ///< by from, to, each once
  std::vector<MeasuredCollective> collectives;  ///< by algorithm, devices, each once

  const DeviceProfile* find_device(
      std::string_view name) const;  ///< nullptr: the profile has no such device
};

/// Returns "sgd", "sgd momentum" or "adam". Optimizers of one name move the same bytes for each
/// parameter.
std::string optimizer_name(const Optimizer& optimizer);

/// Prints everything that the digest covers: all measurements, but neither file names nor the BLAS.
std::string print_measurements(const Profile& profile);

/// Sorts all lists and sets the digest. Whoever makes measurements calls it last.
void seal_profile(Profile& profile);

/// Checks that times are not negative and less than an hour (times of messages must be positive),
/// that lists are sorted and without repeats, that texts have no line breaks, and that the digest
/// is right.
Status verify_profile(const Profile& profile);

/// Merges two profiles. For a measurement that both have, the time becomes the mean of the two
/// medians, and the spread the largest of the two spreads and of (difference between the medians) /
/// (their mean). Points that only one has are kept. A figure that still has its default (overhead,
/// overlap) counts as not measured. The result is sealed and has the file name of `a`. Errors,
/// which name both profiles: a device of one name with other hardware or precision, an operator of
/// another class, a path over other links.
Result<Profile> merge_profiles(Profile a, const Profile& b);

}  // namespace agpcs
