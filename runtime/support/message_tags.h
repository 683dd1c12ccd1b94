// SPDX-License-Identifier: Apache-2.0
// Tags of the messages between ranks that do not belong to a plan's programs. They lie above those
// of programs (resolved_program.cc) and below those that transports refuse (rank_group.cc).
#pragma once

#include <cstdint>

namespace agpcs {

inline constexpr std::uint64_t kFirstOwnTag = std::uint64_t{1} << 61;
inline constexpr std::uint64_t kTextTag = kFirstOwnTag;         ///< plan_exchange.cc
inline constexpr std::uint64_t kOwnersTag = kFirstOwnTag + 1;   ///< state_owners.cc
inline constexpr std::uint64_t kStateTag = kFirstOwnTag + 2;    ///< state_moves.cc
inline constexpr std::uint64_t kReplicaTag = kFirstOwnTag + 3;  ///< replica_check.cc
inline constexpr std::uint64_t kTraceTag = kFirstOwnTag + 4;    ///< tools/run/trace.cc
inline constexpr std::uint64_t kProbeTag = kFirstOwnTag + 8;    ///< link_probe.cc: four tags
/// negotiated_reducer.cc: a tag for each group
inline constexpr std::uint64_t kNegotiationTag = kFirstOwnTag + (std::uint64_t{1} << 60);

}  // namespace agpcs
