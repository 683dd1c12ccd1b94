// SPDX-License-Identifier: Apache-2.0
// Tags of the messages between ranks that are no part of a plan's programs: above those of programs
// (resolved_program.cc), below what transports refuse (rank_group.cc).
#pragma once

#include <cstdint>

namespace agpcs {

inline constexpr std::uint64_t kFirstOwnTag = std::uint64_t{1} << 61;
inline constexpr std::uint64_t kTextTag = kFirstOwnTag;         ///< plan_exchange.cc
inline constexpr std::uint64_t kOwnersTag = kFirstOwnTag + 1;   ///< state_owners.cc
inline constexpr std::uint64_t kStateTag = kFirstOwnTag + 2;    ///< state_moves.cc
inline constexpr std::uint64_t kReplicaTag = kFirstOwnTag + 3;  ///< replica_check.cc
inline constexpr std::uint64_t kTraceTag = kFirstOwnTag + 4;    ///< tools/run_trace.cc
inline constexpr std::uint64_t kProbeTag = kFirstOwnTag + 8;    ///< link_probe.cc: four of them
/// negotiated_reducer.cc: one a group.
inline constexpr std::uint64_t kNegotiationTag = kFirstOwnTag + (std::uint64_t{1} << 60);

}  // namespace agpcs
