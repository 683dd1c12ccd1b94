// SPDX-License-Identifier: Apache-2.0
#include "ir/plan/lookup.h"

#include <algorithm>
#include <cstddef>

namespace agpcs {

bool has_gradient(const Cut& cut) {
  return std::any_of(cut.tensors.begin(), cut.tensors.end(),
                     [](const CutTensor& tensor) { return tensor.gradient; });
}

std::vector<std::string> devices_of_ranks(const Plan& plan) {
  std::vector<std::string> devices(static_cast<std::size_t>(plan.rank_count()));
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      const auto rank = static_cast<std::size_t>(stage.ranks[i]);
      if (rank < devices.size() && i < stage.devices.size()) devices[rank] = stage.devices[i];
    }
  }
  return devices;
}

const Expectation* find_expectation(const Plan& plan, std::string_view name) {
  const auto found =
      std::find_if(plan.expect.begin(), plan.expect.end(),
                   [&](const Expectation& expectation) { return expectation.name == name; });
  return found == plan.expect.end() ? nullptr : &*found;
}

double expected(const Plan& plan, std::string_view name) {
  const Expectation* found = find_expectation(plan, name);
  return found == nullptr ? 0 : found->value;
}

int world_group(const Plan& plan) { return static_cast<int>(plan.stages.size()); }

std::string device_of_rank(const Plan& plan, int rank) {
  for (const PlanStage& stage : plan.stages) {
    for (std::size_t i = 0; i < stage.ranks.size(); ++i) {
      if (stage.ranks[i] == rank) return stage.devices[i];
    }
  }
  return {};
}

std::vector<int> hosts_of_ranks(const Plan& plan) {
  std::vector<std::string> names;
  std::vector<int> hosts;
  for (const std::string& device : devices_of_ranks(plan)) {
    const std::string host = device.substr(0, device.rfind('/'));
    const auto it = std::find(names.begin(), names.end(), host);
    hosts.push_back(static_cast<int>(it - names.begin()));
    if (it == names.end()) names.push_back(host);
  }
  return hosts;
}

}  // namespace agpcs
