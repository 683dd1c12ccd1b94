// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster/training.h"

#include "frontend/cluster/yaml.h"
#include "ir/plan/choices.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>

namespace agpcs {
namespace {

class TrainingReader {
 public:
  explicit TrainingReader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  Training read(const YAML::Node& node) {
    const YamlMap map(node, "training",
                      {"batch", "precision", "attention", "loss", "optimizer", "statistics_every"},
                      diagnostics_);
    Training training;
    training.batch = map.integer("batch", 1, std::int64_t{1} << 32).value_or(0);
    training.precision = map.choice_of(kPrecisions, "precision", "precision", "precisions")
                             .value_or(training.precision);
    training.attention =
        map.choice_of(kAttentionForms, "attention", "form of attention", "forms of attention")
            .value_or(training.attention);
    training.statistics_every = map.integer("statistics_every", 0, std::int64_t{1} << 32)
                                    .value_or(training.statistics_every);
    training.loss.by_shape = true;
    if (const YAML::Node* loss = map.find("loss")) training.loss = read_loss(map, *loss);
    if (const YAML::Node* optimizer = map.find("optimizer")) {
      training.optimizer = read_optimizer(map, *optimizer);
    }
    return training;
  }

 private:
  Loss read_loss(const YamlMap& training, const YAML::Node& node) {
    Loss loss;
    if (!node.IsMap()) {
      loss.kind = training.choice_of(kLosses, "loss", "loss", "losses").value_or(loss.kind);
    } else {
      const YamlMap map(
          node, "loss",
          {"kind", "outputs", "ignore_index", "label_smoothing", "class_axis", "next_token"},
          diagnostics_);
      loss.kind = map.choice_of(kLosses, "kind", "loss", "losses").value_or(loss.kind);
      loss.by_shape = map.find("kind") == nullptr;
      if (const YAML::Node* outputs = map.find("outputs")) read_outputs(*outputs, loss);
      read_labels(map, loss);
    }
    if (loss.kind == LossKind::kOutput && loss.outputs.size() != 1) {
      diagnostics_.error(
          range_of(node),
          fmt::format("loss '{}' needs the name of one scalar output", name_of(loss.kind)),
          fmt::format("write loss: {{kind: {}, outputs: [name]}}", name_of(loss.kind)));
    }
    return loss;
  }

  /// Reads what a loss says about its labels.
  void read_labels(const YamlMap& map, Loss& loss) {
    constexpr std::int64_t kMostLabel = std::int64_t{1} << 31;
    loss.ignore_index = map.integer("ignore_index", -kMostLabel, kMostLabel);
    loss.label_smoothing = fraction(map, "label_smoothing").value_or(0);
    if (const auto axis = map.integer("class_axis", -1, 1)) {
      loss.class_axis = static_cast<int>(*axis);
      if (*axis == 0) {
        diagnostics_.error(range_of(*map.find("class_axis")), "axis 0 has the samples, not classes",
                           "class_axis is 1, or -1 for the last axis");
      }
    }
    if (const YAML::Node* tokens = map.find("next_token")) {
      if (tokens->IsScalar()) {
        loss.next_token = tokens->Scalar();
      } else {
        diagnostics_.error(range_of(*tokens),
                           fmt::format("'next_token' must be the name of an input, or auto, is {}",
                                       describe(*tokens)));
      }
    }
    if (entry_of(kLosses, loss.kind).takes_labels || !has_label_options(loss)) return;
    diagnostics_.error(map.where(), fmt::format("loss '{}' has no labels", name_of(loss.kind)),
                       "ignore_index, label_smoothing, class_axis and next_token are of "
                       "softmax_cross_entropy");
  }

  void read_outputs(const YAML::Node& node, Loss& loss) {
    if (node.IsSequence()) {
      for (const YAML::Node& name : node) {
        if (name.IsScalar()) {
          loss.outputs.emplace_back(name.Scalar(), 1.0);
        } else {
          diagnostics_.error(range_of(name),
                             fmt::format("an output must be a name, is {}", describe(name)));
        }
      }
      return;
    }
    const YamlMap map(node, "outputs", {}, diagnostics_);
    for (const YamlMap::Entry& entry : map.entries()) {
      const std::optional<double> weight = map.number(entry.key, Sign::kPositive);
      loss.outputs.emplace_back(entry.key, weight.value_or(1));
    }
  }

  Optimizer read_optimizer(const YamlMap& training, const YAML::Node& node) {
    Optimizer o;
    if (!node.IsMap()) {
      o.kind =
          training.choice_of(kOptimizers, "optimizer", "optimizer", "optimizers").value_or(o.kind);
      o.learning_rate = entry_of(kOptimizers, o.kind).learning_rate;
      o.weight_decay = entry_of(kOptimizers, o.kind).weight_decay;
      return o;
    }
    const YamlMap map(node, "optimizer",
                      {"kind", "learning_rate", "momentum", "nesterov", "weight_decay", "betas",
                       "epsilon", "max_norm"},
                      diagnostics_);
    o.kind = map.choice_of(kOptimizers, "kind", "optimizer", "optimizers").value_or(o.kind);
    const OptimizerEntry& entry = entry_of(kOptimizers, o.kind);
    reject_foreign_keys(map, entry);
    o.learning_rate = map.number("learning_rate", Sign::kPositive).value_or(entry.learning_rate);
    o.momentum = fraction(map, "momentum").value_or(o.momentum);
    o.weight_decay = map.number("weight_decay", Sign::kNotNegative).value_or(entry.weight_decay);
    o.nesterov = map.flag("nesterov").value_or(false);
    if (o.nesterov && o.momentum == 0) {
      diagnostics_.error(range_of(*map.find("nesterov")), "'nesterov' needs a momentum above 0",
                         "as in {kind: sgd, momentum: 0.9, nesterov: true}");
    }
    o.epsilon = map.number("epsilon", Sign::kPositive).value_or(o.epsilon);
    o.max_norm = map.number("max_norm", Sign::kPositive).value_or(0);
    if (const YAML::Node* betas = map.find("betas")) read_betas(*betas, o);
    return o;
  }

  static bool has_key(const OptimizerEntry& optimizer, std::string_view key) {
    const auto& keys = optimizer.yaml_keys;
    return std::find(keys.begin(), keys.end(), key) != keys.end();
  }

  /// Reports settings that other optimizers have, and `optimizer` has not.
  void reject_foreign_keys(const YamlMap& map, const OptimizerEntry& optimizer) {
    for (const YamlMap::Entry& entry : map.entries()) {
      const bool foreign =
          !has_key(optimizer, entry.key) &&
          std::any_of(kOptimizers.begin(), kOptimizers.end(),
                      [&](const OptimizerEntry& other) { return has_key(other, entry.key); });
      if (!foreign) continue;
      diagnostics_.error(
          range_of(entry.key_node),
          fmt::format("optimizer '{}' has no '{}'", optimizer.name, entry.key),
          fmt::format("{} takes {}", optimizer.name, fmt::join(optimizer.yaml_keys, " and ")));
    }
  }

  std::optional<double> fraction(const YamlMap& map, const char* key) {
    const std::optional<double> value = map.number(key, Sign::kNotNegative);
    if (!value || *value < 1) return value;
    diagnostics_.error(range_of(*map.find(key)),
                       fmt::format("'{}' of {} must be less than 1, is {}", key, map.what(),
                                   describe(*map.find(key))));
    return std::nullopt;
  }

  void read_betas(const YAML::Node& node, Optimizer& optimizer) {
    std::array<double, 2> betas = {};
    bool ok = node.IsSequence() && node.size() == 2;
    for (std::size_t i = 0; ok && i < 2; ++i) {
      ok = node[i].IsScalar() && parse_number(node[i].Scalar(), betas[i]) && betas[i] >= 0 &&
           betas[i] < 1;
    }
    if (!ok) {
      diagnostics_.error(range_of(node), "'betas' must be two numbers from 0 to less than 1",
                         "as in betas: [0.9, 0.999]");
      return;
    }
    optimizer.beta1 = betas[0];
    optimizer.beta2 = betas[1];
  }

  Diagnostics& diagnostics_;
};

}  // namespace

Training read_training(const YAML::Node& node, Diagnostics& diagnostics) {
  return TrainingReader(diagnostics).read(node);
}

}  // namespace agpcs
