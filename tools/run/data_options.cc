// SPDX-License-Identifier: Apache-2.0
#include "tools/run/data_options.h"

#include "ir/plan/choices.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

// Splits INPUT=VALUE; a VALUE alone has an empty input.
std::pair<std::string, std::string> split(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) return {"", text};
  return {text.substr(0, equals), text.substr(equals + 1)};
}

Status add_scales(const Graph& graph, const std::vector<std::string>& texts, DataFiles& files) {
  for (const std::string& text : texts) {
    auto [input, factor] = split(text);
    if (input.empty()) input = graph.tensor(graph.inputs.front()).name;
    const std::optional<Scale> scale = parse_scale(factor);
    if (!scale) {
      return {StatusCode::kUsage,
              fmt::format("--scale {}: '{}' is no positive number or quotient of two\n"
                          "  hint: --scale 1/255 turns bytes into 0 to 1",
                          text, factor)};
    }
    files.scales.insert_or_assign(input, *scale);
  }
  return {};
}

}  // namespace

Result<DataFiles> training_files(const Graph& graph, const Plan& plan, const RunOptions& options,
                                 std::uint64_t seed) {
  DataFiles files;
  files.seed = seed;
  if (options.shuffle) files.order = SampleOrder::shuffled(seed);
  AGPCS_RETURN_IF_ERROR(add_scales(graph, options.scale, files));
  for (const std::string& text : options.data) files.paths.push_back(split(text));
  if (options.labels.empty()) return files;
  const Loss& loss = plan.training.loss;
  if (entry_of(kLosses, loss.kind).is_own_output) {
    return Status(StatusCode::kUsage,
                  "--labels: this plan's loss is an output of the model, which takes no labels");
  }
  if (!loss.next_token.empty()) {
    return Status(StatusCode::kUsage,
                  fmt::format("--labels: this plan's labels are the next tokens of input '{0}'\n"
                              "  hint: --data '{0}=FILE'",
                              loss.next_token));
  }
  files.paths.emplace_back(graph.tensor(graph.inputs.back()).name, options.labels);
  return files;
}

Result<std::unique_ptr<DataSource>> open_validation(const Graph& graph, const RunOptions& options,
                                                    const DataSource& training,
                                                    std::uint64_t seed) {
  DataFiles files;
  files.seed = seed;
  AGPCS_RETURN_IF_ERROR(add_scales(graph, options.scale, files));
  for (const std::string& text : options.validate) files.paths.push_back(split(text));
  AGPCS_TRY(auto data, open_data_files(graph, std::move(files)));
  for (const TensorId id : graph.inputs) {
    const Tensor& input = graph.tensor(id);
    const bool needed = training.rows() > 0 ? training.feeds(id) : depends_on_batch(input.shape);
    if (!needed || data->feeds(id)) continue;
    return Status(StatusCode::kUsage,
                  fmt::format("--validate: no file feeds input '{0}'\n"
                              "  hint: --validate {0}=FILE, or a .npz file with an array '{0}'",
                              input.name));
  }
  return data;
}

}  // namespace agpcs
