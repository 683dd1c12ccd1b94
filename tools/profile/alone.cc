// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/alone.h"

#include <cstddef>
#include <cstring>
#include <numeric>

namespace agpcs {
namespace {

/// Fills a buffer with zeros from element `first` of `elements` on: what was there might be numbers
/// that take longer to compute with. On a GPU no number does.
void clear_behind(const Buffer& buffer, std::int64_t first, std::int64_t elements) {
  if (buffer.on_gpu || elements == 0) return;
  const std::size_t from =
      buffer.bytes / static_cast<std::size_t>(elements) * static_cast<std::size_t>(first);
  std::memset(static_cast<char*>(buffer.data) + from, 0, buffer.bytes - from);
}

Status no_messages() { return {StatusCode::kUnavailable, "a member alone has no messages"}; }

}  // namespace

Status AloneTransport::open_group(int /*group*/, const std::vector<int>& /*ranks*/,
                                  const std::vector<int>& /*host_of_rank*/) {
  return {};
}

Status AloneTransport::open_flow(int /*flow*/, int /*group*/, const PlanFlow& /*schedule*/) {
  return no_messages();
}

Result<Ticket> AloneTransport::send(const Buffer& /*buffer*/, int /*peer*/, std::uint64_t /*tag*/) {
  return no_messages();
}

Result<Ticket> AloneTransport::recv(const Buffer& /*buffer*/, int /*peer*/, std::uint64_t /*tag*/) {
  return no_messages();
}

Result<Ticket> AloneTransport::all_reduce(const Buffer& /*buffer*/, int /*group*/,
                                          AllReduce /*algorithm*/) {
  return ++collectives_;
}

Result<Ticket> AloneTransport::all_reduce_flow(const Buffer& /*buffer*/, int /*flow*/) {
  return no_messages();
}

Result<Ticket> AloneTransport::reduce_scatter(const Buffer& /*buffer*/,
                                              const std::vector<std::int64_t>& /*parts*/,
                                              int /*group*/, AllReduce /*algorithm*/) {
  return ++collectives_;
}

Result<Ticket> AloneTransport::all_gather(const Buffer& buffer,
                                          const std::vector<std::int64_t>& parts, int /*group*/,
                                          AllReduce /*algorithm*/) {
  clear_behind(buffer, parts.front(), std::accumulate(parts.begin(), parts.end(), std::int64_t{0}));
  return ++collectives_;
}

Result<Ticket> AloneTransport::all_to_all(const Buffer& buffer,
                                          const std::vector<std::int64_t>& parts, int /*group*/) {
  const auto given = parts.begin() + static_cast<std::ptrdiff_t>(parts.size() / 2);
  clear_behind(buffer, std::accumulate(parts.begin(), given, std::int64_t{0}),
               std::accumulate(parts.begin(), parts.end(), std::int64_t{0}));
  return ++collectives_;
}

Status AloneTransport::wait(Stream /*stream*/, Ticket /*ticket*/,
                            std::chrono::milliseconds /*limit*/) {
  return {};
}

OperationTime AloneTransport::time_of(Stream /*stream*/, Ticket /*ticket*/) const { return {}; }

void AloneTransport::abort(const Status& /*reason*/) {}

}  // namespace agpcs
