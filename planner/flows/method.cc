// SPDX-License-Identifier: Apache-2.0
#include "planner/flows/method.h"

#include "ir/base/diagnostics.h"
#include "planner/flows/methods.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace agpcs {
namespace {

constexpr FlowMethod kMethods[] = {
    {"parameter_server", "every server reduces its chunk, over shortest-path trees with merge",
     schedule_parameter_server},
    {"ring", "the ring of all servers by number", schedule_ring},
    {"hamiltonian", "a ring of hops that share no link, where one is found", schedule_hamiltonian},
    {"greedy", "rarest sub-chunk first, the best of some draws", schedule_greedy},
    {"trees", "spanning trees packed by max-flow, critical messages first", schedule_trees},
    {"policy", "two trained policies on balanced flow trees, in one go", schedule_policy},
    {"search", "rings that share no link, then packing towards the proven bound", schedule_search},
};

}  // namespace

std::span<const FlowMethod> flow_methods() { return kMethods; }

Result<const FlowMethod*> find_flow_method(std::string_view name) {
  std::vector<std::string> names;
  for (const FlowMethod& method : kMethods) {
    if (method.name == name) return &method;
    names.emplace_back(method.name);
  }
  return Status(StatusCode::kUsage, fmt::format("unknown method '{}'\n  hint: {}", name,
                                                did_you_mean(name, names, "methods")));
}

}  // namespace agpcs
