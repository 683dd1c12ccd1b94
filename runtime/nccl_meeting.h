// SPDX-License-Identifier: Apache-2.0
// NcclMeeting: what the ranks of an NCCL job tell each other beside NCCL, over the bootstrap:
// identifiers of communicators, and that a rank has left, of which NCCL says nothing.
#pragma once

#include <agpcs/bootstrap.h>
#include <agpcs/status.h>

#include <nccl.h>

#include <chrono>
#include <functional>
#include <span>
#include <string>

namespace agpcs {

/// Called between two looks at something that is under way and brings no notice of its end: waits
/// a moment for the abort. Not ok: give up, for this reason.
using NcclPause = std::function<Status()>;

/// Any thread.
class NcclMeeting {
 public:
  explicit NcclMeeting(Bootstrap& bootstrap) : bootstrap_(bootstrap) {}

  int rank() const { return bootstrap_.rank(); }
  int size() const { return bootstrap_.size(); }

  /// Refuses ranks with different versions of NCCL, which would not understand each other.
  Status agree_on_version(std::chrono::milliseconds limit);
  /// The identifier of the communicator `name`: made where `first`, awaited by the others.
  Result<ncclUniqueId> identifier(const std::string& name, bool first, const NcclPause& pause);

  /// Tells the others that this rank takes no further part.
  void leave();
  /// The first of `ranks` that has left; -1 when none has. Does not wait: a notice that is on its
  /// way is seen by a later call.
  int gone(std::span<const int> ranks);
  /// `failure`, or the failure of the job whose echo it is. May wait for its notice.
  Status first_cause(const Status& failure);
  void report(const Status& failure) { bootstrap_.report(failure); }

 private:
  Bootstrap& bootstrap_;
};

}  // namespace agpcs
