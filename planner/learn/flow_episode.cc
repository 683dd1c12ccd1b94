// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/flow_episode.h"

#include "ir/base/at.h"
#include "ir/base/check.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>

namespace agpcs {
namespace {

constexpr double kDoneReward = 10;       // in (4)
constexpr double kSelectedWeight = 0.1;  // in (3)

/// Returns the log of 1 / (1 + exp(-value)).
double log_sigmoid(double value) {
  return value >= 0 ? -std::log1p(std::exp(-value)) : value - std::log1p(std::exp(value));
}

/// Returns the log of the sum of exp(value) over the choices of a step.
template <typename Value>
double log_sum(std::span<const int> choices, const Value& value) {
  double most = value(choices.front());
  for (const int c : choices) most = std::max(most, value(c));
  double sum = 0;
  for (const int c : choices) sum += std::exp(value(c) - most);
  return most + std::log(sum);
}

/// Draws one episode.
class Drawing {
 public:
  Drawing(const Topology& topology, const FlowForest& forest, FlowPhases phases,
          const FlowPolicy& policy, FlowLevel level, Rng rng)
      : environment_(topology, forest, phases),
        player_(policy),
        trees_(policy.trees),
        workloads_(policy.workloads),
        rng_(rng) {
    episode_.level = level;
    episode_.bound = std::ceil(environment_.rounds_left() - 1e-9);
    selected_.assign(forest.trees.size(), 1);
  }

  FlowEpisode run(const FlowRewards& rewards) {
    const bool by_trees = episode_.level == FlowLevel::kTrees;
    const double workloads = environment_.workloads(), trees = environment_.trees();
    while (!environment_.done()) {
      environment_.begin_round();
      const int selected = by_trees ? draw_trees() : 0;
      if (!by_trees) player_.select_trees(environment_, selected_);
      environment_.select(selected_);
      if (by_trees) player_.take_workloads(environment_);
      if (!by_trees) draw_workloads();
      environment_.fill_idle();
      const int sent = environment_.end_round();
      double reward = sent / workloads;  // (5) over all steps, and the first part of (3)
      if (by_trees) {
        reward += kSelectedWeight * selected / trees;
        reward += environment_.done() ? kDoneReward : -trees / workloads;  // (4)
      }
      episode_.rewards.push_back(reward);
    }
    episode_.rounds = environment_.round();
    episode_.last_reward = -rewards.rounds_weight * (episode_.rounds / episode_.bound - 1);
    return std::move(episode_);
  }

 private:
  int add_row(std::span<const float> features, double value) {
    episode_.rows.insert(episode_.rows.end(), features.begin(), features.end());
    values_.push_back(value);
    return static_cast<int>(values_.size()) - 1;
  }

  /// Draws trees and returns how many it selected.
  int draw_trees() {
    std::vector<float> rows;
    environment_.describe_trees(rows);
    std::vector<std::uint8_t> has_ready(selected_.size(), 0);
    for (const auto& job : environment_.ready()) has_ready[at(job.chunk)] = 1;
    std::fill(selected_.begin(), selected_.end(), std::uint8_t{0});
    int count = 0;
    for (std::size_t t = 0; t < selected_.size(); ++t) {
      if (has_ready[t] == 0) continue;
      const auto row = std::span(rows).subspan(t * kTreeFeatureCount, kTreeFeatureCount);
      const double value = trees_.value(row);
      const bool yes = std::log(1 - rng_.uniform()) < log_sigmoid(value);
      selected_[t] = yes ? 1 : 0;
      count += yes ? 1 : 0;
      const int index = add_row(row, value);
      episode_.steps.push_back({environment_.round(), static_cast<int>(episode_.choices.size()), 1,
                                yes ? 0 : -1, log_sigmoid(yes ? value : -value)});
      episode_.choices.push_back(index);
    }
    if (count == 0) std::fill(selected_.begin(), selected_.end(), std::uint8_t{1});
    return count;
  }

  void draw_workloads() {
    row_of_.assign(environment_.ready().size(), -1);
    const auto judge = [&](std::size_t i) {
      const auto features = environment_.features(i);
      row_of_[i] = add_row(features, workloads_.value(features));
    };
    std::vector<std::size_t> open;
    for (std::size_t i = 0; i < row_of_.size(); ++i) {
      if (!environment_.is_open(i)) continue;
      open.push_back(i);
      judge(i);
    }
    while (environment_.open() > 0) {
      std::erase_if(open, [&](std::size_t i) { return !environment_.is_open(i); });
      for (const int changed : environment_.take(open[draw(open)])) judge(at(changed));
    }
  }

  /// Draws one of `open`, books the step, and returns which it is.
  std::size_t draw(const std::vector<std::size_t>& open) {
    FlowEpisode::Step step = {environment_.round(), static_cast<int>(episode_.choices.size()),
                              static_cast<int>(open.size()), 0, 0};
    for (const std::size_t i : open) episode_.choices.push_back(row_of_[i]);
    const auto choices = std::span(episode_.choices).subspan(at(step.first), at(step.count));
    const auto value = [&](int row) { return values_[at(row)]; };
    const double all = log_sum(choices, value);
    double left = rng_.uniform();
    while (step.chosen + 1 < step.count) {
      left -= std::exp(value(choices[at(step.chosen)]) - all);
      if (left < 0) break;
      ++step.chosen;
    }
    step.chance = value(choices[at(step.chosen)]) - all;
    episode_.steps.push_back(step);
    return at(step.chosen);
  }

  FlowEnvironment environment_;
  FlowPlayer player_;
  FastPerceptron trees_, workloads_;
  Rng rng_;
  FlowEpisode episode_;
  std::vector<double> values_;  // by row
  std::vector<int> row_of_;     // by ready workload
  std::vector<std::uint8_t> selected_;
};

/// Returns the loss of a step, and its derivative by the log of the step's probability.
std::pair<double, double> clipped(double chance, double before, double advantage, double clip) {
  const double ratio = std::exp(std::clamp(chance - before, -20.0, 20.0));
  const bool flat = (advantage > 0 && ratio > 1 + clip) || (advantage < 0 && ratio < 1 - clip);
  const double bounded = std::clamp(ratio, 1 - clip, 1 + clip);
  const double loss = -std::min(ratio * advantage, bounded * advantage);
  return {loss, flat ? 0 : -ratio * advantage};
}

}  // namespace

FlowEpisode draw_episode(const Topology& topology, const FlowForest& forest, FlowPhases phases,
                         const FlowPolicy& policy, FlowLevel level, const FlowRewards& rewards,
                         Rng rng) {
  return Drawing(topology, forest, phases, policy, level, rng).run(rewards);
}

std::vector<std::vector<double>> advantages_of(std::span<const FlowEpisode> episodes,
                                               double discount) {
  std::vector<std::vector<double>> returns;
  std::vector<double> sums, counts;
  for (const FlowEpisode& episode : episodes) {
    std::vector<double>& from = returns.emplace_back(episode.rewards.size());
    double later = 0;
    for (std::size_t t = from.size(); t-- > 0;) {
      later = episode.rewards[t] + discount * later;
      from[t] = later + episode.last_reward;
    }
    sums.resize(std::max(sums.size(), from.size()), 0);
    counts.resize(sums.size(), 0);
    for (std::size_t t = 0; t < from.size(); ++t) {
      sums[t] += from[t];
      ++counts[t];
    }
  }
  double squares = 0, all = 0;
  for (std::vector<double>& from : returns) {
    for (std::size_t t = 0; t < from.size(); ++t) {
      from[t] = counts[t] > 1 ? (from[t] - sums[t] / counts[t]) : 0;
      squares += from[t] * from[t];
      ++all;
    }
  }
  const double deviation = std::sqrt(squares / std::max(all, 1.0)) + 1e-9;
  for (std::vector<double>& from : returns) {
    for (double& advantage : from) advantage /= deviation;
  }
  return returns;
}

FlowLoss add_gradient(const FlowEpisode& episode, std::span<const double> advantages,
                      std::span<const float> values, const FlowObjective& objective,
                      std::size_t steps, std::span<float> gradient) {
  FlowLoss total;
  const double share = 1 / static_cast<double>(std::max<std::size_t>(steps, 1));
  const auto value = [&](int row) { return double{values[at(row)]}; };
  const auto add = [&](int row, double amount) {
    gradient[at(row)] += static_cast<float>(share * amount);
  };
  for (const FlowEpisode::Step& step : episode.steps) {
    const auto choices = std::span(episode.choices).subspan(at(step.first), at(step.count));
    const double advantage = advantages[at(step.round)];
    if (episode.level == FlowLevel::kTrees) {
      const double v = value(choices[0]), yes = std::exp(log_sigmoid(v));
      const bool chosen = step.chosen == 0;
      const auto [loss, slope] =
          clipped(log_sigmoid(chosen ? v : -v), step.chance, advantage, objective.clip);
      const double entropy = -yes * log_sigmoid(v) - (1 - yes) * log_sigmoid(-v);
      add(choices[0], slope * ((chosen ? 1 : 0) - yes) + objective.entropy * v * yes * (1 - yes));
      total.loss += share * (loss - objective.entropy * entropy);
      total.entropy += share * entropy;
      continue;
    }
    const double all = log_sum(choices, value);
    const auto [loss, slope] =
        clipped(value(choices[at(step.chosen)]) - all, step.chance, advantage, objective.clip);
    double entropy = 0;
    for (const int c : choices) entropy -= std::exp(value(c) - all) * (value(c) - all);
    for (const int c : choices) {
      const double log_p = value(c) - all, p = std::exp(log_p);
      add(c, -slope * p + objective.entropy * p * (log_p + entropy));
    }
    add(choices[at(step.chosen)], slope);
    total.loss += share * (loss - objective.entropy * entropy);
    total.entropy += share * entropy;
  }
  return total;
}

}  // namespace agpcs
