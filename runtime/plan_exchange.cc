// SPDX-License-Identifier: Apache-2.0
#include "runtime/plan_exchange.h"

#include "runtime/flat_program.h"

#include <fmt/format.h>

namespace agpcs {
namespace {

// Above all tags of plans (flat_program.cc).
constexpr std::uint64_t kTextTag = std::uint64_t{1} << 61;

Buffer bytes_of(std::string& text) { return {text.data(), text.size(), DType::kUint8, false}; }

// After a failure nothing touches the caller's memory any more.
Status finish(Transport& transport, Stream stream, Ticket ticket, std::chrono::milliseconds limit) {
  Status status = transport.wait(stream, ticket, limit);
  if (status.ok()) return status;
  transport.abort(status);
  [[maybe_unused]] const Status known = transport.wait(stream, 0, limit);
  return status;
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
  if (transport.rank() != 0) {
    AGPCS_TRY(const Ticket ticket, transport.recv(bytes_of(shared), 0, kTextTag));
    AGPCS_RETURN_IF_ERROR(finish(transport, Stream::kRecv, ticket, limit));
    return shared;
  }
  Ticket last = 0;
  for (int peer = 1; peer < transport.size(); ++peer) {
    AGPCS_TRY(last, transport.send(bytes_of(shared), peer, kTextTag));
  }
  if (last != 0) AGPCS_RETURN_IF_ERROR(finish(transport, Stream::kSend, last, limit));
  return shared;
}

Result<std::int64_t> sum_over_ranks(std::int64_t value, int world, Transport& transport,
                                    std::chrono::milliseconds limit) {
  const Buffer buffer{&value, sizeof value, DType::kInt64, false};
  AGPCS_TRY(const Ticket ticket, transport.all_reduce(buffer, world, AllReduce::kTree));
  AGPCS_RETURN_IF_ERROR(finish(transport, Stream::kCollective, ticket, limit));
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
