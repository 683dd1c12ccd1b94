// SPDX-License-Identifier: Apache-2.0
// The work that is repeated to measure a network: round trips of messages, and all-reduces.
#pragma once

#include "tools/profile/network/pace.h"
#include "tools/profile/network/team.h"

#include <agpcs/buffer.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>
#include <agpcs/types.h>

#include <chrono>
#include <cstdint>

namespace agpcs {

inline constexpr std::int64_t kAnswerBytes = 8;

/// The memory that messages use. It must outlive `withdraw` after a failure.
struct MessageMemory {
  Buffer data;                        ///< room for the largest message, then for an answer
  std::int64_t number = 0, echo = 0;  ///< numbers that the two ends exchange
};

/// Messages from rank `from`, which leads, to rank `to`, which answers each with `kAnswerBytes`
/// bytes. Both ends enqueue and wait as the replayer does, and post the receive before the message
/// is sent.
class RoundTrip final : public Repeated {
 public:
  RoundTrip(Transport& transport, int from, int to, MessageMemory& memory,
            std::chrono::milliseconds limit)
      : transport_(transport), from_(from), to_(to), memory_(memory), limit_(limit) {}

  bool leads() const override { return transport_.rank() == from_; }
  Result<std::int64_t> agree(std::int64_t number) override;
  Status repeat(std::int64_t bytes, std::int64_t times) override;

 private:
  Buffer message(std::int64_t bytes) const;
  Buffer answer() const;
  Status ask(std::int64_t bytes, std::int64_t times);
  Status reply(std::int64_t bytes, std::int64_t times);
  Status send(const Buffer& buffer, int peer);
  Status await(const Result<Ticket>& posted);

  Transport& transport_;
  const int from_, to_;
  MessageMemory& memory_;
  const std::chrono::milliseconds limit_;
};

/// All-reduces over a team. Its first rank leads.
class RepeatedAllReduce final : public Repeated {
 public:
  RepeatedAllReduce(RankTeam& team, int rank, AllReduce algorithm, Buffer memory)
      : team_(team), leads_(team.ranks().front() == rank), algorithm_(algorithm), memory_(memory) {}

  bool leads() const override { return leads_; }
  Result<std::int64_t> agree(std::int64_t number) override;
  Status repeat(std::int64_t bytes, std::int64_t times) override;

 private:
  RankTeam& team_;
  const bool leads_;
  const AllReduce algorithm_;
  const Buffer memory_;
};

/// Returns the first `bytes` of `memory`.
Buffer part_of(Buffer memory, std::int64_t bytes);

}  // namespace agpcs
