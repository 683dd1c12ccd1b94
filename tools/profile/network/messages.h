// SPDX-License-Identifier: Apache-2.0
// What is repeated to measure a network: messages to and fro, and all-reduces.
#pragma once

#include "tools/profile_pace.h"
#include "tools/profile_team.h"

#include <agpcs/executor.h>
#include <agpcs/status.h>
#include <agpcs/transport.h>
#include <agpcs/types.h>

#include <chrono>
#include <cstdint>

namespace agpcs {

inline constexpr std::int64_t kAnswerBytes = 8;

/// Memory that messages use: it outlives `withdraw`, when something failed.
struct MessageMemory {
  Buffer data;                        ///< the largest message, then an answer
  std::int64_t number = 0, echo = 0;  ///< what the ends tell each other
};

/// Messages from rank `from`, which leads, to rank `to`, each answered with `kAnswerBytes` bytes.
/// Both ends enqueue and wait as the replayer does, and await a message before it is sent.
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

/// All-reduces over a team, led by its first rank.
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

/// The first `bytes` of `memory`.
Buffer part_of(Buffer memory, std::int64_t bytes);

}  // namespace agpcs
