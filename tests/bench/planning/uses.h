// SPDX-License-Identifier: Apache-2.0
// What a plan uses of the space of plans, in a line of a table.
#pragma once

#include "ir/strategy/interleaved.h"
#include "ir/strategy/strategy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstddef>
#include <map>
#include <string>

namespace agpcs::bench {

/// Returns, say, "4 stages, 8 devices, 1 divides, 3 recompute (2 all, 1 5/8), 32 1f1b".
inline std::string uses(const Strategy& strategy) {
  std::size_t divides = 0, fills = 0, gathers = 0, recompute = 0, devices = 0, in_host = 0;
  bool departs = false;
  std::map<Recomputation, int> how;
  const auto round = static_cast<std::size_t>(round_size(strategy));
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    divides += spec.state != StateLevel::kWhole ? 1 : 0;
    fills += spec.state >= StateLevel::kGradients ? 1 : 0;
    gathers += spec.state == StateLevel::kParameters ? 1 : 0;
    devices += s < round ? spec.devices.size() : 0;  // they come again
    departs = departs || spec.in_flight;
    in_host += spec.state_in_host ? 1 : 0;
    if (!spec.recompute) continue;
    ++recompute;
    ++how[spec.recompute];
  }
  const std::string parameters = gathers > 0 ? fmt::format(", {} parameters", gathers) : "";
  const std::string gradients =
      fills > 0 ? fmt::format(" ({} gradients{})", fills, parameters) : "";
  std::string text = fmt::format("{} stages, {} devices, {} divide{}, {} recompute",
                                 strategy.stages.size(), devices, divides, gradients, recompute);
  std::string ways;
  for (const auto& [recomputation, stages] : how) {
    const int again = recomputation.segments - recomputation.kept;
    ways += ways.empty() ? " (" : ", ";
    ways += recomputation == kWholeStage
                ? fmt::format("{} all", stages)
                : fmt::format("{} {}/{}", stages, again, recomputation.segments);
  }
  text += ways + (ways.empty() ? "" : ")");
  if (in_host > 0) text += fmt::format(", {} with state in hosts' memory", in_host);
  text += fmt::format(", {} {}", strategy.micro_batches, name_of(strategy.schedule));
  if (departs) text += fmt::format(", in flight {}", fmt::join(in_flight_by_stage(strategy), " "));
  return text;
}

}  // namespace agpcs::bench
