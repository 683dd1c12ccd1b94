// SPDX-License-Identifier: Apache-2.0
#include "planner/learn/dqn_plugin.h"

#include <agpcs/version.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace agpcs {
namespace {

constexpr char kLibrary[] = "libagpcs_dqn.so";

std::vector<std::filesystem::path> folders() {
  std::vector<std::filesystem::path> result;
  const char* const given = std::getenv("AGPCS_PLUGIN_PATH");
  std::string_view rest = given == nullptr ? "" : given;
  while (!rest.empty()) {
    const std::string_view folder = rest.substr(0, rest.find(':'));
    if (!folder.empty()) result.emplace_back(folder);
    rest = rest.substr(std::min(rest.size(), folder.size() + 1));
  }
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    result.push_back(program.parent_path());
    result.push_back(program.parent_path().parent_path() / "lib" / "agpcs");
  }
  return result;
}

Status unavailable(std::string message) { return {StatusCode::kUnavailable, std::move(message)}; }

Result<std::filesystem::path> find_library() {
  std::string looked;
  for (const std::filesystem::path& folder : folders()) {
    std::error_code ignored;
    if (std::filesystem::exists(folder / kLibrary, ignored)) return folder / kLibrary;
    looked += (looked.empty() ? "" : ", ") + folder.string();
  }
  return unavailable(fmt::format(
      "training needs {}, which is not in: {}\n"
      "  hint: build AGPCS with LibTorch (cmake -D AGPCS_WITH_TORCH=ON), or name its folder in "
      "AGPCS_PLUGIN_PATH",
      kLibrary, looked));
}

/// Loads the plugin and calls its function `name` of type `Factory`.
template <typename Trainer, typename Factory, typename Options, typename Policy>
Result<std::unique_ptr<Trainer>> make_in_plugin(const char* name, const Options& options,
                                                const Policy* start, std::uint64_t seed) {
  AGPCS_TRY(const std::filesystem::path path, find_library());
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    return unavailable(
        fmt::format("{} cannot be loaded: {}\n  hint: it needs LibTorch, as AGPCS "
                    "was built with it",
                    path.string(), dlerror()));
  }
  const auto make = reinterpret_cast<Factory>(dlsym(library, name));
  if (make == nullptr) {
    return unavailable(fmt::format("{} is no plugin of AGPCS: {}", path.string(), dlerror()));
  }
  std::unique_ptr<Trainer> trainer(make(dqn_plugin_abi().c_str(), &options, start, seed));
  if (trainer == nullptr) {
    return unavailable(
        fmt::format("{} is of another build than this program, which is version {}\n"
                    "  hint: install both from one build",
                    path.string(), version()));
  }
  return trainer;
}

}  // namespace

std::string dqn_plugin_abi() {
  return fmt::format("{} {} {} {} {} {} {} {}", version(), kFeatureCount, sizeof(DqnOptions),
                     sizeof(QNetwork), static_cast<int>(kTreeFeatureCount),
                     static_cast<int>(kWorkloadFeatureCount), sizeof(FlowTrainingOptions),
                     sizeof(FlowPolicy));
}

Result<std::unique_ptr<DqnTrainer>> load_dqn_trainer(const DqnOptions& options,
                                                     const QNetwork* start, std::uint64_t seed) {
  return make_in_plugin<DqnTrainer, DqnPluginFactory>(kDqnPluginFactory, options, start, seed);
}

Result<std::unique_ptr<FlowTrainer>> load_flow_trainer(const FlowTrainingOptions& options,
                                                       const FlowPolicy* start,
                                                       std::uint64_t seed) {
  return make_in_plugin<FlowTrainer, FlowPluginFactory>(kFlowPluginFactory, options, start, seed);
}

}  // namespace agpcs
