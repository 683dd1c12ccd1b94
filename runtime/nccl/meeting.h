// SPDX-License-Identifier: Apache-2.0
// NcclMeeting: what the ranks of an NCCL job exchange over the bootstrap: identifiers of
// communicators, and notices that a rank has left, since NCCL gives none.
#pragma once

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <nccl.h>

#include <chrono>
#include <functional>
#include <span>
#include <string>

namespace agpcs {

/// Called between two checks of something that is under way and gives no notice of its end. Waits a
/// moment, or until an abort. An error means: give up, for this reason.
using NcclPause = std::function<Status()>;

/// The exchange with the other ranks. Any thread may use it.
class NcclMeeting {
 public:
  explicit NcclMeeting(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  int rank() const { return bootstrap_.rank(); }
  int size() const { return bootstrap_.size(); }

  /// Returns an error if ranks have different versions of NCCL, which could not communicate.
  Status agree_on_version(std::chrono::milliseconds limit);
  /// Returns the identifier of the communicator `name`: the rank with `first` makes it, the others
  /// wait for it.
  Result<ncclUniqueId> identifier(const std::string& name, bool first, const NcclPause& pause);

  /// Tells the other ranks that this one takes no further part.
  void leave();
  /// Returns the first of `ranks` that has left, or -1. It does not wait: a later call sees a
  /// notice that is on its way.
  int gone(std::span<const int> ranks);
  /// Returns `failure`, or the failure of the job that caused it. May wait for the notice of that.
  Status first_cause(const Status& failure);
  void report(const Status& failure) { bootstrap_.report(failure); }

 private:
  Bootstrap& bootstrap_;
};

}  // namespace agpcs
