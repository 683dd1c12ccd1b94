// SPDX-License-Identifier: Apache-2.0
#include "runtime/flat_program.h"

#include <agpcs/drift.h>
#include <agpcs/transport.h>

#include <algorithm>
#include <chrono>
#include <set>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kProbeTag = (std::uint64_t{1} << 61) + 1;
constexpr std::size_t kLarge = std::size_t{1} << 20;
constexpr int kRounds = 3;

std::set<std::pair<int, int>> pairs_of(const Plan& plan) {
  std::set<std::pair<int, int>> pairs;
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.ranks.size() && stage.ranks.size() > 1; ++i) {
      pairs.emplace(stage.ranks[i], stage.ranks[(i + 1) % stage.ranks.size()]);
    }
  }
  for (std::size_t c = 0; c < plan.cuts.size(); ++c) {
    const Cut& cut = plan.cuts[c];
    for (const int rank : plan.stages[static_cast<std::size_t>(cut.from)].ranks) {
      for (const Transfer& t : transfers(plan, static_cast<int>(c), rank)) {
        pairs.emplace(rank, t.peer);
        pairs.emplace(t.peer, rank);
      }
    }
  }
  return pairs;
}

// Sends or receives `bytes`, and waits for it.
Status move(Transport& transport, bool sends, std::vector<char>& memory, std::size_t bytes,
            int peer, milliseconds limit) {
  const Buffer buffer{memory.data(), bytes, DType::kUint8, false};
  AGPCS_TRY(const Ticket ticket, sends ? transport.send(buffer, peer, kProbeTag)
                                       : transport.recv(buffer, peer, kProbeTag));
  Status status = transport.wait(sends ? Stream::kSend : Stream::kRecv, ticket, limit);
  if (!status.ok()) transport.abort(status);
  return status;
}

// Least seconds from sending `bytes` until a word comes back; both ranks of the pair call it.
Result<double> round_trip(Transport& transport, bool first, std::vector<char>& memory,
                          std::size_t bytes, int peer, milliseconds limit) {
  double least = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = Clock::now();
    AGPCS_RETURN_IF_ERROR(move(transport, first, memory, bytes, peer, limit));
    AGPCS_RETURN_IF_ERROR(move(transport, !first, memory, 1, peer, limit));
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    least = round == 0 ? seconds : std::min(least, seconds);
  }
  return least;
}

}  // namespace

Result<std::vector<LinkMeasurement>> probe_links(const Plan& plan, Transport& transport,
                                                 milliseconds limit) {
  std::vector<char> memory(kLarge, 0);
  const std::set<std::pair<int, int>> pairs = pairs_of(plan);
  std::vector<double> figures(2 * pairs.size(), 0);
  std::size_t next = 0;
  for (const auto& [from, to] : pairs) {
    const bool first = transport.rank() == from;
    if (first || transport.rank() == to) {
      const int peer = first ? to : from;
      AGPCS_TRY(const double small, round_trip(transport, first, memory, 1, peer, limit));
      AGPCS_TRY(const double large, round_trip(transport, first, memory, kLarge, peer, limit));
      if (first) {
        figures[next] = std::max(0.0, large - small) / static_cast<double>(kLarge);
        figures[next + 1] = small / 2;
      }
    }
    next += 2;
    // One pair after the other: they may share a network card.
    double token = 0;
    AGPCS_TRY(const Ticket ticket, transport.all_reduce({&token, sizeof token, DType::kFp64, false},
                                                        world_group(plan), AllReduce::kTree));
    AGPCS_RETURN_IF_ERROR(transport.wait(Stream::kCollective, ticket, limit));
  }
  AGPCS_TRY(
      const Ticket ticket,
      transport.all_reduce({figures.data(), figures.size() * sizeof(double), DType::kFp64, false},
                           world_group(plan), AllReduce::kTree));
  AGPCS_RETURN_IF_ERROR(transport.wait(Stream::kCollective, ticket, limit));
  std::vector<LinkMeasurement> measured;
  next = 0;
  for (const auto& [from, to] : pairs) {
    measured.push_back({from, to, figures[next], figures[next + 1]});
    next += 2;
  }
  return measured;
}

}  // namespace agpcs
