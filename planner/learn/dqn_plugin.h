// SPDX-License-Identifier: Apache-2.0
// Loads the trainer only when it is asked for. LibTorch takes most of a second to load, so a
// command that trains nothing does not load it.
#pragma once

#include "planner/learn/dqn_trainer.h"
#include "planner/learn/flow_trainer.h"

#include <agpcs/status.h>

#include <cstdint>
#include <memory>
#include <string>

namespace agpcs {

/// Calls `make_dqn_trainer` of libagpcs_dqn.so. It looks for the library in the folders of
/// AGPCS_PLUGIN_PATH (a:b), then beside the program, then in ../lib/agpcs from there. The library
/// stays loaded. Errors (kUnavailable): it is in none of them, it cannot be loaded, it belongs to
/// another build of AGPCS.
Result<std::unique_ptr<DqnTrainer>> load_dqn_trainer(const DqnOptions& options,
                                                     const QNetwork* start, std::uint64_t seed);

/// Calls `make_flow_trainer` of that library likewise.
Result<std::unique_ptr<FlowTrainer>> load_flow_trainer(const FlowTrainingOptions& options,
                                                       const FlowPolicy* start, std::uint64_t seed);

/// Returns a text that program and plugin compare: they exchange C++ objects, so both must belong
/// to one build.
std::string dqn_plugin_abi();

/// The plugin's functions return null if `abi` is not the plugin's own.
inline constexpr char kDqnPluginFactory[] = "agpcs_dqn_trainer";
using DqnPluginFactory = DqnTrainer* (*)(const char* abi, const DqnOptions* options,
                                         const QNetwork* start, std::uint64_t seed);
inline constexpr char kFlowPluginFactory[] = "agpcs_flow_trainer";
using FlowPluginFactory = FlowTrainer* (*)(const char* abi, const FlowTrainingOptions* options,
                                           const FlowPolicy* start, std::uint64_t seed);

}  // namespace agpcs
