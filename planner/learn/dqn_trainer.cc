// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/dqn_trainer.h"

#include "ir/base/check.h"
#include "planner/learn/dqn_replay.h"
#include "planner/learn/torch_perceptron.h"
#include "planner/learn/untrained_network.h"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

// A feature counts as 1 if it is as large as this part of its values that are not 0.
constexpr double kScaleQuantile = 0.9;
constexpr float kLeastScale = 0.25F, kMostScale = 20;

/// Measures how large each feature is. The mean is not subtracted: most features are 0 in most
/// moves, and a network whose inputs are 0 is fast (QNetwork::value).
class FeatureScale {
 public:
  void see(std::span<const Features> moves) {
    for (const Features& features : moves) {
      for (std::size_t f = 0; f < features.size(); ++f) {
        if (features[f] != 0) sizes_[f].push_back(std::abs(features[f]));
      }
    }
  }

  std::vector<float> scale() {
    std::vector<float> result(kFeatureCount, 1);
    for (std::size_t f = 0; f < sizes_.size(); ++f) {
      std::vector<float>& sizes = sizes_[f];
      if (sizes.empty()) continue;
      const auto rank =
          static_cast<std::ptrdiff_t>(kScaleQuantile * static_cast<double>(sizes.size() - 1));
      std::nth_element(sizes.begin(), sizes.begin() + rank, sizes.end());
      result[f] = std::clamp(1 / sizes[static_cast<std::size_t>(rank)], kLeastScale, kMostScale);
    }
    return result;
  }

 private:
  std::array<std::vector<float>, kFeatureCount> sizes_;
};

class TorchDqnTrainer final : public DqnTrainer {
 public:
  TorchDqnTrainer(const DqnOptions& options, const QNetwork* start, std::uint64_t seed)
      : options_(options),
        scale_steps_(start == nullptr ? options.scale_steps : 0),
        replay_(static_cast<std::size_t>(options.replay)) {
    at::set_num_threads(1);
    const QNetwork network =
        start != nullptr
            ? *start
            : untrained_network(options.hidden_units, options.guess, Rng(seed).fork("network"));
    mean_ = tensor_of(network.mean);
    scale_ = tensor_of(network.scale);
    online_ = Layers::of(network);
    adam_.emplace(online_.all(), torch::optim::AdamOptions(options.learning_rate));
    update_target();
  }

  EpisodeLog run_episode(SearchPoint& point, SearchBudget& budget, double& best_cost,
                         Rng rng) override {
    EpisodeLog log;
    log.episode = episode_;
    log.epsilon = epsilon();
    Rng explore = rng.fork("explore"), replay = rng.fork("replay");
    NStep steps(options_.n_step, options_.discount, replay_);
    double reward = reward_of(point.outcome(), options_.lambda);
    double losses = 0;
    int trained = 0;
    for (std::int64_t step = 0;; ++step) {
      const std::vector<Move> moves = point.moves(options_.choices, explore);
      std::vector<Features> features(moves.size());
      point.describe(moves, features);
      steps.arrive(features);
      if (step == options_.episode_steps || moves.empty() || budget.left() <= 0) break;
      if (scale_steps_ > 0) measure(features);
      const std::size_t chosen = choose(features, log.epsilon, explore);
      const double after = go(point, moves[chosen], budget, best_cost);
      steps.step(features[chosen], after - reward);
      reward = after;
      if (scale_steps_ > 0 || replay_.size() < static_cast<std::size_t>(options_.batch)) continue;
      losses += train(replay);
      ++trained;
    }
    steps.finish();
    ++episode_;
    log.loss = trained > 0 ? losses / trained : 0;
    log.reward = reward;
    log.best_cost = best_cost;
    return log;
  }

  QNetwork network() const override {
    QNetwork network;
    network.mean = numbers_of(mean_);
    network.scale = numbers_of(scale_);
    online_.write_to(network);
    return network;
  }

 private:
  double epsilon() const {
    const auto over = static_cast<double>(std::max<std::int64_t>(options_.epsilon_episodes, 1));
    const double done = std::min(1.0, static_cast<double>(episode_) / over);
    return options_.first_epsilon + (options_.last_epsilon - options_.first_epsilon) * done;
  }

  torch::Tensor inputs(std::span<const Features> rows) const {
    auto* const data = const_cast<float*>(rows.front().data());  // from_blob only reads it here
    const torch::Tensor raw =
        torch::from_blob(data, {static_cast<std::int64_t>(rows.size()), kFeatureCount});
    return (raw - mean_) * scale_;
  }

  std::size_t choose(std::span<const Features> features, double epsilon, Rng& rng) const {
    // Both are drawn every time, so that what a network learns does not change later draws.
    const bool explores = rng.uniform() < epsilon;
    const std::size_t any = rng.below(features.size());
    if (explores) return any;
    const torch::NoGradGuard guard;
    const torch::Tensor values = online_.forward(inputs(features));
    const float* const q = values.data_ptr<float>();
    return static_cast<std::size_t>(std::max_element(q, q + features.size()) - q);
  }

  /// Makes the move and returns Formula 2 at its end.
  double go(SearchPoint& point, const Move& move, SearchBudget& budget, double& best_cost) const {
    Outcome outcome;
    point.evaluate({&move, 1}, {&outcome, 1});
    point.take(move);
    if (outcome.cost < best_cost) {
      best_cost = outcome.cost;
      point.keep();
    }
    budget.spend(1, best_cost);
    return reward_of(outcome, options_.lambda);
  }

  void measure(std::span<const Features> features) {
    measured_.see(features);
    if (--scale_steps_ > 0) return;
    scale_ = tensor_of(measured_.scale());
    measured_ = {};
    if (options_.guess < 0) return;
    const torch::NoGradGuard guard;
    for (const int unit : {0, 1}) online_.hidden[unit][options_.guess] /= scale_[options_.guess];
    update_target();
  }

  /// Makes one gradient step and returns its loss.
  double train(Rng& rng) {
    const auto batch = replay_.sample(static_cast<std::size_t>(options_.batch), rng);
    std::vector<Features> chosen(batch.size());
    for (std::size_t i = 0; i < batch.size(); ++i) chosen[i] = batch[i]->chosen;
    const torch::Tensor target = tensor_of(targets(batch));
    const torch::Tensor loss = torch::smooth_l1_loss(online_.forward(inputs(chosen)), target);
    adam_->zero_grad();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(online_.all(), kMostGradient);
    adam_->step();
    if (++gradient_steps_ % options_.target_every == 0) update_target();
    return loss.item<double>();
  }

  /// Returns the targets: the reward plus the discounted value n steps on. The online network
  /// chooses the best move there, and the target network values it (double Q).
  std::vector<float> targets(std::span<const Transition* const> batch) const {
    const torch::NoGradGuard guard;
    std::vector<Features> all;
    for (const Transition* t : batch) all.insert(all.end(), t->next.begin(), t->next.end());
    std::vector<Features> best;
    if (!all.empty()) {
      const torch::Tensor values = online_.forward(inputs(all));
      const float* q = values.data_ptr<float>();
      for (const Transition* t : batch) {
        if (t->next.empty()) continue;
        const float* const end = q + t->next.size();
        best.push_back(t->next[static_cast<std::size_t>(std::max_element(q, end) - q)]);
        q = end;
      }
    }
    const torch::Tensor values = best.empty() ? torch::empty({0}) : target_.forward(inputs(best));
    const float* value = values.data_ptr<float>();
    std::vector<float> result;
    for (const Transition* t : batch) {
      const double ahead = t->next.empty() ? 0 : t->discount * double{*value++};
      result.push_back(static_cast<float>(t->reward + ahead));
    }
    return result;
  }

  void update_target() {
    target_.hidden = online_.hidden.detach().clone();
    target_.bias = online_.bias.detach().clone();
    target_.output = online_.output.detach().clone();
    target_.output_bias = online_.output_bias.detach().clone();
  }

  DqnOptions options_;
  int scale_steps_;  // further steps that measure how large features are
  FeatureScale measured_;
  Replay replay_;
  torch::Tensor mean_, scale_;
  Layers online_, target_;
  std::optional<torch::optim::Adam> adam_;
  std::int64_t episode_ = 0, gradient_steps_ = 0;
};

}  // namespace

std::unique_ptr<DqnTrainer> make_dqn_trainer(const DqnOptions& options, const QNetwork* start,
                                             std::uint64_t seed) {
  AGPCS_CHECK(options.hidden_units > 0 && options.replay > 0 && options.batch > 0 &&
                  options.n_step > 0 && options.target_every > 0 && options.choices > 0 &&
                  options.guess < kFeatureCount && (options.guess < 0 || options.hidden_units > 1),
              "{} hidden units, replay {}, batch {}, n-step {}, target every {}, {} choices",
              options.hidden_units, options.replay, options.batch, options.n_step,
              options.target_every, options.choices);
  return std::make_unique<TorchDqnTrainer>(options, start, seed);
}

}  // namespace agpcs
