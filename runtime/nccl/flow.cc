// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/flow.h"

#include "ir/plan/flow.h"
#include "runtime/nccl/links.h"
#include "runtime/nccl/status.h"
#include "runtime/nccl/sum.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace agpcs {
namespace {

/// Puts one all-reduce onto a stream.
class FlowStart {
 public:
  FlowStart(const NcclFlow& flow, const NcclCommunicator& all, const Buffer& buffer, void* data,
            cudaStream_t stream, const NcclPause& pause)
      : flow_(flow),
        all_(all),
        type_(buffer.type),
        width_(size_of(buffer.type)),
        elements_(static_cast<std::int64_t>(buffer.bytes / width_)),
        data_(static_cast<char*>(data)),
        stream_(stream),
        pause_(pause) {}

  Status run(NcclScratch& memory) {
    std::size_t most = 0;
    for (const NcclFlow::Round& round : flow_.rounds) {
      std::size_t bytes = 0;
      for (const NcclFlow::Message& m : round.receives) bytes += m.gathers ? 0 : bytes_of(m);
      // These are the word that is sent and the words that come. What is to be added
      // overwrites them.
      if (has_words(round)) bytes = std::max(bytes, 1 + round.waits_for.size());
      most = std::max(most, bytes);
    }
    AGPCS_TRY(scratch_, memory.take(most));
    for (const NcclFlow::Round& round : flow_.rounds) {
      if (has_words(round)) AGPCS_RETURN_IF_ERROR(meet(round));
      AGPCS_RETURN_IF_ERROR(exchange(round));
      AGPCS_RETURN_IF_ERROR(add(round));
    }
    return {};
  }

 private:
  std::size_t bytes_of(const NcclFlow::Message& m) const {
    return static_cast<std::size_t>(part_of(elements_, flow_.chunks, m.chunk).size()) * width_;
  }
  char* place_of(const NcclFlow::Message& m) const {
    const std::int64_t begin = part_of(elements_, flow_.chunks, m.chunk).begin;
    return data_ + static_cast<std::size_t>(begin) * width_;
  }

  static bool has_words(const NcclFlow::Round& round) {
    return !round.tells.empty() || !round.waits_for.empty();
  }

  /// Exchanges words of one byte. Both ends do so before the same round, so two groups never wait
  /// for each other.
  Status meet(const NcclFlow::Round& round) const {
    return all_.group(pause_, [&](const auto& note) {
      for (const int member : round.tells) {
        note(ncclSend(scratch_, 1, ncclChar, member, all_.get(), stream_));
      }
      char* word = scratch_;
      for (const int member : round.waits_for) {
        note(ncclRecv(++word, 1, ncclChar, member, all_.get(), stream_));
      }
    });
  }

  Status exchange(const NcclFlow::Round& round) const {
    const auto moves = [&](const NcclFlow::Message& m) { return bytes_of(m) > 0; };
    if (std::none_of(round.sends.begin(), round.sends.end(), moves) &&
        std::none_of(round.receives.begin(), round.receives.end(), moves)) {
      return {};
    }
    return all_.group(pause_, [&](const auto& note) {
      for (const NcclFlow::Message& m : round.sends) {
        if (!moves(m)) continue;
        note(ncclSend(place_of(m), bytes_of(m), ncclChar, m.member, all_.get(), stream_));
      }
      char* spare = scratch_;
      for (const NcclFlow::Message& m : round.receives) {
        if (!moves(m)) continue;
        char* to = m.gathers ? place_of(m) : std::exchange(spare, spare + bytes_of(m));
        note(ncclRecv(to, bytes_of(m), ncclChar, m.member, all_.get(), stream_));
      }
    });
  }

  Status add(const NcclFlow::Round& round) const {
    char* spare = scratch_;
    for (const NcclFlow::Message& m : round.receives) {
      if (m.gathers || bytes_of(m) == 0) continue;
      const char* from = std::exchange(spare, spare + bytes_of(m));
      AGPCS_RETURN_IF_ERROR(cuda_status(
          add_on_gpu(place_of(m), from, bytes_of(m) / width_, type_, stream_), "add on the GPU"));
    }
    return {};
  }

  const NcclFlow& flow_;
  const NcclCommunicator& all_;
  const DType type_;
  const std::size_t width_;
  const std::int64_t elements_;
  char* data_;
  const cudaStream_t stream_;
  const NcclPause& pause_;
  char* scratch_ = nullptr;
};

}  // namespace

NcclFlow nccl_flow(NcclGroup& group, const PlanFlow& schedule, int member) {
  NcclFlow flow;
  flow.group = &group;
  flow.chunks = static_cast<int>(group.ranks.ranks.size()) * schedule.sub_chunks;
  const std::vector<int> rounds = rounds_of(schedule);
  NcclFlow::Round mine;
  const auto close = [&] {
    const bool has_part = !mine.sends.empty() || !mine.receives.empty() || !mine.tells.empty() ||
                          !mine.waits_for.empty();
    if (has_part) flow.rounds.push_back(std::move(mine));
    mine = {};
  };
  for (std::size_t s = 0; s < rounds.size(); ++s) {
    const FlowStep& step = schedule.steps[s];
    if (s > 0 && rounds[s] != rounds[s - 1]) close();
    for (const FlowWait& wait : step.after) {
      if (wait.from == member) mine.tells.push_back(wait.to);
      if (wait.to == member) mine.waits_for.push_back(wait.from);
    }
    for (const FlowMessage& m : step.messages) {
      if (m.from == member) mine.sends.push_back({m.to, m.chunk, step.gathers});
      if (m.to == member) mine.receives.push_back({m.from, m.chunk, step.gathers});
    }
  }
  close();
  return flow;
}

Result<char*> NcclScratch::take(std::size_t bytes) {
  if (bytes > bytes_) {
    // CUDA aligns to 256 bytes itself.
    const std::size_t rounded = (std::max(bytes, 2 * bytes_) + 255) / 256 * 256;
    void* block = nullptr;
    AGPCS_RETURN_IF_ERROR(
        cuda_status(cudaMalloc(&block, rounded), "allocate memory on the device"));
    blocks_.push_back(block);
    bytes_ = rounded;
  }
  return blocks_.empty() ? nullptr : static_cast<char*>(blocks_.back());
}

void NcclScratch::release() {
  for (void* block : blocks_) cudaFree(block);
  blocks_.clear();
  bytes_ = 0;
}

Status start_flow(const NcclFlow& flow, const NcclCommunicator& all, const Buffer& buffer,
                  void* data, NcclScratch& scratch, cudaStream_t stream, const NcclPause& pause) {
  return FlowStart(flow, all, buffer, data, stream, pause).run(scratch);
}

}  // namespace agpcs
