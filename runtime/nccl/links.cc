// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/links.h"

#include "ir/base/check.h"
#include "runtime/nccl/status.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <utility>

namespace agpcs {
namespace {

ncclDataType_t nccl_type(DType type) {
  switch (type) {
    case DType::kFp32:
      return ncclFloat32;
    case DType::kFp64:
      return ncclFloat64;
    case DType::kFp16:
      return ncclFloat16;
    case DType::kBf16:
      return ncclBfloat16;
    case DType::kInt64:
      return ncclInt64;
    case DType::kInt32:
      return ncclInt32;
    default:
      break;
  }
  check_failed(__FILE__, __LINE__, "can_sum(type)", fmt::format("sum of {}", name_of(type)));
}

/// Whether all ranks have as many elements as the first.
bool equal(const Parts& parts) {
  return std::all_of(parts.begin(), parts.end(), [&](auto part) { return part == parts[0]; });
}

/// Calls `f(owner, first, count)` for each part that has elements.
template <typename F>
void for_each_part(const Parts& parts, F f) {
  std::size_t first = 0;
  for (std::size_t owner = 0; owner < parts.size(); ++owner) {
    const auto count = static_cast<std::size_t>(parts[owner]);
    if (count > 0) f(static_cast<int>(owner), first, count);
    first += count;
  }
}

}  // namespace

std::span<const int> NcclOperation::peers() const {
  return group != nullptr ? std::span<const int>(group->others) : std::span<const int>(&peer, 1);
}

std::string NcclOperation::text() const {
  if (kind == Kind::kSend) return fmt::format("send to rank {}, {} bytes", peer, buffer.bytes);
  if (kind == Kind::kRecv) return fmt::format("recv from rank {}, {} bytes", peer, buffer.bytes);
  // NCCL does not report which member is missing.
  return fmt::format("{} of {} bytes over ranks {}, waiting for {} {}", name_of(collective),
                     buffer.bytes, fmt::join(group->ranks.ranks, ","),
                     group->others.size() == 1 ? "rank" : "any of ranks",
                     fmt::join(group->others, ","));
}

Status NcclLinks::connect(int from, int to, const NcclPause& pause) {
  NcclCommunicator& pair = pairs_[from == meeting_.rank() ? to : from];
  if (pair.open()) return {};
  return join(pair, fmt::format("from {} to {}", from, to), {from, to}, pause);
}

Status NcclLinks::open(NcclGroup& group, const NcclPause& pause) {
  if (group.others.empty()) return {};
  groups_.push_back(&group);
  const std::string name =
      fmt::format("group {} of {}", group.ranks.id, fmt::join(group.ranks.ranks, ","));
  AGPCS_RETURN_IF_ERROR(join(group.all, name, group.ranks.ranks, pause));
  const std::vector<int>&local = group.ranks.local, &leaders = group.ranks.leaders;
  const std::size_t hosts = leaders.size();
  group.two_levels = hosts > 1 && hosts < group.ranks.ranks.size();
  if (!group.two_levels) return {};
  if (local.size() > 1) {
    const std::string on_host = fmt::format("{} on the host of {}", name, local.front());
    AGPCS_RETURN_IF_ERROR(join(group.host, on_host, local, pause));
  }
  if (local.front() != meeting_.rank()) return {};
  return join(group.leaders, name + " between hosts", leaders, pause);
}

// All members close groups in the same order. What a failure leaves open is aborted with the lane.
Status NcclLinks::close(NcclGroup& group, const NcclPause& pause) {
  for (NcclCommunicator* communicator : {&group.all, &group.host, &group.leaders}) {
    AGPCS_RETURN_IF_ERROR(
        communicator->settle(communicator->finalize(), "ncclCommFinalize", pause));
    communicator->destroy();
  }
  std::erase(groups_, &group);
  return {};
}

Status NcclLinks::join(NcclCommunicator& communicator, const std::string& name,
                       const std::vector<int>& ranks, const NcclPause& pause) {
  const auto me = std::find(ranks.begin(), ranks.end(), meeting_.rank());
  AGPCS_CHECK(me != ranks.end(), "rank {} is not one of {}", meeting_.rank(),
              fmt::join(ranks, ","));
  // Any one of them may make the identifier, if all agree on which.
  AGPCS_TRY(const ncclUniqueId id, meeting_.identifier(name, me == ranks.begin(), pause));
  return communicator.join(id, static_cast<int>(me - ranks.begin()), static_cast<int>(ranks.size()),
                           pause);
}

Status NcclLinks::start(const NcclOperation& operation, void* data, cudaStream_t stream,
                        const NcclPause& pause) {
  if (operation.kind != NcclOperation::Kind::kCollective) {
    return message(operation, data, stream, pause);
  }
  if (operation.collective == Collective::kReduceScatter) {
    return scatter(operation, static_cast<char*>(data), stream, pause);
  }
  if (operation.collective == Collective::kAllGather) {
    return gather(operation, static_cast<char*>(data), stream, pause);
  }
  if (operation.collective == Collective::kAllToAll) {
    return all_to_all(operation, static_cast<char*>(data), stream, pause);
  }
  if (operation.flow != nullptr) {
    return start_flow(*operation.flow, operation.group->all, operation.buffer, data, scratch_,
                      stream, pause);
  }
  // NCCL has rings and trees of its own, but cannot be asked for one of them by operation.
  const bool two_levels =
      operation.algorithm == AllReduce::kHierarchical && operation.group->two_levels;
  return two_levels ? hierarchical(operation, data, stream, pause)
                    : ring(operation, data, stream, pause);
}

// Exchanges a message. In the communicator of a pair, the sender is rank 0 and the receiver rank 1.
Status NcclLinks::message(const NcclOperation& operation, void* data, cudaStream_t stream,
                          const NcclPause& pause) {
  const std::size_t bytes = operation.buffer.bytes;
  if (operation.kind == NcclOperation::Kind::kSend) {
    AGPCS_RETURN_IF_ERROR(connect(meeting_.rank(), operation.peer, pause));
    const NcclCommunicator& pair = pairs_[operation.peer];
    return pair.settle(ncclSend(data, bytes, ncclChar, 1, pair.get(), stream), "ncclSend", pause);
  }
  AGPCS_RETURN_IF_ERROR(connect(operation.peer, meeting_.rank(), pause));
  const NcclCommunicator& pair = pairs_[operation.peer];
  return pair.settle(ncclRecv(data, bytes, ncclChar, 0, pair.get(), stream), "ncclRecv", pause);
}

Status NcclLinks::ring(const NcclOperation& operation, void* data, cudaStream_t stream,
                       const NcclPause& pause) {
  const NcclCommunicator& all = operation.group->all;
  const DType type = operation.buffer.type;
  const std::size_t count = operation.buffer.bytes / size_of(type);
  return all.settle(ncclAllReduce(data, data, count, nccl_type(type), ncclSum, all.get(), stream),
                    "ncclAllReduce", pause);
}

// Sums inside each host to its first member, then between these, and sends the sum back. A
// member alone on its host has only the second part. Each part is on the stream before the next
// one is requested.
Status NcclLinks::hierarchical(const NcclOperation& operation, void* data, cudaStream_t stream,
                               const NcclPause& pause) {
  const NcclCommunicator& host = operation.group->host;
  const NcclCommunicator& leaders = operation.group->leaders;
  const ncclDataType_t type = nccl_type(operation.buffer.type);
  const std::size_t count = operation.buffer.bytes / size_of(operation.buffer.type);
  if (host.open()) {
    AGPCS_RETURN_IF_ERROR(host.settle(
        ncclReduce(data, data, count, type, ncclSum, 0, host.get(), stream), "ncclReduce", pause));
  }
  if (leaders.open()) {
    AGPCS_RETURN_IF_ERROR(
        leaders.settle(ncclAllReduce(data, data, count, type, ncclSum, leaders.get(), stream),
                       "ncclAllReduce", pause));
  }
  if (!host.open()) return {};
  return host.settle(ncclBroadcast(data, data, count, type, 0, host.get(), stream), "ncclBroadcast",
                     pause);
}

// NCCL scatters equal parts. Others are sums that end where their part belongs, as one group.
Status NcclLinks::scatter(const NcclOperation& operation, char* data, cudaStream_t stream,
                          const NcclPause& pause) {
  const NcclCommunicator& all = operation.group->all;
  const ncclDataType_t type = nccl_type(operation.buffer.type);
  const std::size_t width = size_of(operation.buffer.type);
  const Parts& parts = *operation.parts;
  if (equal(parts)) {
    const auto count = static_cast<std::size_t>(parts[0]);
    return all.settle(ncclReduceScatter(data, data + operation.group->ranks.me * count * width,
                                        count, type, ncclSum, all.get(), stream),
                      "ncclReduceScatter", pause);
  }
  return all.group(pause, [&](const auto& note) {
    for_each_part(parts, [&](int owner, std::size_t first, std::size_t count) {
      char* const part = data + first * width;
      note(ncclReduce(part, part, count, type, ncclSum, owner, all.get(), stream));
    });
  });
}

// NCCL gathers equal parts. Others are broadcasts by those to whom they belong, as one group. Bytes
// are moved, whatever they mean.
Status NcclLinks::gather(const NcclOperation& operation, char* data, cudaStream_t stream,
                         const NcclPause& pause) {
  const NcclCommunicator& all = operation.group->all;
  const std::size_t width = size_of(operation.buffer.type);
  const Parts& parts = *operation.parts;
  if (equal(parts)) {
    const std::size_t bytes = static_cast<std::size_t>(parts[0]) * width;
    return all.settle(ncclAllGather(data + operation.group->ranks.me * bytes, data, bytes, ncclChar,
                                    all.get(), stream),
                      "ncclAllGather", pause);
  }
  return all.group(pause, [&](const auto& note) {
    for_each_part(parts, [&](int owner, std::size_t first, std::size_t count) {
      char* const part = data + first * width;
      note(ncclBroadcast(part, part, count * width, ncclChar, owner, all.get(), stream));
    });
  });
}

// As one group, so that no message waits for another one. Bytes are moved, whatever they mean.
Status NcclLinks::all_to_all(const NcclOperation& operation, char* data, cudaStream_t stream,
                             const NcclPause& pause) {
  const NcclCommunicator& all = operation.group->all;
  const std::size_t width = size_of(operation.buffer.type);
  const auto ranks = static_cast<int>(operation.group->ranks.ranks.size());
  return all.group(pause, [&](const auto& note) {
    for_each_part(*operation.parts, [&](int part, std::size_t first, std::size_t count) {
      char* const at = data + first * width;
      note(part < ranks ? ncclSend(at, count * width, ncclChar, part, all.get(), stream)
                        : ncclRecv(at, count * width, ncclChar, part - ranks, all.get(), stream));
    });
  });
}

Status NcclLinks::health() const {
  for (const auto& [peer, pair] : pairs_) AGPCS_RETURN_IF_ERROR(pair.health());
  for (const NcclGroup* group : groups_) {
    AGPCS_RETURN_IF_ERROR(group->all.health());
    AGPCS_RETURN_IF_ERROR(group->host.health());
    AGPCS_RETURN_IF_ERROR(group->leaders.health());
  }
  return {};
}

void NcclLinks::each(const std::function<void(NcclCommunicator&)>& what) {
  for (auto& [peer, pair] : pairs_) what(pair);
  for (NcclGroup* group : groups_) {
    what(group->all);
    what(group->host);
    what(group->leaders);
  }
}

void NcclLinks::close(const NcclPause& pause) {
  // All communicators end at once, since each may have to wait for other ranks.
  std::vector<std::pair<NcclCommunicator*, ncclResult_t>> ending;
  each([&](NcclCommunicator& communicator) {
    if (communicator.open()) ending.emplace_back(&communicator, communicator.finalize());
  });
  for (const auto& [communicator, result] : ending) {
    if (communicator->settle(result, "ncclCommFinalize", pause).ok()) {
      communicator->destroy();
    } else {
      communicator->abort();
    }
  }
}

void NcclLinks::abort() {
  each([](NcclCommunicator& communicator) { communicator.abort(); });
}

}  // namespace agpcs
