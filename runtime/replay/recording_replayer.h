// SPDX-License-Identifier: Apache-2.0
// A Replayer that records a step and replays it by one launch. Not installed.
#pragma once

#include <agpcs/replayer.h>

#include <memory>
#include <string>

namespace agpcs {

/// How steps run, if replays were asked for.
struct StepRecording {
  bool decided = false;   ///< a recording has been tried
  bool replayed = false;  ///< steps are replays
  /// The reason if a recording was tried and steps are not replays: that of the lowest rank that
  /// cannot replay, "rank 1 (volta/1): node ...". It is the same on all ranks.
  std::string why_not;
};

class RecordingReplayer : public Replayer {
 public:
  /// Does what `Replayer::create` does. After `record_after` steps, one step is recorded and from
  /// then on replayed by one launch, if the transport and the executors of all ranks can do so
  /// (runtime/support/recording.h). 0: never. All ranks pass the same number. A replayed step's
  /// loss is checked and reported when the step is over.
  static Result<std::unique_ptr<RecordingReplayer>> create(const Plan& plan, int rank,
                                                           Transport& transport, Executor& executor,
                                                           const ReplayOptions& options,
                                                           int record_after);
  virtual const StepRecording& recording() const = 0;
};

}  // namespace agpcs
