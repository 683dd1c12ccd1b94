// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/flow_trainer.h"

#include "ir/base/check.h"
#include "planner/learn/torch_perceptron.h"

#include <torch/torch.h>

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

/// A network of the policy, with its parameters as tensors and their optimizer.
class Learner {
 public:
  Learner(Perceptron& network, double learning_rate)
      : network_(network),
        mean_(tensor_of(network.mean)),
        scale_(tensor_of(network.scale)),
        layers_(Layers::of(network)),
        adam_(layers_.all(), torch::optim::AdamOptions(learning_rate)) {}

  torch::Tensor inputs(std::vector<float>& rows) const {
    const int features = network_.features();
    const auto count = static_cast<std::int64_t>(rows.size()) / features;
    return (torch::from_blob(rows.data(), {count, features}) - mean_) * scale_;
  }
  torch::Tensor forward(const torch::Tensor& inputs) const { return layers_.forward(inputs); }

  void step(const torch::Tensor& values, std::vector<float>& gradient) {
    adam_.zero_grad();
    values.backward(torch::from_blob(gradient.data(), {values.numel()}));
    torch::nn::utils::clip_grad_norm_(layers_.all(), kMostGradient);
    adam_.step();
  }
  void write() { layers_.write_to(network_); }

 private:
  Perceptron& network_;
  torch::Tensor mean_, scale_;
  Layers layers_;
  torch::optim::Adam adam_;
};

/// Sets mean <- keep x mean + (1 - keep) x now, for every weight.
void average(Perceptron& mean, const Perceptron& now, double keep) {
  const auto mix = [&](float& of, float with) {
    of = static_cast<float>(keep * double{of} + (1 - keep) * double{with});
  };
  for (std::size_t i = 0; i < mean.hidden.size(); ++i) mix(mean.hidden[i], now.hidden[i]);
  for (std::size_t i = 0; i < mean.bias.size(); ++i) mix(mean.bias[i], now.bias[i]);
  for (std::size_t i = 0; i < mean.output.size(); ++i) mix(mean.output[i], now.output[i]);
  mix(mean.output_bias, now.output_bias);
}

class TorchFlowTrainer final : public FlowTrainer {
 public:
  TorchFlowTrainer(const FlowTrainingOptions& options, const FlowPolicy* start, std::uint64_t seed)
      : options_(options),
        policy_(start != nullptr ? *start
                : options.guess  ? formula_flow_policy(options.hidden_units, seed)
                                 : random_flow_policy(options.hidden_units, seed)),
        averaged_(policy_),
        trees_(policy_.trees, options.learning_rate),
        workloads_(policy_.workloads, options.learning_rate) {
    at::set_num_threads(1);
  }

  FlowTrainingLog train(const Topology& topology, const FlowForest& forest, FlowPhases phases,
                        FlowLevel level, Rng rng) override {
    std::vector<FlowEpisode> episodes;
    for (int i = 0; i < options_.episodes; ++i) {
      episodes.push_back(draw_episode(topology, forest, phases, policy_, level, options_.rewards,
                                      rng.fork("episode " + std::to_string(i))));
    }
    FlowTrainingLog log = log_of(episodes);
    const auto advantages = advantages_of(episodes, options_.rewards.discount);
    Learner& learner = level == FlowLevel::kTrees ? trees_ : workloads_;
    for (int epoch = 0; epoch < options_.epochs; ++epoch) {
      const FlowLoss loss = learn(learner, episodes, advantages);
      log.loss += loss.loss / options_.epochs;
      log.entropy += loss.entropy / options_.epochs;
    }
    learner.write();
    if (level == FlowLevel::kTrees) average(averaged_.trees, policy_.trees, options_.averaging);
    if (level == FlowLevel::kWorkloads) {
      average(averaged_.workloads, policy_.workloads, options_.averaging);
    }
    return log;
  }

  const FlowPolicy& policy() const override { return policy_; }
  const FlowPolicy& averaged() const override { return averaged_; }

 private:
  static FlowTrainingLog log_of(const std::vector<FlowEpisode>& episodes) {
    FlowTrainingLog log;
    const double share = 1 / static_cast<double>(episodes.size());
    std::size_t steps = 0, chosen = 0;
    for (const FlowEpisode& episode : episodes) {
      log.rounds += share * episode.rounds;
      log.bound += share * episode.bound;
      log.returns += share * episode.last_reward;
      for (const double reward : episode.rewards) log.returns += share * reward;
      for (const FlowEpisode::Step& step : episode.steps) chosen += step.chosen >= 0 ? 1 : 0;
      steps += episode.steps.size();
    }
    log.selected = static_cast<double>(chosen) / static_cast<double>(steps);
    return log;
  }

  /// Makes one gradient step on all episodes.
  FlowLoss learn(Learner& learner, std::vector<FlowEpisode>& episodes,
                 const std::vector<std::vector<double>>& advantages) const {
    std::size_t steps = 0;
    for (const FlowEpisode& episode : episodes) steps += episode.steps.size();
    std::vector<torch::Tensor> values;
    std::vector<float> gradient;
    FlowLoss total;
    for (std::size_t e = 0; e < episodes.size(); ++e) {
      values.push_back(learner.forward(learner.inputs(episodes[e].rows)));
      const torch::Tensor now = values.back().detach().contiguous();
      const auto rows = static_cast<std::size_t>(now.numel());
      const std::size_t first = gradient.size();
      gradient.resize(first + rows, 0.0F);
      const FlowLoss loss =
          add_gradient(episodes[e], advantages[e], std::span(now.data_ptr<float>(), rows),
                       options_.objective, steps, std::span(gradient).subspan(first));
      total.loss += loss.loss;
      total.entropy += loss.entropy;
    }
    learner.step(torch::cat(values), gradient);
    return total;
  }

  FlowTrainingOptions options_;
  FlowPolicy policy_, averaged_;
  Learner trees_, workloads_;
};

}  // namespace

std::unique_ptr<FlowTrainer> make_flow_trainer(const FlowTrainingOptions& options,
                                               const FlowPolicy* start, std::uint64_t seed) {
  AGPCS_CHECK(options.hidden_units > 0 && options.episodes > 1 && options.epochs > 0,
              "{} hidden units, {} episodes, {} epochs", options.hidden_units, options.episodes,
              options.epochs);
  return std::make_unique<TorchFlowTrainer>(options, start, seed);
}

}  // namespace agpcs
