// SPDX-License-Identifier: Apache-2.0
#include "tools/profile/fits.h"

#include <algorithm>
#include <utility>

namespace agpcs {
namespace {

bool crossed(const Link& link, const Profile& profile) {
  return std::any_of(profile.paths.begin(), profile.paths.end(), [&](const MeasuredPath& path) {
    return std::find(path.links.begin(), path.links.end(), link.name) != path.links.end();
  });
}

}  // namespace

Result<Calibrated> fit_profile(Cluster cluster, const Profile& profile) {
  cluster.profiles = {profile};
  for (DeviceKind& kind : cluster.kinds) {
    const bool measured = profile.find_device(kind.name) != nullptr;
    kind.profile = measured ? ProfileRef{0, kind.name} : ProfileRef{};
  }
  for (Link& link : cluster.links) {
    link.profile = crossed(link, profile) ? ProfileRef{0, link.name} : ProfileRef{};
  }
  cluster.collectives_profile = ProfileRef{profile.collectives.empty() ? -1 : 0, ""};
  return calibrate(std::move(cluster));
}

Result<Calibrated> fit_devices(const Profile& profile) {
  Cluster cluster;
  for (const DeviceProfile& device : profile.devices) {
    cluster.kinds.emplace_back().name = device.name;
  }
  Profile devices = profile;
  devices.paths.clear();
  devices.collectives.clear();
  return fit_profile(std::move(cluster), devices);
}

}  // namespace agpcs
