// SPDX-License-Identifier: Apache-2.0
// The functions that libagpcs_dqn.so exports (dqn_plugin.h).
#include "planner/learn/dqn_plugin.h"

extern "C" __attribute__((visibility("default"))) agpcs::DqnTrainer* agpcs_dqn_trainer(
    const char* abi, const agpcs::DqnOptions* options, const agpcs::QNetwork* start,
    std::uint64_t seed) {
  if (agpcs::dqn_plugin_abi() != abi) return nullptr;
  return agpcs::make_dqn_trainer(*options, start, seed).release();
}

extern "C" __attribute__((visibility("default"))) agpcs::FlowTrainer* agpcs_flow_trainer(
    const char* abi, const agpcs::FlowTrainingOptions* options, const agpcs::FlowPolicy* start,
    std::uint64_t seed) {
  if (agpcs::dqn_plugin_abi() != abi) return nullptr;
  return agpcs::make_flow_trainer(*options, start, seed).release();
}
