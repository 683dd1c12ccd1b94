// SPDX-License-Identifier: Apache-2.0
// NcclLinks: the communicators of one lane, and the operations on them.
//
// NCCL carries out the operations of a communicator one after the other, whatever their streams. A
// send that shared a communicator with a receive would hold it up, and two ranks that first send
// and then receive would wait for each other for ever. Hence every ordered pair of ranks that
// exchange messages has a communicator of its own, which only the sender's send lane and the
// receiver's receive lane use; and every group has its own, which the collective lanes use. Within
// a lane everything runs on one CUDA stream. So at most three of NCCL's kernels wait on a GPU for
// other ranks at a time: few enough that all of them are resident, which NCCL requires of
// communicators that are used side by side.
#pragma once

#include "runtime/nccl/communicator.h"
#include "runtime/nccl/flow.h"
#include "runtime/nccl/meeting.h"
#include "runtime/support/rank_group.h"

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/types.h>

#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace agpcs {

/// The communicators of a group. The last two are open if some host has several members and the
/// group has several hosts; only then does a hierarchical sum differ from NCCL's own.
struct NcclGroup {
  RankGroup ranks;
  std::vector<int> others;   ///< the ranks without this one
  NcclCommunicator all;      ///< all members
  NcclCommunicator host;     ///< the members on this host; its rank 0 is the host's first
  NcclCommunicator leaders;  ///< the first member of each host; only those open it
  bool two_levels = false;
};

/// One operation of a transport.
struct NcclOperation {
  enum class Kind { kSend, kRecv, kCollective };
  Kind kind = Kind::kSend;
  Buffer buffer;
  int peer = -1;               ///< used by a message
  NcclGroup* group = nullptr;  ///< used by a collective
  Collective collective = Collective::kAllReduce;
  AllReduce algorithm = AllReduce::kRing;
  const Parts* parts = nullptr;    ///< null for an all-reduce; read when it is put on a stream
  const NcclFlow* flow = nullptr;  ///< used by an all-reduce by `kFlow`

  /// Returns the ranks that must take part.
  std::span<const int> peers() const;
  /// Returns "recv from rank 1, 64 bytes".
  std::string text() const;
  /// Returns false if there is nothing to move: no bytes, or no other member.
  bool moves() const { return buffer.bytes > 0 && !peers().empty(); }
};

/// The communicators of one lane. Only one thread uses them, with the GPU current.
class NcclLinks {
 public:
  explicit NcclLinks(NcclMeeting& meeting) : meeting_(meeting) {}

  /// Opens the communicator for messages from rank `from` to rank `to`; this rank is one of them.
  /// The other rank calls it, too; until then `pause` is called.
  Status connect(int from, int to, const NcclPause& pause);
  /// Opens the communicators of `group`, which must outlive this. All members call it.
  Status open(NcclGroup& group, const NcclPause& pause);

  /// Leaves the communicators of `group`, which is open, once all members leave them.
  Status close(NcclGroup& group, const NcclPause& pause);

  /// Puts `operation` on `stream`; it works on `data` (on the GPU) in place of its buffer.
  Status start(const NcclOperation& operation, void* data, cudaStream_t stream,
               const NcclPause& pause);

  /// Returns what has gone wrong on any communicator.
  Status health() const;
  /// Leaves all communicators once enqueued operations have left this rank.
  void close(const NcclPause& pause);
  /// Leaves all communicators at once, and stops what they run on the GPU.
  void abort();
  /// Frees memory, once nothing runs.
  void release() { scratch_.release(); }

 private:
  Status join(NcclCommunicator& communicator, const std::string& name,
              const std::vector<int>& ranks, const NcclPause& pause);
  Status message(const NcclOperation& operation, void* data, cudaStream_t stream,
                 const NcclPause& pause);
  static Status ring(const NcclOperation& operation, void* data, cudaStream_t stream,
                     const NcclPause& pause);
  static Status hierarchical(const NcclOperation& operation, void* data, cudaStream_t stream,
                             const NcclPause& pause);
  static Status scatter(const NcclOperation& operation, char* data, cudaStream_t stream,
                        const NcclPause& pause);
  static Status gather(const NcclOperation& operation, char* data, cudaStream_t stream,
                       const NcclPause& pause);
  static Status all_to_all(const NcclOperation& operation, char* data, cudaStream_t stream,
                           const NcclPause& pause);
  void each(const std::function<void(NcclCommunicator&)>& what);

  NcclMeeting& meeting_;
  std::map<int, NcclCommunicator> pairs_;  // by peer; a lane has one direction
  std::vector<NcclGroup*> groups_;
  NcclScratch scratch_;
};

}  // namespace agpcs
