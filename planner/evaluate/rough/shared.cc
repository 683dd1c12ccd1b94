// SPDX-License-Identifier: Apache-2.0
// The part of a rough step that sums the gradients of parameters that stages share.
#include "ir/base/at.h"
#include "planner/evaluate/evaluator_buckets.h"
#include "planner/evaluate/rough/step.h"

#include <algorithm>
#include <map>
#include <set>
#include <vector>

namespace agpcs {
namespace {

/// Adds to the figures of `sum` that take time `factor` times those of `other`.
void add(const GradientSum& other, int factor, GradientSum& sum) {
  sum.bytes += factor * other.bytes;
  sum.elements += factor * other.elements;
  sum.tensors += factor * other.tensors;
}

}  // namespace

bool RoughModel::is_shared(const Tied& tied) const {
  return std::any_of(tied.blocks.begin(), tied.blocks.end(), [&](int block) {
    return stage_of_block_[at(block)] != stage_of_block_[at(tied.first)];
  });
}

/// Takes the gradients that stages share out of those of the blocks. Returns them by these stages.
std::map<std::vector<int>, GradientSum> RoughModel::take_shared() {
  std::map<std::vector<int>, GradientSum> shared;
  taken_.clear();
  for (const Tied& tied : tied_) {
    if (!is_shared(tied)) continue;
    std::set<int> stages;
    for (const int block : tied.blocks) stages.insert(stage_of_block_[at(block)]);
    add(tied.gradients, 1, shared[{stages.begin(), stages.end()}]);
    add(tied.gradients, -1, gradients_[at(tied.first)]);
    taken_.push_back(stage_of_block_[at(tied.first)]);
  }
  return shared;
}

void RoughModel::give_back_shared() {
  for (const Tied& tied : tied_) {
    if (is_shared(tied)) add(tied.gradients, 1, gradients_[at(tied.first)]);
  }
}

double RoughModel::most_update(const std::vector<DeviceId>& devices, const GradientSum& gradients,
                               bool in_host) const {
  double most = 0;
  for (const DeviceId device : devices) {
    const int kind = problem_.cluster.devices[at(device)].kind;
    most = std::max(
        most, problem_.costs.update_seconds(kind, gradients.elements, gradients.tensors, in_host));
  }
  return most;
}

/// Returns when what stages share is summed and updated, if the sums begin at `begin`.
double RoughModel::reduce_shared(const Strategy& strategy,
                                 const std::map<std::vector<int>, GradientSum>& shared,
                                 double begin) {
  double update = 0;
  for (const auto& [stages, gradients] : shared) {
    std::vector<DeviceId> devices;
    write_devices(strategy, stages, devices);
    const auto bytes = static_cast<double>(gradients.bytes);
    const double own = reduce_line(devices).at(bytes);
    begin += own;
    double most = 0;  // each stage has its own copy of the state
    for (const int stage : stages) {
      const StageSpec& spec = strategy.stages[at(stage)];
      most = std::max(most, most_update(spec.devices, gradients, spec.state_in_host));
    }
    update += most;
    load_ring(devices, bytes, own);
  }
  return begin + update;
}

}  // namespace agpcs
