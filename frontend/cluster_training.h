// SPDX-License-Identifier: Apache-2.0
// The `training:` section of cluster.yaml.
#pragma once

#include "ir/diagnostics.h"

#include <agpcs/plan.h>

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

namespace agpcs {

/// What a peak can be given for, and a step computed in.
const std::vector<std::string>& precisions();

/// Reads the section with its defaults; `batch` stays 0 when the file does not say (--batch does).
Training read_training(const YAML::Node& node, Diagnostics& diagnostics);

}  // namespace agpcs
