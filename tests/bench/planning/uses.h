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
#include <string_view>

namespace agpcs::bench {

/// Returns, say, "3 recompute (2 all, 1 5/8)": `stages` by how many of their segments do.
inline std::string by_segments(const std::map<Recomputation, int>& stages, std::string_view what) {
  int count = 0;
  std::string ways;
  for (const auto& [recomputation, of_them] : stages) {
    const int segments = recomputation.segments;
    count += of_them;
    ways += ways.empty() ? " (" : ", ";
    ways += segments == 1
                ? fmt::format("{} all", of_them)
                : fmt::format("{} {}/{}", of_them, segments - recomputation.kept, segments);
  }
  return fmt::format("{} {}{}", count, what, ways + (ways.empty() ? "" : ")"));
}

/// Returns, say, "4 stages, 8 devices, 1 divides, 3 recompute (2 all, 1 5/8), 32 1f1b".
inline std::string uses(const Strategy& strategy) {
  std::size_t divides = 0, fills = 0, gathers = 0, devices = 0, in_host = 0;
  bool departs = false;
  std::map<Recomputation, int> recompute, moved;  // stages
  const auto round = static_cast<std::size_t>(round_size(strategy));
  for (std::size_t s = 0; s < strategy.stages.size(); ++s) {
    const StageSpec& spec = strategy.stages[s];
    divides += spec.state != StateLevel::kWhole ? 1 : 0;
    fills += spec.state >= StateLevel::kGradients ? 1 : 0;
    gathers += spec.state == StateLevel::kParameters ? 1 : 0;
    devices += s < round ? spec.devices.size() : 0;  // they come again
    departs = departs || spec.in_flight;
    in_host += spec.state_in_host ? 1 : 0;
    if (spec.recompute && spec.recompute.again) ++recompute[spec.recompute];
    if (spec.recompute.in_host) ++moved[spec.recompute];
  }
  const std::string parameters = gathers > 0 ? fmt::format(", {} parameters", gathers) : "";
  const std::string gradients =
      fills > 0 ? fmt::format(" ({} gradients{})", fills, parameters) : "";
  std::string text = fmt::format("{} stages, {} devices, {} divide{}, {}", strategy.stages.size(),
                                 devices, divides, gradients, by_segments(recompute, "recompute"));
  if (!moved.empty()) text += ", " + by_segments(moved, "with activations in hosts' memory");
  if (in_host > 0) text += fmt::format(", {} with state in hosts' memory", in_host);
  text += fmt::format(", {} {}", strategy.micro_batches, name_of(strategy.schedule));
  if (departs) text += fmt::format(", in flight {}", fmt::join(in_flight_by_stage(strategy), " "));
  return text;
}

}  // namespace agpcs::bench
