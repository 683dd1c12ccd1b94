// SPDX-License-Identifier: Apache-2.0
#include "runtime/nccl/meeting.h"

#include "runtime/nccl/status.h"

#include <fmt/format.h>

#include <cstring>

namespace agpcs {
namespace {

using std::chrono::milliseconds;

// A wait for an identifier checks at this interval whether it still makes sense.
constexpr milliseconds kSlice{50};
// A lost connection is often only a consequence; the notice of its cause is worth a short wait.
constexpr milliseconds kNoticeLimit{1000};

std::string left_key(int rank) { return fmt::format("nccl/left/{}", rank); }

}  // namespace

Status NcclMeeting::agree_on_version(milliseconds limit) {
  int version = 0;
  AGPCS_RETURN_IF_ERROR(nccl_status(ncclGetVersion(&version), nullptr, "ncclGetVersion"));
  const std::string own = nccl_version_text(version);
  if (rank() == 0) return bootstrap_.set("nccl/version", own);
  AGPCS_TRY(const std::string theirs, bootstrap_.get("nccl/version", limit));
  if (own == theirs) return {};
  return {StatusCode::kUnavailable,
          fmt::format("rank {} has NCCL {}, rank 0 has {}\n  hint: install one version everywhere",
                      rank(), own, theirs)};
}

Result<ncclUniqueId> NcclMeeting::identifier(const std::string& name, bool first,
                                             const NcclPause& pause) {
  const std::string key = "nccl/id/" + name;
  ncclUniqueId id{};
  if (first) {
    AGPCS_RETURN_IF_ERROR(nccl_status(ncclGetUniqueId(&id), nullptr, "ncclGetUniqueId"));
    AGPCS_RETURN_IF_ERROR(bootstrap_.set(key, std::string(id.internal, sizeof id.internal)));
    return id;
  }
  while (true) {
    const auto value = bootstrap_.get(key, kSlice);
    if (value.ok() && value->size() != sizeof id.internal) {
      return internal_error(
          fmt::format("{} has {} bytes, not {}", key, value->size(), sizeof id.internal));
    }
    if (value.ok()) {
      std::memcpy(id.internal, value->data(), sizeof id.internal);
      return id;
    }
    if (value.status().code() != StatusCode::kTimeout) return value.status();
    AGPCS_RETURN_IF_ERROR(pause());
  }
}

void NcclMeeting::leave() {
  // If the bootstrap cannot pass this on, it notices by itself that the rank is gone.
  [[maybe_unused]] const Status told = bootstrap_.set(left_key(rank()), "");
}

int NcclMeeting::gone(std::span<const int> ranks) {
  for (const int other : ranks) {
    if (other != rank() && bootstrap_.get(left_key(other), milliseconds(0)).ok()) return other;
  }
  return -1;
}

Status NcclMeeting::first_cause(const Status& failure) {
  if (failure.code() != StatusCode::kPeerFailed) return failure;
  const Status job = bootstrap_.wait_for_failure(kNoticeLimit);
  return job.ok() ? failure : job;
}

}  // namespace agpcs
