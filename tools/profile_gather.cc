// SPDX-License-Identifier: Apache-2.0
#include "tools/profile_gather.h"

#include "frontend/profile_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <utility>

namespace agpcs {
namespace {

constexpr std::uint64_t kTag = 1;

Buffer bytes_of(void* data, std::size_t bytes) { return {data, bytes, DType::kUint8, false}; }

// A text as its length and its bytes: messages have the same length at both ends.
Status send_text(std::string text, Transport& transport, std::chrono::milliseconds limit) {
  std::uint64_t length = text.size();
  AGPCS_RETURN_IF_ERROR(transport.send(bytes_of(&length, sizeof length), 0, kTag).status());
  AGPCS_TRY(const Ticket last, transport.send(bytes_of(text.data(), text.size()), 0, kTag));
  return transport.wait(Stream::kSend, last, limit);
}

Result<std::string> receive_text(int from, Transport& transport, std::chrono::milliseconds limit) {
  std::uint64_t length = 0;
  AGPCS_TRY(const Ticket first, transport.recv(bytes_of(&length, sizeof length), from, kTag));
  AGPCS_RETURN_IF_ERROR(transport.wait(Stream::kRecv, first, limit));
  std::string text(length, '\0');
  AGPCS_TRY(const Ticket second, transport.recv(bytes_of(text.data(), length), from, kTag));
  AGPCS_RETURN_IF_ERROR(transport.wait(Stream::kRecv, second, limit));
  return text;
}

Profile profile_of(DeviceProfile device) {
  Profile profile;
  profile.devices.push_back(std::move(device));
  seal_profile(profile);
  return profile;
}

}  // namespace

Result<double> largest_of(Bootstrap& bootstrap, const std::string& name, double mine,
                          std::chrono::milliseconds limit) {
  const auto key = [&](int rank) { return fmt::format("profile/{}/{}", name, rank); };
  AGPCS_RETURN_IF_ERROR(bootstrap.set(key(bootstrap.rank()), fmt::format("{}", mine)));
  double largest = mine;
  for (int rank = 0; rank < bootstrap.size(); ++rank) {
    AGPCS_TRY(const std::string text, bootstrap.get(key(rank), limit));
    largest = std::max(largest, std::strtod(text.c_str(), nullptr));
  }
  return largest;
}

Result<std::vector<DeviceProfile>> gather(const DeviceProfile& mine, Transport& transport,
                                          std::chrono::milliseconds limit) {
  std::vector<DeviceProfile> all;
  if (transport.rank() != 0) {
    AGPCS_RETURN_IF_ERROR(send_text(print_profile(profile_of(mine)), transport, limit));
    return all;
  }
  all.push_back(mine);
  for (int rank = 1; rank < transport.size(); ++rank) {
    AGPCS_TRY(const std::string text, receive_text(rank, transport, limit));
    AGPCS_TRY(Profile profile, parse_profile(text, fmt::format("profile of rank {}", rank)));
    all.push_back(std::move(profile.devices.front()));
  }
  return all;
}

Result<Profile> merge_devices(std::vector<DeviceProfile> devices) {
  std::map<std::string, std::vector<Profile>> kinds;
  for (DeviceProfile& device : devices) {
    const std::string name = device.name;
    kinds[name].push_back(profile_of(std::move(device)));
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
