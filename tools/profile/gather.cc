// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/gather.h"

#include "frontend/cluster/profile_file.h"
#include "runtime/support/withdraw.h"
#include "tools/profile/network/team.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace agpcs {
namespace {

constexpr std::uint64_t kTag = 1;

Buffer bytes_of(void* data, std::size_t bytes) { return {data, bytes, DType::kUint8, false}; }

Profile profile_of(DeviceProfile device) {
  Profile profile;
  profile.devices.push_back(std::move(device));
  seal_profile(profile);
  return profile;
}

// A text as its length and its bytes, so that messages have the same length at both ends.
struct Message {
  std::string text;
  std::uint64_t length = 0;
};

Status send_text(Message& message, Transport& transport, std::chrono::milliseconds limit) {
  message.length = message.text.size();
  AGPCS_RETURN_IF_ERROR(
      transport.send(bytes_of(&message.length, sizeof message.length), 0, kTag).status());
  AGPCS_TRY(const Ticket last,
            transport.send(bytes_of(message.text.data(), message.text.size()), 0, kTag));
  return transport.wait(Stream::kSend, last, limit);
}

Status receive_text(int from, Message& message, Transport& transport,
                    std::chrono::milliseconds limit) {
  AGPCS_TRY(const Ticket first,
            transport.recv(bytes_of(&message.length, sizeof message.length), from, kTag));
  AGPCS_RETURN_IF_ERROR(transport.wait(Stream::kRecv, first, limit));
  message.text.assign(message.length, '\0');
  AGPCS_TRY(const Ticket second,
            transport.recv(bytes_of(message.text.data(), message.length), from, kTag));
  return transport.wait(Stream::kRecv, second, limit);
}

// Receives the profiles of the ranks from 1 on; the other ranks send theirs, `message`.
Status exchange(Message& message, Transport& transport, std::chrono::milliseconds limit,
                std::vector<DeviceProfile>& all) {
  if (transport.rank() != 0) return send_text(message, transport, limit);
  for (int rank = 1; rank < transport.size(); ++rank) {
    AGPCS_RETURN_IF_ERROR(receive_text(rank, message, transport, limit));
    AGPCS_TRY(Profile profile,
              parse_profile(message.text, fmt::format("profile of rank {}", rank)));
    all.push_back(std::move(profile.devices.front()));
  }
  return {};
}

}  // namespace

Result<std::vector<DeviceProfile>> gather(const DeviceProfile& mine, Transport& transport,
                                          std::chrono::milliseconds limit) {
  std::vector<DeviceProfile> all;
  Message message;
  if (transport.rank() == 0) {
    all.push_back(mine);
  } else {
    message.text = print_profile(profile_of(mine));
  }
  const Status status = exchange(message, transport, limit, all);
  if (status.ok()) return all;
  return withdraw(transport, status, limit);  // `message` may still be in use
}

Result<Profile> merge_devices(std::vector<DeviceProfile> devices) {
  std::map<std::string, std::vector<Profile>> kinds;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const std::string name = devices[rank].name;
    kinds[name].push_back(profile_of(std::move(devices[rank])));
    kinds[name].back().file = fmt::format("rank {}", rank);
  }
  Profile all;
  seal_profile(all);
  for (auto& [name, profiles] : kinds) {
    while (profiles.size() > 1) {
      std::vector<Profile> merged;
      for (std::size_t i = 0; i + 1 < profiles.size(); i += 2) {
        AGPCS_TRY(Profile pair, merge_profiles(std::move(profiles[i]), profiles[i + 1]));
        merged.push_back(std::move(pair));
      }
      if (profiles.size() % 2 == 1) merged.push_back(std::move(profiles.back()));
      profiles = std::move(merged);
    }
    AGPCS_TRY(all, merge_profiles(std::move(all), profiles.front()));
  }
  return all;
}

}  // namespace agpcs
