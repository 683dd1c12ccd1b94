// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/network/messages.h"

#include "ir/base/check.h"

namespace agpcs {
namespace {

constexpr std::uint64_t kTag = 0;  // there is only one conversation at a time

}  // namespace

Buffer part_of(Buffer memory, std::int64_t bytes) {
  AGPCS_CHECK(static_cast<std::size_t>(bytes) <= memory.bytes, "{} bytes of {}", bytes,
              memory.bytes);
  memory.bytes = static_cast<std::size_t>(bytes);
  return memory;
}

Result<std::int64_t> RoundTrip::agree(std::int64_t number) {
  memory_.number = number;
  const Buffer told{&memory_.number, sizeof memory_.number, DType::kInt64, false};
  const Buffer echoed{&memory_.echo, sizeof memory_.echo, DType::kInt64, false};
  const int peer = leads() ? to_ : from_;
  const auto posted = transport_.recv(leads() ? echoed : told, peer, kTag);
  if (leads()) AGPCS_RETURN_IF_ERROR(send(told, peer));
  AGPCS_RETURN_IF_ERROR(await(posted));
  if (!leads()) AGPCS_RETURN_IF_ERROR(send(echoed, peer));
  return memory_.number;
}

Status RoundTrip::repeat(std::int64_t bytes, std::int64_t times) {
  return leads() ? ask(bytes, times) : reply(bytes, times);
}

Status RoundTrip::ask(std::int64_t bytes, std::int64_t times) {
  for (std::int64_t i = 0; i < times; ++i) {
    const auto posted = transport_.recv(answer(), to_, kTag);
    AGPCS_RETURN_IF_ERROR(send(message(bytes), to_));
    AGPCS_RETURN_IF_ERROR(await(posted));
  }
  return {};
}

Status RoundTrip::reply(std::int64_t bytes, std::int64_t times) {
  auto posted = transport_.recv(message(bytes), from_, kTag);
  for (std::int64_t i = 0; i < times; ++i) {
    AGPCS_RETURN_IF_ERROR(await(posted));
    if (i + 1 < times) posted = transport_.recv(message(bytes), from_, kTag);
    AGPCS_RETURN_IF_ERROR(send(answer(), from_));
  }
  return {};
}

Buffer RoundTrip::message(std::int64_t bytes) const { return part_of(memory_.data, bytes); }

Buffer RoundTrip::answer() const {
  Buffer last = memory_.data;
  last.data = static_cast<char*>(last.data) + last.bytes - kAnswerBytes;
  last.bytes = kAnswerBytes;
  return last;
}

Status RoundTrip::send(const Buffer& buffer, int peer) {
  AGPCS_TRY(const Ticket ticket, transport_.send(buffer, peer, kTag));
  return transport_.wait(Stream::kSend, ticket, limit_);
}

Status RoundTrip::await(const Result<Ticket>& posted) {
  if (!posted.ok()) return posted.status();
  return transport_.wait(Stream::kRecv, *posted, limit_);
}

Result<std::int64_t> RepeatedAllReduce::agree(std::int64_t number) {
  AGPCS_TRY(const std::vector<double> said, team_.sum({leads_ ? static_cast<double>(number) : 0}));
  return static_cast<std::int64_t>(said.front());
}

Status RepeatedAllReduce::repeat(std::int64_t bytes, std::int64_t times) {
  const Buffer buffer = part_of(memory_, bytes);
  for (std::int64_t i = 0; i < times; ++i) {
    AGPCS_RETURN_IF_ERROR(team_.all_reduce(buffer, algorithm_));
  }
  return {};
}

}  // namespace agpcs
