// SPDX-License-Identifier: Apache-2.0
// Profile: what was measured on real hardware. Measurements only, as they were taken; what follows
// from them (efficiencies, latencies, bandwidths) is fitted when they are used
// (cost_model/calibrate.h), so profiles of several hosts and models merge by putting them together.
#pragma once

#include "ir/op_table.h"

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

/// All operators with one signature (`op_signature`): equal type, attributes, shapes, types.
struct MeasuredOperator {
  std::string signature;
  OpClass op_class = OpClass::kElementwise;
  struct Point {
    std::int64_t samples = 0;
    OpCost work;  ///< of `op_cost` for these samples: what fits explain the times by
    Measured forward;
    Measured backward;  ///< 0 where no gradient is needed
  };
  std::vector<Point> points;  ///< by samples, ascending, each once
};

/// What a training step does once, whatever the number of samples, for `elements` parameters in
/// `tensors` tensors.
struct MeasuredUpdate {
  std::string optimizer;  ///< "sgd", "sgd momentum", "adam": `optimizer_name`
  std::int64_t elements = 0, tensors = 0;
  Measured update;  ///< the optimizer's step
  Measured begin;   ///< before the first forward: gradients are zeroed
};

/// What computing and communicating at the same time costs a device.
struct MeasuredOverlap {
  double compute_seconds_per_byte = 0;  ///< computing time lost for each byte sent or received
  double communication_factor = 1;      ///< rate of messages while it computes / while it does not
};

/// One kind of device.
struct DeviceProfile {
  std::string name;  ///< of the device kind
  /// Hardware and software by name, in a fixed order: "processor", "cores", "threads", "memory";
  /// "agpcs", "libtorch", "transport"; and "blas", which no digest covers.
  std::vector<std::pair<std::string, std::string>> hardware, software;
  std::string precision = "fp32";
  std::vector<std::string> models;          ///< that were profiled, sorted
  std::vector<MeasuredOperator> operators;  ///< by signature, each once
  std::vector<MeasuredUpdate> updates;      ///< by optimizer, elements, tensors
  double message_overhead = 0;              ///< seconds the runtime adds to a message
  MeasuredOverlap overlap;
};

/// Messages of one size.
struct MeasuredMessages {
  std::int64_t bytes = 0;
  Measured time;  ///< of one, from its start until the receiver has it
};

/// Point-to-point messages from one device to another, with nothing else on the network.
struct MeasuredPath {
  std::string from, to;                  ///< devices: "volta/0"
  std::vector<std::string> links;        ///< names of the links on the way, in order
  std::vector<MeasuredMessages> points;  ///< by bytes
};

/// All-reduces over a group, with nothing else on the network.
struct MeasuredCollective {
  AllReduce algorithm = AllReduce::kRing;
  std::vector<std::string> devices;      ///< in the group's order
  std::vector<MeasuredMessages> points;  ///< by bytes of the buffer
};

/// A profile file (docs/profile_yaml.md).
struct Profile {
  std::string file;                    ///< for messages; no part of what was measured
  std::string digest;                  ///< "sha256:...": `digest_of(print_measurements(profile))`
  std::vector<DeviceProfile> devices;  ///< by name, each once
  std::vector<MeasuredPath> paths;     ///< by from, to, each once
  std::vector<MeasuredCollective> collectives;  ///< by algorithm, devices, each once

  const DeviceProfile* find_device(std::string_view name) const;  ///< nullptr: not in it
};

/// "sgd", "sgd momentum" or "adam": optimizers that move the same bytes a parameter.
std::string optimizer_name(const Optimizer& optimizer);

/// Everything that a digest covers: all measurements, neither file names nor the BLAS.
std::string print_measurements(const Profile& profile);

/// Sorts all lists and sets the digest: what a maker of measurements calls last.
void seal_profile(Profile& profile);

/// Checks that times are not negative and less than an hour (messages take more than no time),
/// lists sorted and without repeats, texts without line breaks, the digest true.
Status verify_profile(const Profile& profile);

/// Both together. Of what both have, times become the mean of the two medians (spreads: the larger
/// of the two spreads and of the difference between the medians / their mean), and points that one
/// has are kept; a figure that is left at its default (overhead, overlap) counts as not measured.
/// The result is sealed and has the file name of `a`. Errors, which name both: a device of one name
/// with other hardware or precision, an operator of another class, a path over other links.
Result<Profile> merge_profiles(Profile a, const Profile& b);

}  // namespace agpcs
