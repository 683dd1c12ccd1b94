// SPDX-License-Identifier: Apache-2.0
// Reads the `training:` section of cluster.yaml.
#pragma once

#include "ir/base/diagnostics.h"

#include <agpcs/training.h>

#include <yaml-cpp/yaml.h>

namespace agpcs {

/// Reads the section with its defaults. `batch` stays 0 if the file gives none; --batch then gives
/// it.
Training read_training(const YAML::Node& node, Diagnostics& diagnostics);

}  // namespace agpcs
