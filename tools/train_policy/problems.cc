// SPDX-License-Identifier: Apache-2.0
#include "tools/train_policy/problems.h"

#include "ir/base/check.h"
#include "ir/base/read_file.h"
#include "planner/learn/problems/problem_generator.h"
#include "planner/plan_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

namespace agpcs {
namespace {

constexpr int kModelEvery = 4;  // one problem out of this many is a user's model
constexpr std::size_t kStarts = 6;

struct ReadModel {
  Graph graph;
  Loss loss;
};

/// Returns the files, and the files in the folders by name.
Result<std::vector<std::string>> model_files(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
      const std::string kind = entry.path().extension().string();
      if (kind != ".onnx" && kind != ".onnxtxt") continue;
      inside.push_back(entry.path().string());
      AGPCS_RETURN_IF_ERROR(InputFile::open(inside.back(), "model").status());
    }
    if (error) return invalid_input(fmt::format("{}: error: {}", path, error.message()));
    if (inside.empty()) {
      return invalid_input(fmt::format("{}: error: no model (.onnx, .onnxtxt) lies there", path));
    }
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

Result<std::vector<ReadModel>> read_models(const std::vector<std::string>& paths,
                                           Progress& progress) {
  AGPCS_TRY(const std::vector<std::string> files, model_files(paths));
  std::vector<ReadModel> models;
  for (const std::string& file : files) {
    progress.step(fmt::format("model {}", file));
    ReadModel model;
    AGPCS_TRY(TrainingModel read, read_training_model(file, {}, model.loss));
    model.graph = std::move(read.graph);
    models.push_back(std::move(model));
  }
  return models;
}

GeneratedProblem draw(const TrainPolicyOptions& options, const std::vector<ReadModel>& models,
                      int index) {
  if (!models.empty() && index % kModelEvery == kModelEvery - 1) {
    const ReadModel& model = models[static_cast<std::size_t>(index / kModelEvery) % models.size()];
    return generate_problem(model.graph, model.loss, options.seed, index);
  }
  switch (options.problem_set) {
    case ProblemSet::kUsual:
      return generate_problem(options.seed, index);
    case ProblemSet::kTight:
      return generate_tight_problem(options.seed, index);
    case ProblemSet::kBoth:
      return index % 2 == 0 ? generate_problem(options.seed, index)
                            : generate_tight_problem(options.seed, index / 2);
  }
  AGPCS_CHECK(false, "problem set {}", static_cast<int>(options.problem_set));
}

}  // namespace

std::unique_ptr<StrategySearch> PolicyProblem::search(int threads) const {
  std::vector<Strategy> all = starts;
  all.insert(all.end(), found.begin(), found.end());
  return make_strategy_search(*problem, std::move(all), threads);
}

Result<std::vector<PolicyProblem>> draw_problems(const TrainPolicyOptions& options,
                                                 const std::atomic<bool>& interrupted,
                                                 Progress& progress) {
  AGPCS_TRY(const std::vector<ReadModel> models, read_models(options.models, progress));
  std::vector<PolicyProblem> result;
  const int count = options.problems + options.validation_problems;
  for (int index = 0; index < count && !interrupted; ++index) {
    GeneratedProblem drawn = draw(options, models, index);
    progress.step(fmt::format("problem {}/{}: {}", index + 1, count, drawn.name));
    PolicyProblem made;
    made.name = std::move(drawn.name);
    AGPCS_TRY(made.problem, Problem::make(std::move(drawn.graph), std::move(drawn.cluster),
                                          std::move(drawn.training)));
    AGPCS_TRY(made.starts, seed_strategies(*made.problem, options.seed, kStarts));
    result.push_back(std::move(made));
  }
  return result;
}

}  // namespace agpcs
