// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan_exchange.h"

#include "runtime/flat_program.h"
#include "runtime/message_tags.h"
#include "runtime/withdraw.h"

#include <fmt/format.h>

namespace agpcs {
namespace {

// Rank 0's `bytes` to all.
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
  Plan bare;  // what a plan's header says, as its text spells it
  bare.training = plan.training;
  bare.model = plan.model;
  bare.model_digest = plan.model_digest;
  bare.dims = plan.dims;
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
