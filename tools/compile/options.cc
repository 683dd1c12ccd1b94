// SPDX-License-Identifier: Apache-2.0
#include "tools/compile_options.h"

#include "ir/diagnostics.h"
#include "planner/refiner.h"
#include "planner/seeder.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace agpcs {
namespace {

Status usage(std::string message) { return {StatusCode::kUsage, std::move(message)}; }

Status check_order_of_files(const CompileOptions& options) {
  const std::string kind = std::filesystem::path(options.cluster).extension().string();
  if (kind != ".onnx" && kind != ".onnxtxt") return {};
  return usage(
      fmt::format("'{}' is given as the cluster file\n  hint: the model comes first, "
                  "then the cluster",
                  options.cluster));
}

Status check_search(const CompileOptions& options) {
  AGPCS_RETURN_IF_ERROR(make_refiner(options.refiner).status());
  if (options.refiner != "dqn" && (!options.policy.empty() || options.episodes > 0)) {
    return usage(
        fmt::format("--policy and --episodes are of refiner dqn, not of '{}'", options.refiner));
  }
  if (!options.layout.empty()) {
    if (!options.seeders.empty()) return layout_and("--seeder");
    if (options.budget > 0) return layout_and("--budget");
    if (!options.policy.empty()) return layout_and("--policy");
    if (options.episodes > 0) return layout_and("--episodes");
  }
  if (options.refiner == "none" && options.budget > 0) {
    return usage("--budget is of a refiner, and --refiner is none");
  }
  for (const std::string& name : options.seeders) {
    AGPCS_RETURN_IF_ERROR(make_seeder(name).status());
  }
  return {};
}

Status check_loss(const Loss& loss) {
  AGPCS_RETURN_IF_ERROR(check_word(loss.kind, "loss", "losses", loss_words()));
  if (loss.kind == "output" && loss.outputs.size() != 1) {
    return usage("--loss output needs the name of one scalar output: --loss-output NAME");
  }
  return {};
}

}  // namespace

const std::vector<std::string>& loss_words() {
  static const std::vector<std::string> words = {"softmax_cross_entropy", "mse", "output"};
  return words;
}

const std::vector<std::string>& precision_words() {
  static const std::vector<std::string> words = {"fp32", "tf32", "fp16", "bf16"};
  return words;
}

const std::vector<std::string>& wire_type_words() {
  static const std::vector<std::string> words = {"fp16", "bf16"};
  return words;
}

const std::vector<std::string>& all_reduce_words() {
  static const std::vector<std::string> words = {"auto", "ring", "hierarchical", "tree", "flow"};
  return words;
}

Status check_word(const std::string& word, std::string_view noun, std::string_view plural,
                  const std::vector<std::string>& choices) {
  if (std::find(choices.begin(), choices.end(), word) != choices.end()) return {};
  return usage(
      fmt::format("unknown {} '{}'\n  hint: {}", noun, word, did_you_mean(word, choices, plural)));
}

Status layout_and(std::string_view option) {
  return usage(
      fmt::format("--layout and {} are both given\n"
                  "  hint: a layout leaves nothing to a seeder or refiner",
                  option));
}

Status check_compile_options(const CompileOptions& options) {
  AGPCS_RETURN_IF_ERROR(check_order_of_files(options));
  AGPCS_RETURN_IF_ERROR(check_search(options));
  if (!options.precision.empty()) {
    AGPCS_RETURN_IF_ERROR(
        check_word(options.precision, "precision", "precisions", precision_words()));
  }
  if (!options.wire_type.empty()) {
    AGPCS_RETURN_IF_ERROR(
        check_word(options.wire_type, "wire type", "wire types", wire_type_words()));
  }
  AGPCS_RETURN_IF_ERROR(
      check_word(options.all_reduce, "all-reduce", "all-reduces", all_reduce_words()));
  return options.loss ? check_loss(*options.loss) : Status();
}

}  // namespace agpcs
