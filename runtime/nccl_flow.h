// SPDX-License-Identifier: Apache-2.0
// Flows over NCCL: the messages of a round are one group of its sends and receives, what came is
// added by a kernel after it. That is FlowOrder::kRounds; as NCCL works on one group at a time, a
// flow of another order is no faster: it goes so, too, without the waits.
#pragma once

#include "runtime/nccl_communicator.h"
#include "runtime/nccl_meeting.h"

#include <agpcs/executor.h>
#include <agpcs/plan.h>
#include <agpcs/status.h>

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

namespace agpcs {

struct NcclGroup;

/// What this rank does in a flow, made once.
struct NcclFlow {
  struct Message {
    int member = 0;  ///< the other end; its rank in the group's communicator
    int chunk = 0;
    bool gathers = false;
  };
  struct Round {
    std::vector<int> tells, waits_for;  ///< members, as FlowRound has them
    std::vector<Message> sends, receives;
  };
  NcclGroup* group = nullptr;
  int chunks = 0;
  std::vector<Round> rounds;  ///< in which this rank has a part
};

/// Needs: `verify_flow` of `schedule` among the members of `group`, this rank being `member`.
NcclFlow nccl_flow(NcclGroup& group, const PlanFlow& schedule, int member);

/// Memory on the GPU for what is to be added. One thread, with the GPU current.
class NcclScratch {
 public:
  NcclScratch() = default;
  ~NcclScratch() { release(); }
  NcclScratch(const NcclScratch&) = delete;
  NcclScratch& operator=(const NcclScratch&) = delete;

  /// At least `bytes`, the same memory each time unless it is too small; smaller memory given
  /// earlier stays, since work on it may be under way.
  Result<char*> take(std::size_t bytes);
  void release();

 private:
  std::vector<void*> blocks_;
  std::size_t bytes_ = 0;  // of the last
};

/// Puts the all-reduce of `data` (of `buffer`'s size and type, on the GPU) on `stream`. The
/// rounds of a rank follow one another there; other ranks are met where a message needs them.
Status start_flow(const NcclFlow& flow, const NcclCommunicator& all, const Buffer& buffer,
                  void* data, NcclScratch& scratch, cudaStream_t stream, const NcclPause& pause);

}  // namespace agpcs
