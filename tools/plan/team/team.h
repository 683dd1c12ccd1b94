// SPDX-License-Identifier: Apache-2.0
// `agpcs-plan splits --members`: how one team would divide a model.
#pragma once

#include "ir/graph/graph.h"
#include "planner/team/choose.h"

#include <agpcs/status.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace agpcs {

/// The options of the question, as they stand on the command line.
struct TeamOptions {
  std::string members;  ///< "5:3"
  std::string accelerator =
      "A100-SXM4-80GB";                   ///< of the catalog: the member with the greatest part
  std::string network = "nvswitch-a100";  ///< of the catalog: between members
  std::string precision = "fp32";
  std::int64_t samples = 1, micro_batches = 1;
};

/// What a member has.
struct TeamMember {
  std::int64_t part = 0;
  std::int64_t parameters = 0;  ///< elements
  double flops = 0;             ///< forward and backward, of a micro-batch
};

struct TeamAnswer {
  TeamOptions options;
  TeamChoice choice;
  TeamSeconds seconds;
  std::size_t fastest = 0;   ///< the member with the greatest part
  double alone_seconds = 0;  ///< of a micro-batch, on that member alone
  double flops = 0;          ///< of the whole model, of a micro-batch
  Precision precision = Precision::kFp32;
  std::vector<TeamMember> members;
};

/// Chooses how the team divides all operators of `graph`. Members are as fast as their parts say;
/// the fastest has the catalog's figures. Errors (kUsage): options that are none.
Result<TeamAnswer> ask_team(const Graph& graph, const TeamOptions& options);

std::string team_text(const Graph& graph, const TeamAnswer& answer);
std::string team_json(const Graph& graph, const TeamAnswer& answer);

}  // namespace agpcs
