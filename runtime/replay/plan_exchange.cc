// SPDX-License-Identifier: Apache-2.0
#include "runtime/replay/plan_exchange.h"

#include "ir/plan/lookup.h"
#include "runtime/replay/resolved_program.h"
#include "runtime/support/message_tags.h"
#include "runtime/support/withdraw.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

// Sends rank 0's `bytes` to all ranks.
Status pass_on(const Buffer& bytes, Transport& transport, std::chrono::milliseconds limit) {
  if (transport.rank() != 0) {
    AGPCS_TRY(const Ticket ticket, transport.recv(bytes, 0, kTextTag));
    return transport.wait(Stream::kRecv, ticket, limit);
  }
  Ticket last = 0;
  for (int peer = 1; peer < transport.size(); ++peer) {
    AGPCS_TRY(last, transport.send(bytes, peer, kTextTag));
  }
  return transport.wait(Stream::kSend, last, limit);
}

Status all_reduce(const Buffer& buffer, int group, Transport& transport,
                  std::chrono::milliseconds limit) {
  AGPCS_TRY(const Ticket ticket, transport.all_reduce(buffer, group, AllReduce::kTree));
  return transport.wait(Stream::kCollective, ticket, limit);
}

std::string settings_of(const Plan& plan) {
  Plan bare;  // holds only those parts of the header that must not differ
  bare.training = plan.training;
  bare.model_digest = plan.model_digest;
  bare.dims = plan.dims;
  bare.frozen = plan.frozen;
  bare.trained = plan.trained;
  bare.fused = plan.fused;
  return print_plan(bare);
}

}  // namespace

Result<std::string> share_text(const std::string& text, std::int64_t bytes, Transport& transport,
                               std::chrono::milliseconds limit) {
  std::string shared(text);
  shared.resize(static_cast<std::size_t>(bytes));
  const Status passed =
      pass_on({shared.data(), shared.size(), DType::kUint8, false}, transport, limit);
  if (!passed.ok()) return withdraw(transport, passed, limit);
  return shared;
}

Result<std::int64_t> sum_over_ranks(std::int64_t value, int world, Transport& transport,
                                    std::chrono::milliseconds limit) {
  const Status summed =
      all_reduce({&value, sizeof value, DType::kInt64, false}, world, transport, limit);
  if (!summed.ok()) return withdraw(transport, summed, limit);
  return value;
}

Result<std::string> first_to_say(std::string mine, int world, Transport& transport,
                                 std::chrono::milliseconds limit) {
  constexpr std::size_t kMostBytes = 4096;
  mine.resize(std::min(mine.size(), kMostBytes));
  const auto sum = [&](void* words, std::size_t bytes, DType type) -> Status {
    const Status summed = all_reduce({words, bytes, type, false}, world, transport, limit);
    return summed.ok() ? summed : withdraw(transport, summed, limit);
  };
  const auto me = static_cast<std::size_t>(transport.rank());
  std::vector<std::int64_t> lengths(static_cast<std::size_t>(transport.size()), 0);
  lengths[me] = static_cast<std::int64_t>(mine.size());
  AGPCS_RETURN_IF_ERROR(sum(lengths.data(), lengths.size() * sizeof(std::int64_t), DType::kInt64));
  const auto first = std::find_if(lengths.begin(), lengths.end(), [](auto n) { return n > 0; });
  if (first == lengths.end()) return std::string();
  // Only the first rank to say something contributes: one word for each character.
  std::vector<std::int32_t> words(static_cast<std::size_t>(*first), 0);
  if (first - lengths.begin() == transport.rank()) {
    std::transform(mine.begin(), mine.end(), words.begin(),
                   [](char c) { return static_cast<unsigned char>(c); });
  }
  AGPCS_RETURN_IF_ERROR(sum(words.data(), words.size() * sizeof(std::int32_t), DType::kInt32));
  std::string said(words.size(), ' ');
  std::transform(words.begin(), words.end(), said.begin(),
                 [](std::int32_t c) { return static_cast<char>(c); });
  return said;
}

std::string obstacle_to_switch(const Plan& running, const Plan& next) {
  if (next.rank_count() != running.rank_count()) {
    return fmt::format("it is for {} ranks, the job has {}", next.rank_count(),
                       running.rank_count());
  }
  for (int rank = 0; rank < running.rank_count(); ++rank) {
    const std::string here = device_of_rank(running, rank), there = device_of_rank(next, rank);
    if (here != there) return fmt::format("it has rank {} on {}, the job on {}", rank, there, here);
  }
  if (settings_of(next) != settings_of(running)) {
    return "it trains another model, or in another way";
  }
  return {};
}

}  // namespace agpcs
