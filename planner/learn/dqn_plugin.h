// SPDX-License-Identifier: Apache-2.0
// Loads the trainer when it is asked for: a command that trains nothing does not load LibTorch,
// which takes most of a second.
#pragma once

#include "planner/dqn_trainer.h"
#include "planner/flow_trainer.h"

#include <agpcs/status.h>

#include <cstdint>
#include <memory>
#include <string>

namespace agpcs {

/// `make_dqn_trainer` of libagpcs_dqn.so: in a folder of AGPCS_PLUGIN_PATH (a:b), beside the
/// program, or in ../lib/agpcs from there, whichever has it first. It stays loaded.
/// Errors (kUnavailable): in none of them, not loadable, of another build of AGPCS.
Result<std::unique_ptr<DqnTrainer>> load_dqn_trainer(const DqnOptions& options,
                                                     const QNetwork* start, std::uint64_t seed);

/// The same of `make_flow_trainer`.
Result<std::unique_ptr<FlowTrainer>> load_flow_trainer(const FlowTrainingOptions& options,
                                                       const FlowPolicy* start, std::uint64_t seed);

/// Program and plugin exchange C++ objects, so they are of one build: they compare this text.
std::string dqn_plugin_abi();

/// The plugin's functions. Null where `abi` is not the plugin's own.
inline constexpr char kDqnPluginFactory[] = "agpcs_dqn_trainer";
using DqnPluginFactory = DqnTrainer* (*)(const char* abi, const DqnOptions* options,
                                         const QNetwork* start, std::uint64_t seed);
inline constexpr char kFlowPluginFactory[] = "agpcs_flow_trainer";
using FlowPluginFactory = FlowTrainer* (*)(const char* abi, const FlowTrainingOptions* options,
                                           const FlowPolicy* start, std::uint64_t seed);

}  // namespace agpcs
