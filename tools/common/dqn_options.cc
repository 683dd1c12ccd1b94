// SPDX-License-Identifier: Apache-2.0
#include "tools/common/dqn_options.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <string>

namespace agpcs {
namespace {

constexpr double kMost = 1e9;

template <typename T>
void add(CLI::App& app, const std::string& name, T& value, const std::string& help,
         const CLI::Range& range) {
  app.add_option(name, value, help)->capture_default_str()->check(range)->group(kDqnGroup);
}

}  // namespace

void add_dqn_options(CLI::App& app, DqnOptions& o) {
  const CLI::Range from_one(1.0, kMost, "a whole number from 1");
  const CLI::Range from_zero(0.0, kMost, "a whole number from 0");
  const CLI::Range unit(0.0, 1.0, "a number from 0 to 1");
  add(app, "--hidden-units", o.hidden_units, "of the network, where it is trained anew",
      {1.0, 4096.0});
  add(app, "--learning-rate", o.learning_rate, "of Adam", unit);
  add(app, "--first-epsilon", o.first_epsilon, "exploration in the first episode", unit);
  add(app, "--last-epsilon", o.last_epsilon, "exploration in the end", unit);
  add(app, "--epsilon-episodes", o.epsilon_episodes, "exploration falls linearly over so many",
      from_zero);
  add(app, "--episode-steps", o.episode_steps, "moves in an episode", from_one);
  add(app, "--choices", o.choices, "moves to choose from at each step", from_one);
  add(app, "--discount", o.discount, "of later rewards", unit);
  add(app, "--n-step", o.n_step, "rewards before the value is estimated", from_one);
  add(app, "--lambda", o.lambda, "weight of communication in Formula 2", {0.0, 1e6});
  add(app, "--replay", o.replay, "transitions remembered", from_one);
  add(app, "--replay-batch", o.batch, "transitions of a gradient step", from_one);
  add(app, "--target-every", o.target_every, "gradient steps between target networks", from_one);
  add(app, "--scale-steps", o.scale_steps, "first steps, which say how large features are",
      from_zero);
}

Status check_dqn_options(const DqnOptions& o) {
  if (o.batch <= o.replay) return {};
  return {StatusCode::kUsage, fmt::format("--replay-batch {} is more than --replay {}\n"
                                          "  hint: a batch is drawn from what is remembered",
                                          o.batch, o.replay)};
}

}  // namespace agpcs
