// SPDX-License-Identifier: Apache-2.0
#include "frontend/cluster_training.h"

#include "frontend/cluster_yaml.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>

namespace agpcs {
namespace {

const std::vector<std::string> kLossKinds = {"softmax_cross_entropy", "mse", "output"};
const std::vector<std::string> kOptimizerKinds = {"sgd", "adam"};

class TrainingReader {
 public:
  explicit TrainingReader(Diagnostics& diagnostics) : diagnostics_(diagnostics) {}

  Training read(const YAML::Node& node) {
    const YamlMap map(node, "training",
                      {"batch", "precision", "loss", "optimizer", "statistics_every"},
                      diagnostics_);
    Training training;
    training.batch = map.integer("batch", 1, std::int64_t{1} << 32).value_or(0);
    training.precision =
        map.choice("precision", "precision", "precisions", precisions()).value_or("fp32");
    training.statistics_every = map.integer("statistics_every", 0, std::int64_t{1} << 32)
                                    .value_or(training.statistics_every);
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
      loss.kind = training.choice("loss", "loss", "losses", kLossKinds).value_or(loss.kind);
    } else {
      const YamlMap map(node, "loss", {"kind", "outputs"}, diagnostics_);
      loss.kind = map.choice("kind", "loss", "losses", kLossKinds).value_or(loss.kind);
      if (const YAML::Node* outputs = map.find("outputs")) read_outputs(*outputs, loss);
    }
    if (loss.kind == "output" && loss.outputs.size() != 1) {
      diagnostics_.error(range_of(node), "loss 'output' needs the name of one scalar output",
                         "write loss: {kind: output, outputs: [name]}");
    }
    return loss;
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
          training.choice("optimizer", "optimizer", "optimizers", kOptimizerKinds).value_or(o.kind);
      o.learning_rate = default_learning_rate(o.kind);
      return o;
    }
    const YamlMap map(node, "optimizer",
                      {"kind", "learning_rate", "momentum", "weight_decay", "betas", "epsilon"},
                      diagnostics_);
    o.kind = map.choice("kind", "optimizer", "optimizers", kOptimizerKinds).value_or(o.kind);
    reject_foreign_keys(map, o.kind);
    o.learning_rate =
        map.number("learning_rate", Sign::kPositive).value_or(default_learning_rate(o.kind));
    o.momentum = fraction(map, "momentum").value_or(o.momentum);
    o.weight_decay = map.number("weight_decay", Sign::kNotNegative).value_or(o.weight_decay);
    o.epsilon = map.number("epsilon", Sign::kPositive).value_or(o.epsilon);
    if (const YAML::Node* betas = map.find("betas")) read_betas(*betas, o);
    return o;
  }

  static double default_learning_rate(const std::string& kind) {
    return kind == "adam" ? 0.001 : Optimizer().learning_rate;
  }

  void reject_foreign_keys(const YamlMap& map, const std::string& kind) {
    const std::array<const char*, 2> foreign = kind == "adam"
                                                   ? std::array<const char*, 2>{"momentum", ""}
                                                   : std::array<const char*, 2>{"betas", "epsilon"};
    for (const YamlMap::Entry& entry : map.entries()) {
      if (std::find(foreign.begin(), foreign.end(), entry.key) == foreign.end()) continue;
      diagnostics_.error(range_of(entry.key_node),
                         fmt::format("optimizer '{}' has no '{}'", kind, entry.key),
                         kind == "adam" ? "adam takes betas and epsilon" : "sgd takes momentum");
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

const std::vector<std::string>& precisions() {
  static const std::vector<std::string> names = {"fp32", "tf32", "fp16", "bf16"};
  return names;
}

Training read_training(const YAML::Node& node, Diagnostics& diagnostics) {
  return TrainingReader(diagnostics).read(node);
}

}  // namespace agpcs
