// SPDX-License-Identifier: Apache-2.0
#include "planner/refine/dqn.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace agpcs {

constexpr double kMostCommunication = 1;

double reward_of(const Outcome& outcome, double lambda) {
  const double throughput = outcome.cost >= kBroken ? 0 : 1 / outcome.cost;
  return throughput - lambda * std::min(outcome.communication, kMostCommunication);
}

std::string print_search_log(std::span<const EpisodeLog> log) {
  std::string text = "episode,epsilon,loss,reward,best_cost\n";
  for (const EpisodeLog& line : log) {
    fmt::format_to(std::back_inserter(text), "{},{:.6g},{:.6g},{:.6g},{:.6g}\n", line.episode,
                   line.epsilon, line.loss, line.reward, line.best_cost);
  }
  return text;
}

}  // namespace agpcs
