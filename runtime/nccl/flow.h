// SPDX-License-Identifier: Apache-2.0
// Flows over NCCL: the messages of a round are one group of sends and receives, and a kernel
// after the group adds what came. This is FlowOrder::kRounds. NCCL works on one group at a time,
// so the other order would be no faster; a flow of the other order runs in the same way, without
// the waits.
#pragma once

#include "runtime/nccl/communicator.h"
#include "runtime/nccl/meeting.h"

#include <agpcs/buffer.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace agpcs {

struct NcclGroup;

/// What this rank does in a flow; made once.
struct NcclFlow {
  struct Message {
    int member = 0;  ///< the other end: its rank in the group's communicator
    int chunk = 0;
    bool gathers = false;
  };
  struct Round {
    std::vector<int> tells, waits_for;  ///< members, as FlowRound has them
    std::vector<Message> sends, receives;
  };
  NcclGroup* group = nullptr;
  int chunks = 0;
  std::vector<Round> rounds;  ///< rounds in which this rank has a part
};

/// Returns this rank's part in a flow, as member `member`. Needs: `verify_flow` accepts `schedule`
/// for the members of `group`.
NcclFlow nccl_flow(NcclGroup& group, const PlanFlow& schedule, int member);

/// GPU memory for what is to be added. Only one thread uses it, with the GPU current.
class NcclScratch {
 public:
  NcclScratch() = default;
  ~NcclScratch() { release(); }
  NcclScratch(const NcclScratch&) = delete;
  NcclScratch& operator=(const NcclScratch&) = delete;

  /// Returns at least `bytes` of memory: the same each time, unless it is too small. Smaller memory
  /// that it returned earlier stays, since work on it may be under way.
  Result<char*> take(std::size_t bytes);
  void release();

 private:
  std::vector<void*> blocks_;
  std::size_t bytes_ = 0;  // size of the last block
};

/// Puts the all-reduce of `data` (of `buffer`'s size and type, on the GPU) on `stream`. There the
/// rounds of a rank follow one another; a rank meets others only where a message needs them.
Status start_flow(const NcclFlow& flow, const NcclCommunicator& all, const Buffer& buffer,
                  void* data, NcclScratch& scratch, cudaStream_t stream, const NcclPause& pause);

}  // namespace agpcs
