// SPDX-License-Identifier: Apache-2.0
#include "tools/compile/options.h"

#include "ir/base/all_values.h"
#include "ir/base/diagnostics.h"
#include "ir/base/named.h"
#include "ir/plan/choices.h"
#include "planner/refine/refiner.h"
#include "planner/seed/seeder.h"

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
    if (!options.plan.seeders.empty()) return layout_and("--seeder");
    if (options.plan.budget > 0) return layout_and("--budget");
    if (!options.policy.empty()) return layout_and("--policy");
    if (options.episodes > 0) return layout_and("--episodes");
  }
  if (options.refiner == "none" && options.plan.budget > 0) {
    return usage("--budget is of a refiner, and --refiner is none");
  }
  for (const std::string& name : options.plan.seeders) {
    AGPCS_RETURN_IF_ERROR(make_seeder(name).status());
  }
  return {};
}

Status check_loss(const CompileOptions& options) {
  if (options.loss.empty()) return {};
  AGPCS_RETURN_IF_ERROR(check_word(options.loss, "loss", "losses", names_in(kLosses)));
  const LossEntry& loss = entry_of(kLosses, *value_named(kLosses, options.loss));
  if (!loss.takes_labels && has_label_options(options.loss_options)) {
    return usage(fmt::format(
        "--loss {} has no labels\n  hint: --ignore-index, --label-smoothing, --class-axis and "
        "--next-token are of softmax_cross_entropy",
        loss.name));
  }
  if (loss.value == LossKind::kOutput && options.loss_options.outputs.size() != 1) {
    return usage(fmt::format("--loss {} needs the name of one scalar output: --loss-output NAME",
                             loss.name));
  }
  return {};
}

}  // namespace

std::vector<std::string> all_reduce_words() {
  std::vector<std::string> words = names_of(kAllReduces);
  words.insert(words.begin(), "auto");
  words.emplace_back(name_of(AllReduce::kFlow));
  return words;
}

std::vector<std::string> dimension_words() {
  return {"state",    "gradients", "parameters",  "schedules", "zero-bubble", "interleaved",
          "segments", "offload",   "activations", "teams",     "unlike-teams"};
}

std::vector<std::string> space_words() { return {"whole", "today"}; }

std::vector<std::string> cut_words() { return {"operators", "modules"}; }

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
        check_word(options.precision, "precision", "precisions", names_in(kPrecisions)));
  }
  if (!options.attention.empty()) {
    AGPCS_RETURN_IF_ERROR(check_word(options.attention, "form of attention", "forms of attention",
                                     names_in(kAttentionForms)));
  }
  if (!options.wire_type.empty()) {
    AGPCS_RETURN_IF_ERROR(
        check_word(options.wire_type, "wire type", "wire types", names_of(kWireTypes)));
  }
  AGPCS_RETURN_IF_ERROR(
      check_word(options.all_reduce, "all-reduce", "all-reduces", all_reduce_words()));
  for (const std::string& word : options.without) {
    AGPCS_RETURN_IF_ERROR(check_word(word, "dimension", "dimensions", dimension_words()));
  }
  AGPCS_RETURN_IF_ERROR(check_word(options.space, "space", "spaces", space_words()));
  AGPCS_RETURN_IF_ERROR(check_word(options.cut_at, "place of cuts", "places of cuts", cut_words()));
  return check_loss(options);
}

}  // namespace agpcs
